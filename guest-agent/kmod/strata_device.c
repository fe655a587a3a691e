// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/strata: maps a process's own rings, and what the host tells everyone, into the process.
 *
 * A process (an address space) gets a process slot by each mapping of offset 0, and a few at most, however many files it has
 * open and whoever opened them. It keeps a slot as long as the mapping, or a part of it, is there. That goes with exec(), exit
 * and kill, after which the slot is closed for the host to read to its end.
 *
 * A child that is forked inherits no slot, but finds zeroed memory of its own in its place: a signal handler that forks may
 * have interrupted a record, and in the child, too, it returns into that. Where the region is taken away with its device, all
 * processes find zeroed memory of their own in its place, for the same reason.
 */

#include <linux/cred.h>
#include <linux/device.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/mutex.h>
#include <linux/pseudo_fs.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>
#include <linux/version.h>

#include "strata.h"

/* Offset of the host's area in the device, in pages; the process's own slot is at offset 0. */
#define STRATA_HOST_AREA_PGOFF ((1UL << 32) >> PAGE_SHIFT)
/* The process's own slot once more, for those that were refused, and counted, before. */
#define STRATA_SLOT_AGAIN_PGOFF ((2UL << 32) >> PAGE_SHIFT)
/* Slots that a process has at most. Each copy of the library in it needs one: a program's own, and that of a plugin. */
#define STRATA_SLOTS_PER_PROCESS 4

/*
 * Who shares a limit: a user's processes, those in user namespaces of the user's included, whatever they are called there.
 * Containers that root has made share one limit, as if they were one user's.
 */
struct strata_account {
	kuid_t uid;
	bool is_container_of_root;
};

/* Who has a slot. */
struct strata_owner {
	/*
	 * Only compared, and held, so that no other process gets this address: mappings that the owner's children share
	 * (MADV_KEEPONFORK) outlive it. NULL for a slot that nobody has.
	 */
	struct mm_struct *mm;
	/* Of who has it, or had it last. */
	struct strata_account account;
	/* Mappings of the slot: more than one when parts of the first were changed. */
	unsigned int mappings;
};

/* Indexed by slot; NULL while there is no region. */
static struct strata_owner *strata_owners;
/* How many there are: as the region said when it came, whatever its memory says since. */
static u32 strata_slot_count;
/* How many regions there have been: mappings of an earlier one outlive it. */
static unsigned long strata_regions;
/* Guards the process table, strata_owners, strata_regions and strata_vcpu_of_cpu. */
static DEFINE_MUTEX(strata_slots);
/* Taken for writing to let go of the region, outside of strata_slots: whoever makes a mapping clears its slot without that. */
static DECLARE_RWSEM(strata_device_use);
/*
 * An inode, for its address space only: all mappings of the device, under whatever name it was opened, are in it.
 * It has a file system of its own: by an address space, the kernel tells what kind a mapped file's own inode is.
 */
static struct inode *strata_mappings;
static struct vfsmount *strata_mount;

static unsigned int slots_per_user;
module_param(slots_per_user, uint, 0644);
MODULE_PARM_DESC(slots_per_user,
		 "Most process slots that one user's processes have at a time (0: half of those that others do not have); "
		 "root may have them all");

static struct strata_account strata_account(void)
{
	const struct user_namespace *namespace = current_user_ns();
	struct strata_account account = { .uid = current_uid() };

	if (!namespace->parent)
		return account;
	/* The outermost one below the machine's own. */
	while (namespace->parent->parent)
		namespace = namespace->parent;
	account.uid = namespace->owner;
	account.is_container_of_root = uid_eq(account.uid, GLOBAL_ROOT_UID);
	return account;
}

static bool strata_is_same(struct strata_account one, struct strata_account other)
{
	return uid_eq(one.uid, other.uid) && one.is_container_of_root == other.is_container_of_root;
}

/* Whether a process has the slot, is getting it, or had it and the host has not read it to its end. */
static bool strata_slot_is_used(u32 slot)
{
	lockdep_assert_held(&strata_slots);
	return strata_owners[slot].mm || !strata_process_is_free(strata_region.base, strata_region.size, slot);
}

/*
 * Slots that are used by an account, and by others. Those that are not read to their end count: processes that come and go
 * quickly must not take more of them than others.
 */
static u32 strata_slots_used(struct strata_account account, u32 *by_others)
{
	u32 slot, used = 0;

	lockdep_assert_held(&strata_slots);
	*by_others = 0;
	for (slot = 0; slot < strata_slot_count; slot++) {
		if (!strata_slot_is_used(slot))
			continue;
		if (strata_is_same(strata_owners[slot].account, account))
			used++;
		else
			++*by_others;
	}
	return used;
}

/* Unless it is set, half of what others leave: however many users there are, each new one finds some. */
static u32 strata_account_limit(struct strata_account account, u32 used_by_others)
{
	u32 slots = strata_slot_count;
	u32 limit = READ_ONCE(slots_per_user);

	if (uid_eq(account.uid, GLOBAL_ROOT_UID) && !account.is_container_of_root)
		return slots;
	return limit ? min(limit, slots) : DIV_ROUND_UP(slots - used_by_others, 2);
}

/*
 * Finds a slot for the calling process, which nobody else gets from then on; negative when it cannot have one.
 */
static int strata_slot_find(void)
{
	struct strata_account account = strata_account();
	u32 slot, used, used_by_others, own = 0;

	lockdep_assert_held(&strata_slots);
	for (slot = 0; slot < strata_slot_count; slot++)
		own += strata_owners[slot].mm == current->mm;
	if (own >= STRATA_SLOTS_PER_PROCESS)
		return -EBUSY;
	for (slot = 0; slot < strata_slot_count && strata_slot_is_used(slot); slot++)
		;
	if (slot == strata_slot_count)
		return -ENOSPC;
	/* Counted behind the search, since the host frees slots at any time: one that is found free is not counted as used. */
	used = strata_slots_used(account, &used_by_others);
	if (used >= strata_account_limit(account, used_by_others))
		return -EDQUOT;
	mmgrab(current->mm);
	strata_owners[slot].mm = current->mm;
	strata_owners[slot].account = account;
	strata_owners[slot].mappings = 1;
	return slot;
}

/* Clears a slot that strata_slot_find() has found: a mebibyte for each vCPU, for which nobody else waits. */
static int strata_slot_clear(u32 slot)
{
	u64 from = 0;

	do {
		if (fatal_signal_pending(current))
			return -EINTR;
		from = strata_process_clear(strata_region.base, strata_region.size, slot, from);
		cond_resched();
	} while (from);
	return 0;
}

static void strata_slot_put_locked(u32 slot)
{
	lockdep_assert_held(&strata_slots);
	if (!--strata_owners[slot].mappings) {
		mmdrop(strata_owners[slot].mm);
		strata_owners[slot].mm = NULL;
		strata_process_close(strata_region.base, strata_region.size, slot);
	}
}

static void strata_slot_put(u32 slot)
{
	mutex_lock(&strata_slots);
	strata_slot_put_locked(slot);
	mutex_unlock(&strata_slots);
}

/* Gives the calling process a slot; negative when it cannot have one. `counted` says that it was refused, and counted, before. */
static int strata_slot_claim(bool counted)
{
	char comm[TASK_COMM_LEN] = {};
	int slot, error;

	BUILD_BUG_ON(sizeof(comm) != 16);
	mutex_lock(&strata_slots);
	slot = strata_slot_find();
	if ((slot == -ENOSPC || slot == -EDQUOT) && !counted)
		strata_process_refused(strata_region.base, strata_region.size, slot == -EDQUOT);
	mutex_unlock(&strata_slots);
	if (slot < 0)
		return slot;
	error = strata_slot_clear(slot);
	if (error) {
		strata_slot_put(slot);
		return error;
	}
	get_task_comm(comm, current->group_leader);
	mutex_lock(&strata_slots);
	/* False where the host has taken the slot back, which it does not. */
	if (!strata_process_publish(strata_region.base, strata_region.size, slot, task_tgid_nr(current), comm,
				    strata_vcpu_of_cpu))
		error = -EIO;
	mutex_unlock(&strata_slots);
	if (error)
		strata_slot_put(slot);
	return error ?: slot;
}

/* What vm_private_data holds: the slot, and above it which region it is of. */
#define STRATA_SLOT_BITS 16
#define STRATA_SLOT_MASK ((1UL << STRATA_SLOT_BITS) - 1)
/* In place of that: of a child's memory. */
#define STRATA_NO_SLOT ((void *)-1UL)
/* Set where the kernel tracks the mapping's caching by the pages in it; the child's mapping has none. */
#ifndef VM_PAT
#define VM_PAT 0
#endif

/* Of a child's memory. Before 5.11 a page whose memory is accounted to a group cannot be mapped: both are said in one word. */
#ifdef PG_kmemcg
#define STRATA_CHILD_PAGE (GFP_HIGHUSER | __GFP_ZERO)
#else
#define STRATA_CHILD_PAGE (GFP_HIGHUSER | __GFP_ZERO | __GFP_ACCOUNT)
#endif

static void strata_vma_flags(struct vm_area_struct *vma, unsigned long set, unsigned long clear)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

/* What a new mapping has in vm_private_data. */
static void *strata_mark(unsigned long slot)
{
	return (void *)(strata_regions << STRATA_SLOT_BITS | slot);
}

static unsigned long strata_slot_of(const struct vm_area_struct *vma)
{
	return (unsigned long)vma->vm_private_data & STRATA_SLOT_MASK;
}

/* Whether the mapping is of the region that there is, and not a child's. */
static bool strata_is_mapped(const struct vm_area_struct *vma)
{
	lockdep_assert_held(&strata_slots);
	return strata_owners && vma->vm_private_data != STRATA_NO_SLOT &&
	       (unsigned long)vma->vm_private_data >> STRATA_SLOT_BITS == strata_regions;
}

/*
 * The mapping is split or moved, and there is one more; or it is a child's, made by fork(), in which VM_WIPEONFORK has left
 * nothing. A process that has taken that flag off its mapping (MADV_KEEPONFORK) shares its slot with its children.
 */
static void strata_slot_vma_open(struct vm_area_struct *vma)
{
	unsigned long slot = strata_slot_of(vma);
	bool is_mapped, is_of_slot;

	mutex_lock(&strata_slots);
	is_mapped = strata_is_mapped(vma);
	is_of_slot = is_mapped && (strata_owners[slot].mm == vma->vm_mm || !(vma->vm_flags & VM_WIPEONFORK));
	if (is_of_slot)
		strata_owners[slot].mappings++;
	mutex_unlock(&strata_slots);
	if (!is_mapped || is_of_slot)
		return;
	/* Ordinary memory from here on, a page at a time (below). */
	vma->vm_private_data = STRATA_NO_SLOT;
	strata_vma_flags(vma, 0, VM_IO | VM_PFNMAP | VM_MIXEDMAP | VM_PAT);
}

static void strata_slot_vma_close(struct vm_area_struct *vma)
{
	mutex_lock(&strata_slots);
	if (strata_is_mapped(vma))
		strata_slot_put_locked(strata_slot_of(vma));
	mutex_unlock(&strata_slots);
}

/* Maps a part of the region that begins at `offset` into a whole mapping. Returns what a fault handler does. */
static vm_fault_t strata_vma_fill(struct vm_area_struct *vma, u64 offset)
{
	/* What is left of a mapping that was cut; the low bits count from the beginning of what was mapped. */
	u64 begin = offset + PFN_PHYS(vma->vm_pgoff & (STRATA_HOST_AREA_PGOFF - 1));
	unsigned long pfn = PHYS_PFN(strata_region.address + begin);
	unsigned long address;
	vm_fault_t result = VM_FAULT_SIGBUS;

	if (!strata_region_has(begin, vma->vm_end - vma->vm_start))
		return VM_FAULT_SIGBUS;
	for (address = vma->vm_start; address < vma->vm_end; address += PAGE_SIZE, pfn++) {
		/* The memory has no page structures, which would make it ordinary memory here. */
		if (pfn_valid(pfn))
			return VM_FAULT_SIGBUS;
		result = vmf_insert_pfn(vma, address, pfn);
		if (result != VM_FAULT_NOPAGE)
			break;
	}
	return result;
}

/*
 * A part of the region at `offset` is mapped as a whole when it is touched first: then the mapping is in the address space
 * already, where it is found when the region is let go of.
 */
static vm_fault_t strata_vma_fault(struct vm_fault *fault, u64 offset)
{
	vm_fault_t result = VM_FAULT_SIGBUS;
	bool is_mapped;

	mutex_lock(&strata_slots);
	is_mapped = strata_is_mapped(fault->vma);
	if (is_mapped)
		result = strata_vma_fill(fault->vma, offset);
	mutex_unlock(&strata_slots);
	if (is_mapped)
		return result;
	fault->page = alloc_page(STRATA_CHILD_PAGE);
	return fault->page ? 0 : VM_FAULT_OOM;
}

/* Where a slot is. With strata_slots, or the device's use, held: there is a region. */
static u64 strata_slot_offset(unsigned long slot)
{
	return strata_superblock_u64(STRATA_SUPERBLOCK_PROCESS_POOL_OFFSET) +
	       slot * strata_superblock_u64(STRATA_SUPERBLOCK_PROCESS_STRIDE);
}

static vm_fault_t strata_slot_vma_fault(struct vm_fault *fault)
{
	u64 offset = 0;

	mutex_lock(&strata_slots);
	if (strata_is_mapped(fault->vma))
		offset = strata_slot_offset(strata_slot_of(fault->vma));
	mutex_unlock(&strata_slots);
	return strata_vma_fault(fault, offset);
}

static vm_fault_t strata_host_area_vma_fault(struct vm_fault *fault)
{
	return strata_vma_fault(fault, 0);
}

static const struct vm_operations_struct strata_slot_vm_ops = {
	.open = strata_slot_vma_open,
	.close = strata_slot_vma_close,
	.fault = strata_slot_vma_fault,
};

static const struct vm_operations_struct strata_host_area_vm_ops = {
	.fault = strata_host_area_vma_fault,
};

static int strata_map(struct vm_area_struct *vma, u64 offset)
{
	if (!strata_region_has(offset, vma->vm_end - vma->vm_start))
		return -EIO;
	/* What a hypervisor reserves beside RAM may have page structures, with which it cannot be mapped page by page. */
	if (!strata_region.device && pfn_valid(PHYS_PFN(strata_region.address + offset)))
		return remap_pfn_range(vma, vma->vm_start, PHYS_PFN(strata_region.address + offset),
				       vma->vm_end - vma->vm_start, vma->vm_page_prot);
	strata_vma_flags(vma, VM_IO | VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP, 0);
	return 0;
}

static int strata_mmap_host_area(struct vm_area_struct *vma)
{
	if (vma->vm_flags & VM_WRITE)
		return -EPERM;
	if (vma->vm_end - vma->vm_start > strata_superblock_u64(STRATA_SUPERBLOCK_GUEST_WRITABLE_OFFSET))
		return -EINVAL;
	/* Never to be made writable later. */
	strata_vma_flags(vma, 0, VM_MAYWRITE | VM_MAYEXEC);
	vma->vm_private_data = strata_mark(STRATA_SLOT_MASK);
	vma->vm_ops = &strata_host_area_vm_ops;
	return strata_map(vma, 0);
}

static int strata_mmap_slot(struct vm_area_struct *vma, bool counted)
{
	u64 stride = strata_superblock_u64(STRATA_SUPERBLOCK_PROCESS_STRIDE);
	int slot, error;

	/* Which takes a file that was opened for writing. */
	if (!(vma->vm_flags & VM_SHARED))
		return -EACCES;
	if (vma->vm_end - vma->vm_start > stride)
		return -EINVAL;
	slot = strata_slot_claim(counted);
	if (slot < 0)
		return slot;
	strata_vma_flags(vma, VM_WIPEONFORK, VM_MAYEXEC);
	vma->vm_private_data = strata_mark(slot);
	vma->vm_ops = &strata_slot_vm_ops;
	error = strata_map(vma, strata_slot_offset(slot));
	/* A mapping that fails is not closed. */
	if (error)
		strata_slot_put(slot);
	return error;
}

static int strata_mmap_part(struct vm_area_struct *vma)
{
	switch (vma->vm_pgoff) {
	case 0:
		return strata_mmap_slot(vma, false);
	case STRATA_SLOT_AGAIN_PGOFF:
		return strata_mmap_slot(vma, true);
	case STRATA_HOST_AREA_PGOFF:
		return strata_mmap_host_area(vma);
	default:
		return -EINVAL;
	}
}

static int strata_mmap(struct file *file, struct vm_area_struct *vma)
{
	int error = -ENODEV;

	/* A shared mapping of a file that was opened for reading only is VM_MAYSHARE, and not VM_SHARED. */
	if (!(vma->vm_flags & VM_MAYSHARE) || vma->vm_flags & VM_EXEC)
		return -EINVAL;
	down_read(&strata_device_use);
	/* A file may be of a region that was taken away. */
	if (strata_owners)
		error = strata_mmap_part(vma);
	up_read(&strata_device_use);
	return error;
}

static int strata_open(struct inode *inode, struct file *file)
{
	file->f_mapping = strata_mappings->i_mapping;
	return 0;
}

static const struct file_operations strata_fops = {
	.owner = THIS_MODULE,
	.open = strata_open,
	.mmap = strata_mmap,
	.llseek = noop_llseek,
};

/* What /sys/class/misc/strata tells everyone; the user_ ones are about whoever reads them. */

static ssize_t slots_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	return sysfs_emit(buffer, "%u\n", strata_slot_count);
}
static DEVICE_ATTR_RO(slots);

static ssize_t slots_used_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	u32 slot, used = 0;

	mutex_lock(&strata_slots);
	for (slot = 0; slot < strata_slot_count; slot++)
		used += strata_slot_is_used(slot);
	mutex_unlock(&strata_slots);
	return sysfs_emit(buffer, "%u\n", used);
}
static DEVICE_ATTR_RO(slots_used);

static ssize_t user_slots_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	struct strata_account account = strata_account();
	u32 used_by_others;

	mutex_lock(&strata_slots);
	strata_slots_used(account, &used_by_others);
	mutex_unlock(&strata_slots);
	return sysfs_emit(buffer, "%u\n", strata_account_limit(account, used_by_others));
}
static DEVICE_ATTR_RO(user_slots);

static ssize_t user_slots_used_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	u32 used, used_by_others;

	mutex_lock(&strata_slots);
	used = strata_slots_used(strata_account(), &used_by_others);
	mutex_unlock(&strata_slots);
	return sysfs_emit(buffer, "%u\n", used);
}
static DEVICE_ATTR_RO(user_slots_used);

static u64 strata_agent_u64(unsigned int offset)
{
	u64 agent = strata_superblock_u64(STRATA_SUPERBLOCK_AGENT_OFFSET);

	if (!strata_region_has(agent, STRATA_AGENT_SIZE))
		return 0;
	return READ_ONCE(*(const u64 *)(strata_region.base + agent + offset));
}

static ssize_t processes_refused_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	return sysfs_emit(buffer, "%llu\n", strata_agent_u64(STRATA_AGENT_PROCESSES_REFUSED));
}
static DEVICE_ATTR_RO(processes_refused);

static ssize_t processes_over_quota_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	return sysfs_emit(buffer, "%llu\n", strata_agent_u64(STRATA_AGENT_PROCESSES_OVER_QUOTA));
}
static DEVICE_ATTR_RO(processes_over_quota);

static struct attribute *strata_attrs[] = {
	&dev_attr_slots.attr,
	&dev_attr_slots_used.attr,
	&dev_attr_user_slots.attr,
	&dev_attr_user_slots_used.attr,
	&dev_attr_processes_refused.attr,
	&dev_attr_processes_over_quota.attr,
	NULL,
};
ATTRIBUTE_GROUPS(strata);

static struct miscdevice strata_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "strata",
	.fops = &strata_fops,
	.groups = strata_groups,
	/* For root, until udev's rule gives it to the group strata. */
	.mode = 0660,
};

void strata_device_cpu(unsigned int cpu, u16 vcpu)
{
	mutex_lock(&strata_slots);
	strata_vcpu_of_cpu[cpu] = vcpu;
	strata_process_cpu(strata_region.base, strata_region.size, cpu, vcpu);
	mutex_unlock(&strata_slots);
}

static int strata_init_fs_context(struct fs_context *context)
{
	/* Only userspace could tell it from another one's, and cannot see it. */
	return init_pseudo(context, 0x73747261) ? 0 : -ENOMEM;
}

/* Without an owner: it is mounted as long as the module is there, which may go. */
static struct file_system_type strata_file_system = {
	.name = "strata",
	.init_fs_context = strata_init_fs_context,
	.kill_sb = kill_anon_super,
};

int strata_device_init(void)
{
	strata_mount = kern_mount(&strata_file_system);
	if (IS_ERR(strata_mount))
		return PTR_ERR(strata_mount);
	strata_mappings = alloc_anon_inode(strata_mount->mnt_sb);
	if (IS_ERR(strata_mappings))
		kern_unmount(strata_mount);
	return PTR_ERR_OR_ZERO(strata_mappings);
}

/* Files of the device hold the module, so that there is none any more. */
void strata_device_exit(void)
{
	iput(strata_mappings);
	kern_unmount(strata_mount);
}

/* Lets go of the slots' owners. Who maps a slot, or has mapped one, does not use them meanwhile. */
static void strata_owners_free(void)
{
	u32 slot;

	down_write(&strata_device_use);
	mutex_lock(&strata_slots);
	for (slot = 0; slot < strata_slot_count; slot++)
		if (strata_owners[slot].mm)
			mmdrop(strata_owners[slot].mm);
	kfree(strata_owners);
	strata_owners = NULL;
	mutex_unlock(&strata_slots);
	up_write(&strata_device_use);
}

/* Closes the slots of processes that write to none any more. */
static void strata_slots_close(void)
{
	u32 slot;

	lockdep_assert_held(&strata_slots);
	for (slot = 0; slot < strata_slot_count; slot++)
		strata_process_close(strata_region.base, strata_region.size, slot);
}

/* Takes all slots from the processes that have them. */
static void strata_slots_take_back(void)
{
	strata_owners_free();
	/* Whoever touches a mapping from here on gets memory of its own. */
	unmap_mapping_range(strata_mappings->i_mapping, 0, 0, 1);
	mutex_lock(&strata_slots);
	strata_slots_close();
	mutex_unlock(&strata_slots);
}

int strata_device_register(void)
{
	int error;

	mutex_lock(&strata_slots);
	strata_slot_count = strata_superblock_u32(STRATA_SUPERBLOCK_PROCESS_SLOTS);
	strata_owners = kcalloc(max(strata_slot_count, 1U), sizeof(*strata_owners), GFP_KERNEL);
	if (strata_owners) {
		strata_regions++;
		/* Those that an earlier kernel left, which did not end in order. */
		strata_slots_close();
	}
	error = strata_owners ? 0 : -ENOMEM;
	mutex_unlock(&strata_slots);
	if (error)
		return error;
	/* A number that an earlier registration was given. */
	strata_misc.minor = MISC_DYNAMIC_MINOR;
	error = misc_register(&strata_misc);
	/* Who has opened it for an earlier region may have mapped a slot by now. */
	if (error)
		strata_slots_take_back();
	return error;
}

void strata_device_unregister(void)
{
	/* Waits for those who read its attributes; who has opened it keeps the file. */
	misc_deregister(&strata_misc);
	strata_slots_take_back();
}
