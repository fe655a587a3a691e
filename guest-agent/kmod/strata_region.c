// SPDX-License-Identifier: GPL-2.0
/* Finding the trace region that the hypervisor offers, and mapping it. */

#include <linux/cpufeature.h>
#include <linux/io.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/version.h>
#include <asm/cpufeature.h>
#include <asm/pgtable.h>
#include <asm/processor.h>
/* Where newer kernels keep cpuid(). */
#if __has_include(<asm/cpuid/api.h>)
#include <asm/cpuid/api.h>
#endif

#include "strata.h"

struct strata_region strata_region;
DEFINE_MUTEX(strata_region_lock);
int strata_region_error = -ENXIO;
/* Who has paused the region, and whether it was recorded into before. Under strata_region_lock. */
static unsigned int strata_region_pauses;
static bool strata_region_resumes;

/* The leaf whose signature is ours, among those that hypervisors use; 0 when there is none. */
static u32 strata_find_leaf(void)
{
	u32 leaf, eax, ebx, ecx, edx;

	if (!boot_cpu_has(X86_FEATURE_HYPERVISOR))
		return 0;
	for (leaf = 0x40000000; leaf < 0x40010000; leaf += 0x100) {
		cpuid(leaf, &eax, &ebx, &ecx, &edx);
		if (ebx == STRATA_CPUID_SIGNATURE_0 && ecx == STRATA_CPUID_SIGNATURE_1 &&
		    edx == STRATA_CPUID_SIGNATURE_2 && eax >= leaf + 1)
			return leaf;
	}
	return 0;
}

/*
 * memremap() may silently give an uncached mapping (memory type ranges, a BAR in the wrong place), on which recording
 * still works but crawls: look at the page table entry itself.
 */
static bool strata_is_write_back(void)
{
	unsigned int level;
	pte_t *pte = lookup_address((unsigned long)strata_region.base, &level);
	pteval_t uncached = _PAGE_PCD | _PAGE_PWT | (level == PG_LEVEL_4K ? _PAGE_PAT : _PAGE_PAT_LARGE);

	return pte && !(pte_val(*pte) & uncached);
}

int strata_region_find(void)
{
	u32 leaf = strata_find_leaf();
	u32 version, low, high, pages;

	if (!leaf)
		return -ENXIO;
	cpuid(leaf + 1, &version, &low, &high, &pages);
	strata_region.address = (u64)high << 32 | low;
	strata_region.size = (u64)pages * STRATA_PAGE_SIZE;
	if (version >> 16 != STRATA_ABI_VERSION >> 16) {
		pr_err("the host's trace region has version %u.%u, this module is for %u.x: use the module that belongs to the host's strata\n",
		       version >> 16, version & 0xffff, STRATA_ABI_VERSION >> 16);
		return -EPROTONOSUPPORT;
	}
	if (!pages || !PAGE_ALIGNED(strata_region.address)) {
		pr_err("the hypervisor names an impossible trace region: %u pages at %pa\n", pages,
		       &strata_region.address);
		return -EINVAL;
	}
	return 0;
}

int strata_region_map(void)
{
	strata_region.base = memremap(strata_region.address, strata_region.size, MEMREMAP_WB);
	if (!strata_region.base) {
		pr_err("cannot map the trace region at %pa\n", &strata_region.address);
		return -ENOMEM;
	}
	if (strata_is_write_back())
		pr_info("trace region: %llu pages at %pa, mapped write-back\n", strata_region.size / STRATA_PAGE_SIZE,
			&strata_region.address);
	else
		pr_warn("trace region: %llu pages at %pa, mapped UNCACHED: recording will be slow\n",
			strata_region.size / STRATA_PAGE_SIZE, &strata_region.address);
	return 0;
}

void strata_region_unmap(void)
{
	memunmap(strata_region.base);
	strata_region.base = NULL;
}

bool strata_region_is_at(phys_addr_t address)
{
	u64 *magic = memremap(address, STRATA_PAGE_SIZE, MEMREMAP_WB);
	bool is_region = magic && READ_ONCE(*magic) == STRATA_MAGIC;

	if (magic)
		memunmap(magic);
	return is_region;
}

int strata_region_start(struct device *device, phys_addr_t address, u64 size)
{
	lockdep_assert_held(&strata_region_lock);
	strata_region.address = address;
	strata_region.size = size;
	strata_region.device = device;
	/* While the machine goes to sleep, say, it waits for what resumes the others. */
	strata_region_resumes = strata_region_pauses;
	strata_region_error = strata_region_pauses ? 0 : strata_start();
	if (strata_region_error)
		strata_region.device = NULL;
	return strata_region_error;
}

void strata_region_stop(void)
{
	lockdep_assert_held(&strata_region_lock);
	/* It is mapped while CPUs may record into it. */
	if (strata_region.base)
		strata_stop();
	strata_region_resumes = false;
	strata_region.device = NULL;
	/* A device that goes while the module is loaded is as good as none. */
	strata_region_error = -ENXIO;
}

void strata_region_pause(void)
{
	mutex_lock(&strata_region_lock);
	if (!strata_region_pauses++) {
		strata_region_resumes = strata_region.base;
		if (strata_region.base)
			strata_stop();
	}
	mutex_unlock(&strata_region_lock);
}

void strata_region_resume(void)
{
	int error = 0;

	mutex_lock(&strata_region_lock);
	/* Who resumes may have been there too late to pause. */
	if (strata_region_pauses && !--strata_region_pauses && strata_region_resumes) {
		/* It may be another one after a hibernation. */
		if (!strata_region.device)
			error = strata_region_find();
		if (!error)
			error = strata_start();
		if (error)
			pr_err("cannot record any more (error %d): load the module again\n", error);
	}
	mutex_unlock(&strata_region_lock);
}

int strata_region_register(bool must_be_there)
{
	int error = strata_ivshmem_register();

	if (error)
		return error;
	strata_pmem_register();
	if (strata_region.device)
		return 0;
	if (!must_be_there) {
		pr_info("no trace region yet; waiting for a device that has one\n");
		return 0;
	}
	strata_region_unregister();
	return strata_region_error;
}

void strata_region_unregister(void)
{
	strata_pmem_unregister();
	strata_ivshmem_unregister();
}
