/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The events of <trace/events/syscalls.h>, with the ABI of the call in what is always zero in the kernel's own records: the
 * upper half of a number that has 32 bits.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM raw_syscalls

TRACE_EVENT_FN(sys_enter,
	TP_PROTO(struct pt_regs *regs, long id),
	TP_ARGS(regs, id),
	TP_STRUCT__entry(
		__field(int, id)
		__field(u32, abi)
		__array(unsigned long, args, 6)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->abi = strata_syscall_abi(id);
		syscall_get_arguments(current, regs, __entry->args);
	),
	TP_printk("NR %d (%lx, %lx, %lx, %lx, %lx, %lx)", __entry->id, __entry->args[0], __entry->args[1],
		  __entry->args[2], __entry->args[3], __entry->args[4], __entry->args[5]),
	syscall_regfunc, syscall_unregfunc
);

TRACE_EVENT_FN(sys_exit,
	TP_PROTO(struct pt_regs *regs, long ret),
	TP_ARGS(regs, ret),
	TP_STRUCT__entry(
		__field(int, id)
		__field(u32, abi)
		__field(long, ret)
	),
	TP_fast_assign(
		__entry->id = syscall_get_nr(current, regs);
		__entry->abi = strata_syscall_abi(__entry->id);
		__entry->ret = ret;
	),
	TP_printk("NR %d = %ld", __entry->id, __entry->ret),
	syscall_regfunc, syscall_unregfunc
);

#include <trace/define_trace.h>
