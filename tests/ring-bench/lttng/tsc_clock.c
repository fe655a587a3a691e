/* An LTTng-UST clock plugin that reads the TSC: the cheapest clock that LTTng-UST can be given. */
#include <lttng/ust-clock.h>
#include <stdlib.h>
#include <string.h>
#include <x86intrin.h>

static uint64_t read_tsc(void)
{
	return __rdtsc();
}

/* Measured by the benchmark, in the environment. */
static uint64_t frequency(void)
{
	const char *text = getenv("RING_BENCH_TSC_HZ");

	return text ? strtoull(text, NULL, 10) : 1000000000;
}

static int uuid(char *out)
{
	strcpy(out, "a1a3d1a2-5a4b-4c7e-9b55-3f0f4f6c7e01");
	return 0;
}

static const char *name(void)
{
	return "tsc";
}

static const char *description(void)
{
	return "the processor's time stamp counter";
}

void lttng_ust_clock_plugin_init(void);
void lttng_ust_clock_plugin_init(void)
{
	if (lttng_ust_trace_clock_set_read64_cb(read_tsc) || lttng_ust_trace_clock_set_freq_cb(frequency) ||
	    lttng_ust_trace_clock_set_uuid_cb(uuid) || lttng_ust_trace_clock_set_name_cb(name) ||
	    lttng_ust_trace_clock_set_description_cb(description) || lttng_ust_enable_trace_clock_override())
		abort();
}
