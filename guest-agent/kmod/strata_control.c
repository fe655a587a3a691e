// SPDX-License-Identifier: GPL-2.0
/*
 * What follows sessions for the whole kernel. The host raises an interrupt, the doorbell, when it has changed a session or
 * asks for a flush: then the CPUs that have to do something are visited, a thread attaches and detaches probes, and a work
 * makes and releases counters. Nothing happens otherwise, but for names that samples need.
 *
 * The thread has the priority of interrupts that are threads: a session is to record also where real-time tasks below that
 * leave ordinary tasks no CPU. What takes long is the work's, which is an ordinary task.
 *
 * Where the host has no doorbell (a device has the region), or this kernel cannot have the interrupt, the work looks from
 * time to time, by a timer that wakes an idle CPU: of a deferrable one, a CPU that stays idle would keep the busy ones from
 * being recorded.
 *
 * The work runs on any CPU. Nothing that holds the hotplug lock, or a lock that is taken below it, waits for it: it is
 * cancelled alone by those who load and unload the module, or plug its device in and out.
 */

#include <linux/acpi.h>
#include <linux/interrupt.h>
#include <linux/jiffies.h>
#include <linux/kernel.h>
#include <linux/kthread.h>
#include <linux/sched.h>
#include <linux/workqueue.h>

#include "strata.h"

/* How often names are recorded while samples are taken; without a doorbell, how often sessions are looked at. */
#define STRATA_CONTROL_PERIOD (HZ / 10)
/* The same while there is no session. */
#define STRATA_CONTROL_IDLE HZ

static void strata_control(struct work_struct *work);
static void strata_probe(struct kthread_work *work);

static struct kthread_worker *strata_prober;
static struct kthread_work strata_probe_work;
static struct workqueue_struct *strata_control_queue;
static DECLARE_DEFERRABLE_WORK(strata_control_work, strata_control);
/* Number of the interrupt, negative where there is none; and of the global system interrupt that it comes from. */
static int strata_doorbell = -ENODEV;
static u32 strata_doorbell_gsi;

static bool strata_has_session(void)
{
	u32 session;

	for (session = 0; session < STRATA_SESSION_SLOTS; session++)
		if (strata_session_generation(session))
			return true;
	return false;
}

static void strata_probe(struct kthread_work *work)
{
	strata_probes_follow();
}

static void strata_control(struct work_struct *work)
{
	bool has_names;

	if (strata_doorbell < 0) {
		strata_cpus_visit();
		kthread_queue_work(strata_prober, &strata_probe_work);
	}
	/* What there is is told when what becomes of it is recorded. */
	kthread_flush_work(&strata_probe_work);
	strata_tasks_follow();
	has_names = strata_sample_follow();
	if (has_names || strata_doorbell < 0)
		queue_delayed_work(strata_control_queue, &strata_control_work,
				   strata_has_session() ? STRATA_CONTROL_PERIOD : STRATA_CONTROL_IDLE);
}

/* A hard interrupt on every kernel. */
static irqreturn_t strata_on_doorbell(int irq, void *unused)
{
	strata_cpus_visit();
	kthread_queue_work(strata_prober, &strata_probe_work);
	mod_delayed_work(strata_control_queue, &strata_control_work, 0);
	return IRQ_HANDLED;
}

#ifdef CONFIG_ACPI
static int strata_doorbell_request(void)
{
	int irq, error;

	strata_doorbell_gsi = strata_superblock_u32(STRATA_SUPERBLOCK_DOORBELL);
	if (!strata_doorbell_gsi)
		return -ENODEV;
	irq = acpi_register_gsi(NULL, strata_doorbell_gsi, ACPI_EDGE_SENSITIVE, ACPI_ACTIVE_HIGH);
	if (irq < 0)
		return irq;
	error = request_irq(irq, strata_on_doorbell, IRQF_NO_THREAD, "strata", &strata_doorbell);
	if (error)
		acpi_unregister_gsi(strata_doorbell_gsi);
	return error ?: irq;
}

static void strata_doorbell_free(void)
{
	if (strata_doorbell < 0)
		return;
	free_irq(strata_doorbell, &strata_doorbell);
	acpi_unregister_gsi(strata_doorbell_gsi);
}
#else
static int strata_doorbell_request(void)
{
	return -ENODEV;
}

static void strata_doorbell_free(void)
{
}
#endif

int strata_control_start(void)
{
	/* A queue of its own: others' work may wait for what this one takes. */
	strata_control_queue = alloc_workqueue("strata", WQ_UNBOUND | WQ_HIGHPRI, 1);
	if (!strata_control_queue)
		return -ENOMEM;
	strata_prober = kthread_create_worker(0, "strata-probes");
	if (IS_ERR(strata_prober)) {
		destroy_workqueue(strata_control_queue);
		return PTR_ERR(strata_prober);
	}
	/* Nobody has queued it yet; it was an earlier worker's where this is a later region. */
	kthread_init_work(&strata_probe_work, strata_probe);
	sched_set_fifo(strata_prober->task);
	/* Since 6.14 it is made asleep. */
	wake_up_process(strata_prober->task);
	strata_doorbell = strata_doorbell_request();
	if (strata_doorbell < 0) {
		/* Nobody has queued it yet. */
		INIT_DELAYED_WORK(&strata_control_work, strata_control);
		if (strata_doorbell_gsi)
			pr_warn("no interrupt %u (error %d): what the host changes is seen up to a second later\n",
				strata_doorbell_gsi, strata_doorbell);
	}
	/* What the host has changed since the CPUs and the probes looked. */
	strata_cpus_visit();
	kthread_queue_work(strata_prober, &strata_probe_work);
	mod_delayed_work(strata_control_queue, &strata_control_work, 0);
	return 0;
}

void strata_control_stop(void)
{
	strata_doorbell_free();
	cancel_delayed_work_sync(&strata_control_work);
	destroy_workqueue(strata_control_queue);
	kthread_destroy_worker(strata_prober);
}
