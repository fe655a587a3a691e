/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Records a few events, and does what a careless caller does. `shop [N]` sells N things (default 1000). */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <strata.h>

STRATA_EVENT(sold, "shop:sold", (text, what), (u32, pieces), (i32, change), (hex64, flags), (f64, kilograms));
STRATA_EVENT(every, "shop:every", (u8, a), (u16, b), (i8, c), (i16, d), (i64, e), (hex8, f), (hex16, g), (hex32, h));
STRATA_EVENT(said, "shop:said", (text, words));
STRATA_EVENT0(closed, "shop:closed");

/* Everything that the header asks not to be done and that can be told apart. Returns the number of records. */
static int careless(void)
{
	static const struct strata_field nameless = {NULL, STRATA_TYPE_u64};
	static struct strata_event no_name = {sizeof(no_name), 1, NULL, &nameless, NULL};
	static struct strata_event no_fields = {sizeof(no_fields), 1, "shop:no_fields", NULL, NULL};
	union strata_value value = {7};
	char *story = malloc(100000);
	int recorded = 0;

	recorded += strata_record_values(NULL, NULL);
	recorded += strata_record_values(&no_fields, &value);
	recorded += strata_record_values(&no_name, NULL);
	recorded += strata_record_values(&no_name, &value);
	recorded += STRATA_RECORD(said, NULL);
	if (story) {
		memset(story, 'x', 99999);
		story[99999] = 0;
		recorded += STRATA_RECORD(said, story);
		free(story);
	}
	return recorded;
}

int main(int argc, char **argv)
{
	long things = argc > 1 ? strtol(argv[1], NULL, 10) : 1000;
	long recorded = 0;
	int mended;
	long i;

	errno = 0;
	for (i = 0; i < things; i++)
		recorded += STRATA_RECORD(sold, "bread", (uint32_t)i, -5, 0xff00, (double)i / 8);
	recorded += STRATA_RECORD(every, 1, 2, -3, -4, -5, 6, 7, 8);
	mended = careless();
	recorded += STRATA_RECORD0(closed);
	strata_flush();
	printf("shop: %ld recorded, %d of 6 careless ones, %llu lost, errno %d, %s\n", recorded, mended,
	       (unsigned long long)strata_lost(), errno, strata_error() ? strata_error() : "connected");
	return 0;
}
