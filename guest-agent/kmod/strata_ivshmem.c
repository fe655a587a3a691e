// SPDX-License-Identifier: GPL-2.0
/*
 * The trace region behind QEMU's ivshmem-plain: a PCI device whose BAR 2 is a file that the host maps, too.
 *
 * The device stays without a driver: it may belong to somebody else, which only its memory tells, and nobody should be able to
 * unbind it while CPUs record into it. The module holds the device and the BAR instead, so that drivers which would use it
 * (uio_ivshmem) find the BAR taken, and a device that such a driver has is left to it.
 */

#include <linux/io.h>
#include <linux/kernel.h>
#include <linux/pci.h>

#include "strata.h"

#ifdef CONFIG_PCI

#define STRATA_IVSHMEM_VENDOR 0x1af4
#define STRATA_IVSHMEM_DEVICE 0x1110
/* Revision 0 (before QEMU 2.6) shows other memory until it is told otherwise. */
#define STRATA_IVSHMEM_REVISION 1
#define STRATA_IVSHMEM_BAR 2

/* Held, with its BAR; NULL when the region is not behind such a device. */
static struct pci_dev *strata_ivshmem;

static bool strata_is_region(phys_addr_t address)
{
	u64 *magic = memremap(address, STRATA_PAGE_SIZE, MEMREMAP_WB);
	bool is_region = magic && READ_ONCE(*magic) == STRATA_MAGIC;

	if (magic)
		memunmap(magic);
	return is_region;
}

/* Whether the device has a trace region, which is this module's until strata_ivshmem_release(). */
static bool strata_ivshmem_take(struct pci_dev *device)
{
	if (device->revision < STRATA_IVSHMEM_REVISION ||
	    !(pci_resource_flags(device, STRATA_IVSHMEM_BAR) & IORESOURCE_MEM) ||
	    pci_resource_len(device, STRATA_IVSHMEM_BAR) < STRATA_PAGE_SIZE)
		return false;
	if (pci_enable_device(device)) {
		pr_warn("cannot enable PCI device %s\n", pci_name(device));
		return false;
	}
	if (pci_request_region(device, STRATA_IVSHMEM_BAR, "strata")) {
		pr_warn("PCI device %s is another driver's: unbind it, if it has the trace region\n", pci_name(device));
		goto disable;
	}
	if (strata_is_region(pci_resource_start(device, STRATA_IVSHMEM_BAR)))
		return true;
	pci_release_region(device, STRATA_IVSHMEM_BAR);
disable:
	pci_disable_device(device);
	return false;
}

bool strata_ivshmem_find(void)
{
	struct pci_dev *device = NULL;

	/* Lets go of the last device, and holds the next one. */
	while ((device = pci_get_device(STRATA_IVSHMEM_VENDOR, STRATA_IVSHMEM_DEVICE, device))) {
		if (!strata_ivshmem_take(device))
			continue;
		strata_ivshmem = device;
		strata_region.address = pci_resource_start(device, STRATA_IVSHMEM_BAR);
		strata_region.size = pci_resource_len(device, STRATA_IVSHMEM_BAR);
		pr_info("trace region in PCI device %s\n", pci_name(device));
		return true;
	}
	return false;
}

void strata_ivshmem_release(void)
{
	if (!strata_ivshmem)
		return;
	pci_release_region(strata_ivshmem, STRATA_IVSHMEM_BAR);
	pci_disable_device(strata_ivshmem);
	pci_dev_put(strata_ivshmem);
	strata_ivshmem = NULL;
}

#else

bool strata_ivshmem_find(void)
{
	return false;
}

void strata_ivshmem_release(void)
{
}

#endif
