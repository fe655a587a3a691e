// SPDX-License-Identifier: GPL-2.0
/*
 * What follows sessions for the whole kernel and may sleep: attaching and detaching probes, counters and names of samples,
 * and waking the timers of the CPUs.
 *
 * It is one work that runs on any CPU. Nothing that holds the hotplug lock, or a lock that is taken below it, waits for it:
 * it is cancelled by loading and unloading the module alone.
 */

#include <linux/jiffies.h>
#include <linux/kernel.h>
#include <linux/workqueue.h>

#include "strata.h"

/* How often sessions are looked at while there is one, and while there is none: then this is all that the module does. */
#define STRATA_CONTROL_PERIOD (HZ / 10)
#define STRATA_CONTROL_IDLE HZ

static void strata_control(struct work_struct *work);

static struct workqueue_struct *strata_control_queue;
static DECLARE_DELAYED_WORK(strata_control_work, strata_control);

static void strata_control(struct work_struct *work)
{
	bool has_session = strata_has_session();

	if (has_session)
		strata_cpus_arm();
	strata_probes_follow();
	strata_sample_follow();
	queue_delayed_work(strata_control_queue, &strata_control_work,
			   has_session ? STRATA_CONTROL_PERIOD : STRATA_CONTROL_IDLE);
}

int strata_control_start(void)
{
	/* A queue of its own: others' work may wait for what this one takes. */
	strata_control_queue = alloc_workqueue("strata", WQ_UNBOUND | WQ_HIGHPRI, 1);
	if (!strata_control_queue)
		return -ENOMEM;
	queue_delayed_work(strata_control_queue, &strata_control_work, STRATA_CONTROL_PERIOD);
	return 0;
}

void strata_control_stop(void)
{
	cancel_delayed_work_sync(&strata_control_work);
	destroy_workqueue(strata_control_queue);
}
