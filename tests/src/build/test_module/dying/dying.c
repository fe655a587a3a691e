// SPDX-License-Identifier: GPL-2.0
/* Ends its kernel, or keeps it from going on, as `how` says. */
#include <linux/delay.h>
#include <linux/irqflags.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <asm/desc_defs.h>

static char *how = "";
module_param(how, charp, 0);
MODULE_PARM_DESC(how, "oops, soft-lockup, hung-task, hang or triple-fault");

/*
 * Without PAUSE: what emulates a processor goes on with another one there, which takes it hundreds of times as long as
 * the time that passes for the kernel.
 */
static void spin(void)
{
	for (;;)
		barrier();
}

/* Of this CPU, until the machine is gone. */
static void stand_still(void *unused)
{
	local_irq_disable();
	spin();
}

/* The exception finds no handler, the fault of that finds none, and neither does the fault of that one. */
static void triple_fault(void)
{
	struct desc_ptr none = { };

	asm volatile("lidt %0" : : "m"(none));
	*(volatile int *)8 = 0;
}

static int __init dying_init(void)
{
	pr_info("dying: %s\n", how);
	/* Time for the host to take what was recorded so far. */
	msleep(200);
	if (!strcmp(how, "oops"))
		*(volatile int *)8 = 0;
	if (!strcmp(how, "soft-lockup")) {
		preempt_disable();
		spin();
	}
	while (!strcmp(how, "hung-task")) {
		set_current_state(TASK_UNINTERRUPTIBLE);
		schedule();
	}
	if (!strcmp(how, "hang"))
		on_each_cpu(stand_still, NULL, 0);
	if (!strcmp(how, "triple-fault"))
		triple_fault();
	return -EINVAL;
}

module_init(dying_init);
MODULE_DESCRIPTION("Deaths of a kernel");
MODULE_LICENSE("GPL");
