// SPDX-License-Identifier: GPL-2.0
/*
 * What happens on each CPU: it comes and goes, and while there are sessions a timer follows them there and hands the host
 * what it asks for.
 *
 * The timer is a hard interrupt on every kernel, also a preemptible-RT one: no task's priority keeps it from coming. All that
 * is done in it takes no lock and does not wait, and the hotplug callbacks below wait for nothing but it. What may sleep is
 * in strata_control.c, which they do not wait for: it takes the locks that changing tracepoints takes, and so the hotplug
 * lock, which they run under.
 */

#include "strata_unit.h"

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/irqflags.h>
#include <linux/kernel.h>
#include <linux/ktime.h>
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

/* How long the host waits for what it has asked a CPU for, and how soon a CPU looks again that was making a record. */
#define STRATA_TIMER_PERIOD (NSEC_PER_SEC / 10)
#define STRATA_TIMER_AGAIN NSEC_PER_MSEC
/* Times that it looks so soon. */
#define STRATA_TIMER_TRIES 8

/* Changed by its CPU only, with interrupts disabled. */
struct strata_timer {
	struct hrtimer timer;
	/* Whether the CPU may record. */
	bool joined;
	/* Whether the timer will come; read by strata_control.c. */
	bool armed;
	u8 tries;
	/* Times that the CPU came and went: odd while it is there. Changed by hotplug callbacks only. */
	unsigned int turn;
};

static DEFINE_PER_CPU(struct strata_timer, strata_timers);
static int strata_hotplug_state;

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

bool strata_has_session(void)
{
	const void *slot = strata_region.base + STRATA_SESSION_TABLE_OFFSET;
	unsigned int index;

	for (index = 0; index < STRATA_SESSION_SLOTS; index++, slot += STRATA_SESSION_SLOT_SIZE)
		if (READ_ONCE(*(const u64 *)(slot + STRATA_SESSION_GENERATION)))
			return true;
	return false;
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

/* On the timer's CPU, in a hard interrupt. */
static enum hrtimer_restart strata_timer(struct hrtimer *hrtimer)
{
	struct strata_timer *timer = container_of(hrtimer, struct strata_timer, timer);
	struct strata_cpu *cpu = &strata_cpus[smp_processor_id()];
	u64 period = STRATA_TIMER_PERIOD;

	/* A task that died while it made a record has left its context. */
	if (strata_is_between_records())
		WRITE_ONCE(cpu->context, 0);
	if (!READ_ONCE(cpu->context)) {
		strata_cpu_follow(cpu, strata_region.base, strata_region.size);
		timer->tries = 0;
	} else if (timer->tries < STRATA_TIMER_TRIES) {
		timer->tries++;
		period = STRATA_TIMER_AGAIN;
	} else {
		timer->tries = 0;
	}
	strata_cpu_flush(cpu);
	if (!READ_ONCE(cpu->sessions) && !strata_has_session()) {
		WRITE_ONCE(timer->armed, false);
		return HRTIMER_NORESTART;
	}
	hrtimer_forward_now(hrtimer, ns_to_ktime(period));
	return HRTIMER_RESTART;
}

/* On the CPU, with interrupts disabled. */
static void strata_arm_here(void *unused)
{
	struct strata_timer *timer = this_cpu_ptr(&strata_timers);

	if (!timer->joined || timer->armed)
		return;
	WRITE_ONCE(timer->armed, true);
	/* At once: there is a session to follow. */
	hrtimer_start(&timer->timer, 0, HRTIMER_MODE_REL_PINNED_HARD);
}

static bool strata_is_unarmed(int cpu, void *unused)
{
	struct strata_timer *timer = per_cpu_ptr(&strata_timers, cpu);

	return READ_ONCE(timer->joined) && !READ_ONCE(timer->armed);
}

void strata_cpus_arm(void)
{
	on_each_cpu_cond(strata_is_unarmed, strata_arm_here, NULL, true);
}

unsigned int strata_cpu_turn(unsigned int cpu)
{
	return READ_ONCE(per_cpu_ptr(&strata_timers, cpu)->turn);
}

static void strata_count_turn(unsigned int cpu)
{
	struct strata_timer *timer = per_cpu_ptr(&strata_timers, cpu);

	WRITE_ONCE(timer->turn, timer->turn + 1);
}

/* Runs on each CPU when the module is loaded, and on those that come online later. */
static int strata_cpu_online(unsigned int cpu)
{
	struct strata_timer *timer = this_cpu_ptr(&strata_timers);
	u32 vcpu = strata_apic_id();
	int error;

	strata_count_turn(cpu);
	/* Preemption is enabled in this task, so no record of the CPU is unfinished. */
	WRITE_ONCE(strata_cpus[cpu].context, 0);
	error = strata_cpu_init(&strata_cpus[cpu], strata_region.base, strata_region.size, vcpu);
	if (error) {
		pr_warn("CPU %u (vCPU %u) records nothing: %s\n", cpu, vcpu,
			error == -ERANGE ? "the region has no ring for it" : "the host does not drive its trace clock");
		return 0;
	}
	if (cpu < STRATA_MAX_VCPUS)
		strata_device_cpu(cpu, vcpu);
	local_irq_disable();
	WRITE_ONCE(timer->joined, true);
	if (strata_has_session())
		strata_arm_here(NULL);
	local_irq_enable();
	return 0;
}

/*
 * Makes the CPU's last record: what it does from here on is not known. What interrupts this finds no session, so that no
 * record follows. On the CPU, whose timer does not come any more.
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
		strata_commit(&slot);
	}
	preempt_enable_notrace();
}

/* Runs on each CPU before it goes offline, and when the module is unloaded. */
static int strata_cpu_offline(unsigned int cpu)
{
	struct strata_timer *timer = this_cpu_ptr(&strata_timers);

	strata_count_turn(cpu);
	/* A store that this CPU's interrupts see: none of them arms the timer any more. */
	WRITE_ONCE(timer->joined, false);
	hrtimer_cancel(&timer->timer);
	WRITE_ONCE(timer->armed, false);
	/* The scheduler has left a CPU that goes offline already. */
	strata_record_stop(&strata_cpus[cpu], !cpu_active(cpu));
	strata_cpu_release(&strata_cpus[cpu]);
	return 0;
}

int strata_cpus_start(void)
{
	struct hrtimer *timer;
	int cpu;

	for_each_possible_cpu(cpu) {
		timer = &per_cpu_ptr(&strata_timers, cpu)->timer;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
		hrtimer_setup(timer, strata_timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
#else
		hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
		timer->function = strata_timer;
#endif
	}
	strata_hotplug_state = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "strata:online", strata_cpu_online, strata_cpu_offline);
	return min(strata_hotplug_state, 0);
}

void strata_cpus_stop(void)
{
	cpuhp_remove_state(strata_hotplug_state);
}
