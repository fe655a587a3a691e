/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of the shim share, and the entry points of the Rust half (src/kernel.rs). */
#ifndef STRATA_H
#define STRATA_H

#include <linux/cache.h>
#include <linux/compiler.h>
#include <linux/mutex.h>
#include <linux/smp.h>
#include <linux/preempt.h>
#include <linux/types.h>

#include "strata_abi.h"

#undef pr_fmt
#define pr_fmt(fmt) "strata: " fmt

#define STRATA_MAX_VCPUS 256
#define STRATA_NO_VCPU U16_MAX
/* Records that are made in one go where there are many, and how long the host is left to drain them, µs. */
#define STRATA_PIECE 128
#define STRATA_PIECE_PAUSE 500
/* Tells the task's context from none: the preemption count does not. */
#define STRATA_CONTEXT 1

struct strata_cpu {
	/* The session slots that the CPU has rings of, a bit each. The Rust half writes it. */
	u64 sessions;
	/*
	 * The innermost context (task, soft interrupt, interrupt, NMI) in which a record is being made, 0 when none is: what
	 * making it calls may be traced itself, and is not recorded then.
	 */
	u64 context;
	/* Owned by the Rust half. */
	u64 opaque[38];
} __aligned(64);

struct strata_slot {
	u64 opaque[6];
};

struct device;
struct strata_event;
struct tracepoint;

int strata_attach(void *base, u64 size, const char *release, u64 schedule_at,
		  const struct strata_event *events, u32 count);
void strata_detach(void *base, u64 size);
void strata_note_crash_kernel(const struct strata_cpu *cpu, void *base, u64 size);
int strata_cpu_init(struct strata_cpu *cpu, void *base, u64 size, u32 vcpu);
bool strata_cpu_is_wanted(const struct strata_cpu *cpu, void *base, u64 size);
void strata_cpu_repair(const struct strata_cpu *cpu, u32 abandoned);
void strata_cpu_follow(struct strata_cpu *cpu, void *base, u64 size);
void strata_cpu_flush(const struct strata_cpu *cpu);
void strata_cpu_release(const struct strata_cpu *cpu);
void *strata_reserve(const struct strata_cpu *cpu, u32 session, u16 id, u32 size, struct strata_slot *slot);
void strata_commit(const struct strata_slot *slot);
void strata_lose_nested(const struct strata_cpu *cpu, u32 session);
u64 strata_process_clear(void *base, u64 size, u32 slot, u64 from);
bool strata_process_publish(void *base, u64 size, u32 slot, u32 pid, const char *comm, const u16 *vcpu_of_cpu);
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
	/* The device that has it, with which it goes; NULL when there is none, or CPUID names it. Guarded by strata_region_lock. */
	struct device *device;
};

extern struct strata_region strata_region;
/* Held while a device's region is started or stopped. */
extern struct mutex strata_region_lock;
/* Why the last device with a region could not be used; -ENXIO when there was none. */
extern int strata_region_error;
/* Indexed by CPU number. */
extern struct strata_cpu *strata_cpus;
/* vCPU of each CPU number, STRATA_NO_VCPU where there is none. */
extern u16 strata_vcpu_of_cpu[STRATA_MAX_VCPUS];

/* Finds the region that the hypervisor names by CPUID: 0, -ENXIO when it names none, or why it cannot be used. */
int strata_region_find(void);
int strata_region_map(void);
void strata_region_unmap(void);
/* Records into strata_region, which has been found. Where it cannot, it has said why. */
int strata_start(void);
/* Lets go of the region. May sleep. */
void strata_stop(void);
/*
 * Records into the region of a device, of one that is there or comes later, until that is taken away. Where `must_be_there`,
 * fails when none is there with which it works: -ENXIO when there is none at all.
 */
int strata_region_register(bool must_be_there);
void strata_region_unregister(void);
/* Whether a region begins at the address, which is that of memory. */
bool strata_region_is_at(phys_addr_t address);
/*
 * Like strata_start() and strata_stop(), the former for the region that `device` has, the latter for any, paused or not. With
 * strata_region_lock held.
 */
int strata_region_start(struct device *device, phys_addr_t address, u64 size);
void strata_region_stop(void);
/*
 * Lets go of the region, if there is one, while its memory may go away or become another one's; and records into it again, as
 * often paused as resumed. May sleep.
 */
void strata_region_pause(void);
void strata_region_resume(void);
/* Pauses while the machine hibernates, and before another kernel takes it over. */
int strata_power_register(void);
void strata_power_unregister(void);
/* Tells the hypervisor of panics from here on, while there is a region. May sleep. */
void strata_panic_start(void);
void strata_panic_stop(void);
/* The two kinds of devices, looked through in this order. */
int strata_ivshmem_register(void);
void strata_ivshmem_unregister(void);
void strata_pmem_register(void);
void strata_pmem_unregister(void);
/* Lets the CPUs record, those that come online later too. */
int strata_cpus_start(void);
void strata_cpus_stop(void);
/* Another kernel follows this one: what CPUs record of their end from here on says so. */
void strata_cpus_expect_kernel(void);
/* Interrupts the CPUs that have to do something for the host. Any context but an NMI. */
void strata_cpus_visit(void);
/* How often the CPU came and went: odd while it is there. Any context. */
unsigned int strata_cpu_turn(unsigned int cpu);
/* The host's doorbell, and the thread and the work that call the _follow() functions. */
int strata_control_start(void);
void strata_control_stop(void);
int strata_probes_register(void);
/* Attaches the probes that a session wants by now, and detaches those that none wants. May sleep. */
void strata_probes_follow(void);
void strata_probes_unregister(void);
/* A probe that comes after the one which records the event: it records what the event itself does not say. */
struct strata_second_probe {
	/* Of a tracepoint of the kernel itself. */
	const char *name;
	void *probe;
	/* NULL where the kernel has no such tracepoint. */
	struct tracepoint *tracepoint;
	bool attached;
};
void strata_second_probe_find(struct strata_second_probe *second);
/* Attaches or detaches it. May sleep. */
void strata_second_probe_follow(struct strata_second_probe *second, bool wanted);
int strata_sample_init(void);
/*
 * Samples the CPUs, or does not, as sessions want it, and records the names of what was sampled. Whether there will be more
 * such names. May sleep.
 */
bool strata_sample_follow(void);
void strata_sample_exit(void);
void strata_tasks_init(void);
/* Records which tasks and cgroups there are, for sessions that began and want to know. May sleep. */
void strata_tasks_follow(void);
void strata_tasks_exit(void);
int strata_device_init(void);
void strata_device_exit(void);
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

/*
 * Whether a part lies inside the region. The region's own memory says where its parts are, and whoever writes that may say
 * something else at any time.
 */
static inline bool strata_region_has(u64 offset, u64 size)
{
	return size <= strata_region.size && offset <= strata_region.size - size;
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

/* Without the canary a probe tests the mask before it sets up a stack frame, and has less to do after it. */
#if __has_attribute(__no_stack_protector__)
#define strata_no_stack_protector __attribute__((__no_stack_protector__))
#else
#define strata_no_stack_protector
#endif

/* Lets go of the CPU if its scheduler wants it by now. */
void strata_preempt_check(void);

/*
 * preempt_enable_notrace(), with its call of the scheduler in one place for all probes: the kernel patches every place of
 * such a (static) call when the module is loaded, each time with three interrupts of every other CPU.
 */
static __always_inline void strata_preempt_enable(void)
{
#ifdef CONFIG_PREEMPTION
	barrier();
	if (unlikely(__preempt_count_dec_and_test()))
		strata_preempt_check();
#else
	preempt_enable_notrace();
#endif
}

/* Which session the slot has, 0 for none. */
static inline u64 strata_session_generation(u32 session)
{
	const void *slot = strata_region.base + STRATA_SESSION_TABLE_OFFSET + session * STRATA_SESSION_SLOT_SIZE;

	return READ_ONCE(*(const u64 *)(slot + STRATA_SESSION_GENERATION));
}

/* Whether the session in a slot wants event `id`. */
static __always_inline bool strata_session_wants(u32 session, unsigned long id)
{
	const u64 *events = strata_region.base + STRATA_SESSION_TABLE_OFFSET + STRATA_SESSION_EVENT_ENABLE +
			    session * STRATA_SESSION_SLOT_SIZE;

	return READ_ONCE(events[id / 64]) >> (id % 64) & 1;
}

/* Whether any session wants event `id`. */
static inline bool strata_wanted(unsigned long id)
{
	u32 session;

	for (session = 0; session < STRATA_SESSION_SLOTS; session++)
		if (strata_session_wants(session, id))
			return true;
	return false;
}

/*
 * Counts a record of event `id` that is not made in any of `sessions` that wants it: what making another one calls is traced
 * itself.
 */
void strata_nested(const struct strata_cpu *cpu, u64 sessions, unsigned long id);

/*
 * Enters the CPU's context; false when a record is being made in it already. `outer` is for strata_leave(). Contexts nest:
 * the one that a record was made in last is this one, or one that this one has interrupted. Preemption is disabled.
 */
static __always_inline bool strata_enter(struct strata_cpu *cpu, u64 *outer)
{
	u64 context = (preempt_count() & (NMI_MASK | HARDIRQ_MASK | SOFTIRQ_OFFSET)) | STRATA_CONTEXT;

	*outer = READ_ONCE(cpu->context);
	if (unlikely(*outer == context))
		return false;
	WRITE_ONCE(cpu->context, context);
	barrier();
	return true;
}

static __always_inline void strata_leave(struct strata_cpu *cpu, u64 outer)
{
	barrier();
	WRITE_ONCE(cpu->context, outer);
}

#endif
