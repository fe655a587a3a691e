//! Text that a worker has written lately and may write again: fields of records, and tasks. To format it anew takes far more
//! than to copy it.

use super::current_task::Task;
use super::line::{Lines, MOST_AT_ONCE};
use std::ops::Range;
use strata_recording::schema::IntegerField;

/// Places of texts: few enough that they stay in a CPU's cache.
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 10;

/// Bytes of a payload that a text that is kept depends on, at most.
pub(super) const MOST_BYTES: usize = 64;

/// What the text of some fields of an event type depends on.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// Which fields they are: a number of their own, not 0.
    fields: u32,
    /// Where they lie in the payload, and how many bytes they take; `None` for all up to its end.
    begin: usize,
    size: Option<usize>,
    /// Another field that their text depends on, where there is one.
    beside: Option<IntegerField>,
}

/// What [`Key`] finds in a payload, without the fields themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Of {
    fields: u32,
    /// Bytes that they take.
    size: usize,
    beside: u64,
}

impl Key {
    /// Of the fields that are called `fields` and lie in `bytes` of a payload, whose text depends on `beside` too; `None`
    /// where they are too long.
    pub(super) fn new(fields: u32, bytes: Range<usize>, beside: Option<IntegerField>) -> Option<Self> {
        let size = bytes.len();
        (size <= MOST_BYTES).then_some(Self { fields, begin: bytes.start, size: Some(size), beside })
    }

    /// Of the fields that are called `fields` and lie in a payload from `begin` up to its end.
    pub(super) const fn up_to_end(fields: u32, begin: usize, beside: Option<IntegerField>) -> Self {
        Self { fields, begin, size: None, beside }
    }

    /// The fields in `payload`, and what they are; `None` where it ends before they do, or they take more than
    /// [`MOST_BYTES`].
    #[inline(always)]
    fn read<'p>(&self, payload: &'p [u8]) -> Option<(&'p [u8], Of)> {
        let rest = payload.get(self.begin..)?;
        let bytes = match self.size {
            Some(size) => rest.get(..size)?,
            None if rest.len() <= MOST_BYTES => rest,
            None => return None,
        };
        let beside = match self.beside {
            Some(beside) => beside.bits(payload)?,
            None => 0,
        };
        Some((bytes, Of { fields: self.fields, size: bytes.len(), beside }))
    }
}

/// Where the text of the fields `bytes`, which are `of`, is kept.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "no bits are left above those of a place")]
fn place_of(bytes: &[u8], of: Of) -> usize {
    let (words, rest) = bytes.as_chunks();
    let mut mixed = u64::from(of.fields) ^ of.beside;
    // Fibonacci hashing: neighbours, which numbers of a field often are, do not meet.
    let mut mix = |word: u64| mixed = (mixed.rotate_left(u64::BITS / 2) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    if !rest.is_empty() {
        // Bytes before the rest are mixed once more.
        mix(bytes.last_chunk().map_or_else(|| number_of(bytes), |last| u64::from_le_bytes(*last)));
    }
    (mixed >> (u64::BITS - PLACE_BITS)) as usize
}

/// Fewer than eight bytes as a number.
#[inline(always)]
fn number_of(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) => u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32,
        _ => bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)),
    }
}

/// Whether `left` and `right`, which are as long, are the same: without a call, which costs more for so few bytes.
#[inline(always)]
fn are_same(left: &[u8], right: &[u8]) -> bool {
    const CHUNK: usize = 16;
    match (left.last_chunk::<CHUNK>(), right.last_chunk::<CHUNK>()) {
        (Some(left_end), Some(right_end)) => {
            let (left, right) = (left.as_chunks::<CHUNK>().0, right.as_chunks::<CHUNK>().0);
            left_end == right_end && left.iter().zip(right).all(|(left, right)| left == right)
        }
        _ => match [left, right].map(|bytes| (bytes.first_chunk::<8>(), bytes.last_chunk::<8>())) {
            [(Some(left), Some(left_end)), (Some(right), Some(right_end))] => left == right && left_end == right_end,
            _ => number_of(left) == number_of(right),
        },
    }
}

/// What was written lately.
#[derive(Debug)]
pub(super) struct Known<'t> {
    /// Each in one of two places: so few of them take each other's place.
    fields: Box<[KeptFields; PLACES]>,
    /// Which of two places is taken next: the first or the second.
    turn: usize,
    /// By source of the merge: the task of its last record.
    tasks: Vec<KeptTask<'t>>,
}

impl<'t> Known<'t> {
    /// Nothing yet, of a merge of so many `sources`.
    pub(super) fn new(sources: usize) -> Self {
        let tasks = (0..sources).map(|_| KeptTask::NONE).collect();
        Self { fields: Box::new([const { KeptFields::NONE }; PLACES]), turn: 0, tasks }
    }

    /// Writes what `write` writes for the fields of `key` in a record's `payload`, and returns what that returns: whether it
    /// is all. What is not is not kept.
    #[inline(always)]
    pub(super) fn fields(
        &mut self,
        lines: &mut Lines,
        key: &Key,
        payload: &[u8],
        write: impl FnOnce(&mut Lines) -> bool,
    ) -> bool {
        let Some((bytes, of)) = key.read(payload) else { return write(lines) };
        let place = place_of(bytes, of);
        for place in [place, place ^ 1] {
            let kept = &self.fields[place];
            if kept.of == of && kept.bytes.get(..bytes.len()).is_some_and(|kept| are_same(kept, bytes)) {
                lines.copy(&kept.text, kept.length);
                return true;
            }
        }
        self.turn ^= 1;
        self.fields[place ^ self.turn].write_anew(lines, (bytes, of), write)
    }

    /// Writes what comes before the event of a record of `source` with this `task`, as `write` does it.
    #[inline]
    pub(super) fn task(
        &mut self,
        lines: &mut Lines,
        source: usize,
        task: Option<Task<'t>>,
        write: impl FnOnce(&mut Lines),
    ) {
        match self.tasks.get_mut(source) {
            Some(kept) if kept.of == Some(task) => lines.copy(&kept.text, kept.length),
            Some(kept) => kept.write_anew(lines, task, write),
            None => write(lines),
        }
    }
}

/// Fields and their text.
#[derive(Debug)]
struct KeptFields {
    of: Of,
    bytes: [u8; MOST_BYTES],
    text: [u8; MOST_AT_ONCE],
    length: usize,
}

impl KeptFields {
    const NONE: Self =
        Self { of: Of { fields: 0, size: 0, beside: 0 }, bytes: [0; MOST_BYTES], text: [0; MOST_AT_ONCE], length: 0 };

    /// Keeps what `write` writes for the fields `bytes`, which are `of`, where it returns that this is all. Returns that.
    #[inline(never)]
    fn write_anew(
        &mut self,
        lines: &mut Lines,
        (bytes, of): (&[u8], Of),
        write: impl FnOnce(&mut Lines) -> bool,
    ) -> bool {
        let begin = lines.len();
        let is_all = write(lines);
        self.of = Self::NONE.of;
        if let Some(length) = keep(&mut self.text, lines, begin)
            && let Some(kept) = self.bytes.get_mut(..bytes.len())
            && is_all
        {
            kept.copy_from_slice(bytes);
            (self.of, self.length) = (of, length);
        }
        is_all
    }
}

/// A task, and the text of what comes before the event of its records.
#[derive(Debug)]
struct KeptTask<'t> {
    of: Option<Option<Task<'t>>>,
    text: [u8; MOST_AT_ONCE],
    length: usize,
}

impl<'t> KeptTask<'t> {
    const NONE: Self = Self { of: None, text: [0; MOST_AT_ONCE], length: 0 };

    /// Keeps what `write` writes for `task`.
    #[inline(never)]
    fn write_anew(&mut self, lines: &mut Lines, task: Option<Task<'t>>, write: impl FnOnce(&mut Lines)) {
        let begin = lines.len();
        write(lines);
        self.of = keep(&mut self.text, lines, begin).map(|length| {
            self.length = length;
            task
        });
    }
}

/// Keeps what was written behind the first `begin` bytes. Returns its length; `None` where it is longer than what is kept,
/// or lies in two places now: then it is written anew next time.
#[inline]
fn keep(kept: &mut [u8; MOST_AT_ONCE], lines: &Lines, begin: usize) -> Option<usize> {
    let text = lines.since(begin)?;
    kept.get_mut(..text.len())?.copy_from_slice(text);
    Some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::event::{EventDescription, FieldDescription, FieldType};
    use strata_recording::schema::Schema;

    fn text(lines: &mut Lines) -> String {
        String::from_utf8(lines.text()).unwrap()
    }

    /// The fields `fields`, of eleven bytes behind the first one, which says what they mean.
    fn key(fields: u32) -> Key {
        let field = FieldDescription { name: "meaning".into(), ty: FieldType::U8, hex: false };
        let event = EventDescription { id: 1, class: 0, name: "test:event".into(), fields: vec![field] };
        Key::new(fields, 1..12, Schema::new(event).integer("meaning")).unwrap()
    }

    #[test]
    fn text_is_written_again_for_the_same_bytes_of_the_same_fields_of_one_meaning_only() {
        let (mut known, mut lines) = (Known::new(0), Lines::default());
        let others = [(2, *b"0fields are"), (1, *b"1fields are"), (1, *b"0Fields are"), (1, *b"0fields arE")];
        let mut write = |fields, payload: [u8; 11], behind: &[u8], text: Option<&[u8]>| {
            let payload = [&payload[..], b" ", behind].concat();
            known.fields(&mut lines, &key(fields), &payload, |lines| {
                lines.extend(text.expect("it is known"));
                true
            });
        };

        write(1, *b"0fields are", b"", Some(b"a"));
        write(1, *b"0fields are", b"more", None);
        others.into_iter().for_each(|(fields, payload)| write(fields, payload, b"", Some(b"b")));

        assert_eq!(text(&mut lines), "aabbbb");
    }

    #[test]
    fn text_of_a_payload_that_ends_early_is_not_kept() {
        let (mut known, mut lines) = (Known::new(0), Lines::default());
        let mut write = |payload: &[u8], text: u8, is_all| {
            known.fields(&mut lines, &key(1), payload, |lines| {
                lines.push(text);
                is_all
            })
        };

        let written = [
            write(b"0fields are", b'a', false),
            write(b"0fields are", b'b', false),
            write(b"0fields are ", b'c', false),
            write(b"0fields are ", b'd', true),
        ];

        assert_eq!((written, text(&mut lines).as_str()), ([false, false, false, true], "abcd"));
    }

    #[test]
    fn fields_up_to_the_end_are_as_long_as_the_payload() {
        let (mut known, mut lines) = (Known::new(0), Lines::default());
        let key = Key::up_to_end(1, 1, None);
        let long = [0; MOST_BYTES + 2];
        let mut write = |payload: &[u8], text: Option<u8>| {
            known.fields(&mut lines, &key, payload, |lines| {
                lines.push(text.expect("it is known"));
                true
            });
        };

        write(b"0ab", Some(b'a'));
        write(b"1ab", None);
        write(b"0ab\0", Some(b'b'));
        (0..2).for_each(|_| write(&long, Some(b'd')));
        (b'e'..=b'f').zip([Some(b'e'), None]).for_each(|(_, text)| write(&long[1..], text));

        assert_eq!(text(&mut lines), "aabddee");
    }

    #[test]
    fn more_bytes_than_are_compared_are_no_key() {
        assert!(Key::new(1, 8..8 + MOST_BYTES, None).is_some());
        assert!(Key::new(1, 8..9 + MOST_BYTES, None).is_none());
    }

    #[test]
    fn text_that_is_long_or_torn_is_written_anew() {
        let (mut known, mut lines) = (Known::new(0), Lines::default());
        let long = [b'x'; MOST_AT_ONCE + 1];

        for _ in 0..2 {
            known.fields(&mut lines, &key(1), b"0fields are ", |lines| {
                lines.extend(&long);
                true
            });
        }
        // Between any two of its bytes the lines may go on in other memory.
        let pairs = 60_000;
        for _ in 0..pairs {
            known.fields(&mut lines, &key(2), b"0fields are ", |lines| {
                lines.push(b'a');
                lines.push(b'b');
                true
            });
            lines.push(b'-');
        }

        let expected = "x".repeat(2 * long.len()) + &"ab-".repeat(pairs);
        assert_eq!(text(&mut lines), expected);
    }

    #[test]
    fn each_source_has_a_task_of_its_own() {
        let (mut known, mut lines) = (Known::new(2), Lines::default());
        let task = |tid| Some(Task { tid, comm: Some(b"sh") });

        known.task(&mut lines, 0, task(1), |lines| lines.push(b'a'));
        known.task(&mut lines, 1, task(2), |lines| lines.push(b'b'));
        known.task(&mut lines, 0, task(1), |_| panic!("it is known"));
        known.task(&mut lines, 1, None, |lines| lines.push(b'c'));

        assert_eq!(text(&mut lines), "abac");
    }
}
