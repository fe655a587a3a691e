//! The guest kernel's events: what the module's C units say about each tracepoint, as event types of the registry.
//!
//! Names and fields are those of the kernel's own `format` files, because both come from the same trace headers; so
//! what is written about them elsewhere holds here. The module reads the descriptors in its own memory, the host the
//! same ones in the module's file.
#![allow(unsafe_code)] // Descriptors are C structures full of pointers.

use crate::print_format::shows_in_hexadecimal;
use core::mem::{offset_of, size_of};
use shared_ring::event::{FieldType, Integer};
use shared_ring::layout::MAX_EVENTS;
use shared_ring::registry::encode_parts;
use strata_abi::FIRST_TRACEPOINT;

/// Most tracepoints that a module can have.
pub const MAX_TRACEPOINTS: usize = MAX_EVENTS - FIRST_TRACEPOINT as usize;
/// Longest text in a descriptor, bytes: a bound for what is read as a string.
const MAX_TEXT: usize = 1 << 15;

/// A field's kind: a single integer or pointer.
pub const INTEGER: u8 = 0;
/// A field's kind: a fixed number of elements.
pub const ARRAY: u8 = 1;
/// A field's kind: as many elements as a record has.
pub const DYNAMIC: u8 = 2;
/// A field's kind: the bytes of a structure.
pub const OPAQUE: u8 = 3;

/// C's `struct strata_field`.
#[repr(C)]
#[derive(Debug)]
pub struct RawField {
    name: *const u8,
    ty: *const u8,
    size: u32,
    count: u32,
    kind: u8,
    is_signed: u8,
    is_text: u8,
    reserved: [u8; 5],
}

/// C's `struct strata_event`.
#[repr(C)]
#[derive(Debug)]
pub struct RawEvent {
    system: *const u8,
    name: *const u8,
    print: *const u8,
    probe: *const u8,
    fields: *const RawField,
    field_count: u32,
    size: u32,
    class: u8,
    reserved: [u8; 15],
}

/// Offsets and sizes by which the host reads descriptors in a module's file.
pub mod descriptor {
    use super::{RawEvent, RawField, offset_of, size_of};

    /// Size of an event's descriptor, bytes.
    pub const EVENT_SIZE: usize = size_of::<RawEvent>();
    /// Offset of the pointer to the event's group.
    pub const EVENT_SYSTEM: usize = offset_of!(RawEvent, system);
    /// Offset of the pointer to the event's name.
    pub const EVENT_NAME: usize = offset_of!(RawEvent, name);
    /// Offset of the pointer to the event's print format.
    pub const EVENT_PRINT: usize = offset_of!(RawEvent, print);
    /// Offset of the pointer to the event's fields.
    pub const EVENT_FIELDS: usize = offset_of!(RawEvent, fields);
    /// Offset of the number of fields (`u32`).
    pub const EVENT_FIELD_COUNT: usize = offset_of!(RawEvent, field_count);
    /// Offset of the size of the payload's fixed part (`u32`).
    pub const EVENT_FIXED_SIZE: usize = offset_of!(RawEvent, size);
    /// Offset of the major class (`u8`).
    pub const EVENT_CLASS: usize = offset_of!(RawEvent, class);
    /// Size of a field's descriptor, bytes.
    pub const FIELD_SIZE: usize = size_of::<RawField>();
    /// Offset of the pointer to the field's name.
    pub const FIELD_NAME: usize = offset_of!(RawField, name);
    /// Offset of the pointer to the field's type.
    pub const FIELD_TYPE: usize = offset_of!(RawField, ty);
    /// Offset of the size of an element (`u32`).
    pub const FIELD_ELEMENT_SIZE: usize = offset_of!(RawField, size);
    /// Offset of the number of elements (`u32`).
    pub const FIELD_COUNT: usize = offset_of!(RawField, count);
    /// Offset of the field's kind (`u8`).
    pub const FIELD_KIND: usize = offset_of!(RawField, kind);
    /// Offset of whether the elements are signed (`u8`).
    pub const FIELD_SIGNED: usize = offset_of!(RawField, is_signed);
    /// Offset of whether the elements are characters (`u8`).
    pub const FIELD_TEXT: usize = offset_of!(RawField, is_text);
}

const _: () = assert!(descriptor::EVENT_SIZE == 64 && descriptor::FIELD_SIZE == 32);

/// What a unit says about a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldDescriptor<'a> {
    /// Name of the field.
    pub name: &'a str,
    /// C type of the field, without the brackets of an array.
    pub c_type: &'a str,
    /// Bytes of an element.
    pub size: u32,
    /// Elements of an array.
    pub count: u32,
    /// [`INTEGER`], [`ARRAY`], [`DYNAMIC`] or [`OPAQUE`].
    pub kind: u8,
    /// Whether elements are signed.
    pub signed: bool,
    /// Whether elements are characters.
    pub text: bool,
}

impl FieldDescriptor<'_> {
    /// The field's type in a registry; `None` when there is none for it.
    #[must_use]
    pub fn field_type(&self) -> Option<FieldType> {
        let integer = Integer::of(self.size as usize, self.signed);
        let count = u16::try_from(self.count).ok();
        Some(match (self.kind, self.text, integer) {
            (INTEGER, _, Some(integer)) => FieldType::of_integer(integer),
            (ARRAY, true, _) => FieldType::CharArray(count?),
            (ARRAY, false, Some(integer)) => FieldType::Array(integer, count?),
            (DYNAMIC, true, _) => FieldType::Text,
            (DYNAMIC, false, Some(integer)) => FieldType::Sequence(integer),
            (OPAQUE, _, _) => FieldType::Array(Integer::U8, count?),
            _ => return None,
        })
    }

    /// Whether the field is shown in hexadecimal: pointers, bytes of structures, and what the print format shows so.
    #[must_use]
    pub fn is_hexadecimal(&self, print: &[u8]) -> bool {
        let is_pointer = self.kind == INTEGER && self.c_type.as_bytes().last() == Some(&b'*');
        !self.text && (is_pointer || self.kind == OPAQUE || shows_in_hexadecimal(print, self.name.as_bytes()))
    }
}

/// What a unit says about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventFacts<'a> {
    /// Group of the event.
    pub system: &'a str,
    /// Name of the event in its group.
    pub name: &'a str,
    /// Print format of the event, as the kernel has it.
    pub print: &'a [u8],
    /// Major class of the event.
    pub class: u8,
}

/// Writes the registry entry of the event with number `index` among the module's to `out` and returns its size; `None`
/// when a field has no type in a registry or the entry does not fit.
#[must_use]
pub fn encode<'a>(
    index: usize,
    event: &EventFacts<'_>,
    fields: impl Iterator<Item = FieldDescriptor<'a>> + Clone,
    out: &mut [u8],
) -> Option<usize> {
    if index >= MAX_TRACEPOINTS || fields.clone().any(|field| field.field_type().is_none()) {
        return None;
    }
    let id = FIRST_TRACEPOINT + u16::try_from(index).ok()?;
    let fields =
        fields.filter_map(|field| field.field_type().map(|ty| (field.name, ty, field.is_hexadecimal(event.print))));
    encode_parts(id, event.class, &[event.system, ":", event.name], fields, out)
}

/// The descriptors of a loaded module.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    events: &'a [RawEvent],
}

impl<'a> Descriptors<'a> {
    /// The `count` descriptors at `events`.
    ///
    /// # Safety
    /// They are live and do not change for `'a`; each points to NUL-terminated strings and to as many fields as it
    /// says, whose strings are NUL-terminated.
    #[must_use]
    pub const unsafe fn new(events: *const RawEvent, count: usize) -> Self {
        // SAFETY: passed on from the caller.
        Self { events: unsafe { core::slice::from_raw_parts(events, count) } }
    }

    /// Number of events.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether the module has no events.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Writes the registry entry of event `index` to `out` and returns its size; `None` when there is no such event or
    /// it cannot be described.
    #[must_use]
    pub fn encode(&self, index: usize, out: &mut [u8]) -> Option<usize> {
        let raw = self.events.get(index)?;
        // SAFETY: the strings and fields that a descriptor points to are as `new` demands.
        let (event, fields) = unsafe {
            let event = EventFacts {
                system: text(raw.system)?,
                name: text(raw.name)?,
                print: bytes(raw.print),
                class: raw.class,
            };
            (event, core::slice::from_raw_parts(raw.fields, raw.field_count as usize))
        };
        let facts = |field: &'a RawField| {
            // SAFETY: as above.
            let (name, c_type) = unsafe { (text(field.name).unwrap_or(""), text(field.ty).unwrap_or("")) };
            FieldDescriptor {
                name,
                c_type,
                size: field.size,
                count: field.count,
                kind: field.kind,
                signed: field.is_signed != 0,
                text: field.is_text != 0,
            }
        };
        encode(index, &event, fields.iter().map(facts), out)
    }
}

/// The string at `at` without its NUL byte.
///
/// # Safety
/// A NUL-terminated string that lives for `'a`.
unsafe fn bytes<'a>(at: *const u8) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: every byte up to the NUL one is readable (contract).
    while length < MAX_TEXT && unsafe { at.add(length).read() } != 0 {
        length += 1;
    }
    // SAFETY: these bytes were just read.
    unsafe { core::slice::from_raw_parts(at, length) }
}

/// The string at `at`; `None` when it is not ASCII.
///
/// # Safety
/// As for [`bytes`].
unsafe fn text<'a>(at: *const u8) -> Option<&'a str> {
    // SAFETY: passed on from the caller.
    let bytes = unsafe { bytes(at) };
    // Not the slice's own test, which is written for vector registers.
    let is_ascii = bytes.iter().all(u8::is_ascii);
    // SAFETY: ASCII is UTF-8.
    is_ascii.then(|| unsafe { core::str::from_utf8_unchecked(bytes) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use shared_ring::event::EventDescription;
    use shared_ring::registry::{MAX_ENTRY, parse};
    use std::vec::Vec;

    const fn field(
        name: &'static [u8],
        ty: &'static [u8],
        size: u32,
        count: u32,
        kind: u8,
        flags: [bool; 2],
    ) -> RawField {
        let (is_signed, is_text) = (flags[0] as u8, flags[1] as u8);
        RawField { name: name.as_ptr(), ty: ty.as_ptr(), size, count, kind, is_signed, is_text, reserved: [0; 5] }
    }

    /// The fields of the events of [`descriptors`].
    static FIELDS: Shared<[RawField; 4]> = Shared([
        field(b"ip\0", b"unsigned long\0", 8, 0, INTEGER, [false, false]),
        field(b"comm\0", b"char\0", 1, 16, ARRAY, [true, true]),
        field(b"values\0", b"u32\0", 4, 0, DYNAMIC, [false, false]),
        field(b"name\0", b"char\0", 1, 0, DYNAMIC, [true, true]),
    ]);

    static EVENTS: Shared<[RawEvent; 2]> = Shared([event(b"first\0", 4), event(b"second\0", 1)]);

    /// Constants, although they hold pointers.
    struct Shared<T>(T);

    // SAFETY: never changed, and points to constants only.
    unsafe impl<T> Sync for Shared<T> {}

    const fn event(name: &'static [u8], field_count: u32) -> RawEvent {
        RawEvent {
            system: c"test".as_ptr().cast(),
            name: name.as_ptr(),
            print: c"\"%lx %s\", REC->ip, REC->comm".as_ptr().cast(),
            probe: core::ptr::null(),
            fields: (&raw const FIELDS.0).cast(),
            field_count,
            size: 28,
            class: 7,
            reserved: [0; 15],
        }
    }

    /// Two events: `test:first` and `test:second`, an `ip` of eight bytes.
    pub(crate) fn descriptors() -> Descriptors<'static> {
        // SAFETY: constants made as the contract says.
        unsafe { Descriptors::new((&raw const EVENTS.0).cast(), 2) }
    }

    fn described(index: usize) -> EventDescription {
        let mut entry = [0; MAX_ENTRY];
        let size = descriptors().encode(index, &mut entry).unwrap();
        let mut events = Vec::new();
        parse(&entry[..size], &mut events).unwrap();
        events.remove(0)
    }

    #[test]
    fn descriptors_become_event_types() {
        let event = described(0);

        let fields: Vec<_> = event.fields.iter().map(|field| (field.name.as_str(), field.ty, field.hex)).collect();
        assert_eq!((event.id, event.class, event.name.as_str()), (FIRST_TRACEPOINT, 7, "test:first"));
        let expected = [
            ("ip", FieldType::U64, true),
            ("comm", FieldType::CharArray(16), false),
            ("values", FieldType::Sequence(Integer::U32), false),
            ("name", FieldType::Text, false),
        ];
        assert_eq!(fields, expected);
        assert_eq!((described(1).id, described(1).fields.len()), (FIRST_TRACEPOINT + 1, 1));
    }

    #[test]
    fn event_that_is_not_there_is_not_described() {
        assert_eq!(descriptors().encode(2, &mut [0; MAX_ENTRY]), None);
        assert_eq!((descriptors().len(), descriptors().is_empty()), (2, false));
    }

    #[test]
    fn pointers_and_structures_are_hexadecimal_and_odd_sizes_have_no_type() {
        let fact = FieldDescriptor {
            name: "x",
            c_type: "struct foo *",
            size: 8,
            count: 0,
            kind: INTEGER,
            signed: false,
            text: false,
        };
        let opaque = FieldDescriptor { kind: OPAQUE, count: 12, size: 1, c_type: "struct foo", ..fact };

        assert!(fact.is_hexadecimal(b"") && opaque.is_hexadecimal(b""));
        assert_eq!(opaque.field_type(), Some(FieldType::Array(Integer::U8, 12)));
        assert_eq!(FieldDescriptor { size: 12, ..fact }.field_type(), None);
        assert!(FieldDescriptor { size: 70_000, ..opaque }.field_type().is_some());
        assert_eq!(FieldDescriptor { count: 70_000, ..opaque }.field_type(), None);
    }
}
