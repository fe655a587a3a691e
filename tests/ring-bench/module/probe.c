/*
 * Calls the guest kernel module's probe of sys_exit, from the object files that the module is linked of, on request: see
 * chunks.h. What they use of the kernel stands here instead. Argument: the file of a trace region.
 *
 * The kernel's per-CPU variables are addressed from the GS segment's base, which is 0 in a program: they are plain variables
 * here, as of a kernel with one CPU.
 */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chunks.h"
/* Generated beside the object files. */
#include "strata_abi.h"

/* As in guest-agent/kmod/strata.h and strata_event.h. */
struct strata_cpu {
	uint64_t words[40];
} __attribute__((aligned(64)));

struct strata_region {
	void *base;
	uint64_t address;
	uint64_t size;
	void *device;
};

struct strata_event {
	const char *system;
	const char *name;
	const char *print;
	void (*probe)(void *id, void *registers, long result);
	const void *fields;
	uint32_t field_count;
	uint32_t size;
	uint8_t class;
	uint8_t reserved[15];
};

int strata_attach(void *base, uint64_t size, const char *release, uint64_t schedule_at,
		  const struct strata_event *events, uint32_t count);
int strata_cpu_init(struct strata_cpu *cpu, void *base, uint64_t size, uint32_t vcpu);

static struct strata_cpu cpu;
struct strata_cpu *strata_cpus = &cpu;
struct strata_region strata_region;
/* What begins as the kernel's does: nobody wants the CPU. */
uint32_t __preempt_count = 0x80000000;
uint32_t cpu_number;
static uint64_t task[512];
void *current_task = task;

void strata_preempt_check(void)
{
}

void strata_nested(const struct strata_cpu *of, uint64_t sessions, unsigned long id)
{
	(void)of, (void)sessions, (void)id;
	abort();
}

/* What returns jump to, before the kernel writes a return in their place: see patch_returns(). */
__asm__(".text\n.globl __x86_return_thunk\n__x86_return_thunk:\n\tret\n\tint3\n");

extern const struct strata_event __start_strata_events[], __stop_strata_events[];
extern const int32_t __start_strata_returns[], __stop_strata_returns[];
extern char __executable_start[], etext[];

/* As the kernel does when it loads a module on a processor that needs no other return. */
static int patch_returns(void)
{
	uintptr_t page = 4096, begin = (uintptr_t)__executable_start & -page;
	const int32_t *site;

	if (mprotect((void *)begin, (uintptr_t)etext - begin, PROT_READ | PROT_WRITE | PROT_EXEC))
		return -1;
	for (site = __start_strata_returns; site < __stop_strata_returns; site++) {
		uint8_t *at = (uint8_t *)site + *site;

		/* a jump, with where to in four bytes */
		if (*at == 0xe9) {
			memset(at, 0xcc, 5);
			*at = 0xc3;
		}
	}
	return mprotect((void *)begin, (uintptr_t)etext - begin, PROT_READ | PROT_EXEC);
}

static const struct strata_event *sys_exit;
static void *id;
/* struct pt_regs. */
static uint64_t registers[21];
static uint64_t *any_class_mask;

static void record(int is_wanted, long events)
{
	uint64_t mask = *any_class_mask;
	long number;

	if (!is_wanted)
		*(volatile uint64_t *)any_class_mask = 0;
	for (number = 0; number < events; number++)
		sys_exit->probe(id, registers, number);
	*any_class_mask = mask;
}

int main(int count, char **arguments)
{
	struct stat region;
	uint32_t events = (uint32_t)(__stop_strata_events - __start_strata_events), event;
	int file, error;

	if (count != 2 || (file = open(arguments[1], O_RDWR)) < 0 || fstat(file, &region)) {
		fprintf(stderr, "the file of a trace region is needed\n");
		return EXIT_FAILURE;
	}
	strata_region.size = (uint64_t)region.st_size;
	strata_region.base =
		mmap(NULL, strata_region.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
	if (strata_region.base == MAP_FAILED || patch_returns()) {
		fprintf(stderr, "memory cannot be mapped, or its access not be changed\n");
		return EXIT_FAILURE;
	}
	any_class_mask = (uint64_t *)((char *)strata_region.base + STRATA_SUPERBLOCK_ANY_CLASS_MASK);
	for (event = 0; event < events; event++)
		if (!strcmp(__start_strata_events[event].name, "sys_exit"))
			sys_exit = &__start_strata_events[event];
	if (!sys_exit) {
		fprintf(stderr, "the object file has no probe of sys_exit\n");
		return EXIT_FAILURE;
	}
	id = (void *)(uintptr_t)(STRATA_FIRST_TRACEPOINT + (sys_exit - __start_strata_events));
	error = strata_attach(strata_region.base, strata_region.size, "none", 0, __start_strata_events, events);
	if (!error)
		error = strata_cpu_init(&cpu, strata_region.base, strata_region.size, 0);
	if (error) {
		fprintf(stderr, "the region is refused: error %d\n", error);
		return EXIT_FAILURE;
	}
	return answer_requests(record);
}
