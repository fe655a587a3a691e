// SPDX-License-Identifier: GPL-2.0
/*
 * The trace region in persistent memory of virtio (virtio-pmem): a range of guest-physical memory which is a file that the host
 * maps, too.
 *
 * The range stands in the device's configuration, which the virtio bus reads alike behind PCI and MMIO. This is not a driver of
 * the device: one that a driver has refused is not offered clean to the next one (it is marked as failed), and most such devices
 * are somebody's disks, which only their memory tells. So devices are looked at as they come, and the memory of the one that
 * has the region is claimed; the kernel's own driver works for the others. Where that has been there first, as with udev, it has
 * made the region a disk: the device is taken from it, unless somebody has mounted that or the like.
 */

#include <linux/blkdev.h>
#include <linux/device.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/overflow.h>
#include <linux/string.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_pmem.h>

#include "strata.h"

#if IS_ENABLED(CONFIG_VIRTIO) && defined(CONFIG_BLOCK)

/* So that udev loads the module when such a device is there, or is plugged in. */
static const struct virtio_device_id strata_pmem_ids[] = {
	{ VIRTIO_ID_PMEM, VIRTIO_DEV_ANY_ID },
	{}
};
MODULE_DEVICE_TABLE(virtio, strata_pmem_ids);

/* The device that has the region; NULL when none has. Guarded by strata_region_lock. */
static struct device *strata_pmem;

/* Whether the disk, or a partition of it, is somebody's alone. */
static bool strata_pmem_is_held(struct device *disk)
{
#ifdef dev_to_bdev
	return READ_ONCE(dev_to_bdev(disk)->bd_holder);
#else
	struct block_device *whole = bdget_disk(dev_to_disk(disk), 0);
	bool is_held = whole && READ_ONCE(whole->bd_holder);

	if (whole)
		bdput(whole);
	return is_held;
#endif
}

/* Whether the device, or one below it, is a disk that is mounted, or is somebody's alone for another reason. */
static int strata_pmem_is_disk_in_use(struct device *device, void *unused)
{
	if (device->type && device->type->name && !strcmp(device->type->name, "disk"))
		return strata_pmem_is_held(device);
	return device_for_each_child(device, NULL, strata_pmem_is_disk_in_use);
}

/* Claims the device's memory, in which the region is: from the driver that has it, if need be. */
static bool strata_pmem_claim(struct device *device, phys_addr_t start, u64 size)
{
	if (request_mem_region(start, size, "strata"))
		return true;
	strata_region_error = -EBUSY;
	if (strata_pmem_is_disk_in_use(device, NULL)) {
		pr_warn("virtio device %s has the trace region, and is in use as a disk: unmount it\n", dev_name(device));
		return false;
	}
	device_release_driver(device);
	if (request_mem_region(start, size, "strata"))
		return true;
	pr_warn("the memory of virtio device %s, which has the trace region, is another driver's\n", dev_name(device));
	return false;
}

/* Records into the device's memory, which is claimed, unless there is another region by now. Returns whether it does. */
static bool strata_pmem_start(struct device *device, phys_addr_t start, u64 size)
{
	bool is_started = false;

	mutex_lock(&strata_region_lock);
	if (!strata_region.device) {
		pr_info("trace region in virtio device %s\n", dev_name(device));
		is_started = !strata_region_start(device, start, size);
	}
	if (is_started)
		strata_pmem = device;
	mutex_unlock(&strata_region_lock);
	return is_started;
}

static void strata_pmem_stop(void)
{
	lockdep_assert_held(&strata_region_lock);
	strata_region_stop();
	release_mem_region(strata_region.address, strata_region.size);
	strata_pmem = NULL;
}

static int strata_pmem_consider(struct device *device, void *unused)
{
	struct virtio_device *virtio = dev_to_virtio(device);
	u64 start, size, end;

	if (virtio->id.device != VIRTIO_ID_PMEM)
		return 0;
	virtio_cread_le(virtio, struct virtio_pmem_config, start, &start);
	virtio_cread_le(virtio, struct virtio_pmem_config, size, &size);
	/* Some name no start, but a range of the device's own (VIRTIO_PMEM_F_SHMEM_REGION). */
	if (!start || !PAGE_ALIGNED(start) || size < STRATA_PAGE_SIZE || check_add_overflow(start, size, &end))
		return 0;
	/* One region at a time. */
	if (READ_ONCE(strata_region.device) || !strata_region_is_at(start))
		return 0;
	/*
	 * Without strata_region_lock, which is taken below the bus's own: taking a device from its driver is told to all who watch
	 * the bus, with that held.
	 */
	if (strata_pmem_claim(device, start, size) && !strata_pmem_start(device, start, size))
		release_mem_region(start, size);
	return 0;
}

/* Before the device goes: its memory is still there. */
static void strata_pmem_forget(struct device *device)
{
	mutex_lock(&strata_region_lock);
	if (strata_pmem == device) {
		strata_pmem_stop();
		pr_info("the trace region is gone with virtio device %s\n", dev_name(device));
	}
	mutex_unlock(&strata_region_lock);
}

/* A new device is told of before a driver gets it. */
static int strata_pmem_notify(struct notifier_block *block, unsigned long event, void *device)
{
	if (event == BUS_NOTIFY_ADD_DEVICE)
		strata_pmem_consider(device, NULL);
	else if (event == BUS_NOTIFY_DEL_DEVICE)
		strata_pmem_forget(device);
	return NOTIFY_DONE;
}

static struct notifier_block strata_pmem_block = {
	.notifier_call = strata_pmem_notify,
};

/* A driver for no device: the bus is known to its drivers only. */
static const struct virtio_device_id strata_pmem_no_ids[] = { {} };
static struct virtio_driver strata_pmem_driver = {
	.driver.name = "strata",
	.id_table = strata_pmem_no_ids,
};
/* NULL while this is not registered. */
static typeof(strata_pmem_driver.driver.bus) strata_pmem_bus;

#ifdef register_virtio_driver
#define STRATA_REGISTER __register_virtio_driver
#define STRATA_REGISTER_WITH(function) (function(&strata_pmem_driver, THIS_MODULE))
#else
#define STRATA_REGISTER register_virtio_driver
#define STRATA_REGISTER_WITH(function) (function(&strata_pmem_driver))
#endif

void strata_pmem_register(void)
{
	/* By name: so this is loaded where virtio, a module of its own on some kernels, is not. No device is there then. */
	typeof(STRATA_REGISTER) *register_driver = symbol_get(STRATA_REGISTER);
	typeof(unregister_virtio_driver) *unregister_driver = symbol_get(unregister_virtio_driver);

	if (register_driver && unregister_driver && !STRATA_REGISTER_WITH(register_driver)) {
		strata_pmem_bus = strata_pmem_driver.driver.bus;
		unregister_driver(&strata_pmem_driver);
	}
	if (unregister_driver)
		symbol_put(unregister_virtio_driver);
	if (!strata_pmem_bus || bus_register_notifier(strata_pmem_bus, &strata_pmem_block)) {
		strata_pmem_bus = NULL;
		if (register_driver)
			symbol_put(STRATA_REGISTER);
		return;
	}
	/* The bus stays while its module is held. */
	bus_for_each_dev(strata_pmem_bus, NULL, NULL, strata_pmem_consider);
}

void strata_pmem_unregister(void)
{
	if (!strata_pmem_bus)
		return;
	bus_unregister_notifier(strata_pmem_bus, &strata_pmem_block);
	mutex_lock(&strata_region_lock);
	if (strata_pmem)
		strata_pmem_stop();
	mutex_unlock(&strata_region_lock);
	strata_pmem_bus = NULL;
	symbol_put(STRATA_REGISTER);
}

#else

void strata_pmem_register(void)
{
}

void strata_pmem_unregister(void)
{
}

#endif
