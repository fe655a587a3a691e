/* SPDX-License-Identifier: GPL-2.0 */
/* Events called as others are, with other arguments. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM colliding

#if !defined(COLLIDING_EVENTS_H) || defined(TRACE_HEADER_MULTI_READ)
#define COLLIDING_EVENTS_H

#include <linux/tracepoint.h>

DECLARE_EVENT_CLASS(three_numbers,
	TP_PROTO(int a, int b, int c),
	TP_ARGS(a, b, c),
	TP_STRUCT__entry(__field(int, sum)),
	TP_fast_assign(__entry->sum = a + b + c;),
	TP_printk("%d", __entry->sum)
);

/* As one of the agent's own events. */
DEFINE_EVENT(three_numbers, symbol, TP_PROTO(int a, int b, int c), TP_ARGS(a, b, c));
/* As one of a module that is not loaded. */
DEFINE_EVENT(three_numbers, ext4_sync_file_enter, TP_PROTO(int a, int b, int c), TP_ARGS(a, b, c));

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE colliding_events
#include <trace/define_trace.h>
