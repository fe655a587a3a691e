// SPDX-License-Identifier: GPL-2.0
/*
 * The trace region behind QEMU's ivshmem-plain: a PCI device whose BAR 2 is a file that the host maps, too.
 *
 * Devices that hold something else are left without a driver: they may belong to somebody else, which only their memory tells.
 * One that has another driver is left to it. The device may be plugged in and out while the module is loaded; nobody can unbind
 * it by hand, while CPUs record into it.
 */

#include <linux/io.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/pm.h>
#include <linux/suspend.h>

#include "strata.h"

#ifdef CONFIG_PCI

/* Older kernels lack it. */
#ifndef pm_sleep_ptr
#define pm_sleep_ptr(function) (IS_ENABLED(CONFIG_PM_SLEEP) ? (function) : NULL)
#endif

#define STRATA_IVSHMEM_VENDOR 0x1af4
#define STRATA_IVSHMEM_DEVICE 0x1110
/* Revision 0 (before QEMU 2.6) shows other memory until it is told otherwise. */
#define STRATA_IVSHMEM_REVISION 1
#define STRATA_IVSHMEM_BAR 2

/* Whether the device has a trace region, which is this module's until strata_ivshmem_release(). */
static bool strata_ivshmem_take(struct pci_dev *device)
{
	if (device->revision < STRATA_IVSHMEM_REVISION ||
	    !(pci_resource_flags(device, STRATA_IVSHMEM_BAR) & IORESOURCE_MEM) ||
	    pci_resource_len(device, STRATA_IVSHMEM_BAR) < STRATA_PAGE_SIZE)
		return false;
	if (pci_enable_device(device)) {
		pr_warn("cannot enable PCI device %s: has its memory found room?\n", pci_name(device));
		return false;
	}
	if (pci_request_region(device, STRATA_IVSHMEM_BAR, "strata")) {
		pr_warn("the memory of PCI device %s is another driver's: unbind it, if it has the trace region\n",
			pci_name(device));
		goto disable;
	}
	if (strata_region_is_at(pci_resource_start(device, STRATA_IVSHMEM_BAR)))
		return true;
	pci_release_region(device, STRATA_IVSHMEM_BAR);
disable:
	pci_disable_device(device);
	return false;
}

static void strata_ivshmem_release(struct pci_dev *device)
{
	pci_release_region(device, STRATA_IVSHMEM_BAR);
	pci_disable_device(device);
}

static int strata_ivshmem_probe(struct pci_dev *device, const struct pci_device_id *id)
{
	int error = -ENODEV;

	mutex_lock(&strata_region_lock);
	/* One region at a time. */
	if (strata_region.device || !strata_ivshmem_take(device))
		goto unlock;
	pr_info("trace region in PCI device %s\n", pci_name(device));
	error = strata_region_start(&device->dev, pci_resource_start(device, STRATA_IVSHMEM_BAR),
				    pci_resource_len(device, STRATA_IVSHMEM_BAR));
	if (error)
		strata_ivshmem_release(device);
unlock:
	mutex_unlock(&strata_region_lock);
	return error;
}

/* Whether the device has paused the region and not resumed it yet. The kernel's lock of the device guards it. */
static bool strata_ivshmem_pauses;

static void strata_ivshmem_pause(void)
{
	strata_ivshmem_pauses = true;
	strata_region_pause();
}

static void strata_ivshmem_go_on(void)
{
	if (!strata_ivshmem_pauses)
		return;
	strata_ivshmem_pauses = false;
	strata_region_resume();
}

/* Before the device goes: its memory is still there, unless it was unplugged while the machine slept. */
static void strata_ivshmem_remove(struct pci_dev *device)
{
	mutex_lock(&strata_region_lock);
	strata_region_stop();
	strata_ivshmem_release(device);
	pr_info("the trace region is gone with PCI device %s\n", pci_name(device));
	mutex_unlock(&strata_region_lock);
	strata_ivshmem_go_on();
}

static const struct pci_device_id strata_ivshmem_ids[] = {
	{ PCI_DEVICE(STRATA_IVSHMEM_VENDOR, STRATA_IVSHMEM_DEVICE) },
	{}
};
/* So that udev loads the module when such a device is plugged in. */
MODULE_DEVICE_TABLE(pci, strata_ivshmem_ids);

/* From here until the device is awake again, its memory is not there; but where the machine is only idle. */
static int strata_ivshmem_suspend(struct device *device)
{
	if (pm_suspend_target_state != PM_SUSPEND_TO_IDLE)
		strata_ivshmem_pause();
	return 0;
}

static int strata_ivshmem_resume(struct device *device)
{
	strata_ivshmem_go_on();
	return 0;
}

/* Hibernation is the whole module's (strata_power.c). */
static const struct dev_pm_ops strata_ivshmem_pm = {
	.suspend = pm_sleep_ptr(strata_ivshmem_suspend),
	.resume = pm_sleep_ptr(strata_ivshmem_resume),
};

static void strata_ivshmem_reset_prepare(struct pci_dev *device)
{
	strata_ivshmem_pause();
}

static void strata_ivshmem_reset_done(struct pci_dev *device)
{
	strata_ivshmem_go_on();
}

static const struct pci_error_handlers strata_ivshmem_errors = {
	.reset_prepare = strata_ivshmem_reset_prepare,
	.reset_done = strata_ivshmem_reset_done,
};

static struct pci_driver strata_ivshmem_driver = {
	.name = "strata",
	.id_table = strata_ivshmem_ids,
	.probe = strata_ivshmem_probe,
	.remove = strata_ivshmem_remove,
	.err_handler = &strata_ivshmem_errors,
	.driver = {
		.pm = &strata_ivshmem_pm,
		.suppress_bind_attrs = true,
		/* Whether there was a region is known when the driver is registered. */
		.probe_type = PROBE_FORCE_SYNCHRONOUS,
	},
};

/* Names the devices that might have the region, and have another driver. */
static void strata_ivshmem_tell_taken(void)
{
	struct pci_dev *device = NULL;
	struct pci_driver *driver;

	/* Lets go of the last device, and holds the next one. */
	while ((device = pci_get_device(STRATA_IVSHMEM_VENDOR, STRATA_IVSHMEM_DEVICE, device))) {
		driver = pci_dev_driver(device);
		if (driver && driver != &strata_ivshmem_driver)
			pr_warn("PCI device %s is another driver's: unbind it, if it has the trace region\n",
				pci_name(device));
	}
}

int strata_ivshmem_register(void)
{
	int error = pci_register_driver(&strata_ivshmem_driver);

	if (!error && !strata_region.device)
		strata_ivshmem_tell_taken();
	return error;
}

void strata_ivshmem_unregister(void)
{
	pci_unregister_driver(&strata_ivshmem_driver);
}

#else

int strata_ivshmem_register(void)
{
	return 0;
}

void strata_ivshmem_unregister(void)
{
}

#endif
