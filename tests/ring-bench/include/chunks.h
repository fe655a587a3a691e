/*
 * Measures on request. Each line of standard input is "WHAT OPERATIONS CHUNKS"; the answer is the median over the chunks of
 * the nanoseconds that one operation took.
 */
#ifndef CHUNKS_H
#define CHUNKS_H

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

/* Answers until there are no more requests; `operate` does so many operations of what is asked for. */
static int answer_requests(void (*operate)(int what, long operations))
{
	static double took[MOST_CHUNKS];
	long operations, chunks, chunk;
	int what;

	printf("ready\n");
	fflush(stdout);
	while (scanf("%d %ld %ld", &what, &operations, &chunks) == 3) {
		if (chunks < 1 || chunks > MOST_CHUNKS || operations < 1)
			return EXIT_FAILURE;
		for (chunk = 0; chunk < chunks; chunk++) {
			double begin = nanoseconds();

			operate(what, operations);
			took[chunk] = (nanoseconds() - begin) / (double)operations;
		}
		qsort(took, (size_t)chunks, sizeof(took[0]), compare);
		printf("%.4f\n", took[chunks / 2]);
		fflush(stdout);
	}
	return EXIT_SUCCESS;
}

#endif
