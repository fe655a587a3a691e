// SPDX-License-Identifier: GPL-2.0
/*
 * Hibernation and kexec. What is restored from a hibernation image may find another region than the one it left, or its own that
 * another boot has used; and a kernel that another one follows leaves processes' slots that nobody would close. So the region is
 * let go of before, and looked at anew behind.
 *
 * A machine that sleeps keeps its region, but for one behind a PCI device (strata_ivshmem.c).
 */

#include <linux/notifier.h>
#include <linux/reboot.h>
#include <linux/string.h>
#include <linux/suspend.h>

#include "strata.h"

static int strata_on_power(struct notifier_block *block, unsigned long event, void *unused)
{
	switch (event) {
	case PM_HIBERNATION_PREPARE:
	case PM_RESTORE_PREPARE:
		strata_region_pause();
		break;
	/* Also where the image was made, or restored, in vain. */
	case PM_POST_HIBERNATION:
	case PM_POST_RESTORE:
		strata_region_resume();
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block strata_power_block = {
	.notifier_call = strata_on_power,
};

static int strata_on_reboot(struct notifier_block *block, unsigned long event, void *command)
{
	/* As kexec calls itself, which modules cannot ask for. What the host sees, a reset, is recorded to its end. */
	if (event == SYS_RESTART && command && !strcmp(command, "kexec reboot")) {
		strata_cpus_expect_kernel();
		strata_region_pause();
	}
	return NOTIFY_DONE;
}

static struct notifier_block strata_reboot_block = {
	.notifier_call = strata_on_reboot,
};

int strata_power_register(void)
{
	int error = register_pm_notifier(&strata_power_block);

	if (error)
		return error;
	error = register_reboot_notifier(&strata_reboot_block);
	if (error)
		unregister_pm_notifier(&strata_power_block);
	return error;
}

void strata_power_unregister(void)
{
	unregister_reboot_notifier(&strata_reboot_block);
	unregister_pm_notifier(&strata_power_block);
}
