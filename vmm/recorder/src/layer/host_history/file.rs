//! The file in which a history outlives the process: the types of its events, then slots, one for each chunk.
//!
//! | offset | bytes | what |
//! |---:|---:|---|
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 4 | bytes of a slot, its head included |
//! | 12 | 4 | bytes of the description of the events |
//! | 16 | | that description, JSON |
//! | next page | slot | slots |
//!
//! A slot begins with the number of its chunk (8 bytes; 0 where there is none), its class (4) and the bytes of frames
//! that are whole (4). Frames are written before their number of bytes: whenever the process ends, what is counted is
//! there.
//! Nothing here is synchronised with a disk. A file on persistent memory outlives the host too. Bytes of a slot whose
//! block the file system had not committed read as zeros then: each write ends with a check of what it wrote.

use crate::persistent_memory;
use shared_ring::event::EventDescription;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// How the file begins; its last byte is the version.
const MAGIC: [u8; 8] = *b"STRATAH\x02";
const HEAD: usize = 16;
const SLOT_HEAD: usize = 16;
const PAGE: u64 = 4096;
/// Largest description of events that is read, bytes.
const MAX_DESCRIPTION: usize = 16 << 20;
/// Largest slot that is read, bytes.
const MAX_SLOT: usize = 64 << 20;

/// The file of a history that is written.
#[derive(Debug)]
pub(super) struct HistoryFile {
    file: File,
    slots_at: u64,
    slot_size: u64,
    /// Slots that were used and are not any more.
    free: Vec<u32>,
    /// Number of the first slot that was never used.
    unused: u32,
    /// Number of the chunk that was begun last.
    last_chunk: u64,
    /// Whether it is written no more.
    has_ended: bool,
}

/// A chunk that was found in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) class: u32,
    /// Frames, as far as the file goes.
    pub(super) bytes: Vec<u8>,
}

impl HistoryFile {
    /// Begins the history of records of `events` in the empty `file`, in chunks of at most `most` bytes, `chunks` of them
    /// as a rule.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn begin(file: File, most: usize, chunks: usize, events: &[EventDescription]) -> io::Result<Self> {
        let description = serde_json::to_vec(events)?;
        let too_large = |_| io::Error::other("the description of the host's events is too large");
        let slot_size = (most + SLOT_HEAD).next_multiple_of(8);
        let mut head = MAGIC.to_vec();
        head.extend(u32::try_from(slot_size).map_err(too_large)?.to_le_bytes());
        head.extend(u32::try_from(description.len()).map_err(too_large)?.to_le_bytes());
        file.write_all_at(&head, 0)?;
        file.write_all_at(&description, HEAD as u64)?;
        let slots_at = slots_at(description.len());
        // Where they do not fit, the rest of the file system stays free.
        persistent_memory::prepare(&file, slots_at..slots_at + slot_size as u64 * chunks as u64)
            .inspect_err(|_| drop(file.set_len(0)))?;
        Ok(Self {
            file,
            slots_at,
            slot_size: slot_size as u64,
            free: Vec::new(),
            unused: 0,
            last_chunk: 0,
            has_ended: false,
        })
    }

    /// Whether it is written.
    pub(super) const fn is_written(&self) -> bool {
        !self.has_ended
    }

    /// It is written no more.
    pub(super) const fn end(&mut self) {
        self.has_ended = true;
    }

    /// Begins a chunk of `class`; returns its slot.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn begin_chunk(&mut self, class: u32) -> io::Result<u32> {
        let slot = self.free.pop().unwrap_or(self.unused);
        self.last_chunk += 1;
        let mut head = self.last_chunk.to_le_bytes().to_vec();
        head.extend(class.to_le_bytes());
        head.extend(0_u32.to_le_bytes());
        if let Err(error) = self.file.write_all_at(&head, self.at(slot)) {
            if slot != self.unused {
                self.free.push(slot);
            }
            return Err(error);
        }
        self.unused = self.unused.max(slot.saturating_add(1));
        Ok(slot)
    }

    /// Writes the frames `bytes` of the chunk in `slot` from `saved` on: what is before was written.
    ///
    /// # Errors
    /// When they cannot be written, or do not fit.
    pub(super) fn save(&self, slot: u32, bytes: &[u8], saved: usize) -> io::Result<()> {
        let new = bytes.get(saved..).unwrap_or_default();
        let size = u32::try_from(bytes.len()).ok().filter(|&size| u64::from(size) + SLOT_HEAD as u64 <= self.slot_size);
        let size = size.ok_or_else(|| io::Error::other("a chunk is larger than its slot"))?;
        self.file.write_all_at(new, self.at(slot) + (SLOT_HEAD + saved) as u64)?;
        self.file.write_all_at(&size.to_le_bytes(), self.at(slot) + 12)
    }

    /// The frames of the chunk in `slot`, `size` bytes.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) fn read(&self, slot: u32, size: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, self.at(slot) + SLOT_HEAD as u64)?;
        Ok(bytes)
    }

    /// The chunk in `slot` has given way.
    pub(super) fn free(&mut self, slot: u32) {
        // where that fails it is found again, as what is older than all that is left
        let _ = self.file.write_all_at(&0_u64.to_le_bytes(), self.at(slot));
        self.free.push(slot);
    }

    const fn at(&self, slot: u32) -> u64 {
        self.slots_at + slot as u64 * self.slot_size
    }
}

const fn slots_at(description: usize) -> u64 {
    ((HEAD + description) as u64).next_multiple_of(PAGE)
}

/// What is left in `file`: the types of the events, and the chunks in the order in which they were begun.
///
/// # Errors
/// When it cannot be read, or is not the file of a history.
pub(super) fn found(file: &File) -> io::Result<(Vec<EventDescription>, Vec<Found>)> {
    let is_not = || io::Error::new(io::ErrorKind::InvalidData, "it is not the history of a flight recorder");
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0)?;
    let number =
        |at: usize| head.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_le_bytes(*bytes) as usize);
    let (slot_size, described) = number(8).zip(number(12)).ok_or_else(is_not)?;
    if !head.starts_with(&MAGIC) || described > MAX_DESCRIPTION || !(SLOT_HEAD + 1..=MAX_SLOT).contains(&slot_size) {
        return Err(is_not());
    }
    let mut description = vec![0; described];
    file.read_exact_at(&mut description, HEAD as u64)?;
    let events = serde_json::from_slice(&description)?;
    let length = file.metadata()?.len();
    let mut chunks = BTreeMap::new();
    let mut at = slots_at(described);
    while at + SLOT_HEAD as u64 <= length {
        let mut head = [0; SLOT_HEAD];
        file.read_exact_at(&mut head, at)?;
        let [number @ .., c0, c1, c2, c3, b0, b1, b2, b3] = head;
        let size = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
        let number = u64::from_le_bytes(number);
        if number > 0 && SLOT_HEAD + size <= slot_size {
            let there = length.saturating_sub(at + SLOT_HEAD as u64);
            let mut bytes = vec![0; usize::try_from(there).map_or(size, |there| there.min(size))];
            file.read_exact_at(&mut bytes, at + SLOT_HEAD as u64)?;
            chunks.insert(number, Found { class: u32::from_le_bytes([c0, c1, c2, c3]), bytes });
        }
        at += slot_size as u64;
    }
    Ok((events, chunks.into_values().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever lies there is read within its bounds, or refused.
        #[test]
        fn any_file_is_read_or_refused(
            (slot, described) in (0..200_u32, 0..40_u32),
            rest in proptest::collection::vec(any::<u8>(), 0..9000),
        ) {
            let file = tempfile::tempfile().unwrap();
            let head = [&MAGIC[..], &slot.to_le_bytes(), &described.to_le_bytes(), b"[]"].concat();
            file.write_all_at(&rest, 0).unwrap();
            file.write_all_at(&head, 0).unwrap();

            let chunks = found(&file).map_or_else(|_| Vec::new(), |(_, chunks)| chunks);

            prop_assert!(chunks.iter().map(|chunk| chunk.bytes.len()).sum::<usize>() <= 9000);
        }
    }

    fn event() -> EventDescription {
        EventDescription { id: 3, class: 0, name: "sched:sched_switch".into(), fields: Vec::new() }
    }

    fn begun() -> (File, HistoryFile) {
        let file = tempfile::tempfile().unwrap();
        let history = HistoryFile::begin(file.try_clone().unwrap(), 100, 2, &[event()]).unwrap();
        (file, history)
    }

    #[test]
    fn chunks_are_found_in_the_order_in_which_they_were_begun() {
        let (file, mut history) = begun();
        let first = history.begin_chunk(0).unwrap();
        let second = history.begin_chunk(1).unwrap();
        history.save(second, b"second", 0).unwrap();
        history.free(first);
        let third = history.begin_chunk(0).unwrap();
        history.save(third, b"thi", 0).unwrap();
        history.save(third, b"third", 3).unwrap();

        let (events, chunks) = found(&file).unwrap();

        assert_eq!(events, [event()]);
        assert_eq!(third, first);
        let chunk = |class, bytes: &[u8]| Found { class, bytes: bytes.to_vec() };
        assert_eq!(chunks, [chunk(1, b"second"), chunk(0, b"third")]);
        assert_eq!(history.read(third, 5).unwrap(), b"third");
    }

    #[test]
    fn frames_that_are_not_counted_yet_are_not_found() {
        let (file, mut history) = begun();
        let slot = history.begin_chunk(0).unwrap();
        history.save(slot, b"whole", 0).unwrap();

        file.write_all_at(b"half", history.at(slot) + (SLOT_HEAD + 5) as u64).unwrap();

        assert_eq!(found(&file).unwrap().1[0].bytes, b"whole");
    }

    #[test]
    fn chunk_that_is_larger_than_its_slot_is_refused() {
        let (_file, mut history) = begun();
        let slot = history.begin_chunk(0).unwrap();

        assert!(history.save(slot, &[0; 200], 0).is_err());
    }

    #[test]
    fn other_files_are_refused() {
        let file = tempfile::tempfile().unwrap();

        let empty = found(&file).unwrap_err();
        file.write_all_at(&[7; 4096], 0).unwrap();
        let other = found(&file).unwrap_err();

        assert_eq!(empty.kind(), io::ErrorKind::UnexpectedEof);
        assert!(other.to_string().contains("not the history"), "{other}");
    }
}
