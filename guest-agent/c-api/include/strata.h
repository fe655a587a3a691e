/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Recording events from applications in C and C++, into the trace of the virtual machine that they run in.
 *
 *     #include <strata.h>
 *
 *     STRATA_EVENT(shop_sold, "shop:sold", (text, what), (u32, pieces), (hex64, flags));
 *     STRATA_EVENT0(shop_idle, "shop:idle");
 *
 *     STRATA_RECORD(shop_sold, "bread", 2, 0x10);
 *     STRATA_RECORD0(shop_idle);
 *
 * Compile and link with `pkg-config --cflags --libs strata` (with --static for libstrata.a).
 *
 * Field types: u8 u16 u32 u64 i8 i16 i32 i64, hex8 hex16 hex32 hex64 (shown in hexadecimal), f64 (a double), text (a
 * NUL-terminated string, or NULL; what is beyond STRATA_MAX_TEXT bytes is cut). Up to eight fields. An event's name is
 * `group:event`.
 *
 * Nothing here ever fails the application: where nothing traces, or a name or value cannot be recorded as it is, less is
 * recorded or nothing, and errno stays as it was. Signal handlers may record, the first event too: nothing here takes a lock
 * that a handler could wait for, or memory of malloc(), but for strata_error(). The first event connects to the trace, which
 * takes system calls; call strata_connect() where that is to happen at another time.
 */
#ifndef STRATA_H
#define STRATA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Longest text of a field, bytes. */
#define STRATA_MAX_TEXT 2048
/* Longest name, bytes; what is longer is cut. */
#define STRATA_MAX_NAME 128

/* Bit of the mask that stands for applications' events. */
#define STRATA_CLASS_USER 32

/* Type of a field. */
#define STRATA_TYPE_u8 1
#define STRATA_TYPE_u16 2
#define STRATA_TYPE_u32 3
#define STRATA_TYPE_u64 4
#define STRATA_TYPE_i8 5
#define STRATA_TYPE_i16 6
#define STRATA_TYPE_i32 7
#define STRATA_TYPE_i64 8
#define STRATA_TYPE_text 10
#define STRATA_TYPE_f64 12
#define STRATA_TYPE_HEX 0x100
#define STRATA_TYPE_hex8 (STRATA_TYPE_HEX | STRATA_TYPE_u8)
#define STRATA_TYPE_hex16 (STRATA_TYPE_HEX | STRATA_TYPE_u16)
#define STRATA_TYPE_hex32 (STRATA_TYPE_HEX | STRATA_TYPE_u32)
#define STRATA_TYPE_hex64 (STRATA_TYPE_HEX | STRATA_TYPE_u64)

/* A field of an event. */
struct strata_field {
	/* A C identifier. */
	const char *name;
	/* One of STRATA_TYPE_*. */
	uint32_t type;
};

/* A type of event: static, and never changed by the application. */
struct strata_event {
	/* Bytes of this structure. */
	uint32_t size;
	uint32_t field_count;
	/* group:event */
	const char *name;
	const struct strata_field *fields;
	/* The library's own; NULL at first. */
	void *type;
};

/* A field's value: an integer, sign-extended or zero-extended, floating point, or a text. */
union strata_value {
	uint64_t integer;
	const char *text;
	double number;
};

/*
 * Records an event with as many values as it has fields. Returns 1 if it was recorded; 0 if nobody wants it, it was lost
 * (and counted), or it cannot be recorded. STRATA_RECORD is shorter, and costs less while nobody wants the event.
 */
int strata_record_values(struct strata_event *event, const union strata_value *values);

/* Connects to the trace now rather than with the first event. Returns 1 if the process is connected. */
int strata_connect(void);

/* Why the process is not connected, one line; NULL if it is. The text stays. */
const char *strata_error(void);

/*
 * Hands everything recorded so far to the host, which otherwise comes by in its own time. For that the calling thread goes to each
 * CPU with records, if /proc tells to which it may go. Not in a signal handler.
 */
void strata_flush(void);

/* Records that no ring took: there was no process slot, or the trace has no room for the event's description. */
uint64_t strata_lost(void);

/* Where a pointer to the mask of the wanted classes is; the pointer changes. For strata_enabled(). */
const uint64_t *const *strata_wanted_word(void);

/* Result of strata_wanted_word(), once in each program and shared library; NULL at first. */
extern __attribute__((weak, visibility("hidden"))) const uint64_t *const *strata_wanted_word_;
__attribute__((weak, visibility("hidden"))) const uint64_t *const *strata_wanted_word_ = NULL;

/* Whether an event recorded now might be kept. */
static inline int strata_enabled(void)
{
	const uint64_t *const *word = __atomic_load_n(&strata_wanted_word_, __ATOMIC_RELAXED);

	if (__builtin_expect(!word, 0)) {
		word = strata_wanted_word();
		__atomic_store_n(&strata_wanted_word_, word, __ATOMIC_RELAXED);
	}
	return __builtin_expect(
		__atomic_load_n(__atomic_load_n(word, __ATOMIC_ACQUIRE), __ATOMIC_RELAXED) >> STRATA_CLASS_USER & 1, 0) != 0;
}

/* Declares a type of event in a source file: a name for the macros below, the trace's name, then (type, name) pairs. */
#define STRATA_EVENT(event, name, ...)                                                                                 \
	static const struct strata_field event##_strata_fields[] = {STRATA_EACH_(STRATA_FIELD_, __VA_ARGS__)};         \
	static struct strata_event event##_strata_event = {sizeof(struct strata_event),                                \
							   sizeof(event##_strata_fields) / sizeof(struct strata_field), \
							   name, event##_strata_fields, NULL};                         \
	static inline int event##_strata_record(STRATA_EACH_(STRATA_PARAMETER_, __VA_ARGS__))                          \
	{                                                                                                              \
		const union strata_value strata_values_[] = {STRATA_EACH_(STRATA_VALUE_, __VA_ARGS__)};                \
		return strata_record_values(&event##_strata_event, strata_values_);                                    \
	}                                                                                                              \
	struct strata_event

/* Declares a type of event without fields. */
#define STRATA_EVENT0(event, name)                                                                                     \
	static struct strata_event event##_strata_event = {sizeof(struct strata_event), 0, name, NULL, NULL};          \
	static inline int event##_strata_record(void)                                                                  \
	{                                                                                                              \
		return strata_record_values(&event##_strata_event, NULL);                                              \
	}                                                                                                              \
	struct strata_event

/* Records an event. The values are computed only if somebody wants it. */
#define STRATA_RECORD(event, ...) (strata_enabled() ? event##_strata_record(__VA_ARGS__) : 0)

/* Records an event without fields. */
#define STRATA_RECORD0(event) (strata_enabled() ? event##_strata_record() : 0)

/* What the macros above are made of. */

typedef uint8_t strata_u8_, strata_hex8_;
typedef uint16_t strata_u16_, strata_hex16_;
typedef uint32_t strata_u32_, strata_hex32_;
typedef uint64_t strata_u64_, strata_hex64_;
typedef int8_t strata_i8_;
typedef int16_t strata_i16_;
typedef int32_t strata_i32_;
typedef int64_t strata_i64_;
typedef double strata_f64_;
typedef const char *strata_text_;

static inline union strata_value strata_integer_value_(uint64_t integer)
{
	union strata_value value;

	value.integer = integer;
	return value;
}

static inline union strata_value strata_float_value_(double number)
{
	union strata_value value;

	value.number = number;
	return value;
}

static inline union strata_value strata_text_value_(const char *text)
{
	union strata_value value;

	value.text = text;
	return value;
}

#define STRATA_VALUE_u8_(field) strata_integer_value_(field)
#define STRATA_VALUE_u16_(field) strata_integer_value_(field)
#define STRATA_VALUE_u32_(field) strata_integer_value_(field)
#define STRATA_VALUE_u64_(field) strata_integer_value_(field)
#define STRATA_VALUE_i8_(field) strata_integer_value_((uint64_t)(int64_t)(field))
#define STRATA_VALUE_i16_(field) strata_integer_value_((uint64_t)(int64_t)(field))
#define STRATA_VALUE_i32_(field) strata_integer_value_((uint64_t)(int64_t)(field))
#define STRATA_VALUE_i64_(field) strata_integer_value_((uint64_t)(field))
#define STRATA_VALUE_hex8_(field) strata_integer_value_(field)
#define STRATA_VALUE_hex16_(field) strata_integer_value_(field)
#define STRATA_VALUE_hex32_(field) strata_integer_value_(field)
#define STRATA_VALUE_hex64_(field) strata_integer_value_(field)
#define STRATA_VALUE_f64_(field) strata_float_value_(field)
#define STRATA_VALUE_text_(field) strata_text_value_(field)

#define STRATA_FIELD_(type, field) {#field, STRATA_TYPE_##type}
#define STRATA_PARAMETER_(type, field) strata_##type##_ field
#define STRATA_VALUE_(type, field) STRATA_VALUE_##type##_(field)

#define STRATA_EACH_(macro, ...) STRATA_EACH__(STRATA_COUNT_(__VA_ARGS__), macro, __VA_ARGS__)
#define STRATA_EACH__(count, macro, ...) STRATA_EACH___(count, macro, __VA_ARGS__)
#define STRATA_EACH___(count, macro, ...) STRATA_EACH_##count##_(macro, __VA_ARGS__)
#define STRATA_EACH_1_(macro, pair) macro pair
#define STRATA_EACH_2_(macro, pair, ...) macro pair, STRATA_EACH_1_(macro, __VA_ARGS__)
#define STRATA_EACH_3_(macro, pair, ...) macro pair, STRATA_EACH_2_(macro, __VA_ARGS__)
#define STRATA_EACH_4_(macro, pair, ...) macro pair, STRATA_EACH_3_(macro, __VA_ARGS__)
#define STRATA_EACH_5_(macro, pair, ...) macro pair, STRATA_EACH_4_(macro, __VA_ARGS__)
#define STRATA_EACH_6_(macro, pair, ...) macro pair, STRATA_EACH_5_(macro, __VA_ARGS__)
#define STRATA_EACH_7_(macro, pair, ...) macro pair, STRATA_EACH_6_(macro, __VA_ARGS__)
#define STRATA_EACH_8_(macro, pair, ...) macro pair, STRATA_EACH_7_(macro, __VA_ARGS__)
#define STRATA_COUNT_(...) STRATA_COUNT__(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define STRATA_COUNT__(a, b, c, d, e, f, g, h, count, ...) count

#ifdef __cplusplus
}
#endif

#endif
