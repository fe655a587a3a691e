// SPDX-License-Identifier: GPL-2.0
/* Fires its events as soon as it is loaded. */
#include <linux/module.h>

#define CREATE_TRACE_POINTS
#include "colliding_events.h"

static int __init colliding_init(void)
{
	int i;

	for (i = 0; i < 10; i++) {
		trace_symbol(1, 2, 3);
		trace_ext4_sync_file_enter(1, 2, 3);
	}
	return 0;
}

static void __exit colliding_exit(void)
{
}

module_init(colliding_init);
module_exit(colliding_exit);
MODULE_DESCRIPTION("Tracepoints with the names of others");
MODULE_LICENSE("GPL");
