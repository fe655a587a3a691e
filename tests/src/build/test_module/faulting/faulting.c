// SPDX-License-Identifier: GPL-2.0
/* Fires an event of the kernel whose argument is not a pointer: who looks at it faults, and the task that loads this dies there. */
#include <linux/module.h>
#include <linux/blkdev.h>
#include <trace/events/block.h>

static int __init faulting_init(void)
{
	trace_block_bio_remap((struct bio *)8, 0, 0);
	pr_info("faulting: nobody looked at the event\n");
	return 0;
}

static void __exit faulting_exit(void)
{
}

module_init(faulting_init);
module_exit(faulting_exit);
MODULE_DESCRIPTION("An event whose probes fault");
MODULE_LICENSE("GPL");
