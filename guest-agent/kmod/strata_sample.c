// SPDX-License-Identifier: GPL-2.0
/*
 * Sampling: what each CPU executes, at regular times, and what is needed to put names to it.
 *
 * A CPU's samples are the overflows of a perf counter: of the processor's cycles where the guest has such a counter, which
 * comes by NMI and so sees code that runs with interrupts disabled, else of the kernel's CPU clock, a timer. The handler
 * records the instruction pointer, and notes addresses and processes for later: one work for all CPUs (strata_control.c, ten
 * times a second) looks up which function each address belongs to and what the processes have mapped, and records that, once
 * in every STRATA_FORGET, since a flight recorder may have overwritten it. What a note's successor overwrites before the work
 * comes is shown without a name.
 *
 * The same work makes and releases the counters, never a hotplug callback: both take the hotplug lock.
 */

#include "strata_unit.h"

#include <linux/cpumask.h>
#include <linux/dcache.h>
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/mmap_lock.h>
#include <linux/moduleparam.h>
#include <linux/perf_event.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/stacktrace.h>
#include <linux/kallsyms.h>
#include <asm/ptrace.h>

#define STRATA_UNIT_CLASS STRATA_CLASS_SAMPLE
#define STRATA_UNIT_HEADER "strata_sample_events.h"
#define CREATE_TRACE_POINTS
#include "strata_sample_events.h"

/* Calls of a stack that are recorded, and those that are looked at: the handler's own come first. */
#define STRATA_CALLS 48
#define STRATA_LOOKED_AT (STRATA_CALLS + 32)
/* Powers of two. */
#define STRATA_ADDRESSES 4096
#define STRATA_PROCESSES 64
#define STRATA_KNOWN 1024
#define STRATA_FORGET (5 * HZ)
/* How often the mappings of a process are tried to be read while somebody changes them. */
#define STRATA_TRIES 10
/* Mappings of a process that are recorded, at most. */
#define STRATA_MAPPINGS 1024

static unsigned int sample_frequency = 499;
module_param(sample_frequency, uint, 0444);
MODULE_PARM_DESC(sample_frequency, "samples per second and CPU, 1 to 20000, while a session wants strata:sample");

/* Of one CPU; its interrupts make the notes, the rest is the work's. */
struct strata_sampler {
	struct perf_event *counter;
	/* The CPU's turn (strata_cpu_turn()) in which the counter was made, and one in which it could not be. */
	unsigned int turn;
	unsigned int failed_turn;
	/* Notes made; the last ones are in the arrays, each at its number modulo the size. */
	atomic_t addresses;
	atomic_t processes;
	u32 addresses_done;
	u32 processes_done;
	unsigned long forget_at;
	/* By context: an interrupt's stack must not overwrite that of the task it came into. */
	unsigned long calls[4][STRATA_LOOKED_AT];
	unsigned long address[STRATA_ADDRESSES];
	pid_t process[STRATA_PROCESSES];
	/* What has been recorded, each at the hash of its address. */
	unsigned long known_address[STRATA_KNOWN];
	unsigned long known_function[STRATA_KNOWN];
	pid_t known_process[STRATA_PROCESSES];
	/* Times that the mappings of a process with this place could not be read. */
	u8 tries[STRATA_PROCESSES];
	char name[KSYM_SYMBOL_LEN];
	char path[PATH_MAX];
};

/* Indexed by CPU number. */
static struct strata_sampler **strata_samplers;

static unsigned long strata_id(const struct strata_event *event)
{
	return STRATA_FIRST_TRACEPOINT + (event - strata_events_begin);
}

static bool strata_wants(const struct strata_event *event)
{
	return strata_wants_class(STRATA_UNIT_CLASS) && strata_wanted(strata_id(event));
}

static u32 strata_hash(unsigned long address)
{
	return (u64)address * 0x9e3779b97f4a7c15ULL >> 54;
}

/* Any context of the CPU. */
static void notrace strata_note_address(struct strata_sampler *sampler, unsigned long address)
{
	if (READ_ONCE(sampler->known_address[strata_hash(address)]) == address)
		return;
	WRITE_ONCE(sampler->address[(u32)(atomic_inc_return(&sampler->addresses) - 1) % STRATA_ADDRESSES], address);
}

static void notrace strata_note_process(struct strata_sampler *sampler, pid_t process)
{
	if (READ_ONCE(sampler->known_process[process % STRATA_PROCESSES]) == process)
		return;
	WRITE_ONCE(sampler->process[(u32)(atomic_inc_return(&sampler->processes) - 1) % STRATA_PROCESSES], process);
}

/* 0 for a task, 1 for a soft interrupt, 2 for an interrupt, 3 for an NMI. */
static __always_inline unsigned int strata_context_level(void)
{
	unsigned int count = preempt_count();

	return !!(count & NMI_MASK) + !!(count & (NMI_MASK | HARDIRQ_MASK)) +
	       !!(count & (NMI_MASK | HARDIRQ_MASK | SOFTIRQ_OFFSET));
}

/*
 * The calls that led here, or to `regs`; notes their addresses. The result is valid until the CPU leaves the context, with
 * preemption disabled.
 */
static unsigned int notrace strata_calls(struct strata_sampler *sampler, const struct pt_regs *regs, unsigned long **calls)
{
	unsigned long *found = sampler->calls[strata_context_level()];
	unsigned int begin = 0, count, index;

	count = stack_trace_save(found, STRATA_LOOKED_AT, 0);
	/* The interrupted function's frame and what lies outside of it come behind the handler's. */
	if (regs) {
		while (begin < count && found[begin] != regs->ip)
			begin++;
		begin++;
	}
	*calls = found + min(begin, count);
	count = min_t(unsigned int, count - min(begin, count), STRATA_CALLS);
	for (index = 0; index < count; index++)
		strata_note_address(sampler, (*calls)[index]);
	return count;
}

static void notrace strata_overflow(struct perf_event *counter, struct perf_sample_data *data, struct pt_regs *regs)
{
	struct strata_sampler *sampler = strata_samplers[raw_smp_processor_id()];
	bool is_user = user_mode(regs);
	unsigned long *calls = NULL;
	unsigned int depth = 0;

	if (!sampler)
		return;
	if (is_user) {
		strata_note_process(sampler, current->tgid);
	} else {
		strata_note_address(sampler, instruction_pointer(regs));
		if (strata_wants(&strata_event_stack))
			depth = strata_calls(sampler, regs, &calls);
	}
	strata_probe_sample((void *)strata_id(&strata_event_sample), instruction_pointer(regs), is_user, calls, depth);
}

static void notrace strata_contention_begin(void *data, void *lock, unsigned int flags)
{
	struct strata_sampler *sampler;
	unsigned long *calls;
	unsigned int depth;

	if (!strata_wants(&strata_event_stack))
		return;
	preempt_disable_notrace();
	sampler = strata_samplers[raw_smp_processor_id()];
	if (sampler) {
		/* A lock that is a variable has a name. */
		strata_note_address(sampler, (unsigned long)lock);
		depth = strata_calls(sampler, NULL, &calls);
		strata_probe_stack((void *)strata_id(&strata_event_stack), calls, depth);
	}
	preempt_enable_notrace();
}

static struct strata_second_probe strata_contention = { .name = "contention_begin", .probe = strata_contention_begin };

static struct perf_event *strata_counter(unsigned int cpu, u32 type, u64 config)
{
	struct perf_event_attr attribute = {
		.type = type,
		.config = config,
		.size = sizeof(attribute),
		.freq = 1,
		.sample_freq = clamp(sample_frequency, 1u, 20000u),
		.pinned = 1,
	};

	return perf_event_create_kernel_counter(&attribute, cpu, NULL, strata_overflow, NULL);
}

/* Starts or stops the CPU's counter as sessions want it. A counter does not outlive its CPU's going offline. */
static void strata_follow_counter(struct strata_sampler *sampler, unsigned int cpu, bool wanted)
{
	unsigned int turn = strata_cpu_turn(cpu);
	struct perf_event *counter;

	wanted = wanted && turn % 2;
	if (sampler->counter && (!wanted || sampler->turn != turn)) {
		perf_event_release_kernel(sampler->counter);
		sampler->counter = NULL;
	}
	if (!wanted || sampler->counter || sampler->failed_turn == turn)
		return;
	counter = strata_counter(cpu, PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES);
	if (IS_ERR(counter))
		counter = strata_counter(cpu, PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK);
	else if (cpu == 0)
		pr_info("samples come from the cycle counter, by NMI\n");
	if (IS_ERR(counter)) {
		/* It may have gone offline meanwhile, which is not a failure. */
		if (strata_cpu_turn(cpu) == turn)
			pr_warn("CPU %u cannot be sampled (error %ld)\n", cpu, PTR_ERR(counter));
		sampler->failed_turn = turn;
		return;
	}
	sampler->turn = turn;
	sampler->counter = counter;
}

/* Records which function `address` lies in. The kernel says it as NAME+OFFSET/SIZE, and [MODULE] behind that. */
static void strata_record_function(struct strata_sampler *sampler, unsigned long address)
{
	unsigned long offset, size, begin;
	char *plus, *module;

	WRITE_ONCE(sampler->known_address[strata_hash(address)], address);
	sprint_symbol(sampler->name, address);
	plus = strrchr(sampler->name, '+');
	if (!plus || sscanf(plus, "+%lx/%lx", &offset, &size) != 2)
		return;
	begin = address - offset;
	if (sampler->known_function[strata_hash(begin)] == begin)
		return;
	sampler->known_function[strata_hash(begin)] = begin;
	module = strstr(plus, " [");
	if (module)
		memmove(plus, module, strlen(module) + 1);
	else
		*plus = '\0';
	strata_probe_symbol((void *)strata_id(&strata_event_symbol), begin, size, sampler->name);
}

static const char *strata_mapped(struct strata_sampler *sampler, const struct vm_area_struct *area)
{
	const char *path = "[anonymous]";

	if (area->vm_file)
		path = d_path(&area->vm_file->f_path, sampler->path, sizeof(sampler->path));
	else if (area->vm_start == (unsigned long)area->vm_mm->context.vdso)
		path = "[vdso]";
	return IS_ERR(path) ? "[unknown]" : path;
}

/* Returns how many records that were. The process waits meanwhile where it changes its mappings, and may have very many. */
static unsigned int strata_record_areas(struct strata_sampler *sampler, pid_t process, struct mm_struct *mm)
{
	struct vm_area_struct *area;
	unsigned int count = 0;
#ifdef VMA_ITERATOR
	VMA_ITERATOR(iterator, mm, 0);

	for_each_vma(iterator, area) {
#else

	for (area = mm->mmap; area; area = area->vm_next) {
#endif
		if (!(area->vm_flags & VM_EXEC))
			continue;
		if (++count > STRATA_MAPPINGS)
			break;
		strata_probe_mapping((void *)strata_id(&strata_event_mapping), process, area->vm_start, area->vm_end,
				     (u64)area->vm_pgoff << PAGE_SHIFT, strata_mapped(sampler, area));
		cond_resched();
	}
	return count;
}

/*
 * Records what the process has mapped to execute; false when somebody is changing it. Never waits for the process: neither
 * for who holds its lock, which may sleep in a user's file system, nor for its memory to be taken down, where this holds the
 * last reference to it.
 */
static bool strata_record_mappings(struct strata_sampler *sampler, pid_t process)
{
	struct pid *pid = find_get_pid(process);
	struct task_struct *task = get_pid_task(pid, PIDTYPE_PID);
	struct mm_struct *mm = task ? get_task_mm(task) : NULL;
	unsigned int count = 0;
	bool recorded = true;

	if (mm) {
		recorded = mmap_read_trylock(mm);
		if (recorded) {
			count = strata_record_areas(sampler, process, mm);
			mmap_read_unlock(mm);
		}
		mmput_async(mm);
	}
	if (task)
		put_task_struct(task);
	put_pid(pid);
	/* The host drains what many records leave no room for. */
	if (count >= STRATA_PIECE)
		usleep_range(STRATA_PIECE_PAUSE, 2 * STRATA_PIECE_PAUSE);
	return recorded;
}

static void strata_name_process(struct strata_sampler *sampler, pid_t process)
{
	u32 place = process % STRATA_PROCESSES;

	if (sampler->known_process[place] == process)
		return;
	if (!strata_record_mappings(sampler, process) && ++sampler->tries[place] < STRATA_TRIES) {
		/* For the next time. */
		strata_note_process(sampler, process);
		return;
	}
	sampler->tries[place] = 0;
	WRITE_ONCE(sampler->known_process[place], process);
}

static void strata_record_names(struct strata_sampler *sampler)
{
	u32 end;

	if (time_after(jiffies, sampler->forget_at)) {
		memset(sampler->known_address, 0, sizeof(sampler->known_address));
		memset(sampler->known_function, 0, sizeof(sampler->known_function));
		memset(sampler->known_process, 0, sizeof(sampler->known_process));
		sampler->forget_at = jiffies + STRATA_FORGET;
	}
	end = atomic_read(&sampler->addresses);
	if (end - sampler->addresses_done > STRATA_ADDRESSES)
		sampler->addresses_done = end - STRATA_ADDRESSES;
	for (; sampler->addresses_done != end; sampler->addresses_done++) {
		unsigned long address = READ_ONCE(sampler->address[sampler->addresses_done % STRATA_ADDRESSES]);

		if (sampler->known_address[strata_hash(address)] != address)
			strata_record_function(sampler, address);
		cond_resched();
	}
	end = atomic_read(&sampler->processes);
	if (end - sampler->processes_done > STRATA_PROCESSES)
		sampler->processes_done = end - STRATA_PROCESSES;
	for (; sampler->processes_done != end; sampler->processes_done++) {
		pid_t process = READ_ONCE(sampler->process[sampler->processes_done % STRATA_PROCESSES]);

		strata_name_process(sampler, process);
	}
}

static void strata_sample_follow_cpu(unsigned int cpu, bool sample, bool stack)
{
	struct strata_sampler *sampler = strata_samplers[cpu];

	if (!sampler && (sample || stack) && strata_cpu_turn(cpu) % 2) {
		sampler = kvzalloc(sizeof(*sampler), GFP_KERNEL);
		if (!sampler)
			return;
		smp_store_release(&strata_samplers[cpu], sampler);
	}
	if (!sampler)
		return;
	strata_follow_counter(sampler, cpu, sample);
	strata_record_names(sampler);
}

bool strata_sample_follow(void)
{
	bool sample = strata_wants(&strata_event_sample), stack = strata_wants(&strata_event_stack);
	unsigned int cpu;

	strata_second_probe_follow(&strata_contention, stack);
	for_each_possible_cpu(cpu)
		strata_sample_follow_cpu(cpu, sample, stack);
	return sample || stack;
}

int strata_sample_init(void)
{
	strata_samplers = kcalloc(nr_cpu_ids, sizeof(*strata_samplers), GFP_KERNEL);
	if (!strata_samplers)
		return -ENOMEM;
	strata_second_probe_find(&strata_contention);
	return 0;
}

void strata_sample_exit(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		if (strata_samplers[cpu] && strata_samplers[cpu]->counter)
			perf_event_release_kernel(strata_samplers[cpu]->counter);
	strata_second_probe_follow(&strata_contention, false);
	tracepoint_synchronize_unregister();
	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		kvfree(strata_samplers[cpu]);
	kfree(strata_samplers);
}
