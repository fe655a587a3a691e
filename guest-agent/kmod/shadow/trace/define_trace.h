/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Takes the place of the kernel's <trace/define_trace.h> while a unit is compiled: includes the unit's trace header
 * (STRATA_UNIT_HEADER) again and again, each time with other meanings of TRACE_EVENT and its parts, as the kernel does to make its own ftrace events.
 *
 * Of an event class come a structure, a table of fields and a probe; of an event, a descriptor. A payload is the structure:
 * the fixed fields in the order of the header, without padding, and a u16 count of elements where a dynamic field is
 * declared; then the elements of the dynamic fields, in order.
 */
#ifdef CREATE_TRACE_POINTS
#undef CREATE_TRACE_POINTS

#define TRACE_HEADER_MULTI_READ

/* Everything that declares events, in terms of classes and their events. */
#undef TRACE_EVENT
#define TRACE_EVENT(name, proto, args, tstruct, assign, print)					\
	DECLARE_EVENT_CLASS(name, PARAMS(proto), PARAMS(args), PARAMS(tstruct), PARAMS(assign), PARAMS(print)) \
	DEFINE_EVENT(name, name, PARAMS(proto), PARAMS(args))
#undef TRACE_EVENT_CONDITION
#define TRACE_EVENT_CONDITION(name, proto, args, cond, tstruct, assign, print)			\
	TRACE_EVENT(name, PARAMS(proto), PARAMS(args), PARAMS(tstruct), PARAMS(assign), PARAMS(print))
#undef TRACE_EVENT_FN
#define TRACE_EVENT_FN(name, proto, args, tstruct, assign, print, reg, unreg)			\
	TRACE_EVENT(name, PARAMS(proto), PARAMS(args), PARAMS(tstruct), PARAMS(assign), PARAMS(print))
#undef TRACE_EVENT_FN_COND
#define TRACE_EVENT_FN_COND(name, proto, args, cond, tstruct, assign, print, reg, unreg)	\
	TRACE_EVENT(name, PARAMS(proto), PARAMS(args), PARAMS(tstruct), PARAMS(assign), PARAMS(print))
#undef TRACE_EVENT_SYSCALL
#define TRACE_EVENT_SYSCALL(name, proto, args, tstruct, assign, print, reg, unreg)		\
	TRACE_EVENT(name, PARAMS(proto), PARAMS(args), PARAMS(tstruct), PARAMS(assign), PARAMS(print))
#undef DEFINE_EVENT_FN
#define DEFINE_EVENT_FN(template, name, proto, args, reg, unreg)				\
	DEFINE_EVENT(template, name, PARAMS(proto), PARAMS(args))
#undef DEFINE_EVENT_CONDITION
#define DEFINE_EVENT_CONDITION(template, name, proto, args, cond)				\
	DEFINE_EVENT(template, name, PARAMS(proto), PARAMS(args))
#undef TRACE_EVENT_NOP
#define TRACE_EVENT_NOP(name, proto, args, tstruct, assign, print)
#undef DECLARE_EVENT_NOP
#define DECLARE_EVENT_NOP(name, proto, args)
#undef DEFINE_EVENT_NOP
#define DEFINE_EVENT_NOP(template, name, proto, args)
#undef DECLARE_TRACE
#define DECLARE_TRACE(name, proto, args)
#undef DECLARE_TRACE_CONDITION
#define DECLARE_TRACE_CONDITION(name, proto, args, cond)
#undef TRACE_EVENT_FLAGS
#define TRACE_EVENT_FLAGS(event, flag)
#undef TRACE_EVENT_PERF_PERM
#define TRACE_EVENT_PERF_PERM(event, expr...)
#undef TRACE_DEFINE_ENUM
#define TRACE_DEFINE_ENUM(a)
#undef TRACE_DEFINE_SIZEOF
#define TRACE_DEFINE_SIZEOF(a)

/* Everything that declares fields, in terms of four: __field, __field_struct, __array and strata_dynamic. */
#undef TP_STRUCT__entry
#define TP_STRUCT__entry(args...) args
#undef __field_ext
#define __field_ext(type, item, filter_type) __field(type, item)
#undef __field_struct_ext
#define __field_struct_ext(type, item, filter_type) __field_struct(type, item)
#undef __dynamic_array
#define __dynamic_array(type, item, len) strata_dynamic(type, item, len, NULL)
#undef __string
#define __string(item, src) strata_dynamic(char, item, strata_string_size(__data_offsets->item.from), src)
#undef __string_len
#define __string_len(item, src, len) strata_dynamic(char, item, (len) + 1, src)
#undef __vstring
#define __vstring(item, fmt, ap) strata_dynamic(char, item, __trace_event_vstr_len(fmt, ap), NULL)
#undef __bitmask
#define __bitmask(item, nr_bits) strata_dynamic(unsigned long, item, BITS_TO_LONGS(nr_bits), NULL)
#undef __cpumask
#define __cpumask(item) __bitmask(item, nr_cpumask_bits)
#undef __sockaddr
#define __sockaddr(item, len) strata_dynamic(u8, item, len, NULL)
#undef __rel_dynamic_array
#define __rel_dynamic_array __dynamic_array
#undef __rel_string
#define __rel_string __string
#undef __rel_string_len
#define __rel_string_len __string_len
#undef __rel_bitmask
#define __rel_bitmask __bitmask
#undef __rel_cpumask
#define __rel_cpumask __cpumask
#undef __rel_sockaddr
#define __rel_sockaddr __sockaddr

/* 1: the structure of a class' payloads. The kernel's name for it, which some headers use. */
#undef __field
#define __field(type, item) type item;
#undef __field_struct
#define __field_struct(type, item) type item;
#undef __array
#define __array(type, item, len) type item[len];
#undef strata_dynamic
#define strata_dynamic(type, item, len, src) u16 __length_##item;
#undef DECLARE_EVENT_CLASS
#define DECLARE_EVENT_CLASS(call, proto, args, tstruct, assign, print)				\
	struct trace_event_raw_##call {								\
		tstruct										\
	} __packed;
#undef DEFINE_EVENT
#define DEFINE_EVENT(template, name, proto, args)
#undef DEFINE_EVENT_PRINT
#define DEFINE_EVENT_PRINT(template, name, proto, args, print)
#include STRATA_UNIT_HEADER

/* 2: the dynamic fields of a record in the making. */
#undef __field
#define __field(type, item)
#undef __field_struct
#define __field_struct(type, item)
#undef __array
#define __array(type, item, len)
#undef strata_dynamic
#define strata_dynamic(type, item, len, src) struct strata_part item;
#undef DECLARE_EVENT_CLASS
#define DECLARE_EVENT_CLASS(call, proto, args, tstruct, assign, print)				\
	struct trace_event_data_offsets_##call {						\
		tstruct										\
	};
#include STRATA_UNIT_HEADER

/* 3: how large they are, together. */
#undef strata_dynamic
#define strata_dynamic(type, item, len, src)							\
	__data_offsets->item.from = (const char *)(src);					\
	__data_offsets->item.offset = __data_size;						\
	__data_offsets->item.size = (len) * sizeof(type);					\
	__data_size += __data_offsets->item.size;
#undef DECLARE_EVENT_CLASS
#define DECLARE_EVENT_CLASS(call, proto, args, tstruct, assign, print)				\
	static __always_inline u32 strata_sizes_##call(						\
		struct trace_event_data_offsets_##call *__data_offsets, proto)			\
	{											\
		u32 __data_size = 0;								\
												\
		tstruct										\
		return __data_size;								\
	}
#include STRATA_UNIT_HEADER

/* 4: the table of fields. */
#undef __field
#define __field(_type, _item) {									\
	.name = #_item, .type = #_type, .size = sizeof(_type), .kind = STRATA_FIELD_INTEGER,	\
	.is_signed = is_signed_type(_type) },
#undef __field_struct
#define __field_struct(_type, _item) {								\
	.name = #_item, .type = #_type, .size = 1, .count = sizeof(_type), .kind = STRATA_FIELD_OPAQUE },
#undef __array
#define __array(_type, _item, _len) {								\
	.name = #_item, .type = #_type, .size = sizeof(_type), .count = _len, .kind = STRATA_FIELD_ARRAY, \
	.is_signed = is_signed_type(_type), .is_text = __builtin_types_compatible_p(_type, char) },
#undef strata_dynamic
#define strata_dynamic(_type, _item, _len, _src) {						\
	.name = #_item, .type = #_type, .size = sizeof(_type), .kind = STRATA_FIELD_DYNAMIC,	\
	.is_signed = is_signed_type(_type), .is_text = __builtin_types_compatible_p(_type, char) },
#undef DECLARE_EVENT_CLASS
#define DECLARE_EVENT_CLASS(call, proto, args, tstruct, assign, print)				\
	static const struct strata_field strata_fields_##call[] = { tstruct };
#include STRATA_UNIT_HEADER

/* 5: the probe. */
#undef __field
#define __field(type, item)
#undef __field_struct
#define __field_struct(type, item)
#undef __array
#define __array(type, item, len)
#undef strata_dynamic
#define strata_dynamic(type, item, len, src)							\
	__entry->__length_##item = __data_offsets.item.size / sizeof(type);
#undef TP_fast_assign
#define TP_fast_assign(args...) args
#undef __perf_count
#define __perf_count(c) (c)
#undef __perf_task
#define __perf_task(t) (t)
#undef __entry
#define __entry entry

#undef __get_dynamic_array
#define __get_dynamic_array(item) ((void *)(__entry + 1) + __data_offsets.item.offset)
#undef __get_dynamic_array_len
#define __get_dynamic_array_len(item) __data_offsets.item.size
#undef __get_str
#define __get_str(item) ((char *)__get_dynamic_array(item))
#undef __get_bitmask
#define __get_bitmask(item) __get_str(item)
#undef __get_cpumask
#define __get_cpumask(item) __get_str(item)
#undef __get_sockaddr
#define __get_sockaddr(item) ((struct sockaddr *)__get_dynamic_array(item))
#undef __get_rel_dynamic_array
#define __get_rel_dynamic_array __get_dynamic_array
#undef __get_rel_dynamic_array_len
#define __get_rel_dynamic_array_len __get_dynamic_array_len
#undef __get_rel_str
#define __get_rel_str __get_str
#undef __get_rel_bitmask
#define __get_rel_bitmask __get_bitmask
#undef __get_rel_cpumask
#define __get_rel_cpumask __get_cpumask
#undef __get_rel_sockaddr
#define __get_rel_sockaddr __get_sockaddr

/* Since 6.10 the kernel takes the source from where the length was computed. */
#undef __assign_str
#undef __assign_rel_str
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define __assign_str(item) strata_put_string(__get_str(item), __data_offsets.item.size, __data_offsets.item.from)
#define __assign_rel_str(item) __assign_str(item)
#else
#define __assign_str(item, src)									\
	strata_put_string(__get_str(item), __data_offsets.item.size, (const char *)(src));
#define __assign_rel_str(item, src) __assign_str(item, src)
#endif
#undef __assign_str_len
#define __assign_str_len(item, src, len)							\
	strata_put_string(__get_str(item), min_t(u32, __data_offsets.item.size, (len) + 1), (const char *)(src))
#undef __assign_rel_str_len
#define __assign_rel_str_len __assign_str_len
#undef __assign_vstr
#define __assign_vstr(item, fmt, va)								\
	do {											\
		va_list __copy;									\
												\
		va_copy(__copy, *(va));								\
		memset(__get_str(item), 0, __data_offsets.item.size);				\
		vsnprintf(__get_str(item), __data_offsets.item.size, fmt, __copy);		\
		va_end(__copy);									\
	} while (0)
#undef strata_put_bytes
#define strata_put_bytes(item, src, bytes)							\
	do {											\
		u32 __bytes = min_t(u32, __data_offsets.item.size, bytes);			\
												\
		memcpy(__get_dynamic_array(item), (src), __bytes);				\
		memset(__get_dynamic_array(item) + __bytes, 0, __data_offsets.item.size - __bytes); \
	} while (0)
#undef __assign_bitmask
#define __assign_bitmask(item, src, nr_bits) strata_put_bytes(item, src, BITS_TO_LONGS(nr_bits) * sizeof(long))
#undef __assign_cpumask
#define __assign_cpumask(item, src) __assign_bitmask(item, src, nr_cpumask_bits)
#undef __assign_sockaddr
#define __assign_sockaddr(item, src, len) strata_put_bytes(item, src, len)
#undef __assign_rel_bitmask
#define __assign_rel_bitmask __assign_bitmask
#undef __assign_rel_cpumask
#define __assign_rel_cpumask __assign_cpumask
#undef __assign_rel_sockaddr
#define __assign_rel_sockaddr __assign_sockaddr

/*
 * The probe itself is the mask test, without a stack frame; `data` is the event's id. Tracepoints call their probes with
 * preemption disabled, except for system calls on newer kernels: a record belongs to one CPU, so it is disabled here.
 */
#undef DECLARE_EVENT_CLASS
#define DECLARE_EVENT_CLASS(call, proto, args, tstruct, assign, print)				\
	static noinline notrace strata_no_stack_protector void					\
	strata_record_##call(unsigned long __id, proto)						\
	{											\
		struct trace_event_data_offsets_##call __maybe_unused __data_offsets strata_uninitialized; \
		struct trace_event_raw_##call *entry;						\
		struct strata_slot __slot strata_uninitialized;					\
		struct strata_cpu *__cpu;							\
		u32 __sessions, __size;								\
		u64 __outer;									\
												\
		preempt_disable_notrace();							\
		__cpu = &strata_cpus[raw_smp_processor_id()];					\
		__sessions = READ_ONCE(__cpu->sessions);					\
		if (!__sessions)								\
			goto __out;								\
		if (!strata_enter(__cpu, &__outer)) {						\
			strata_nested(__cpu, __sessions, __id);					\
			goto __out;								\
		}										\
		__size = sizeof(*entry) + strata_sizes_##call(&__data_offsets, args);		\
		for (; __sessions; __sessions &= __sessions - 1) {				\
			if (!strata_session_wants(__ffs(__sessions), __id))			\
				continue;							\
			entry = strata_reserve(__cpu, __ffs(__sessions), __id, __size, &__slot); \
			if (!entry)								\
				continue;							\
			tstruct									\
			{ assign; }								\
			strata_commit(&__slot);							\
		}										\
		strata_leave(__cpu, __outer);							\
	__out:											\
		strata_preempt_enable();							\
	}											\
	static __maybe_unused notrace strata_no_stack_protector void				\
	strata_probe_##call(void *__data, proto)						\
	{											\
		if (strata_wants_class(STRATA_UNIT_CLASS))					\
			strata_record_##call((unsigned long)__data, args);			\
	}
#include STRATA_UNIT_HEADER

/* 6: print formats and descriptors, and the check that each probe takes what its tracepoint passes. */
#undef __entry
#define __entry REC
#undef TP_printk
#define TP_printk(fmt, args...) "\"" fmt "\", " __stringify(args)
#undef __get_dynamic_array
#undef __get_dynamic_array_len
#undef __get_str
#undef __get_bitmask
#undef __get_cpumask
#undef __get_sockaddr
#undef __get_rel_dynamic_array
#undef __get_rel_dynamic_array_len
#undef __get_rel_str
#undef __get_rel_bitmask
#undef __get_rel_cpumask
#undef __get_rel_sockaddr
#undef __print_flags
#undef __print_symbolic
#undef __print_flags_u64
#undef __print_symbolic_u64
#undef __print_hex
#undef __print_hex_str
#undef __print_array
#undef __print_dynamic_array
#undef __print_hex_dump
#undef __print_ns_to_secs
#undef __print_ns_without_secs
#undef DECLARE_EVENT_CLASS
#define DECLARE_EVENT_CLASS(call, proto, args, tstruct, assign, print)				\
	static const char __maybe_unused strata_print_##call[] = print;
#undef strata_describe
#define strata_describe(template, call, printed)						\
	static __maybe_unused void strata_check_##call(void)					\
	{											\
		check_trace_callback_type_##call(strata_probe_##template);			\
	}											\
	static const struct strata_event strata_event_##call __used __section("strata_events") = { \
		.system = __stringify(TRACE_SYSTEM),						\
		.name = #call,									\
		.print = strata_print_##printed,						\
		.probe = strata_probe_##template,						\
		.fields = strata_fields_##template,						\
		.field_count = ARRAY_SIZE(strata_fields_##template),				\
		.size = sizeof(struct trace_event_raw_##template),				\
		.class = STRATA_UNIT_CLASS,							\
	};
#undef DEFINE_EVENT
#define DEFINE_EVENT(template, call, proto, args) strata_describe(template, call, template)
#undef DEFINE_EVENT_PRINT
#define DEFINE_EVENT_PRINT(template, call, proto, args, print)					\
	static const char strata_print_event_##call[] = print;				\
	strata_describe(template, call, event_##call)
#include STRATA_UNIT_HEADER

#undef TRACE_HEADER_MULTI_READ
#endif
