// SPDX-License-Identifier: GPL-2.0
/*
 * Tells the hypervisor of panics.
 *
 * A kernel that has a crash kernel loaded calls no panic notifier unless the parameter crash_kexec_post_notifiers says so, and
 * at an oops does not even print that it panics: it goes on in the crash kernel at once. Modules cannot set the parameter, and
 * it would put all notifiers before the dump. So a kprobe is put where the kernel leaves for a crash kernel, and nowhere else:
 * after it has saved its registers, while it is as whole as it will be. What is done there is a reading of the clock, a word
 * of the region and a port: no lock, no wait, nothing printed. A kernel without kprobes tells as before.
 */

#include <linux/kernel.h>
#include <linux/kexec.h>
#include <linux/kprobes.h>
#include <linux/notifier.h>
#include <linux/smp.h>
#include <asm/io.h>
/* Where newer kernels keep the list of panic notifiers. */
#if __has_include(<linux/panic_notifier.h>)
#include <linux/panic_notifier.h>
#endif

#include "strata.h"

/* So that a panic is not taken for the reboot that may follow it. */
static int strata_on_panic(struct notifier_block *block, unsigned long event, void *message)
{
	outb(kexec_crash_loaded() ? STRATA_PANIC_PORT_CRASH_KERNEL : STRATA_PANIC_PORT_PANICKED, STRATA_PANIC_PORT);
	return NOTIFY_DONE;
}

static struct notifier_block strata_panic_block = {
	.notifier_call = strata_on_panic,
};

#ifdef CONFIG_KPROBES
static int strata_on_crash(struct kprobe *probe, struct pt_regs *regs)
{
	strata_note_crash_kernel(&strata_cpus[smp_processor_id()], strata_region.base, strata_region.size);
	outb(STRATA_PANIC_PORT_CRASH_KERNEL, STRATA_PANIC_PORT);
	return 0;
}

static struct kprobe strata_crash_probe;
static bool strata_crash_is_probed;

static void strata_crash_start(void)
{
	/* A kprobe that was registered before is not as it was. */
	strata_crash_probe = (struct kprobe){
		.symbol_name = "machine_crash_shutdown",
		.pre_handler = strata_on_crash,
	};
	/* A kernel without it has no crash kernels. */
	strata_crash_is_probed = !register_kprobe(&strata_crash_probe);
}

static void strata_crash_stop(void)
{
	if (strata_crash_is_probed)
		unregister_kprobe(&strata_crash_probe);
}
#else
static void strata_crash_start(void)
{
}

static void strata_crash_stop(void)
{
}
#endif

void strata_panic_start(void)
{
	atomic_notifier_chain_register(&panic_notifier_list, &strata_panic_block);
	strata_crash_start();
}

void strata_panic_stop(void)
{
	strata_crash_stop();
	atomic_notifier_chain_unregister(&panic_notifier_list, &strata_panic_block);
}
