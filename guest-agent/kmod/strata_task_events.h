/* SPDX-License-Identifier: GPL-2.0 */
/* Which tasks and cgroups there are, written down as the kernel's own events are. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM strata

#if !defined(STRATA_TASK_EVENTS_H) || defined(TRACE_HEADER_MULTI_READ)
#define STRATA_TASK_EVENTS_H

#include <linux/tracepoint.h>

/* A kernel without cgroups has no such field. */
#ifdef CONFIG_CGROUPS
#define STRATA_CGROUP_FIELD __field(u64, cgroup)
#define STRATA_CGROUP_ASSIGN __entry->cgroup = identity->cgroup;
#else
#define STRATA_CGROUP_FIELD
#define STRATA_CGROUP_ASSIGN
#endif

/*
 * A task that exists, where a session has begun, or that was made where it is not what its maker is: tid and pid of the
 * initial pid namespace, vtid and vpid of its own, and its cgroup in the default hierarchy.
 */
TRACE_EVENT(task,
	TP_PROTO(const struct task_struct *task, const struct strata_identity *identity, bool was_made),
	TP_ARGS(task, identity, was_made),
	TP_STRUCT__entry(
		__array(char, comm, TASK_COMM_LEN)
		__field(pid_t, tid)
		__field(pid_t, pid)
		__field(pid_t, vtid)
		__field(pid_t, vpid)
		__field(u32, ns_level)
		__field(u32, ns_inum)
		STRATA_CGROUP_FIELD
		__field(u8, is_new)
	),
	TP_fast_assign(
		memcpy(__entry->comm, task->comm, TASK_COMM_LEN);
		__entry->tid = task->pid;
		__entry->pid = task->tgid;
		__entry->vtid = identity->vtid;
		__entry->vpid = identity->vpid;
		__entry->ns_level = identity->level;
		__entry->ns_inum = identity->inum;
		STRATA_CGROUP_ASSIGN
		__entry->is_new = was_made;
	),
	TP_printk("comm=%s tid=%d pid=%d vtid=%d vpid=%d ns_level=%u ns_inum=%u is_new=%u", __entry->comm, __entry->tid,
		  __entry->pid, __entry->vtid, __entry->vpid, __entry->ns_level, __entry->ns_inum, __entry->is_new)
);

#ifdef CONFIG_CGROUPS
/* A cgroup of the default hierarchy that exists where a session has begun. */
TRACE_EVENT(cgroup,
	TP_PROTO(u64 number, const char *path_name),
	TP_ARGS(number, path_name),
	TP_STRUCT__entry(
		__field(u64, id)
		__string(path, path_name)
	),
	TP_fast_assign(
		__entry->id = number;
		strata_put_string(__get_str(path), __get_dynamic_array_len(path), path_name);
	),
	TP_printk("id=%llu path=%s", __entry->id, __get_str(path))
);
#endif

#endif

#include <trace/define_trace.h>
