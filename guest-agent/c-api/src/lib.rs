//! libstrata: recording events from applications in C and C++. `include/strata.h` declares, and describes, what is
//! here.
//!
//! Whatever a caller passes that is not what the header asks for and can be distinguished from it (null pointers, names
//! that a trace cannot hold, texts of any length) is mended or left out; nothing is printed, and `errno` stays as it
//! was.
#![allow(unsafe_code)] // Entry points for C: raw pointers throughout.

use guest_agent::{Error, FieldType, MAX_FIELDS, MAX_NAME, MAX_TEXT, Payload, RuntimeEventType, cut_text, tracer};
use libc::{c_char, c_int};
use std::ffi::CString;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bit of a field's type that has it shown in hexadecimal.
const TYPE_HEX: u32 = 0x100;
/// What a null text is recorded as.
const NULL_TEXT: &[u8] = b"(null)";

/// C's `struct strata_field`.
#[repr(C)]
#[derive(Debug)]
pub struct Field {
    name: *const c_char,
    field_type: u32,
}

/// C's `struct strata_event`.
#[repr(C)]
#[derive(Debug)]
pub struct Event {
    size: u32,
    field_count: u32,
    name: *const c_char,
    fields: *const Field,
    /// Null at first; then a [`RuntimeEventType`], or [`UNUSABLE`].
    made: AtomicPtr<RuntimeEventType>,
}

/// C's `union strata_value`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Value {
    integer: u64,
    text: *const c_char,
}

const _: () = assert!(size_of::<Field>() == 16 && size_of::<Event>() == 32 && size_of::<Value>() == 8);

/// Its address stands for an event type that cannot be made.
static UNUSABLE: u8 = 0;

/// Puts `errno` back when it goes.
struct Errno(c_int);

impl Errno {
    fn keep() -> Self {
        // SAFETY: the thread's own `errno`, which is always there.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Records an event; see the header.
///
/// # Safety
/// `event` is null or points to an event that outlives the program's last record of it and that only this library
/// changes; its pointers are null, or to what the header says. `values` is null or has a value for each field; texts
/// are null, or readable up to their NUL byte or [`MAX_TEXT`] bytes, and do not change meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_record_values(event: *const Event, values: *const Value) -> c_int {
    let _errno = Errno::keep();
    // SAFETY: null or live (contract).
    let Some(event) = (unsafe { event.as_ref() }) else { return 0 };
    if (event.size as usize) < size_of::<Event>() || !tracer().is_wanted() {
        return 0;
    }
    // SAFETY: passed on from the caller.
    let Some(made) = (unsafe { event_type(event) }) else { return 0 };
    if made.fields() > 0 && values.is_null() {
        return 0;
    }
    // SAFETY: as many values as fields (contract); an empty slice needs no memory.
    let values = unsafe { if made.fields() == 0 { &[] } else { std::slice::from_raw_parts(values, made.fields()) } };
    let types = || (0..made.fields()).filter_map(|index| made.field_type(index)).zip(values);
    // SAFETY: a field's type says which member of its value is there (contract).
    let size = types().map(|(ty, value)| unsafe { size(ty, value) }).sum();
    c_int::from(made.record(tracer(), size, |payload| {
        for (ty, value) in types() {
            // SAFETY: as above.
            unsafe { put(ty, value, payload) };
        }
    }))
}

/// The type of `event`, made at its first record; `None` when it cannot be.
///
/// # Safety
/// As for [`strata_record_values`].
unsafe fn event_type(event: &Event) -> Option<&'static RuntimeEventType> {
    let unusable = ptr::from_ref(&UNUSABLE).cast::<RuntimeEventType>().cast_mut();
    let mut made = event.made.load(Ordering::Acquire);
    if made.is_null() {
        // SAFETY: passed on from the caller.
        let new = unsafe { make_event_type(event) }.map_or(unusable, |new| ptr::from_ref(new).cast_mut());
        // Another thread may have been faster.
        made =
            event.made.compare_exchange(made, new, Ordering::AcqRel, Ordering::Acquire).map_or_else(|at| at, |_| new);
    }
    // SAFETY: what is neither null nor `UNUSABLE` was stored here and is never freed.
    (made != unusable).then(|| unsafe { &*made })
}

/// # Safety
/// As for [`strata_record_values`].
#[cold]
unsafe fn make_event_type(event: &Event) -> Option<&'static RuntimeEventType> {
    let count = event.field_count as usize;
    if count > MAX_FIELDS || (count > 0 && event.fields.is_null()) {
        return None;
    }
    // SAFETY: the pointer is to as many fields as the event says (contract); an empty slice needs no memory.
    let fields = unsafe { if count == 0 { &[] } else { std::slice::from_raw_parts(event.fields, count) } };
    if fields.iter().any(|field| field_type(field.field_type).is_none()) {
        return None;
    }
    let described = fields.iter().filter_map(|field| {
        // SAFETY: names are null or strings (contract).
        let name = unsafe { bytes(field.name, MAX_NAME) }.unwrap_or_default();
        Some((name, field_type(field.field_type)?, field.field_type & TYPE_HEX != 0))
    });
    // SAFETY: as above.
    RuntimeEventType::from_bytes(unsafe { bytes(event.name, MAX_NAME) }.unwrap_or_default(), described)
}

fn field_type(code: u32) -> Option<FieldType> {
    let ty = FieldType::from_code(u8::try_from(code & !TYPE_HEX).ok()?, 0)?;
    // Numbers and text: what a value of the union can be.
    (ty == FieldType::String || ty.fixed_size().is_some_and(|size| size <= 8)).then_some(ty)
}

/// The bytes before the NUL byte of `text`, `limit` of them at most; `None` for null.
///
/// # Safety
/// `text` is null or readable up to its NUL byte or `limit` bytes, and stays as it is while the result is used.
unsafe fn bytes<'a>(text: *const c_char, limit: usize) -> Option<&'a [u8]> {
    // SAFETY: passed on from the caller.
    (!text.is_null()).then(|| unsafe { std::slice::from_raw_parts(text.cast(), libc::strnlen(text, limit)) })
}

/// # Safety
/// `value` is a text that is null or readable.
unsafe fn text<'a>(value: &Value) -> &'a [u8] {
    // SAFETY: passed on from the caller.
    unsafe { bytes(value.text, MAX_TEXT) }.map_or(NULL_TEXT, cut_text)
}

/// Bytes that `value` takes as a field of type `ty`.
///
/// # Safety
/// A text's pointer is null or readable.
unsafe fn size(ty: FieldType, value: &Value) -> usize {
    // SAFETY: passed on from the caller.
    ty.fixed_size().unwrap_or_else(|| unsafe { text(value) }.len() + 1)
}

/// Writes as many bytes as [`size`] says.
///
/// # Safety
/// As for [`size`].
unsafe fn put(ty: FieldType, value: &Value, payload: &mut Payload<'_>) {
    match ty.fixed_size() {
        Some(size) => {
            // SAFETY: every bit pattern is an integer, that of floating point too.
            let integer = unsafe { value.integer }.to_le_bytes();
            payload.put(integer.get(..size).unwrap_or_default());
        }
        None => {
            // SAFETY: passed on from the caller.
            payload.put(unsafe { text(value) });
            payload.put(&[0]);
        }
    }
}

/// Connects now; see the header.
#[unsafe(no_mangle)]
pub extern "C" fn strata_connect() -> c_int {
    let _errno = Errno::keep();
    c_int::from(tracer().connect())
}

/// Why the process is not connected, or null.
#[unsafe(no_mangle)]
pub extern "C" fn strata_error() -> *const c_char {
    /// An error in C's words. Both are never freed.
    struct Message {
        error: *const Error,
        text: CString,
    }
    static LAST: AtomicPtr<Message> = AtomicPtr::new(ptr::null_mut());
    let _errno = Errno::keep();
    let Some(error) = tracer().error() else { return ptr::null() };
    // SAFETY: what is here is never freed.
    let last = unsafe { LAST.load(Ordering::Acquire).as_ref() };
    if let Some(printed) = last.filter(|printed| printed.error == ptr::from_ref(error)) {
        return printed.text.as_ptr();
    }
    let text = CString::new(chain(error)).unwrap_or_default();
    let printed: &'static Message = Box::leak(Box::new(Message { error, text }));
    LAST.store(ptr::from_ref(printed).cast_mut(), Ordering::Release);
    printed.text.as_ptr()
}

/// An error and its sources on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

/// Hands everything recorded so far to the host.
#[unsafe(no_mangle)]
pub extern "C" fn strata_flush() {
    let _errno = Errno::keep();
    tracer().flush();
}

/// Records that no ring took.
#[unsafe(no_mangle)]
pub extern "C" fn strata_lost() -> u64 {
    tracer().lost()
}

/// Where a pointer to the mask of the wanted classes is.
#[unsafe(no_mangle)]
pub extern "C" fn strata_wanted_word() -> *const AtomicPtr<AtomicU64> {
    tracer().wanted_word()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn event(field_count: u32, name: *const c_char, fields: *const Field) -> Event {
        let size = u32::try_from(size_of::<Event>()).unwrap();
        Event { size, field_count, name, fields, made: AtomicPtr::default() }
    }

    fn made(event: &Event) -> Option<&'static RuntimeEventType> {
        // SAFETY: the tests' events are what the header asks for, or null.
        unsafe { event_type(event) }
    }

    #[test]
    fn fields_and_values_become_a_payload() {
        let fields = [(c"count", 7), (c"flags", 0x104), (c"what", 10)]
            .map(|(name, field_type)| Field { name: name.as_ptr(), field_type });
        let event = event(3, c"test:made".as_ptr(), fields.as_ptr());
        let values =
            [Value { integer: (-2_i64).cast_unsigned() }, Value { integer: 16 }, Value { text: c"hi".as_ptr() }];

        let made = made(&event).unwrap();

        let types: Vec<_> = (0..3).map(|index| made.field_type(index).unwrap()).collect();
        // SAFETY: the third value is a text.
        let sizes: Vec<_> = types.iter().zip(&values).map(|(ty, value)| unsafe { size(*ty, value) }).collect();
        assert_eq!(types, [FieldType::I32, FieldType::U64, FieldType::String]);
        assert_eq!(sizes, [4, 8, 3]);
    }

    #[test]
    fn null_and_impossible_arguments_record_nothing() {
        let fields = [Field { name: ptr::null(), field_type: 99 }];
        let no_fields = event(1, c"test:null".as_ptr(), ptr::null());
        let wrong_type = event(1, c"test:type".as_ptr(), fields.as_ptr());
        let too_many = event(1000, c"test:many".as_ptr(), fields.as_ptr());
        let other_size = Event { size: 8, ..event(0, c"test:size".as_ptr(), ptr::null()) };

        // SAFETY: null is allowed.
        let recorded =
            unsafe { [strata_record_values(ptr::null(), ptr::null()), strata_record_values(&other_size, ptr::null())] };

        assert_eq!(recorded, [0, 0]);
        assert!([no_fields, wrong_type, too_many].iter().all(|event| made(event).is_none()));
    }

    #[test]
    fn null_names_and_texts_are_replaced() {
        let fields = [Field { name: ptr::null(), field_type: 10 }];
        let event = event(1, ptr::null(), fields.as_ptr());

        let made = made(&event).unwrap();

        assert_eq!(made.fields(), 1);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { text(&Value { text: ptr::null() }) }, NULL_TEXT);
    }

    #[test]
    fn long_texts_and_names_are_cut() {
        let long = CString::new(vec![b'x'; 100_000]).unwrap();
        let event = event(0, long.as_ptr(), ptr::null());

        assert!(made(&event).is_some());
        // SAFETY: a text.
        assert_eq!(unsafe { size(FieldType::String, &Value { text: long.as_ptr() }) }, MAX_TEXT + 1);
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let long = CString::new("x".repeat(MAX_TEXT - 1) + "\u{fc}ber").unwrap();

        // SAFETY: a text.
        assert_eq!(unsafe { size(FieldType::String, &Value { text: long.as_ptr() }) }, MAX_TEXT);
    }

    #[test]
    fn errno_stays() {
        // SAFETY: the thread's own `errno`.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno = 77 };

        strata_connect();
        let printed = strata_error();

        // SAFETY: as above.
        assert_eq!(unsafe { *errno }, 77);
        assert!(printed.is_null() != tracer().error().is_some());
    }

    #[test]
    fn error_is_reported_in_the_same_words_each_time() {
        let (first, second) = (strata_error(), strata_error());

        assert_eq!(first, second);
        // SAFETY: null or a string that is never freed.
        let text = (!first.is_null()).then(|| unsafe { CStr::from_ptr(first) }.to_string_lossy().into_owned());
        assert_eq!(text, tracer().error().map(|error| chain(error)));
    }
}
