//! What an event type is: a name, an id, a major class, and typed fields laid out one after another without padding.
//!
//! Fields of fixed size and [`FieldType::String`]s lie in their place. Of a [`FieldType::Sequence`] or [`FieldType::Text`]
//! the place holds how many elements it has (`u16`); the elements follow after the last field, those of the first such
//! field first. So a writer fills the fixed fields of a payload by plain stores, whatever varies in it.

#[cfg(feature = "std")]
use std::{string::String, vec::Vec};

/// Longest event or field name, bytes.
pub const MAX_NAME: usize = 128;
/// Most fields of an event.
pub const MAX_FIELDS: usize = 64;

/// An integer: little-endian, unaligned.
///
/// ```
/// use shared_ring::event::Integer;
///
/// assert_eq!(Integer::of(4, true), Some(Integer::I32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Integer {
    /// Unsigned, 1 byte.
    U8,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// Signed, 1 byte.
    I8,
    /// Signed, 2 bytes.
    I16,
    /// Signed, 4 bytes.
    I32,
    /// Signed, 8 bytes.
    I64,
}

impl Integer {
    /// Bytes of a value.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 => 4,
            Self::U64 | Self::I64 => 8,
        }
    }

    /// Whether values may be negative.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// The integer of `size` bytes; `None` when there is none of that size.
    #[must_use]
    pub const fn of(size: usize, signed: bool) -> Option<Self> {
        Some(match (size, signed) {
            (1, false) => Self::U8,
            (2, false) => Self::U16,
            (4, false) => Self::U32,
            (8, false) => Self::U64,
            (1, true) => Self::I8,
            (2, true) => Self::I16,
            (4, true) => Self::I32,
            (8, true) => Self::I64,
            _ => return None,
        })
    }

    const fn to_code(self) -> u8 {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 3,
            Self::U64 => 4,
            Self::I8 => 5,
            Self::I16 => 6,
            Self::I32 => 7,
            Self::I64 => 8,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::U8,
            2 => Self::U16,
            3 => Self::U32,
            4 => Self::U64,
            5 => Self::I8,
            6 => Self::I16,
            7 => Self::I32,
            8 => Self::I64,
            _ => return None,
        })
    }
}

/// Type of a field. Integers are little-endian and unaligned.
///
/// ```
/// use shared_ring::event::FieldType;
///
/// // A text has its length in the place of the field, and its bytes after the last field.
/// assert_eq!((FieldType::U32.fixed_size(), FieldType::Text.fixed_size()), (Some(4), None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum FieldType {
    /// Unsigned, 1 byte.
    U8,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// Signed, 1 byte.
    I8,
    /// Signed, 2 bytes.
    I16,
    /// Signed, 4 bytes.
    I32,
    /// Signed, 8 bytes.
    I64,
    /// Floating point of IEEE 754, 8 bytes, little-endian and unaligned, too.
    F64,
    /// Text in this many bytes, NUL-padded.
    CharArray(u16),
    /// Text that ends with a NUL byte, which is part of the payload.
    String,
    /// This many integers.
    Array(Integer, u16),
    /// As many integers as the payload says.
    Sequence(Integer),
    /// Text of as many bytes as the payload says, shown up to its first NUL byte.
    Text,
}

/// Code of an [`FieldType::Array`], plus that of its elements.
const ARRAY_CODE: u8 = 16;
/// Code of a [`FieldType::Sequence`], plus that of its elements.
const SEQUENCE_CODE: u8 = 32;
/// Bytes of the element count that stands in the place of a [`FieldType::Sequence`] or [`FieldType::Text`].
pub const COUNT_SIZE: usize = 2;

impl FieldType {
    /// Bytes of a value; `None` when they vary.
    #[must_use]
    pub const fn fixed_size(self) -> Option<usize> {
        match self {
            Self::String | Self::Sequence(_) | Self::Text => None,
            _ => self.size_in_place(),
        }
    }

    /// Bytes in the field's place; `None` for [`FieldType::String`].
    #[must_use]
    pub const fn size_in_place(self) -> Option<usize> {
        match self {
            Self::CharArray(length) => Some(length as usize),
            Self::String => None,
            Self::Array(integer, length) => Some(integer.size() * length as usize),
            Self::Sequence(_) | Self::Text => Some(COUNT_SIZE),
            Self::U8 | Self::I8 => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
        }
    }

    /// Bytes of an element that lies behind the last field; `None` for types that have none there.
    #[must_use]
    pub const fn element_behind(self) -> Option<usize> {
        match self {
            Self::Sequence(integer) => Some(integer.size()),
            Self::Text => Some(1),
            _ => None,
        }
    }

    /// The integer that this type is; `None` for floating point, arrays and text.
    #[must_use]
    pub const fn integer(self) -> Option<Integer> {
        Some(match self {
            Self::U8 => Integer::U8,
            Self::U16 => Integer::U16,
            Self::U32 => Integer::U32,
            Self::U64 => Integer::U64,
            Self::I8 => Integer::I8,
            Self::I16 => Integer::I16,
            Self::I32 => Integer::I32,
            Self::I64 => Integer::I64,
            Self::F64 | Self::CharArray(_) | Self::String | Self::Array(..) | Self::Sequence(_) | Self::Text => {
                return None;
            }
        })
    }

    /// The type of a field that is one `integer`.
    #[must_use]
    pub const fn of_integer(integer: Integer) -> Self {
        match integer {
            Integer::U8 => Self::U8,
            Integer::U16 => Self::U16,
            Integer::U32 => Self::U32,
            Integer::U64 => Self::U64,
            Integer::I8 => Self::I8,
            Integer::I16 => Self::I16,
            Integer::I32 => Self::I32,
            Integer::I64 => Self::I64,
        }
    }

    /// Code of the type in a registry, with the array length that goes with it.
    #[must_use]
    pub const fn to_code(self) -> (u8, u16) {
        match self {
            Self::CharArray(length) => (9, length),
            Self::String => (10, 0),
            Self::Text => (11, 0),
            Self::F64 => (12, 0),
            Self::Array(integer, length) => (ARRAY_CODE + integer.to_code(), length),
            Self::Sequence(integer) => (SEQUENCE_CODE + integer.to_code(), 0),
            Self::U8 => (1, 0),
            Self::U16 => (2, 0),
            Self::U32 => (3, 0),
            Self::U64 => (4, 0),
            Self::I8 => (5, 0),
            Self::I16 => (6, 0),
            Self::I32 => (7, 0),
            Self::I64 => (8, 0),
        }
    }

    /// The type of a registry code; `None` for codes that are not defined and for empty arrays.
    #[must_use]
    pub const fn from_code(code: u8, length: u16) -> Option<Self> {
        Some(match code {
            9 if length > 0 => Self::CharArray(length),
            10 => Self::String,
            11 => Self::Text,
            12 => Self::F64,
            _ if code < ARRAY_CODE => match Integer::from_code(code) {
                Some(integer) => Self::of_integer(integer),
                None => return None,
            },
            _ if code < SEQUENCE_CODE => match Integer::from_code(code - ARRAY_CODE) {
                Some(integer) if length > 0 => Self::Array(integer, length),
                _ => return None,
            },
            _ => match Integer::from_code(code - SEQUENCE_CODE) {
                Some(integer) => Self::Sequence(integer),
                None => return None,
            },
        })
    }
}

/// A field of an event type that is known at compile time.
/// For an example see [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, a C identifier.
    pub name: &'static str,
    /// Type.
    pub ty: FieldType,
    /// Shown in hexadecimal (addresses, masks).
    pub hex: bool,
}

impl Field {
    /// A field shown in decimal or as text.
    #[must_use]
    pub const fn new(name: &'static str, ty: FieldType) -> Self {
        Self { name, ty, hex: false }
    }

    /// A field shown in hexadecimal.
    #[must_use]
    pub const fn hex(name: &'static str, ty: FieldType) -> Self {
        Self { name, ty, hex: true }
    }
}

/// An event type that is known at compile time.
///
/// ```
/// use shared_ring::event::{Event, EventDescription, Field, FieldType};
///
/// const OPEN: Event = Event {
///     id: 1,
///     class: 0,
///     name: "shop:open",
///     fields: &[Field::new("customers", FieldType::U32), Field::hex("address", FieldType::U64)],
/// };
/// assert_eq!(OPEN.fixed_size(), Some(12));
/// assert!(EventDescription::from(&OPEN).accepts(&[0; 12]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Id, unique in its registry; neither 0 nor `0xffff`.
    pub id: u16,
    /// Major class, 0 to 63: the bit of a session's class mask that enables it.
    pub class: u8,
    /// Name, `group:event`.
    pub name: &'static str,
    /// Fields in the order of their bytes.
    pub fields: &'static [Field],
}

impl Event {
    /// Bytes of the payload; `None` when a field varies.
    #[must_use]
    pub const fn fixed_size(&self) -> Option<usize> {
        let mut size = 0;
        let mut index = 0;
        while index < self.fields.len() {
            match self.fields[index].ty.fixed_size() {
                Some(bytes) => size += bytes,
                None => return None,
            }
            index += 1;
        }
        Some(size)
    }
}

/// A field of an event type that was read from a registry.
/// For an example see [`Event`].
#[cfg(feature = "std")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FieldDescription {
    /// Name, a C identifier.
    pub name: String,
    /// Type.
    #[cfg_attr(feature = "serde", serde(rename = "type"))]
    pub ty: FieldType,
    /// Shown in hexadecimal.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "core::ops::Not::not"))]
    pub hex: bool,
}

/// An event type that was read from a registry.
/// For an example see [`Event`].
#[cfg(feature = "std")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EventDescription {
    /// Id, unique in its registry; neither 0 nor `0xffff`.
    pub id: u16,
    /// Major class, 0 to 63.
    pub class: u8,
    /// Name, `group:event`.
    pub name: String,
    /// Fields in the order of their bytes.
    pub fields: Vec<FieldDescription>,
}

#[cfg(feature = "std")]
impl EventDescription {
    /// Whether `payload` is exactly what the fields ask for: fixed fields whole, strings terminated, as many elements behind
    /// the last field as were announced, nothing left over.
    #[must_use]
    pub fn accepts(&self, payload: &[u8]) -> bool {
        self.place_of_elements(payload).is_some_and(|(at, size)| payload.len() - at == size)
    }

    /// Where the elements behind the last field begin in `payload`, and how many bytes they claim to take; `None` when
    /// the payload ends before the last field does.
    #[must_use]
    pub fn place_of_elements(&self, payload: &[u8]) -> Option<(usize, usize)> {
        let (mut rest, mut behind) = (payload, 0);
        for field in &self.fields {
            let size = match field.ty.size_in_place() {
                Some(size) => size,
                None => rest.iter().position(|&byte| byte == 0)? + 1,
            };
            let (place, after) = rest.split_at_checked(size)?;
            if let (Some(element), &[low, high]) = (field.ty.element_behind(), place) {
                behind += element * usize::from(u16::from_le_bytes([low, high]));
            }
            rest = after;
        }
        Some((payload.len() - rest.len(), behind))
    }
}

#[cfg(feature = "std")]
impl From<&Event> for EventDescription {
    fn from(event: &Event) -> Self {
        Self {
            id: event.id,
            class: event.class,
            name: event.name.into(),
            fields: event
                .fields
                .iter()
                .map(|field| FieldDescription { name: field.name.into(), ty: field.ty, hex: field.hex })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described() -> EventDescription {
        const EVENT: Event = Event {
            id: 1,
            class: 32,
            name: "test:event",
            fields: &[Field::new("number", FieldType::U32), Field::new("text", FieldType::String)],
        };
        EventDescription::from(&EVENT)
    }

    #[test]
    fn payload_that_fits_the_fields_is_accepted() {
        assert!(described().accepts(b"\x01\0\0\0hello\0"));
    }

    #[test]
    fn payload_that_ends_early_or_late_is_refused() {
        assert!(!described().accepts(b"\x01\0\0"));
        assert!(!described().accepts(b"\x01\0\0\0hello"));
        assert!(!described().accepts(b"\x01\0\0\0hello\0x"));
    }

    #[test]
    fn elements_behind_the_last_field_are_as_many_as_announced() {
        let field = |name: &str, ty| FieldDescription { name: name.into(), ty, hex: false };
        let fields = [("name", FieldType::Text), ("n", FieldType::U8), ("values", FieldType::Sequence(Integer::U16))];
        let event = EventDescription {
            id: 1,
            class: 0,
            name: "test:event".into(),
            fields: fields.map(|(name, ty)| field(name, ty)).into(),
        };
        let payload = b"\x03\0\x07\x02\0ab\0\x01\0\x02\0";

        assert!(event.accepts(payload));
        assert_eq!(event.place_of_elements(payload), Some((5, 7)));
        assert!(!event.accepts(&payload[..payload.len() - 1]) && !event.accepts(&[&payload[..], b"x"].concat()));
        assert!(!event.accepts(b"\xff\xff\x07\xff\xff") && !event.accepts(b"\x03"));
    }

    #[test]
    fn codes_that_stand_for_nothing_are_refused() {
        let refused = [(0, 0), (9, 0), (13, 0), (16, 1), (17, 0), (25, 1), (32, 0), (41, 0), (255, 1)];

        assert!(refused.iter().all(|&(code, length)| FieldType::from_code(code, length).is_none()));
    }

    #[test]
    fn every_type_survives_its_code() {
        let types = [
            FieldType::U8,
            FieldType::I64,
            FieldType::F64,
            FieldType::CharArray(16),
            FieldType::String,
            FieldType::Text,
            FieldType::Array(Integer::I32, 6),
            FieldType::Array(Integer::I64, 1),
            FieldType::Sequence(Integer::U8),
            FieldType::Sequence(Integer::U64),
        ];

        let back = types.map(|ty| FieldType::from_code(ty.to_code().0, ty.to_code().1));

        assert_eq!(back, types.map(Some));
    }
}
