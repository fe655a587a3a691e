/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of the shim share, and the entry points of the Rust half (src/kernel.rs). */
#ifndef STRATA_H
#define STRATA_H

#include <linux/cache.h>
#include <linux/compiler.h>
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
	u64 opaque[11];
};

int strata_attach(void *base, u64 size, const char *release);
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
void strata_probes_unregister(void);
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

/* Whether the session wants the event. */
static __always_inline bool strata_session_wants(u32 session, u16 id, u8 class)
{
	const void *slot = strata_region.base + STRATA_SESSION_TABLE_OFFSET + session * STRATA_SESSION_SLOT_SIZE;
	const u64 *events = slot + STRATA_SESSION_EVENT_ENABLE;

	if (!(READ_ONCE(*(const u64 *)(slot + STRATA_SESSION_CLASS_MASK)) >> class & 1))
		return false;
	return READ_ONCE(events[id / 64]) >> (id % 64) & 1;
}

#endif
