//! The wire format of Protobuf, for the messages that there is one of for each record: what a library does for a
//! message of any kind took a quarter of an export's instructions.

/// Wire types, the lowest bits of a field's key.
const NUMBER: u64 = 0;
const WITH_LENGTH: u64 = 2;

/// Appends a number of variable length, 7 bits in a byte.
#[inline]
pub(super) fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Appends the field `field` of a message: a number, or a value of an enumeration.
#[inline]
pub(super) fn put_number(field: u32, number: u64, out: &mut Vec<u8>) {
    put_varint(u64::from(field) << 3 | NUMBER, out);
    put_varint(number, out);
}

/// Appends the field `field` of a message: text, or another message, encoded.
#[inline]
pub(super) fn put_bytes(field: u32, bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(u64::from(field) << 3 | WITH_LENGTH, out);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::super::proto::{EventName, GenericKernelTaskStateEvent};
    use super::*;
    use prost::Message;

    #[test]
    fn fields_are_encoded_as_the_library_does() {
        for number in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::MAX] {
            let name = EventName { iid: Some(number), name: Some("x".repeat(200)) };
            let mut out = Vec::new();

            put_number(1, number, &mut out);
            put_bytes(2, "x".repeat(200).as_bytes(), &mut out);

            assert_eq!(out, name.encode_to_vec());
        }
    }

    #[test]
    fn negative_number_is_encoded_in_64_bits() {
        let state = GenericKernelTaskStateEvent { tid: Some(-1), ..GenericKernelTaskStateEvent::default() };
        let mut out = Vec::new();

        put_number(3, (-1_i64).cast_unsigned(), &mut out);

        assert_eq!(out, state.encode_to_vec());
    }
}
