// SPDX-License-Identifier: GPL-2.0
/* Loading and unloading, and which vCPU each CPU is. */

#include <linux/bug.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/panic_notifier.h>
#include <linux/preempt.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/utsname.h>
#include <linux/workqueue.h>
#include <asm/io.h>
#include <asm/processor.h>
/* Where newer kernels keep cpuid(). */
#if __has_include(<asm/cpuid/api.h>)
#include <asm/cpuid/api.h>
#endif

#include "strata.h"
#include "strata_event.h"

/* How long the host waits at most for what it has asked a CPU for. */
#define STRATA_TIMER_PERIOD (HZ / 10)

/* A CPU's timer. */
struct strata_timer {
	struct delayed_work work;
	unsigned int cpu;
};

struct strata_cpu *strata_cpus;
/* Indexed by CPU number. */
static struct strata_timer *strata_timers;
u16 strata_vcpu_of_cpu[STRATA_MAX_VCPUS];

static int strata_hotplug_state;

void __noreturn strata_panic(void)
{
	panic("strata: a path that cannot be reached was reached");
}

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
 * Runs on its CPU ten times a second, in a task: no record of the CPU is unfinished then, since records are made with
 * preemption disabled, so that rings may be changed.
 */
static void strata_timer(struct work_struct *work)
{
	struct strata_timer *timer = container_of(to_delayed_work(work), struct strata_timer, work);

	preempt_disable();
	/* Work of a CPU that goes offline runs elsewhere. */
	if (smp_processor_id() == timer->cpu)
		strata_flush(&strata_cpus[timer->cpu], strata_region.base, strata_region.size);
	preempt_enable();
	strata_probes_follow();
	strata_sample_follow(timer->cpu);
	schedule_delayed_work_on(timer->cpu, &timer->work, STRATA_TIMER_PERIOD);
}

/* Runs on each CPU when the module is loaded, and on those that come online later. */
static int strata_cpu_online(unsigned int cpu)
{
	u32 vcpu = strata_apic_id();
	int error = strata_cpu_init(&strata_cpus[cpu], strata_region.base, strata_region.size, vcpu);

	if (error) {
		pr_warn("CPU %u (vCPU %u) records nothing: %s\n", cpu, vcpu,
			error == -ERANGE ? "the region has no ring for it" : "the host does not drive its trace clock");
		return 0;
	}
	if (cpu < STRATA_MAX_VCPUS)
		strata_device_cpu(cpu, vcpu);
	schedule_delayed_work_on(cpu, &strata_timers[cpu].work, STRATA_TIMER_PERIOD);
	return 0;
}

/* Runs on each CPU before it goes offline, and when the module is unloaded. */
static int strata_cpu_offline(unsigned int cpu)
{
	cancel_delayed_work_sync(&strata_timers[cpu].work);
	strata_sample_stop(cpu);
	strata_cpu_release(&strata_cpus[cpu]);
	return 0;
}

static void strata_report(int error)
{
	switch (error) {
	case -ENODEV:
		pr_err("there is no trace region at the address that the hypervisor names; not loaded\n");
		break;
	case -EPROTONOSUPPORT:
		pr_err("the host's trace region has another version; use the module that belongs to the host's strata\n");
		break;
	case -ENOSPC:
		pr_err("the trace region has no room for the description of %zu events; not loaded\n",
		       strata_events_end - strata_events_begin);
		break;
	case -EEXIST:
		pr_err("another version of this module has recorded into the trace region; not loaded\n");
		break;
	default:
		pr_err("the trace region's sizes do not add up (error %d); not loaded\n", error);
	}
}

/* Tells the hypervisor, so that a panic is not taken for the reboot that may follow it. */
static int strata_on_panic(struct notifier_block *block, unsigned long event, void *message)
{
	outb(STRATA_PANIC_PORT_PANICKED, STRATA_PANIC_PORT);
	return NOTIFY_DONE;
}

static struct notifier_block strata_panic_block = {
	.notifier_call = strata_on_panic,
};

static int __init strata_init(void)
{
	int error, cpu;

	for (cpu = 0; cpu < STRATA_MAX_VCPUS; cpu++)
		strata_vcpu_of_cpu[cpu] = STRATA_NO_VCPU;

	error = strata_region_map();
	if (error)
		return error;

	strata_cpus = kcalloc(nr_cpu_ids, sizeof(*strata_cpus), GFP_KERNEL);
	strata_timers = kcalloc(nr_cpu_ids, sizeof(*strata_timers), GFP_KERNEL);
	if (!strata_cpus || !strata_timers) {
		error = -ENOMEM;
		goto free;
	}
	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		INIT_DELAYED_WORK(&strata_timers[cpu].work, strata_timer);
		strata_timers[cpu].cpu = cpu;
	}

	error = strata_attach(strata_region.base, strata_region.size, init_utsname()->release, strata_events_begin,
			      strata_events_end - strata_events_begin);
	if (error) {
		strata_report(error);
		error = -ENODEV;
		goto free;
	}

	/* Before any CPU records: else pairs of events would be cut by one's probe being attached before the other's. */
	error = strata_probes_register();
	if (error)
		goto detach;

	error = strata_sample_init();
	if (error)
		goto probes;

	error = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "strata:online", strata_cpu_online, strata_cpu_offline);
	if (error < 0) {
		pr_err("cannot follow CPUs coming online (error %d)\n", error);
		goto sample;
	}
	strata_hotplug_state = error;

	error = strata_device_register();
	if (error) {
		pr_err("cannot register /dev/strata (error %d)\n", error);
		goto hotplug;
	}
	atomic_notifier_chain_register(&panic_notifier_list, &strata_panic_block);
	return 0;

hotplug:
	cpuhp_remove_state(strata_hotplug_state);
sample:
	strata_sample_exit();
probes:
	strata_probes_unregister();
detach:
	strata_detach(strata_region.base, strata_region.size);
free:
	kfree(strata_timers);
	kfree(strata_cpus);
	strata_region_unmap();
	return error;
}

static void __exit strata_exit(void)
{
	atomic_notifier_chain_unregister(&panic_notifier_list, &strata_panic_block);
	/* Processes that use the device hold a reference to the module, so none is left. */
	strata_device_unregister();
	/* CPUs record no more before the first probe is detached. */
	cpuhp_remove_state(strata_hotplug_state);
	strata_probes_unregister();
	strata_sample_exit();
	strata_detach(strata_region.base, strata_region.size);
	kfree(strata_timers);
	kfree(strata_cpus);
	strata_region_unmap();
	pr_info("unloaded\n");
}

module_init(strata_init);
module_exit(strata_exit);

MODULE_DESCRIPTION("Records kernel events into the trace region that the strata hypervisor shares with this guest");
MODULE_AUTHOR("The Strata authors");
MODULE_LICENSE("Dual MIT/GPL");
