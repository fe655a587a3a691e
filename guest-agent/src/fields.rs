//! Fields of events: what they hold, and how values become bytes.

use shared_ring::event::FieldType;
use std::marker::PhantomData;

/// Longest text of a field, bytes; what is longer is cut.
pub const MAX_TEXT: usize = 2048;

/// Where a record's fields are written, one after another.
#[derive(Debug)]
pub struct Payload<'r> {
    bytes: &'r mut [u8],
    at: usize,
}

impl<'r> Payload<'r> {
    /// A payload that fills `bytes`.
    pub(crate) const fn new(bytes: &'r mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Appends `bytes`; what does not fit is left out.
    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) {
        if let Some(to) = self.bytes.get_mut(self.at..self.at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }
}

/// What a field holds, and how a value becomes bytes.
pub trait Kind {
    /// Type of the field in the trace.
    const TYPE: FieldType;
    /// Whether the field is shown in hexadecimal.
    const HEX: bool = false;
    /// A value of the field.
    type Value<'a>: Copy;

    /// Bytes that `value` takes.
    fn size(value: Self::Value<'_>) -> usize;

    /// Writes exactly [`size`](Self::size) bytes.
    fn put(value: Self::Value<'_>, payload: &mut Payload<'_>);
}

macro_rules! numbers {
    ($($number:ty => $ty:ident),*) => {$(
        impl Kind for $number {
            const TYPE: FieldType = FieldType::$ty;
            type Value<'a> = $number;

            #[inline(always)]
            fn size(_: $number) -> usize {
                size_of::<$number>()
            }

            #[inline(always)]
            fn put(value: $number, payload: &mut Payload<'_>) {
                payload.put(&value.to_le_bytes());
            }
        }
    )*};
}

numbers!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, usize => U64);
numbers!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, isize => I64, f64 => F64);

impl Kind for bool {
    const TYPE: FieldType = FieldType::U8;
    type Value<'a> = bool;

    #[inline(always)]
    fn size(_: bool) -> usize {
        1
    }

    #[inline(always)]
    fn put(value: bool, payload: &mut Payload<'_>) {
        payload.put(&[u8::from(value)]);
    }
}

/// An integer shown in hexadecimal: addresses, masks.
#[derive(Debug)]
pub struct Hex<T>(PhantomData<T>);

impl<T: Kind> Kind for Hex<T> {
    const TYPE: FieldType = T::TYPE;
    const HEX: bool = true;
    type Value<'a> = T::Value<'a>;

    #[inline(always)]
    fn size(value: Self::Value<'_>) -> usize {
        T::size(value)
    }

    #[inline(always)]
    fn put(value: Self::Value<'_>, payload: &mut Payload<'_>) {
        T::put(value, payload);
    }
}

/// Text, recorded up to its first NUL character and up to [`MAX_TEXT`] bytes.
#[derive(Debug)]
pub struct Text;

impl Text {
    #[inline(always)]
    pub(crate) fn content(text: &str) -> &[u8] {
        let bytes = &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)];
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        &bytes[..end]
    }
}

impl Kind for Text {
    const TYPE: FieldType = FieldType::String;
    type Value<'a> = &'a str;

    #[inline(always)]
    fn size(text: &str) -> usize {
        Self::content(text).len() + 1
    }

    #[inline(always)]
    fn put(text: &str, payload: &mut Payload<'_>) {
        payload.put(Self::content(text));
        payload.put(&[0]);
    }
}

/// The fields of an event: a tuple of [`Kind`]s.
pub trait Fields {
    /// Type of each field in the trace, and whether it is shown in hexadecimal.
    const KINDS: &'static [(FieldType, bool)];
    /// The tuple of the fields' values.
    type Values<'a>: Copy;

    /// Bytes of the payload.
    fn size(values: Self::Values<'_>) -> usize;

    /// Writes exactly [`size`](Self::size) bytes.
    fn put(values: Self::Values<'_>, payload: &mut Payload<'_>);
}

macro_rules! tuples {
    ($(($($kind:ident $value:ident),*))*) => {$(
        impl<$($kind: Kind),*> Fields for ($($kind,)*) {
            const KINDS: &'static [(FieldType, bool)] = &[$(($kind::TYPE, $kind::HEX)),*];
            type Values<'a> = ($($kind::Value<'a>,)*);

            #[inline(always)]
            fn size(($($value,)*): Self::Values<'_>) -> usize {
                0 $(+ $kind::size($value))*
            }

            #[inline(always)]
            fn put(($($value,)*): Self::Values<'_>, _payload: &mut Payload<'_>) {
                $($kind::put($value, _payload);)*
            }
        }
    )*};
}

tuples! {
    ()
    (A a)
    (A a, B b)
    (A a, B b, C c)
    (A a, B b, C c, D d)
    (A a, B b, C c, D d, E e)
    (A a, B b, C c, D d, E e, F f)
    (A a, B b, C c, D d, E e, F f, G g)
    (A a, B b, C c, D d, E e, F f, G g, H h)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_the_bytes_that_the_fields_say() {
        type Shape = (u16, Hex<u32>, Text, i8, f64);
        let values = (0x0102, 0xdead_beef, "hello\0hidden", -1, -2.0);
        let mut bytes = [0xaa; 21];

        let size = Shape::size(values);
        Shape::put(values, &mut Payload::new(&mut bytes));

        assert_eq!(size, 21);
        assert_eq!(&bytes, b"\x02\x01\xef\xbe\xad\xdehello\0\xff\0\0\0\0\0\0\0\xc0");
    }

    #[test]
    fn payload_never_leaves_its_bytes() {
        let mut bytes = [0; 3];

        <(u16, u32)>::put((1, 2), &mut Payload::new(&mut bytes));

        assert_eq!(bytes, [1, 0, 0]);
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "x".repeat(MAX_TEXT - 1) + "\u{fc}ber";

        let content = Text::content(&text);

        assert_eq!((content.len(), Text::size(&text)), (MAX_TEXT - 1, MAX_TEXT));
    }
}
