/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What every unit begins with: a unit is one trace header of the kernel, expanded into probes and descriptors (see
 * shadow/trace/define_trace.h). The headers rely on their users for most of what they include.
 */
#include <linux/module.h>
#include <linux/kernel.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/mm.h>
#include <linux/fs.h>
#include <linux/net.h>
#include <linux/device.h>
#include <linux/interrupt.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/string.h>
#include <linux/trace_events.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <asm/thread_info.h>
#include <asm/unistd.h>

#include "strata.h"
#include "strata_event.h"

/* Which table number `id` of the current task's system call is of: STRATA_SYSCALL_*. */
static __always_inline u32 strata_syscall_abi(int id)
{
	if (in_ia32_syscall())
		return STRATA_SYSCALL_I386;
	return id > 0 && id & __X32_SYSCALL_BIT ? STRATA_SYSCALL_X32 : STRATA_SYSCALL_X86_64;
}

/* A dynamic field of a record in the making. */
struct strata_part {
	/* From the end of the fixed part, bytes. */
	u32 offset;
	/* Bytes. */
	u32 size;
	/* Where a string comes from. */
	const char *from;
};

static __always_inline u32 strata_string_size(const char *from)
{
	return strlen(from ?: "(null)") + 1;
}

/*
 * Text into `size` bytes that were reserved for it, which are at least one. The text may have changed since its length was
 * taken: it is cut if need be, and no byte of the ring's last lap is left behind it.
 */
static __always_inline void strata_put_string(char *to, u32 size, const char *from)
{
	size_t length;

	from = from ?: "(null)";
	length = strnlen(from, size - 1);
	memcpy(to, from, length);
	memset(to + length, 0, size - length);
}
