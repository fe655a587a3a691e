// SPDX-License-Identifier: GPL-2.0
/*
 * The tracepoint probes. Each fills its event's generated structure, in the record reserved for it in the CPU's ring.
 *
 * The tracepoints themselves are not exported to modules: they are found by name, and the kernel's own
 * check_trace_callback_type_*() functions compare each probe with its tracepoint's prototype when this file is compiled.
 */

#include <linux/binfmts.h>
#include <linux/interrupt.h>
#include <linux/kernel.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <asm/ptrace.h>
#include <asm/syscall.h>
#include <trace/events/irq.h>
#include <trace/events/sched.h>
#include <trace/events/syscalls.h>
#include <asm/trace/irq_vectors.h>
/* Moved in 6.17. */
#if __has_include(<trace/events/exceptions.h>)
#include <trace/events/exceptions.h>
#else
#include <asm/trace/exceptions.h>
#endif

#include "strata.h"

/* Kernels that clear local variables would clear a slot before the test that ends most calls. */
#if __has_attribute(__uninitialized__)
#define strata_uninitialized __attribute__((__uninitialized__))
#else
#define strata_uninitialized
#endif

/* Without the canary the compiler tests the mask before it sets up a stack frame. */
#if __has_attribute(__no_stack_protector__)
#define strata_no_stack_protector __attribute__((__no_stack_protector__))
#else
#define strata_no_stack_protector
#endif

/*
 * Defines strata_probe_NAME(), recording struct strata_NAME as `record`, once for each session that wants it. Tracepoints
 * call their probes with preemption disabled, except for system calls on newer kernels: a record belongs to one CPU, so it
 * is disabled here.
 */
#define STRATA_PROBE(name, NAME, prototype, ...)									\
	static notrace strata_no_stack_protector void strata_probe_##name(void *data, prototype)			\
	{														\
		struct strata_slot slot strata_uninitialized;								\
		struct strata_##name *record;										\
		u32 session;												\
															\
		if (!strata_wants_class(STRATA_CLASS_OF_##NAME))							\
			return;												\
		preempt_disable_notrace();										\
		for (session = 0; session < STRATA_SESSION_SLOTS; session++) {						\
			if (!strata_session_wants(session, STRATA_EVENT_##NAME, STRATA_CLASS_OF_##NAME))		\
				continue;										\
			record = strata_reserve(&strata_cpus[raw_smp_processor_id()], session, STRATA_EVENT_##NAME,	\
						sizeof(*record), &slot);						\
			if (record) {											\
				__VA_ARGS__										\
				strata_commit(&slot);									\
			}												\
		}													\
		preempt_enable_notrace();										\
	}

#define ARGS(...) __VA_ARGS__

/* What sched_switch shows as prev_state: the kernel's own computation, which its header keeps to itself. */
static __always_inline long strata_prev_state(bool preempt, unsigned int prev_state, const struct task_struct *prev)
{
	unsigned int index;

	if (preempt)
		return TASK_REPORT_MAX;
	index = __task_state_index(prev_state, prev->exit_state);
	return index ? 1L << (index - 1) : 0;
}

/* Text into a fixed field: cut if need be, and no byte of the ring's last lap left behind it. */
static __always_inline void strata_text(char *to, const char *from, size_t size)
{
	size_t length = strnlen(from, size);

	memcpy(to, from, length);
	memset(to + length, 0, size - length);
}

STRATA_PROBE(sched_sched_switch, SCHED_SCHED_SWITCH,
	ARGS(bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state),
	memcpy(record->prev_comm, prev->comm, sizeof(record->prev_comm));
	record->prev_pid = prev->pid;
	record->prev_prio = prev->prio;
	record->prev_state = strata_prev_state(preempt, prev_state, prev);
	memcpy(record->next_comm, next->comm, sizeof(record->next_comm));
	record->next_pid = next->pid;
	record->next_prio = next->prio;
)

STRATA_PROBE(sched_sched_wakeup, SCHED_SCHED_WAKEUP, ARGS(struct task_struct *task),
	memcpy(record->comm, task->comm, sizeof(record->comm));
	record->pid = task->pid;
	record->prio = task->prio;
	record->target_cpu = task_cpu(task);
)

STRATA_PROBE(sched_sched_process_fork, SCHED_SCHED_PROCESS_FORK,
	ARGS(struct task_struct *parent, struct task_struct *child),
	memcpy(record->parent_comm, parent->comm, sizeof(record->parent_comm));
	record->parent_pid = parent->pid;
	memcpy(record->child_comm, child->comm, sizeof(record->child_comm));
	record->child_pid = child->pid;
)

STRATA_PROBE(sched_sched_process_exec, SCHED_SCHED_PROCESS_EXEC,
	ARGS(struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm),
	strata_text(record->filename, bprm->filename, sizeof(record->filename));
	record->pid = task->pid;
	record->old_pid = old_pid;
)

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
#define STRATA_EXIT_ARGS ARGS(struct task_struct *task, bool group_dead)
#else
#define STRATA_EXIT_ARGS ARGS(struct task_struct *task)
#endif

STRATA_PROBE(sched_sched_process_exit, SCHED_SCHED_PROCESS_EXIT, STRATA_EXIT_ARGS,
	memcpy(record->comm, task->comm, sizeof(record->comm));
	record->pid = task->pid;
	record->prio = task->prio;
)

STRATA_PROBE(irq_irq_handler_entry, IRQ_IRQ_HANDLER_ENTRY, ARGS(int irq, struct irqaction *action),
	record->irq = irq;
	strata_text(record->name, action->name ?: "", sizeof(record->name));
)

STRATA_PROBE(irq_irq_handler_exit, IRQ_IRQ_HANDLER_EXIT, ARGS(int irq, struct irqaction *action, int ret),
	record->irq = irq;
	record->ret = ret;
)

STRATA_PROBE(irq_softirq_entry, IRQ_SOFTIRQ_ENTRY, ARGS(unsigned int vec_nr),
	record->vec = vec_nr;
)

STRATA_PROBE(irq_softirq_exit, IRQ_SOFTIRQ_EXIT, ARGS(unsigned int vec_nr),
	record->vec = vec_nr;
)

STRATA_PROBE(raw_syscalls_sys_enter, RAW_SYSCALLS_SYS_ENTER, ARGS(struct pt_regs *regs, long id),
	unsigned long args[6];

	syscall_get_arguments(current, regs, args);
	record->id = id;
	record->arg0 = args[0];
	record->arg1 = args[1];
	record->arg2 = args[2];
	record->arg3 = args[3];
	record->arg4 = args[4];
	record->arg5 = args[5];
)

STRATA_PROBE(raw_syscalls_sys_exit, RAW_SYSCALLS_SYS_EXIT, ARGS(struct pt_regs *regs, long ret),
	record->id = syscall_get_nr(current, regs);
	record->ret = ret;
)

STRATA_PROBE(exceptions_page_fault_user, EXCEPTIONS_PAGE_FAULT_USER,
	ARGS(unsigned long address, struct pt_regs *regs, unsigned long error_code),
	record->address = address;
	record->ip = regs->ip;
	record->error_code = error_code;
)

STRATA_PROBE(exceptions_page_fault_kernel, EXCEPTIONS_PAGE_FAULT_KERNEL,
	ARGS(unsigned long address, struct pt_regs *regs, unsigned long error_code),
	record->address = address;
	record->ip = regs->ip;
	record->error_code = error_code;
)

STRATA_PROBE(irq_vectors_local_timer_entry, IRQ_VECTORS_LOCAL_TIMER_ENTRY, ARGS(int vector),
	record->vector = vector;
)

STRATA_PROBE(irq_vectors_local_timer_exit, IRQ_VECTORS_LOCAL_TIMER_EXIT, ARGS(int vector),
	record->vector = vector;
)

struct strata_probe {
	const char *tracepoint;
	void *function;
	struct tracepoint *registered;
};

static struct strata_probe strata_probes[] = {
	{ "sched_switch", strata_probe_sched_sched_switch },
	{ "sched_wakeup", strata_probe_sched_sched_wakeup },
	{ "sched_process_fork", strata_probe_sched_sched_process_fork },
	{ "sched_process_exec", strata_probe_sched_sched_process_exec },
	{ "sched_process_exit", strata_probe_sched_sched_process_exit },
	{ "irq_handler_entry", strata_probe_irq_irq_handler_entry },
	{ "irq_handler_exit", strata_probe_irq_irq_handler_exit },
	{ "softirq_entry", strata_probe_irq_softirq_entry },
	{ "softirq_exit", strata_probe_irq_softirq_exit },
	{ "sys_enter", strata_probe_raw_syscalls_sys_enter },
	{ "sys_exit", strata_probe_raw_syscalls_sys_exit },
	{ "page_fault_user", strata_probe_exceptions_page_fault_user },
	{ "page_fault_kernel", strata_probe_exceptions_page_fault_kernel },
	{ "local_timer_entry", strata_probe_irq_vectors_local_timer_entry },
	{ "local_timer_exit", strata_probe_irq_vectors_local_timer_exit },
};

/* Compiles only if every probe takes what its tracepoint passes. */
static void __maybe_unused strata_check_types(void)
{
	check_trace_callback_type_sched_switch(strata_probe_sched_sched_switch);
	check_trace_callback_type_sched_wakeup(strata_probe_sched_sched_wakeup);
	check_trace_callback_type_sched_process_fork(strata_probe_sched_sched_process_fork);
	check_trace_callback_type_sched_process_exec(strata_probe_sched_sched_process_exec);
	check_trace_callback_type_sched_process_exit(strata_probe_sched_sched_process_exit);
	check_trace_callback_type_irq_handler_entry(strata_probe_irq_irq_handler_entry);
	check_trace_callback_type_irq_handler_exit(strata_probe_irq_irq_handler_exit);
	check_trace_callback_type_softirq_entry(strata_probe_irq_softirq_entry);
	check_trace_callback_type_softirq_exit(strata_probe_irq_softirq_exit);
	check_trace_callback_type_sys_enter(strata_probe_raw_syscalls_sys_enter);
	check_trace_callback_type_sys_exit(strata_probe_raw_syscalls_sys_exit);
	check_trace_callback_type_page_fault_user(strata_probe_exceptions_page_fault_user);
	check_trace_callback_type_page_fault_kernel(strata_probe_exceptions_page_fault_kernel);
	check_trace_callback_type_local_timer_entry(strata_probe_irq_vectors_local_timer_entry);
	check_trace_callback_type_local_timer_exit(strata_probe_irq_vectors_local_timer_exit);
}

static void strata_register_one(struct tracepoint *tracepoint, void *unused)
{
	struct strata_probe *probe;
	int error;

	for (probe = strata_probes; probe < strata_probes + ARRAY_SIZE(strata_probes); probe++) {
		if (strcmp(probe->tracepoint, tracepoint->name))
			continue;
		error = tracepoint_probe_register(tracepoint, probe->function, NULL);
		if (error)
			pr_warn("cannot probe %s (error %d)\n", tracepoint->name, error);
		else
			probe->registered = tracepoint;
	}
}

int strata_probes_register(void)
{
	struct strata_probe *probe;
	unsigned int registered = 0;

	for_each_kernel_tracepoint(strata_register_one, NULL);
	for (probe = strata_probes; probe < strata_probes + ARRAY_SIZE(strata_probes); probe++) {
		if (probe->registered)
			registered++;
		else
			pr_warn("this kernel has no usable tracepoint %s: its events will be missing\n",
				probe->tracepoint);
	}
	if (!registered) {
		pr_err("this kernel has none of the tracepoints that are recorded; not loaded\n");
		return -ENODEV;
	}
	pr_info("%u of %zu tracepoints probed on %u CPUs\n", registered, ARRAY_SIZE(strata_probes), num_online_cpus());
	return 0;
}

void strata_probes_unregister(void)
{
	struct strata_probe *probe;

	for (probe = strata_probes; probe < strata_probes + ARRAY_SIZE(strata_probes); probe++) {
		if (!probe->registered)
			continue;
		tracepoint_probe_unregister(probe->registered, probe->function, NULL);
		probe->registered = NULL;
	}
	/* No probe runs any more once this returns. */
	tracepoint_synchronize_unregister();
}
