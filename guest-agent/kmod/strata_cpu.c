// SPDX-License-Identifier: GPL-2.0
/*
 * What happens on each CPU: it comes and goes, and is visited when the host wants something of it.
 *
 * A visit is a hard interrupt on every kernel, also a preemptible-RT one: no task's priority keeps it from coming. All that
 * is done in it takes no lock and does not wait, and the hotplug callbacks below wait for nothing but it. What may sleep is
 * in strata_control.c, which they do not wait for: it takes the locks that changing tracepoints takes, and so the hotplug
 * lock, which they run under.
 *
 * Nothing here comes by itself: a CPU that has nothing to do for the host is left alone, busy or idle.
 */

#include "strata_unit.h"

#include <linux/atomic.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/irqflags.h>
#include <linux/kdebug.h>
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/notifier.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/version.h>
#include <asm/irq_regs.h>
#include <asm/processor.h>
/* Where newer kernels keep cpuid(). */
#if __has_include(<asm/cpuid/api.h>)
#include <asm/cpuid/api.h>
#endif

#define STRATA_UNIT_CLASS STRATA_CLASS_OTHER
#define STRATA_UNIT_HEADER "strata_cpu_events.h"
#define CREATE_TRACE_POINTS
#include "strata_cpu_events.h"

/* How soon a CPU is visited again that was making a record, at first and later. */
#define STRATA_VISIT_AGAIN NSEC_PER_MSEC
#define STRATA_VISIT_LATER (NSEC_PER_SEC / 10)
/* Times that it is visited again so soon. */
#define STRATA_VISIT_TRIES 8

struct strata_visit {
	/* From another CPU. */
	call_single_data_t call;
	/* 1 from when `call` is made until it comes. */
	atomic_t called;
	/* Once more, on the same CPU; the rest is changed by that CPU only, with interrupts disabled. */
	struct hrtimer again;
	/* Brings a visit after a task has died. */
	struct irq_work died;
	/* Records whose tasks have died since the CPU's rings were repaired. */
	u32 abandoned;
	/* Whether the CPU may record. */
	bool joined;
	u8 tries;
	/* Times that the CPU came and went: odd while it is there. Changed by hotplug callbacks only. */
	unsigned int turn;
};

static DEFINE_PER_CPU(struct strata_visit, strata_visits);
static int strata_hotplug_state;
static bool strata_kernel_follows;

/* The hypervisor gives vCPU n the APIC id n. Read here rather than taken from the CPU's number, which the kernel gives. */
static u32 strata_apic_id(void)
{
	u32 eax, ebx, ecx, edx;

	if (cpuid_eax(0) >= 0xb) {
		cpuid_count(0xb, 0, &eax, &ebx, &ecx, &edx);
		if (ebx)
			return edx;
	}
	return cpuid_ebx(1) >> 24;
}

/*
 * Whether no record of the CPU can be unfinished, whatever its context says: this hard interrupt came into a task that could
 * be preempted, and records are made with preemption disabled. The idle task has it disabled once, always.
 */
static bool strata_is_between_records(void)
{
#ifdef CONFIG_PREEMPT_COUNT
	return preempt_count() == HARDIRQ_OFFSET + (is_idle_task(current) ? PREEMPT_OFFSET : 0);
#else
	struct pt_regs *regs = get_irq_regs();

	return regs && user_mode(regs);
#endif
}

/*
 * Does what the host wants of this CPU; false when a record is being made, and sessions could not be followed, or rings not
 * be repaired. In a hard interrupt, or with interrupts disabled.
 */
static bool strata_visit_here(struct strata_visit *visit)
{
	struct strata_cpu *cpu = &strata_cpus[smp_processor_id()];
	bool is_between;

	if (!visit->joined)
		return true;
	/* A task that died while it made a record has left its context, and bytes in rings that it never commits. */
	if (strata_is_between_records()) {
		visit->abandoned += READ_ONCE(cpu->context) != 0;
		WRITE_ONCE(cpu->context, 0);
		strata_cpu_repair(cpu, visit->abandoned);
		visit->abandoned = 0;
	}
	is_between = !READ_ONCE(cpu->context);
	if (is_between)
		strata_cpu_follow(cpu, strata_region.base, strata_region.size);
	strata_cpu_flush(cpu);
	return is_between && !visit->abandoned;
}

static u64 strata_visit_pause(struct strata_visit *visit)
{
	if (visit->tries == STRATA_VISIT_TRIES)
		return STRATA_VISIT_LATER;
	visit->tries++;
	return STRATA_VISIT_AGAIN;
}

static enum hrtimer_restart strata_visit_again(struct hrtimer *timer)
{
	struct strata_visit *visit = container_of(timer, struct strata_visit, again);

	if (strata_visit_here(visit))
		return HRTIMER_NORESTART;
	hrtimer_forward_now(timer, ns_to_ktime(strata_visit_pause(visit)));
	return HRTIMER_RESTART;
}

/* Visits this CPU, in a hard interrupt, until it is done. */
static void strata_visit_begin(struct strata_visit *visit)
{
	if (strata_visit_here(visit))
		return;
	visit->tries = 0;
	hrtimer_start(&visit->again, ns_to_ktime(strata_visit_pause(visit)), HRTIMER_MODE_REL_PINNED_HARD);
}

static void strata_visit(void *unused)
{
	struct strata_visit *visit = this_cpu_ptr(&strata_visits);

	/* A full barrier: what is wanted from here on is a visit of its own. */
	atomic_xchg(&visit->called, 0);
	strata_visit_begin(visit);
}

static void strata_visit_died(struct irq_work *work)
{
	strata_visit_begin(container_of(work, struct strata_visit, died));
}

void strata_cpus_visit(void)
{
	struct strata_visit *visit;
	unsigned int cpu;

	preempt_disable();
	for_each_online_cpu(cpu) {
		visit = per_cpu_ptr(&strata_visits, cpu);
		/* After what the caller has learnt: a CPU that joins later looks by itself. */
		smp_mb();
		if (!READ_ONCE(visit->joined) ||
		    !strata_cpu_is_wanted(&strata_cpus[cpu], strata_region.base, strata_region.size))
			continue;
		if (!atomic_xchg(&visit->called, 1) && smp_call_function_single_async(cpu, &visit->call))
			atomic_set(&visit->called, 0);
	}
	preempt_enable();
}

unsigned int strata_cpu_turn(unsigned int cpu)
{
	return READ_ONCE(per_cpu_ptr(&strata_visits, cpu)->turn);
}

static void strata_visit_init(struct strata_visit *visit)
{
#ifdef INIT_CSD
	INIT_CSD(&visit->call, strata_visit, NULL);
#else
	visit->call.func = strata_visit;
#endif
#ifdef IRQ_WORK_INIT_HARD
	visit->died = IRQ_WORK_INIT_HARD(strata_visit_died);
#else
	init_irq_work(&visit->died, strata_visit_died);
	atomic_or(IRQ_WORK_HARD_IRQ, &visit->died.flags);
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&visit->again, strata_visit_again, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
#else
	hrtimer_init(&visit->again, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	visit->again.function = strata_visit_again;
#endif
}

static void strata_count_turn(unsigned int cpu)
{
	struct strata_visit *visit = per_cpu_ptr(&strata_visits, cpu);

	WRITE_ONCE(visit->turn, visit->turn + 1);
}

/* Runs on each CPU when the module is loaded, and on those that come online later. */
static int strata_cpu_online(unsigned int cpu)
{
	struct strata_visit *visit = this_cpu_ptr(&strata_visits);
	u32 vcpu = strata_apic_id();
	int error;

	strata_count_turn(cpu);
	/* Preemption is enabled in this task, so no record of the CPU is unfinished. */
	WRITE_ONCE(strata_cpus[cpu].context, 0);
	error = strata_cpu_init(&strata_cpus[cpu], strata_region.base, strata_region.size, vcpu);
	if (error) {
		pr_warn("CPU %u (vCPU %u) records nothing: %s\n", cpu, vcpu,
			error == -ERANGE ? "the region has no ring for it" : "the region is damaged");
		return 0;
	}
	if (cpu < STRATA_MAX_VCPUS)
		strata_device_cpu(cpu, vcpu);
	local_irq_disable();
	WRITE_ONCE(visit->joined, true);
	/* Whoever has seen that it had not joined yet has left to this what the host wanted then. */
	smp_mb();
	strata_visit_here(visit);
	local_irq_enable();
	return 0;
}

/*
 * Makes the CPU's last record: what it does from here on is not known. What interrupts this finds no session, so that no
 * record follows. On the CPU, which is not visited any more.
 */
static void strata_record_stop(struct strata_cpu *cpu, bool goes_offline)
{
	unsigned long id = STRATA_FIRST_TRACEPOINT + (&strata_event_recording_stops - strata_events_begin);
	struct trace_event_raw_recording_stops *entry;
	struct strata_slot slot;
	u64 sessions;

	preempt_disable_notrace();
	sessions = READ_ONCE(cpu->sessions);
	WRITE_ONCE(cpu->sessions, 0);
	barrier();
	for (; sessions; sessions &= sessions - 1) {
		if (!strata_session_wants(__ffs(sessions), id))
			continue;
		entry = strata_reserve(cpu, __ffs(sessions), id, sizeof(*entry), &slot);
		if (!entry)
			continue;
		entry->offline = goes_offline;
		entry->another_kernel = strata_kernel_follows;
		strata_commit(&slot);
	}
	preempt_enable_notrace();
}

/* Runs on each CPU before it goes offline, and when the module is unloaded. */
static int strata_cpu_offline(unsigned int cpu)
{
	struct strata_visit *visit = this_cpu_ptr(&strata_visits);

	strata_count_turn(cpu);
	/* Visits that come from here on do nothing. */
	WRITE_ONCE(visit->joined, false);
	smp_mb();
	/* Interrupts are enabled: who has begun to call this CPU gets through. */
	while (atomic_read(&visit->called))
		cpu_relax();
	irq_work_sync(&visit->died);
	hrtimer_cancel(&visit->again);
	/* Who comes online next repairs the rings that it adopts. */
	visit->abandoned = 0;
	/* The scheduler has left a CPU that goes offline already. */
	strata_record_stop(&strata_cpus[cpu], !cpu_active(cpu));
	strata_cpu_release(&strata_cpus[cpu]);
	return 0;
}

/*
 * A task that dies while it makes a record leaves the CPU's context, in which nothing would be recorded any more, and a record
 * that is never finished. Its rings are repaired once it is certain that it does not go on, as a debugger may let it: in a
 * visit, which comes when interrupts are enabled again. An irq_work takes no lock that the task may hold.
 */
static int strata_on_die(struct notifier_block *block, unsigned long what, void *arguments)
{
	struct strata_visit *visit = per_cpu_ptr(&strata_visits, raw_smp_processor_id());
	struct strata_cpu *cpu = &strata_cpus[raw_smp_processor_id()];

	if (what == DIE_OOPS && READ_ONCE(cpu->context)) {
		WRITE_ONCE(cpu->context, 0);
		visit->abandoned++;
		irq_work_queue(&visit->died);
	}
	return NOTIFY_DONE;
}

static struct notifier_block strata_die_block = {
	.notifier_call = strata_on_die,
};

int strata_cpus_start(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		strata_visit_init(per_cpu_ptr(&strata_visits, cpu));
	strata_hotplug_state = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "strata:online", strata_cpu_online, strata_cpu_offline);
	if (strata_hotplug_state < 0)
		return strata_hotplug_state;
	register_die_notifier(&strata_die_block);
	return 0;
}

void strata_cpus_expect_kernel(void)
{
	strata_kernel_follows = true;
}

void strata_cpus_stop(void)
{
	unregister_die_notifier(&strata_die_block);
	cpuhp_remove_state(strata_hotplug_state);
}
