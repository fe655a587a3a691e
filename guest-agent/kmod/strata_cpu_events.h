/* SPDX-License-Identifier: GPL-2.0 */
/* What the module records of itself. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM strata

#if !defined(STRATA_CPU_EVENTS_H) || defined(TRACE_HEADER_MULTI_READ)
#define STRATA_CPU_EVENTS_H

#include <linux/tracepoint.h>

/*
 * The CPU records no more, from here to its next record: it goes offline, the module is unloaded, or another kernel takes the
 * machine over. Hosts know the event by its name and want it in every session.
 */
TRACE_EVENT(recording_stops,
	TP_PROTO(bool goes_offline, bool kernel_follows),
	TP_ARGS(goes_offline, kernel_follows),
	TP_STRUCT__entry(
		__field(u8, offline)
		__field(u8, another_kernel)
	),
	TP_fast_assign(
		__entry->offline = goes_offline;
		__entry->another_kernel = kernel_follows;
	),
	TP_printk("offline=%u another_kernel=%u", __entry->offline, __entry->another_kernel)
);

#endif

#include <trace/define_trace.h>
