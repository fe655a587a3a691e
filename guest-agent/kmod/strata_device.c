// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/strata: maps a process's own rings, and what the host tells everyone, into the process.
 *
 * An open file has at most one process slot, given to the first process that maps offset 0 and to no other: a slot's
 * mappings are not inherited by fork(), and the file refuses to map it for anyone else. When the file is gone - closed,
 * and all its mappings with it - the slot is closed.
 */

#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "strata.h"

/* Offset of the host's area in the device, in pages; the process's own slot is at offset 0. */
#define STRATA_HOST_AREA_PGOFF ((1UL << 32) >> PAGE_SHIFT)

struct strata_file {
	/* The process that has the slot; NULL while there is none. */
	struct pid *owner;
	u32 slot;
};

/* Guards the process table and every strata_file. */
static DEFINE_MUTEX(strata_slots);

static int strata_open(struct inode *inode, struct file *file)
{
	file->private_data = kzalloc(sizeof(struct strata_file), GFP_KERNEL);
	return file->private_data ? 0 : -ENOMEM;
}

static int strata_release(struct inode *inode, struct file *file)
{
	struct strata_file *own = file->private_data;

	if (own->owner) {
		mutex_lock(&strata_slots);
		strata_process_close(strata_region.base, strata_region.size, own->slot);
		mutex_unlock(&strata_slots);
		put_pid(own->owner);
	}
	kfree(own);
	return 0;
}

/* The calling process's slot, claimed now unless the file has it already; negative when it cannot have one. */
static int strata_slot_of(struct strata_file *own)
{
	char comm[TASK_COMM_LEN];
	int slot;

	BUILD_BUG_ON(sizeof(comm) != 16);
	mutex_lock(&strata_slots);
	if (own->owner) {
		slot = own->owner == task_tgid(current) ? own->slot : -EPERM;
	} else {
		memset(comm, 0, sizeof(comm));
		get_task_comm(comm, current->group_leader);
		slot = strata_process_claim(strata_region.base, strata_region.size, task_tgid_nr(current), comm,
					    strata_vcpu_of_cpu);
		if (slot >= 0) {
			own->owner = get_pid(task_tgid(current));
			own->slot = slot;
		}
	}
	mutex_unlock(&strata_slots);
	return slot;
}

static void strata_vma_flags(struct vm_area_struct *vma, unsigned long set, unsigned long clear)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

static int strata_mmap(struct file *file, struct vm_area_struct *vma)
{
	u64 size = vma->vm_end - vma->vm_start;
	u64 offset, limit;
	int slot;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_pgoff == STRATA_HOST_AREA_PGOFF) {
		if (vma->vm_flags & VM_WRITE)
			return -EPERM;
		offset = 0;
		limit = strata_superblock_u64(STRATA_SUPERBLOCK_GUEST_WRITABLE_OFFSET);
		if (size > limit)
			return -EINVAL;
		/* Never to be made writable later. */
		strata_vma_flags(vma, VM_DONTCOPY, VM_MAYWRITE | VM_MAYEXEC);
	} else if (vma->vm_pgoff == 0) {
		limit = strata_superblock_u64(STRATA_SUPERBLOCK_PROCESS_STRIDE);
		if (size > limit)
			return -EINVAL;
		slot = strata_slot_of(file->private_data);
		if (slot < 0)
			return slot;
		offset = strata_superblock_u64(STRATA_SUPERBLOCK_PROCESS_POOL_OFFSET) + slot * limit;
		strata_vma_flags(vma, VM_DONTCOPY, VM_MAYEXEC);
	} else {
		return -EINVAL;
	}
	return remap_pfn_range(vma, vma->vm_start, PHYS_PFN(strata_region.address + offset), size, vma->vm_page_prot);
}

static const struct file_operations strata_fops = {
	.owner = THIS_MODULE,
	.open = strata_open,
	.release = strata_release,
	.mmap = strata_mmap,
	.llseek = noop_llseek,
};

static struct miscdevice strata_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "strata",
	.fops = &strata_fops,
	.mode = 0666,
};

int strata_device_register(void)
{
	return misc_register(&strata_misc);
}

void strata_device_unregister(void)
{
	misc_deregister(&strata_misc);
}
