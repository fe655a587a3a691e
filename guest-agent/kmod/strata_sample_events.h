/* SPDX-License-Identifier: GPL-2.0 */
/* The module's own events, written down as the kernel's are, so that they become records in the same way. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM strata

#if !defined(STRATA_SAMPLE_EVENTS_H) || defined(TRACE_HEADER_MULTI_READ)
#define STRATA_SAMPLE_EVENTS_H

#include <linux/tracepoint.h>

/* Where a CPU was when its sampling interrupt came. The stack has the calls that led there, innermost first. */
TRACE_EVENT(sample,
	TP_PROTO(unsigned long ip, bool is_user, const unsigned long *calls, unsigned int depth),
	TP_ARGS(ip, is_user, calls, depth),
	TP_STRUCT__entry(
		__field(u64, ip)
		__field(pid_t, pid)
		__field(pid_t, tid)
		__field(u8, user)
		__dynamic_array(u64, stack, depth)
	),
	TP_fast_assign(
		__entry->ip = ip;
		__entry->pid = current->tgid;
		__entry->tid = current->pid;
		__entry->user = is_user;
		memcpy(__get_dynamic_array(stack), calls, depth * sizeof(u64));
	),
	TP_printk("ip=0x%llx pid=%d tid=%d user=%u stack=0x%llx", __entry->ip, __entry->pid, __entry->tid, __entry->user,
		  __entry->stack)
);

/* The calls that led to the record before this one. */
TRACE_EVENT(stack,
	TP_PROTO(const unsigned long *calls, unsigned int depth),
	TP_ARGS(calls, depth),
	TP_STRUCT__entry(
		__dynamic_array(u64, stack, depth)
	),
	TP_fast_assign(
		memcpy(__get_dynamic_array(stack), calls, depth * sizeof(u64));
	),
	TP_printk("stack=0x%llx", __entry->stack)
);

/* A function of the kernel in which a sample or a call of a stack lies. */
TRACE_EVENT(symbol,
	TP_PROTO(u64 begin, u64 size, const char *symbol_name),
	TP_ARGS(begin, size, symbol_name),
	TP_STRUCT__entry(
		__field(u64, begin)
		__field(u64, size)
		__string(name, symbol_name)
	),
	TP_fast_assign(
		__entry->begin = begin;
		__entry->size = size;
		strata_put_string(__get_str(name), __get_dynamic_array_len(name), symbol_name);
	),
	TP_printk("begin=0x%llx size=%llu name=%s", __entry->begin, __entry->size, __get_str(name))
);

/* An executable mapping of a process in which a sample lies. */
TRACE_EVENT(mapping,
	TP_PROTO(pid_t pid, u64 begin, u64 end, u64 offset, const char *mapped),
	TP_ARGS(pid, begin, end, offset, mapped),
	TP_STRUCT__entry(
		__field(pid_t, pid)
		__field(u64, begin)
		__field(u64, end)
		__field(u64, offset)
		__string(path, mapped)
	),
	TP_fast_assign(
		__entry->pid = pid;
		__entry->begin = begin;
		__entry->end = end;
		__entry->offset = offset;
		strata_put_string(__get_str(path), __get_dynamic_array_len(path), mapped);
	),
	TP_printk("pid=%d begin=0x%llx end=0x%llx offset=0x%llx path=%s", __entry->pid, __entry->begin, __entry->end,
		  __entry->offset, __get_str(path))
);

#endif

#include <trace/define_trace.h>
