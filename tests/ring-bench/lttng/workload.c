/* Records events of so many bytes with LTTng-UST on request: see chunks.h. */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "provider.h"

#include "chunks.h"

static void record(int bytes, long events)
{
	uint64_t words[8] = { 0 };
	long i;

	for (i = 0; i < events; i++) {
		words[0] = (uint64_t)i;
		words[1] = ~(uint64_t)i;
		switch (bytes) {
		case 16:
			lttng_ust_tracepoint(ring_bench, bytes16, words);
			break;
		case 32:
			lttng_ust_tracepoint(ring_bench, bytes32, words);
			break;
		default:
			lttng_ust_tracepoint(ring_bench, bytes64, words);
			break;
		}
	}
}

int main(void)
{
	/* LTTng-UST registered with the session daemon before main. */
	return answer_requests(record);
}
