// SPDX-License-Identifier: GPL-2.0
/*
 * Which tasks there are: in which cgroup each is, and what it is called in its own pid namespace.
 *
 * When a session begins that wants to know, one pass over all cgroups and tasks records them, in pieces between which the
 * host can drain the rings. From then on the kernel's own events tell the rest (task_newtask, sched_process_fork,
 * cgroup_attach_task, cgroup_mkdir), but for new tasks that are not what their makers are: those in a pid namespace, whose
 * numbers no event has, and those that clone3() has put into another cgroup. These are recorded behind task_newtask.
 *
 * The pass is part of the work of strata_control.c: it may sleep, and no hotplug callback waits for it. Nothing is done, and
 * no probe attached, while no session wants it.
 */

#include "strata_unit.h"

#include <linux/cgroup.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/idr.h>
#include <linux/limits.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

/* What a task's record says besides what is in the task itself. */
struct strata_identity {
	pid_t vtid;
	pid_t vpid;
	u32 level;
	u32 inum;
	u64 cgroup;
};

#define STRATA_UNIT_CLASS STRATA_CLASS_TASK
#define STRATA_UNIT_HEADER "strata_task_events.h"
#define CREATE_TRACE_POINTS
#include "strata_task_events.h"

/* How often, and how many ms apart, the CPUs are looked at that have not followed a new session yet. */
#define STRATA_JOIN_TRIES 20
#define STRATA_JOIN_PAUSE 1

/* By session slot: the generation that was told of what there is; 0 for none. The work's alone. */
static u64 strata_told[STRATA_SESSION_SLOTS];

static unsigned long strata_id(const struct strata_event *event)
{
	return STRATA_FIRST_TRACEPOINT + (event - strata_events_begin);
}

#ifdef CONFIG_CGROUPS
static u64 strata_cgroup_of(struct task_struct *task)
{
	return cgroup_id(task_dfl_cgroup(task));
}

static bool strata_wants_cgroups(u32 session)
{
	return strata_session_wants(session, strata_id(&strata_event_cgroup));
}

/* The cgroup behind `from`, or the first one, with a reference; takes that of `from`. */
static struct cgroup *strata_next_cgroup(struct cgroup *from)
{
	struct cgroup_subsys_state *next = from ? &from->self : NULL;

	rcu_read_lock();
	do
		next = css_next_descendant_pre(next, &cgrp_dfl_root.cgrp.self);
	while (next && !cgroup_tryget(next->cgroup));
	rcu_read_unlock();
	if (from)
		cgroup_put(from);
	return next ? next->cgroup : NULL;
}

static void strata_record_cgroups(void)
{
	char *path = kmalloc(PATH_MAX, GFP_KERNEL);
	struct cgroup *cgroup = NULL;
	unsigned int count = 0;

	while (path && (cgroup = strata_next_cgroup(cgroup))) {
		/* One that does not fit is cut; how its length is told differs between kernels. */
		path[0] = '\0';
		cgroup_path(cgroup, path, PATH_MAX);
		strata_probe_cgroup((void *)strata_id(&strata_event_cgroup), cgroup_id(cgroup), path);
		if (++count % STRATA_PIECE == 0)
			usleep_range(STRATA_PIECE_PAUSE, 2 * STRATA_PIECE_PAUSE);
	}
	kfree(path);
}
#else
static u64 strata_cgroup_of(struct task_struct *task)
{
	return 0;
}

static bool strata_wants_cgroups(u32 session)
{
	return false;
}

static void strata_record_cgroups(void)
{
}
#endif

/* Records a task that lives, with `pid` its own; under RCU. */
static void strata_record_one(struct task_struct *task, struct pid *pid, bool is_new)
{
	const struct upid *own = &pid->numbers[pid->level];
	struct pid *process = task_tgid(task);
	struct strata_identity identity = {
		.vtid = own->nr,
		/* A task that is about to go has no process any more. */
		.vpid = process && process->level >= pid->level ? process->numbers[pid->level].nr : 0,
		.level = pid->level,
		.inum = own->ns->ns.inum,
	};

	/* Moved meanwhile: what is recorded last has to be what holds behind the record of the move. */
	do {
		identity.cgroup = strata_cgroup_of(task);
		strata_probe_task((void *)strata_id(&strata_event_task), task, &identity, is_new);
	} while (strata_cgroup_of(task) != identity.cgroup);
}

static void strata_record_tasks(void)
{
	struct task_struct *task;
	unsigned int count = 0;
	struct pid *pid;
	int next = 1;

	do {
		rcu_read_lock();
		/* As find_ge_pid(), which older kernels do not export. */
		while ((pid = idr_get_next(&init_pid_ns.idr, &next))) {
			next++;
			task = pid_task(pid, PIDTYPE_PID);
			if (task)
				strata_record_one(task, pid, false);
			if (++count % STRATA_PIECE == 0)
				break;
		}
		rcu_read_unlock();
		if (pid)
			usleep_range(STRATA_PIECE_PAUSE, 2 * STRATA_PIECE_PAUSE);
	} while (pid);
}

/* The new task's pids and cgroup are set, and it does not run yet. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0)
static void notrace strata_on_newtask(void *data, struct task_struct *task, u64 clone_flags)
#else
static void notrace strata_on_newtask(void *data, struct task_struct *task, unsigned long clone_flags)
#endif
{
	struct pid *pid;

	if (!strata_wants_class(STRATA_UNIT_CLASS) || !strata_wanted(strata_id(&strata_event_task)))
		return;
	rcu_read_lock();
	pid = task_pid(task);
	if (pid && (pid->level || strata_cgroup_of(task) != strata_cgroup_of(current)))
		strata_record_one(task, pid, true);
	rcu_read_unlock();
}

static struct strata_second_probe strata_newtask = { .name = "task_newtask", .probe = strata_on_newtask };

/* Whether all CPUs record for `sessions`, a bit each. */
static bool strata_have_joined(u64 sessions)
{
	unsigned int cpu;

	for_each_online_cpu(cpu)
		if (sessions & ~READ_ONCE(strata_cpus[cpu].sessions))
			return false;
	return true;
}

void strata_tasks_follow(void)
{
	u64 generations[STRATA_SESSION_SLOTS], untold = 0;
	bool tasks = false, cgroups = false;
	unsigned int session, tries;

	for (session = 0; session < STRATA_SESSION_SLOTS; session++) {
		u64 generation = strata_session_generation(session);
		bool wants_task = generation && strata_session_wants(session, strata_id(&strata_event_task));
		bool wants_cgroup = generation && strata_wants_cgroups(session);

		tasks |= wants_task;
		cgroups |= wants_cgroup;
		generations[session] = wants_task || wants_cgroup ? generation : 0;
		if (generations[session] && generations[session] != strata_told[session])
			untold |= 1ULL << session;
	}
	strata_second_probe_follow(&strata_newtask, tasks);
	if (untold) {
		/* On a CPU that has no ring of the session yet nothing would be recorded. One that never has one is not waited for. */
		for (tries = 0; tries < STRATA_JOIN_TRIES && !strata_have_joined(untold); tries++)
			msleep(STRATA_JOIN_PAUSE);
		if (cgroups)
			strata_record_cgroups();
		if (tasks)
			strata_record_tasks();
	}
	memcpy(strata_told, generations, sizeof(strata_told));
}

void strata_tasks_init(void)
{
	/* Of an earlier region. */
	memset(strata_told, 0, sizeof(strata_told));
	strata_second_probe_find(&strata_newtask);
}

void strata_tasks_exit(void)
{
	strata_second_probe_follow(&strata_newtask, false);
	tracepoint_synchronize_unregister();
}
