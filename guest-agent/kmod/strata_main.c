// SPDX-License-Identifier: GPL-2.0
/* Loading and unloading. */

#include <linux/cpumask.h>
#include <linux/crash_dump.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/utsname.h>
#include <generated/utsrelease.h>

#include "strata.h"
#include "strata_event.h"

struct strata_cpu *strata_cpus;
u16 strata_vcpu_of_cpu[STRATA_MAX_VCPUS];

void __noreturn strata_panic(void)
{
	panic("strata: a path that cannot be reached was reached");
}

/* The Rust half is compiled once, for kernels that return by way of a function of theirs; others lack that function. */
#if !defined(CONFIG_RETHUNK) && !defined(CONFIG_MITIGATION_RETHUNK)
asm(".pushsection .text\n"
    ".globl __x86_return_thunk\n"
    ".type __x86_return_thunk, @function\n"
    "__x86_return_thunk:\n"
    "	ret\n"
    "	int3\n"
    ".size __x86_return_thunk, . - __x86_return_thunk\n"
    ".popsection\n");
#endif

static void strata_report(int error)
{
	switch (error) {
	case -ENODEV:
		pr_err("there is no trace region where the hypervisor offers one; not loaded\n");
		break;
	case -EPROTONOSUPPORT:
		pr_err("the host's trace region has another version; use the module that belongs to the host's strata\n");
		break;
	case -ENOSPC:
		pr_err("the trace region has no room for the description of %zu events; not loaded\n",
		       strata_events_end - strata_events_begin);
		break;
	case -EEXIST:
		pr_err("another version of this module has recorded into the trace region, which the host reads; not loaded\n");
		break;
	default:
		pr_err("the trace region's sizes do not add up (error %d); not loaded\n", error);
	}
}

/*
 * Whether the module was built with this kernel's headers. The kernel asks for less: where it compares the symbols' versions,
 * a module of another release is loaded, and what trace headers say of arguments and structures is in no symbol's version.
 */
static bool __init strata_is_for_this_kernel(void)
{
	if (!strcmp(init_utsname()->release, UTS_RELEASE))
		return true;
	pr_err("this module was built for kernel %s, and this is %s; not loaded\n", UTS_RELEASE, init_utsname()->release);
	return false;
}

int strata_start(void)
{
	int error, cpu;

	for (cpu = 0; cpu < STRATA_MAX_VCPUS; cpu++)
		strata_vcpu_of_cpu[cpu] = STRATA_NO_VCPU;

	error = strata_region_map();
	if (error)
		return error;

	strata_cpus = kcalloc(nr_cpu_ids, sizeof(*strata_cpus), GFP_KERNEL);
	if (!strata_cpus) {
		error = -ENOMEM;
		goto free;
	}

	/* A function that every kernel exports: its address tells where the kernel lies. */
	error = strata_attach(strata_region.base, strata_region.size, init_utsname()->release, (unsigned long)schedule,
			      strata_events_begin, strata_events_end - strata_events_begin);
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

	strata_tasks_init();
	error = strata_cpus_start();
	if (error) {
		pr_err("cannot follow CPUs coming online (error %d)\n", error);
		goto tasks;
	}

	error = strata_control_start();
	if (error)
		goto cpus;

	error = strata_device_register();
	if (error) {
		pr_err("cannot register /dev/strata (error %d)\n", error);
		goto control;
	}
	strata_panic_start();
	return 0;

control:
	strata_control_stop();
cpus:
	strata_cpus_stop();
tasks:
	strata_tasks_exit();
	strata_sample_exit();
probes:
	strata_probes_unregister();
detach:
	strata_detach(strata_region.base, strata_region.size);
free:
	kfree(strata_cpus);
	strata_region_unmap();
	return error;
}

void strata_stop(void)
{
	strata_panic_stop();
	/* Processes that have mapped it find other memory there from here on. */
	strata_device_unregister();
	strata_control_stop();
	/* CPUs record no more before the first probe is detached. */
	strata_cpus_stop();
	strata_probes_unregister();
	strata_tasks_exit();
	strata_sample_exit();
	strata_detach(strata_region.base, strata_region.size);
	kfree(strata_cpus);
	strata_region_unmap();
}

static bool wait;
module_param(wait, bool, 0444);
MODULE_PARM_DESC(wait, "Stay loaded where there is no trace region, for one that is plugged in later (N: refuse to be loaded)");

/* Whether the region is where CPUID says, and stays there. */
static bool strata_is_by_cpuid;

static int __init strata_begin(void)
{
	int error = strata_region_find();

	if (error == -ENXIO)
		error = strata_region_register(!wait);
	else if (!error) {
		error = strata_start();
		strata_is_by_cpuid = true;
	}
	if (error == -ENXIO)
		pr_info("this machine offers no trace region; not loaded\n");
	/* What it was has been said. */
	return error && error != -ENOMEM ? -ENODEV : error;
}

static void strata_end(void)
{
	if (!strata_is_by_cpuid) {
		strata_region_unregister();
		return;
	}
	mutex_lock(&strata_region_lock);
	strata_region_stop();
	mutex_unlock(&strata_region_lock);
}

static int __init strata_init(void)
{
	int error;

	if (!strata_is_for_this_kernel())
		return -ENOEXEC;
	/* It has little memory, a dump to write, and no use for the region, which keeps the last records of the one that panicked. */
	if (is_kdump_kernel()) {
		pr_info("this is the crash kernel of one that panicked; not loaded\n");
		return -ENODEV;
	}
	error = strata_device_init();
	if (error)
		return error;
	error = strata_begin();
	if (error)
		goto device;
	error = strata_power_register();
	if (error)
		goto end;
	return 0;

end:
	strata_end();
device:
	strata_device_exit();
	return error;
}

static void __exit strata_exit(void)
{
	strata_power_unregister();
	strata_end();
	strata_device_exit();
	pr_info("unloaded\n");
}

module_init(strata_init);
module_exit(strata_exit);

MODULE_DESCRIPTION("Records kernel events into the trace region that the strata hypervisor shares with this guest");
MODULE_AUTHOR("The Strata authors");
/* Of the whole: the Rust half alone is Apache-2.0 or MIT. */
MODULE_LICENSE("GPL");
