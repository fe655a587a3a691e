//! What a history holds, as bytes: one frame after the other, in memory and in the file that outlives the process.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | time, ticks; 0 where the frame is not a record |
//! | 4 | CPU |
//! | 2 | number of the event type; 0 where the frame is not a record |
//! | 2 | bytes of the payload that follow, or one of the marks of frames that are not records |

use super::Unrecorded;

/// Bytes before the payload.
pub(super) const HEAD: usize = 16;
/// Longest payload of a record, bytes: more than a page of the kernel's, and less than the marks.
const MOST: usize = 0x7fff;
/// Mark of what came and was not kept: 8 bytes of lost records, 8 bytes of rejected bytes.
const UNRECORDED: u16 = 0x8000;
/// Mark of what has given way up to here: 8 bytes of records, what [`UNRECORDED`] has, and 1 byte, 1 where that ends in
/// a gap.
const GONE: u16 = 0x8001;
/// Mark of a check: 4 bytes, the CRC-32 of all that lies between the check before it and this one.
const CHECK: u16 = 0x8002;
/// Mark of an edge of a gap: 1 byte, 1 where it begins and 0 where it ends.
const GAP: u16 = 0x8003;

/// What a CPU had that gave way: its records, and what was not kept of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    pub(super) records: u64,
    pub(super) unrecorded: Unrecorded,
    /// Whether a gap began there that had not ended.
    pub(super) in_gap: bool,
}

/// A part of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// A record of the CPU `cpu`.
    Record { time: u64, cpu: u32, id: u16, payload: &'a [u8] },
    /// What came from a CPU and was not kept.
    Unrecorded { cpu: u32, unrecorded: Unrecorded },
    /// All that gave way of a CPU so far.
    Gone { cpu: u32, gone: Gone },
    /// Between this CPU's records from here on further ones may be missing, or not any more.
    Gap { cpu: u32, begins: bool },
    /// What lies between the check before it and this one.
    Check { crc: u32 },
}

impl Frame<'_> {
    /// Whether a record can have a payload of so many bytes.
    pub(super) const fn holds(payload: usize) -> bool {
        payload <= MOST
    }

    /// Bytes that it takes.
    pub(super) fn size(&self) -> usize {
        HEAD + match self {
            Self::Record { payload, .. } => payload.len().min(MOST),
            Self::Unrecorded { .. } => 16,
            Self::Gone { .. } => 25,
            Self::Gap { .. } => 1,
            Self::Check { .. } => 4,
        }
    }

    /// Puts it behind `bytes`. A payload that is too long is cut: [`Frame::holds`] says which are.
    #[inline]
    pub(super) fn append(&self, bytes: &mut Vec<u8>) {
        let mut head = |time: u64, cpu: u32, id: u16, size: u16| {
            let mut head = [0; HEAD];
            head[..8].copy_from_slice(&time.to_le_bytes());
            head[8..12].copy_from_slice(&cpu.to_le_bytes());
            head[12..14].copy_from_slice(&id.to_le_bytes());
            head[14..].copy_from_slice(&size.to_le_bytes());
            bytes.extend_from_slice(&head);
        };
        match *self {
            Self::Record { time, cpu, id, payload } => {
                let payload = &payload[..payload.len().min(MOST)];
                #[allow(clippy::cast_possible_truncation, reason = "at most MOST")]
                head(time, cpu, id, payload.len() as u16);
                bytes.extend_from_slice(payload);
            }
            Self::Unrecorded { cpu, unrecorded } => {
                head(0, cpu, 0, UNRECORDED);
                append_unrecorded(unrecorded, bytes);
            }
            Self::Gone { cpu, gone } => {
                head(0, cpu, 0, GONE);
                bytes.extend_from_slice(&gone.records.to_le_bytes());
                append_unrecorded(gone.unrecorded, bytes);
                bytes.push(u8::from(gone.in_gap));
            }
            Self::Gap { cpu, begins } => {
                head(0, cpu, 0, GAP);
                bytes.push(u8::from(begins));
            }
            Self::Check { crc } => {
                head(0, 0, 0, CHECK);
                bytes.extend_from_slice(&crc.to_le_bytes());
            }
        }
    }
}

/// Puts a check of what is in `bytes` from `checked` on behind it.
pub(super) fn append_check(bytes: &mut Vec<u8>, checked: usize) {
    let crc = crc32fast::hash(bytes.get(checked..).unwrap_or_default());
    Frame::Check { crc }.append(bytes);
}

/// How many of `bytes` are as they were written: up to the last check before the first one that is wrong.
pub(super) fn confirmed(bytes: &[u8]) -> usize {
    let (mut confirmed, mut at) = (0, 0);
    for frame in frames(bytes) {
        if let Frame::Check { crc } = frame {
            if bytes.get(confirmed..at).map(crc32fast::hash) != Some(crc) {
                break;
            }
            confirmed = at + frame.size();
        }
        at += frame.size();
    }
    confirmed
}

fn append_unrecorded(unrecorded: Unrecorded, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&unrecorded.lost.to_le_bytes());
    bytes.extend_from_slice(&unrecorded.rejected.to_le_bytes());
}

/// The frames in `bytes`, up to the first one that is not whole.
pub(super) fn frames(bytes: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (head, behind) = rest.split_first_chunk::<HEAD>()?;
        let (time, cpu) = (number(head, 0)?, u32::from_le_bytes(*head.get(8..)?.first_chunk()?));
        let (id, size) = (short(head, 12)?, short(head, 14)?);
        let length = match size {
            UNRECORDED => 16,
            GONE => 25,
            GAP => 1,
            CHECK => 4,
            _ => usize::from(size),
        };
        let (payload, behind) = behind.split_at_checked(length)?;
        let frame = match size {
            UNRECORDED => Frame::Unrecorded { cpu, unrecorded: unrecorded(payload)? },
            GONE => {
                let unrecorded = unrecorded(payload.get(8..)?)?;
                let in_gap = *payload.last()? != 0;
                Frame::Gone { cpu, gone: Gone { records: number(payload, 0)?, unrecorded, in_gap } }
            }
            GAP => Frame::Gap { cpu, begins: *payload.first()? != 0 },
            CHECK => Frame::Check { crc: u32::from_le_bytes(*payload.first_chunk()?) },
            _ if length > MOST => return None,
            _ => Frame::Record { time, cpu, id, payload },
        };
        rest = behind;
        Some(frame)
    })
}

fn unrecorded(bytes: &[u8]) -> Option<Unrecorded> {
    Some(Unrecorded { lost: number(bytes, 0)?, rejected: number(bytes, 8)? })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let unrecorded = Unrecorded { lost: 2, rejected: 3 };
        let all = [
            Frame::Record { time: 7, cpu: 1, id: 0xffff, payload: b"payload" },
            Frame::Unrecorded { cpu: 2, unrecorded },
            Frame::Gone { cpu: 3, gone: Gone { records: 9, unrecorded, in_gap: true } },
            Frame::Gone { cpu: 3, gone: Gone { records: 9, unrecorded, in_gap: false } },
            Frame::Record { time: 8, cpu: 1, id: 0, payload: b"" },
            Frame::Gap { cpu: 4, begins: true },
            Frame::Gap { cpu: 4, begins: false },
            Frame::Check { crc: 5 },
        ];
        let mut bytes = Vec::new();

        all.iter().for_each(|frame| frame.append(&mut bytes));

        assert_eq!(frames(&bytes).collect::<Vec<_>>(), all);
        assert_eq!(bytes.len(), all.iter().map(Frame::size).sum::<usize>());
        assert_eq!(frames(&bytes[..bytes.len() - 1]).count(), 7);
    }

    #[test]
    fn bytes_are_confirmed_up_to_the_last_check_before_a_wrong_one() {
        let mut bytes = Vec::new();
        let mut checks = Vec::new();
        for time in 1..4 {
            let checked = bytes.len();
            Frame::Record { time, cpu: 1, id: 2, payload: b"payload" }.append(&mut bytes);
            append_check(&mut bytes, checked);
            checks.push(bytes.len());
        }
        Frame::Record { time: 4, cpu: 1, id: 2, payload: b"unchecked" }.append(&mut bytes);

        let whole = confirmed(&bytes);
        bytes[checks[1] - 25] ^= 1;

        assert_eq!((whole, confirmed(&bytes)), (checks[2], checks[0]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let read: usize = frames(&bytes).map(|frame| frame.size()).sum();

            prop_assert!(read <= bytes.len() && confirmed(&bytes) <= read);
        }
    }
}
