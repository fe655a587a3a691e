// SPDX-License-Identifier: GPL-2.0
/* Does what the checkers of a debug kernel look for: whoever sees none of their reports has a kernel that checks nothing. */
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timer.h>

static DEFINE_SPINLOCK(first);
static DEFINE_SPINLOCK(second);

static void never(struct timer_list *timer)
{
}

/* Reads one byte behind its memory. */
static void provoke_memory(void)
{
	volatile char *bytes = kmalloc(13, GFP_KERNEL);

	if (bytes)
		pr_info("provoking: %d\n", bytes[13]);
	kfree((void *)bytes);
}

/* Sleeps where it may not be switched out. */
static void provoke_sleep(void)
{
	preempt_disable();
	might_sleep();
	preempt_enable();
}

/* Frees a timer that is armed. */
static void provoke_object(void)
{
	struct timer_list *timer = kzalloc(sizeof(*timer), GFP_KERNEL);

	if (!timer)
		return;
	timer_setup(timer, never, 0);
	mod_timer(timer, jiffies + 1000 * HZ);
	kfree(timer);
}

/* Takes two locks in one order, then in the other. */
static void provoke_locks(void)
{
	spin_lock(&first);
	spin_lock(&second);
	spin_unlock(&second);
	spin_unlock(&first);
	spin_lock(&second);
	spin_lock(&first);
	spin_unlock(&first);
	spin_unlock(&second);
}

static int __init provoking_init(void)
{
	/* First: when another checker has reported, nothing is proven about locks any more. */
	provoke_locks();
	provoke_memory();
	provoke_sleep();
	provoke_object();
	return 0;
}

static void __exit provoking_exit(void)
{
}

module_init(provoking_init);
module_exit(provoking_exit);
MODULE_DESCRIPTION("Mistakes for the checkers of a debug kernel");
MODULE_LICENSE("GPL");
