//! What an event type is: a name, an id, a major class, and typed fields laid out one after another without padding.

#[cfg(feature = "std")]
use std::{string::String, vec::Vec};

/// Longest event or field name, bytes.
pub const MAX_NAME: usize = 128;
/// Most fields of an event.
pub const MAX_FIELDS: usize = 64;

/// Type of a field. Integers are little-endian and unaligned.
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
    /// Text in this many bytes, NUL-padded.
    CharArray(u16),
    /// Text that ends with a NUL byte, which is part of the payload.
    String,
}

impl FieldType {
    /// Bytes of a value; `None` for [`FieldType::String`].
    #[must_use]
    pub const fn fixed_size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 => Some(4),
            Self::U64 | Self::I64 => Some(8),
            Self::CharArray(length) => Some(length as usize),
            Self::String => None,
        }
    }

    /// Code of the type in a registry, with the array length that goes with it.
    #[must_use]
    pub const fn to_code(self) -> (u8, u16) {
        match self {
            Self::U8 => (1, 0),
            Self::U16 => (2, 0),
            Self::U32 => (3, 0),
            Self::U64 => (4, 0),
            Self::I8 => (5, 0),
            Self::I16 => (6, 0),
            Self::I32 => (7, 0),
            Self::I64 => (8, 0),
            Self::CharArray(length) => (9, length),
            Self::String => (10, 0),
        }
    }

    /// The type of a registry code; `None` for codes that are not defined and for empty arrays.
    #[must_use]
    pub const fn from_code(code: u8, length: u16) -> Option<Self> {
        Some(match code {
            1 => Self::U8,
            2 => Self::U16,
            3 => Self::U32,
            4 => Self::U64,
            5 => Self::I8,
            6 => Self::I16,
            7 => Self::I32,
            8 => Self::I64,
            9 if length > 0 => Self::CharArray(length),
            10 => Self::String,
            _ => return None,
        })
    }
}

/// A field of an event type that is known at compile time.
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

/// Major classes of the events that Strata itself defines.
pub mod class {
    /// Context switches and wake-ups.
    pub const SCHED: u8 = 0;
    /// Life of tasks: fork, exec, exit.
    pub const TASK: u8 = 1;
    /// Interrupt handlers.
    pub const IRQ: u8 = 2;
    /// Soft interrupts.
    pub const SOFTIRQ: u8 = 3;
    /// System calls.
    pub const SYSCALL: u8 = 4;
    /// Exceptions, page faults among them.
    pub const EXCEPTION: u8 = 5;
    /// Timers.
    pub const TIMER: u8 = 6;
    /// Applications.
    pub const USER: u8 = 32;
    /// The VMM's vCPU threads.
    pub const VMM_VCPU: u8 = 40;
    /// The VMM's devices.
    pub const VMM_DEVICE: u8 = 41;
    /// Control of the VMM: start, stop, reset.
    pub const VMM_CONTROL: u8 = 42;
    /// The host kernel's events.
    pub const HOST_KERNEL: u8 = 48;
}

/// A field of an event type that was read from a registry.
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
    /// Whether `payload` is exactly what the fields ask for: fixed fields whole, strings terminated, nothing left over.
    #[must_use]
    pub fn accepts(&self, payload: &[u8]) -> bool {
        let mut rest = payload;
        for field in &self.fields {
            let size = match field.ty.fixed_size() {
                Some(size) => size,
                None => match rest.iter().position(|&byte| byte == 0) {
                    Some(end) => end + 1,
                    None => return false,
                },
            };
            match rest.get(size..) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.is_empty()
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
            class: class::USER,
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
    fn every_type_survives_its_code() {
        let types = [FieldType::U8, FieldType::I64, FieldType::CharArray(16), FieldType::String];

        let back = types.map(|ty| FieldType::from_code(ty.to_code().0, ty.to_code().1));

        assert_eq!(back, types.map(Some));
    }
}
