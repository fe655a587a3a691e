/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the module knows of an event: a descriptor in the section strata_events for each event of each unit (see
 * shadow/trace/define_trace.h). The host reads the same descriptors from the module's file.
 *
 * Structures as in src/catalog.rs.
 */
#ifndef STRATA_EVENT_H
#define STRATA_EVENT_H

#include <linux/types.h>

/* Kinds of fields. */
#define STRATA_FIELD_INTEGER 0
#define STRATA_FIELD_ARRAY 1
#define STRATA_FIELD_DYNAMIC 2
/* Bytes of a structure. */
#define STRATA_FIELD_OPAQUE 3

struct strata_field {
	const char *name;
	/* As in the kernel's header, without the brackets of an array. */
	const char *type;
	/* Bytes of an element. */
	u32 size;
	/* Elements of an array. */
	u32 count;
	u8 kind;
	u8 is_signed;
	/* Elements are of type char. */
	u8 is_text;
	u8 reserved[5];
};

struct strata_event {
	const char *system;
	const char *name;
	/* As in the kernel's format file. It stays: each region that comes later is given it. */
	const char *print;
	void *probe;
	const struct strata_field *fields;
	u32 field_count;
	/* Bytes of the fixed part of a payload. */
	u32 size;
	u8 class;
	u8 reserved[15];
};

/* The section's first descriptor, and the end of its last one. */
extern const struct strata_event strata_events_begin[];
extern const struct strata_event strata_events_end[];

#endif
