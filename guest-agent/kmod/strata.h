/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of the shim share, and the entry points of the Rust half (src/kernel.rs). */
#ifndef STRATA_H
#define STRATA_H

#include <linux/cache.h>
#include <linux/compiler.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/types.h>

#include "strata_abi.h"

#undef pr_fmt
#define pr_fmt(fmt) "strata: " fmt

#define STRATA_MAX_VCPUS 256
#define STRATA_NO_VCPU U16_MAX

/* Owned by the Rust half. */
struct strata_cpu {
	u64 opaque[32];
} __aligned(64);

struct strata_slot {
	u64 opaque[7];
};

struct strata_event;

int strata_attach(void *base, u64 size, const char *release, const struct strata_event *events, u32 count);
void strata_detach(void *base, u64 size);
int strata_cpu_init(struct strata_cpu *cpu, void *base, u64 size, u32 vcpu);
void strata_flush(const struct strata_cpu *cpu, void *base, u64 size);
void strata_cpu_release(const struct strata_cpu *cpu);
void *strata_reserve(const struct strata_cpu *cpu, u32 session, u16 id, u32 size, struct strata_slot *slot);
void strata_commit(const struct strata_slot *slot);
int strata_process_claim(void *base, u64 size, u32 pid, const char *comm, const u16 *vcpu_of_cpu);
void strata_process_close(void *base, u64 size, u32 slot);
bool strata_process_is_free(void *base, u64 size, u32 slot);
void strata_process_cpu(void *base, u64 size, u32 cpu, u16 vcpu);
void strata_process_refused(void *base, u64 size, bool over_quota);

/* Called by the Rust half's panic handler, which nothing calls: the build refuses objects in which anything does. */
void __noreturn strata_panic(void);

/* The mapped region. */
struct strata_region {
	void *base;
	phys_addr_t address;
	u64 size;
};

extern struct strata_region strata_region;
/* Indexed by CPU number. */
extern struct strata_cpu *strata_cpus;
/* vCPU of each CPU number, STRATA_NO_VCPU where there is none. */
extern u16 strata_vcpu_of_cpu[STRATA_MAX_VCPUS];

int strata_region_map(void);
void strata_region_unmap(void);
int strata_probes_register(void);
/* Attaches the probes that a session wants by now, and detaches those that none wants. In a task. */
void strata_probes_follow(void);
void strata_probes_unregister(void);
int strata_sample_init(void);
/* Samples the CPU, or does not, as sessions want it, and records the names of what was sampled. In a task on the CPU. */
void strata_sample_follow(unsigned int cpu);
void strata_sample_stop(unsigned int cpu);
void strata_sample_exit(void);
int strata_device_register(void);
void strata_device_unregister(void);
/* Tells processes that record which vCPU a CPU is that came online. */
void strata_device_cpu(unsigned int cpu, u16 vcpu);

/* A number of the superblock, at an offset of strata_abi.h. */
static inline u64 strata_superblock_u64(unsigned int offset)
{
	return READ_ONCE(*(const u64 *)(strata_region.base + offset));
}

static inline u32 strata_superblock_u32(unsigned int offset)
{
	return READ_ONCE(*(const u32 *)(strata_region.base + offset));
}

/* Whether any session wants events of the class: all that is read while the class is off. */
static __always_inline bool strata_wants_class(u8 class)
{
	const u64 *mask = strata_region.base + STRATA_SUPERBLOCK_ANY_CLASS_MASK;

	return unlikely(READ_ONCE(*mask) >> class & 1);
}

/* Kernels that clear local variables would clear a slot before it is filled. */
#if __has_attribute(__uninitialized__)
#define strata_uninitialized __attribute__((__uninitialized__))
#else
#define strata_uninitialized
#endif

/* Without the canary the compiler tests the mask before it sets up a stack frame. */
#if __has_attribute(__no_stack_protector__)
#define strata_no_stack_protector __attribute__((__no_stack_protector__))
#else
#define strata_no_stack_protector
#endif

/* The sessions that want event `id`, a bit each. */
static __always_inline u32 strata_wanted(unsigned long id)
{
	const void *words = strata_region.base + STRATA_SESSION_TABLE_OFFSET + STRATA_SESSION_EVENT_ENABLE + id / 64 * 8;
	u64 bit = 1ULL << (id % 64);
	u32 session, wanted = 0;

#pragma GCC unroll 4
	for (session = 0; session < STRATA_SESSION_SLOTS; session++) {
		const u64 *word = words + session * STRATA_SESSION_SLOT_SIZE;

		wanted |= (READ_ONCE(*word) & bit ? 1 : 0) << session;
	}
	return wanted;
}

/*
 * Contexts of the CPU (task, soft interrupt, interrupt, NMI) in which a record is being made: what making it calls may be
 * traced itself, and is not recorded then.
 */
extern u8 __percpu *strata_contexts;

/* Enters the CPU's context; false when a record is being made in it already. Preemption is disabled. */
static __always_inline bool strata_enter(u32 *level)
{
	u8 *contexts = raw_cpu_ptr(strata_contexts);
	u8 bit = 1 << interrupt_context_level();

	if (unlikely(READ_ONCE(*contexts) & bit))
		return false;
	/* Interrupts in between leave the byte as they found it. */
	WRITE_ONCE(*contexts, *contexts | bit);
	barrier();
	*level = bit;
	return true;
}

static __always_inline void strata_leave(u32 bit)
{
	u8 *contexts = raw_cpu_ptr(strata_contexts);

	barrier();
	WRITE_ONCE(*contexts, *contexts & ~bit);
}

#endif
