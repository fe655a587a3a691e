// SPDX-License-Identifier: GPL-2.0
/* Linked after the units: where the section of descriptors ends. */

#include <linux/compiler.h>

#include "strata_event.h"

const struct strata_event strata_events_end[0] __used __section("strata_events") __aligned(8);
