/* The tracepoints that the ring benchmark records with LTTng-UST: one array of 16, 32 or 64 bytes. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER ring_bench

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./provider.h"

#if !defined(RING_BENCH_PROVIDER_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define RING_BENCH_PROVIDER_H

#include <lttng/tracepoint.h>
#include <stdint.h>

/* One array field is the cheapest form: LTTng-UST copies field by field. */
LTTNG_UST_TRACEPOINT_EVENT(ring_bench, bytes16, LTTNG_UST_TP_ARGS(const uint64_t *, words),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_array(uint64_t, words, words, 2)))
LTTNG_UST_TRACEPOINT_EVENT(ring_bench, bytes32, LTTNG_UST_TP_ARGS(const uint64_t *, words),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_array(uint64_t, words, words, 4)))
LTTNG_UST_TRACEPOINT_EVENT(ring_bench, bytes64, LTTNG_UST_TP_ARGS(const uint64_t *, words),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_array(uint64_t, words, words, 8)))

#endif

#include <lttng/tracepoint-event.h>
