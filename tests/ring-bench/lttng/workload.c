/*
 * Records events with LTTng-UST on request. Each line of standard input is "BYTES EVENTS CHUNKS"; the answer is the median
 * over the chunks of the nanoseconds that one event took.
 */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "provider.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST_CHUNKS 1000

static double nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static int compare(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

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
	static double took[MOST_CHUNKS];
	long events, chunks, chunk;
	int bytes;

	/* LTTng-UST registered with the session daemon before main. */
	printf("ready\n");
	fflush(stdout);
	while (scanf("%d %ld %ld", &bytes, &events, &chunks) == 3) {
		if (chunks < 1 || chunks > MOST_CHUNKS || events < 1)
			return EXIT_FAILURE;
		for (chunk = 0; chunk < chunks; chunk++) {
			double begin = nanoseconds();

			record(bytes, events);
			took[chunk] = (nanoseconds() - begin) / (double)events;
		}
		qsort(took, (size_t)chunks, sizeof(took[0]), compare);
		printf("%.4f\n", took[chunks / 2]);
		fflush(stdout);
	}
	return EXIT_SUCCESS;
}
