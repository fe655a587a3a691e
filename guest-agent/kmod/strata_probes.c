// SPDX-License-Identifier: GPL-2.0
/*
 * Which probes are attached. Tracepoints are not exported to modules: they are found by name, in the kernel and in the module
 * that has the name of the event's system (ext4, jbd2, kvm), when that comes. A probe is attached while a session wants its
 * event, so that an event that nobody wants costs nothing; the probe looks itself whether it is still wanted, so that taking
 * events away takes effect at once.
 */

#include <linux/delay.h>
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/tracepoint.h>

#include "strata.h"
#include "strata_event.h"

/* The system of the module's own events (strata_sample_events.h). */
#define STRATA_OWN_SYSTEM "strata"

/*
 * How long probes are attached and detached at a stretch, nanoseconds, and the pause after it, microseconds: whoever does it has
 * a high priority, and there may be hundreds.
 */
#define STRATA_STRETCH_NS 1000000
#define STRATA_PAUSE_US 500

/* What has become of an event of the catalogue. */
struct strata_probe {
	/* NULL while the kernel, as far as it is loaded, has no such tracepoint. */
	struct tracepoint *tracepoint;
	bool attached;
};

/* As many as there are descriptors. */
static struct strata_probe *strata_probes;
static DEFINE_MUTEX(strata_probes_lock);

notrace void strata_preempt_check(void)
{
	preempt_disable_notrace();
	preempt_enable_notrace();
}

notrace void strata_nested(const struct strata_cpu *cpu, u64 sessions, unsigned long id)
{
	for (; sessions; sessions &= sessions - 1)
		if (strata_session_wants(__ffs(sessions), id))
			strata_lose_nested(cpu, __ffs(sessions));
}

static size_t strata_event_count(void)
{
	return strata_events_end - strata_events_begin;
}

/* Attaches or detaches the probe of event number `index` as sessions want it. */
static void strata_follow_one(size_t index)
{
	const struct strata_event *event = strata_events_begin + index;
	struct strata_probe *probe = strata_probes + index;
	unsigned long id = STRATA_FIRST_TRACEPOINT + index;
	bool wanted = strata_wanted(id);
	int error;

	if (!probe->tracepoint || wanted == probe->attached)
		return;
	if (wanted)
		error = tracepoint_probe_register(probe->tracepoint, event->probe, (void *)id);
	else
		error = tracepoint_probe_unregister(probe->tracepoint, event->probe, (void *)id);
	if (error)
		pr_warn_once("cannot %s %s:%s (error %d)\n", wanted ? "probe" : "leave", event->system, event->name, error);
	else
		probe->attached = wanted;
}

void strata_probes_follow(void)
{
	size_t index;
	u64 begin;

	mutex_lock(&strata_probes_lock);
	begin = ktime_get_ns();
	for (index = 0; strata_probes && index < strata_event_count(); index++) {
		strata_follow_one(index);
		if (ktime_get_ns() - begin < STRATA_STRETCH_NS)
			continue;
		usleep_range(STRATA_PAUSE_US, 2 * STRATA_PAUSE_US);
		begin = ktime_get_ns();
	}
	mutex_unlock(&strata_probes_lock);
}

static void strata_find_second_probe(struct tracepoint *tracepoint, void *data)
{
	struct strata_second_probe *second = data;

	if (!strcmp(tracepoint->name, second->name))
		second->tracepoint = tracepoint;
}

void strata_second_probe_find(struct strata_second_probe *second)
{
	for_each_kernel_tracepoint(strata_find_second_probe, second);
}

void strata_second_probe_follow(struct strata_second_probe *second, bool wanted)
{
	int error;

	if (!second->tracepoint || wanted == second->attached)
		return;
	if (wanted)
		error = tracepoint_probe_register_prio(second->tracepoint, second->probe, NULL, TRACEPOINT_DEFAULT_PRIO - 1);
	else
		error = tracepoint_probe_unregister(second->tracepoint, second->probe, NULL);
	if (!error)
		second->attached = wanted;
}

/*
 * Whether a tracepoint with the event's name is the event's, in `module` or, where that is NULL, in the kernel itself. A name
 * says that only there: other modules may have tracepoints of the same name, with other arguments, and the events of this
 * one (system strata) are not tracepoints at all.
 */
static bool strata_is_in(const struct strata_event *event, const struct module *module)
{
	if (!strcmp(event->system, STRATA_OWN_SYSTEM))
		return false;
	return !module || !strcmp(event->system, module->name);
}

/* The events of a tracepoint: one, where groups do not use the same name. */
static void strata_found(struct tracepoint *tracepoint, void *module)
{
	size_t index;

	for (index = 0; index < strata_event_count(); index++) {
		const struct strata_event *event = strata_events_begin + index;

		if (!strata_probes[index].tracepoint && !strcmp(event->name, tracepoint->name) && strata_is_in(event, module)) {
			strata_probes[index].tracepoint = tracepoint;
			strata_follow_one(index);
		}
	}
}

#ifdef CONFIG_MODULES
static void strata_lost(struct tracepoint *tracepoint)
{
	size_t index;

	for (index = 0; index < strata_event_count(); index++) {
		struct strata_probe *probe = strata_probes + index;

		if (probe->tracepoint != tracepoint)
			continue;
		if (probe->attached)
			tracepoint_probe_unregister(tracepoint, strata_events_begin[index].probe,
						    (void *)(STRATA_FIRST_TRACEPOINT + index));
		memset(probe, 0, sizeof(*probe));
	}
}

static int strata_module(struct notifier_block *block, unsigned long action, void *data)
{
	struct module *module = ((struct tp_module *)data)->mod;
	unsigned int index;

	mutex_lock(&strata_probes_lock);
	for (index = 0; strata_probes && index < module->num_tracepoints; index++) {
		struct tracepoint *tracepoint = tracepoint_ptr_deref(module->tracepoints_ptrs + index);

		if (action == MODULE_STATE_COMING)
			strata_found(tracepoint, module);
		else if (action == MODULE_STATE_GOING)
			strata_lost(tracepoint);
	}
	mutex_unlock(&strata_probes_lock);
	return NOTIFY_OK;
}

static struct notifier_block strata_module_block = {
	.notifier_call = strata_module,
};
#endif

int strata_probes_register(void)
{
	unsigned int attached = 0, found = 0;
	size_t index;
	int error;

	strata_probes = kvcalloc(strata_event_count(), sizeof(*strata_probes), GFP_KERNEL);
	if (!strata_probes)
		return -ENOMEM;
	mutex_lock(&strata_probes_lock);
	for_each_kernel_tracepoint(strata_found, NULL);
	for (index = 0; index < strata_event_count(); index++) {
		found += strata_probes[index].tracepoint != NULL;
		attached += strata_probes[index].attached;
	}
	mutex_unlock(&strata_probes_lock);
#ifdef CONFIG_MODULES
	/* Calls the notifier for the modules that are there. */
	error = register_tracepoint_module_notifier(&strata_module_block);
	if (error)
		pr_warn("cannot follow the tracepoints of modules (error %d)\n", error);
#endif
	if (!found) {
		pr_err("this kernel has none of the tracepoints that are recorded; not loaded\n");
		strata_probes_unregister();
		return -ENODEV;
	}
	pr_info("%u of %zu events there, %u recorded, on %u CPUs\n", found, strata_event_count(), attached,
		num_online_cpus());
	return 0;
}

void strata_probes_unregister(void)
{
	struct strata_probe *probes;
	size_t index;

#ifdef CONFIG_MODULES
	unregister_tracepoint_module_notifier(&strata_module_block);
#endif
	mutex_lock(&strata_probes_lock);
	probes = strata_probes;
	for (index = 0; index < strata_event_count(); index++) {
		if (probes[index].attached)
			tracepoint_probe_unregister(probes[index].tracepoint, strata_events_begin[index].probe,
						    (void *)(STRATA_FIRST_TRACEPOINT + index));
	}
	strata_probes = NULL;
	mutex_unlock(&strata_probes_lock);
	/* No probe runs any more once this returns. */
	tracepoint_synchronize_unregister();
	kvfree(probes);
}
