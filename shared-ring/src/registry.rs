//! The event registry: an append-only table of self-described event types, written by the recording side before the
//! first record that uses them, so that a trace can be decoded when its writer is gone.
//!
//! A registry begins with a count of published bytes (`u64`, [`REGISTRY_USED`]); entries follow at
//! [`REGISTRY_HEADER_SIZE`], each padded to 8 bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | size of the entry, a multiple of 8 |
//! | 2 | event id |
//! | 1 | major class |
//! | 1 | number of fields |
//! | 1 | length of the name |
//! | *n* | name |
//! | per field: 1, 1, 2, 1, *n* | type code, flags (bit 0: hexadecimal), array length, length of the name, name |
#![allow(unsafe_code)] // Entries are written through a `Storage`.

use crate::event::{Event, FieldType, MAX_FIELDS, MAX_NAME};
use crate::layout::{REGISTRY_HEADER_SIZE, REGISTRY_USED, padded};
use crate::storage::Storage;

/// Field flag: show in hexadecimal.
const FLAG_HEX: u8 = 1;
/// Largest entry that [`Registry::append`] writes, bytes.
pub const MAX_ENTRY: usize = 2048;

/// The writing side of a registry. One writer at a time; readers may read meanwhile.
///
/// ```
/// use shared_ring::event::{Event, Field, FieldType};
/// use shared_ring::{host::memory::HostMemory, registry::{Registry, RegistryReader}, storage::Smp};
///
/// const TICK: Event = Event { id: 1, class: 0, name: "a:tick", fields: &[Field::new("number", FieldType::U64)] };
/// let memory = HostMemory::private(4096);
/// // SAFETY: the memory is aligned, zeroed, that large, and outlives the registry, which alone writes it.
/// let registry = unsafe { Registry::new(Smp::new(memory.base()), memory.size()) };
/// assert!(registry.append(&TICK));
///
/// // The host.
/// let events = RegistryReader::new(memory.clone()).poll();
/// assert_eq!((events.len(), events[0].name.as_str()), (1, "a:tick"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Registry<S> {
    storage: S,
    size: usize,
}

impl<S: Storage> Registry<S> {
    /// The registry at the storage's first byte.
    ///
    /// # Safety
    /// `storage` covers `size` bytes and nobody else writes there while the registry is written.
    #[must_use]
    pub const unsafe fn new(storage: S, size: usize) -> Self {
        Self { storage, size }
    }

    /// Whether nothing was published yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used() == 0
    }

    /// Bytes of entries that were published.
    #[must_use]
    pub fn used(&self) -> u64 {
        // SAFETY: the header lies inside the registry.
        unsafe { self.storage.load_acquire(REGISTRY_USED) }
    }

    /// Takes back everything that was published. Nobody reads the registry: a reader would take what is published next for the
    /// rest of what it knows.
    pub fn clear(&self) {
        // SAFETY: the header lies inside the registry.
        unsafe { self.storage.store_release(REGISTRY_USED, 0) };
    }

    /// Appends and publishes `event`. `false` when it does not fit (the registry is full, or the event is larger than
    /// [`MAX_ENTRY`]); nothing is published then.
    pub fn append(&self, event: &Event) -> bool {
        let mut entry = [0_u8; MAX_ENTRY];
        encode(event, &mut entry).is_some_and(|size| self.append_encoded(&entry[..size]))
    }

    /// Appends and publishes an entry that [`encode`] or [`encode_parts`] wrote. `false` when it does not fit; nothing is
    /// published then.
    pub fn append_encoded(&self, entry: &[u8]) -> bool {
        let size = entry.len();
        // SAFETY: the header lies inside the registry.
        let used = unsafe { self.storage.load(REGISTRY_USED) };
        let Ok(used) = usize::try_from(used) else { return false };
        let Some(end) = used.checked_add(REGISTRY_HEADER_SIZE + size) else { return false };
        if end > self.size {
            return false;
        }
        // SAFETY: the range was checked against the registry's size just above, and this is the only writer; readers
        // look at it only after the release store.
        unsafe {
            self.storage.write(REGISTRY_HEADER_SIZE + used, entry);
            self.storage.store_release(REGISTRY_USED, (used + size) as u64);
        }
        true
    }
}

/// Writes `event`'s entry to the beginning of `out` and returns its size; `None` when it does not fit.
#[must_use]
pub fn encode(event: &Event, out: &mut [u8]) -> Option<usize> {
    let fields = event.fields.iter().map(|field| (field.name, field.ty, field.hex));
    encode_parts(event.id, event.class, &[event.name], fields, out)
}

/// As [`encode`], for an event that is not in one piece: its name is that of all `name` together; of each field there is
/// name, type, and whether it is shown in hexadecimal.
#[must_use]
pub fn encode_parts<'a>(
    id: u16,
    class: u8,
    name: &[&str],
    fields: impl Iterator<Item = (&'a str, FieldType, bool)>,
    out: &mut [u8],
) -> Option<usize> {
    /// Offset of the number of fields in an entry.
    const FIELD_COUNT: usize = 7;
    let mut end = 0;
    let mut put = |bytes: &[u8]| {
        for (to, from) in out.get_mut(end..end + bytes.len())?.iter_mut().zip(bytes) {
            *to = *from;
        }
        end += bytes.len();
        Some(())
    };
    put(&[0; 4])?;
    put(&id.to_le_bytes())?;
    put(&[class, 0, name_length(name.iter().map(|part| part.len()).sum())?])?;
    for part in name {
        put(part.as_bytes())?;
    }
    let mut count = 0_u8;
    for (name, ty, hex) in fields {
        let (code, length) = ty.to_code();
        put(&[code, if hex { FLAG_HEX } else { 0 }])?;
        put(&length.to_le_bytes())?;
        put(&[name_length(name.len())?])?;
        put(name.as_bytes())?;
        count += 1;
        if usize::from(count) > MAX_FIELDS {
            return None;
        }
    }
    let size = padded(end);
    out.get_mut(end..size)?.fill(0);
    *out.get_mut(FIELD_COUNT)? = count;
    *out.first_chunk_mut()? = u32::try_from(size).ok()?.to_le_bytes();
    Some(size)
}

fn name_length(length: usize) -> Option<u8> {
    if length == 0 || length > MAX_NAME { None } else { u8::try_from(length).ok() }
}

#[cfg(feature = "std")]
pub use read::{ParseError, RegistryReader, parse};

#[cfg(feature = "std")]
mod read {
    use super::{FLAG_HEX, MAX_ENTRY};
    use crate::event::{EventDescription, FieldDescription, FieldType, MAX_FIELDS, MAX_NAME};
    use crate::host::memory::HostMemory;
    use crate::layout::{EXTENDED_ID, HOLE_ID, REGISTRY_HEADER_SIZE, REGISTRY_USED};
    use std::{string::String, vec::Vec};
    use thiserror::Error;

    /// Bytes of an entry before its name.
    const ENTRY_HEADER: usize = 9;
    /// Bytes of a field before its name.
    const FIELD_HEADER: usize = 5;

    /// Bytes that are read at once: a file that claims a large registry takes no more memory than what it holds.
    const READ_AT_ONCE: usize = 32 * MAX_ENTRY;
    /// Most entries that are read: so many ids there are.
    const MAX_EVENTS: usize = 1 << 16;

    /// Why registry bytes cannot be read any further.
    ///
    /// ```
    /// use shared_ring::registry::parse;
    ///
    /// // An entry that says that it has no bytes.
    /// assert!(parse(&[0; 16], &mut Vec::new()).is_err());
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
    pub enum ParseError {
        /// An entry's size is not a multiple of 8, too small or too large.
        #[error("registry entry at byte {offset} has an impossible size")]
        EntrySize {
            /// Offset of the entry among the entries.
            offset: usize,
        },
        /// An entry's content contradicts its size, or a name or type is not valid.
        #[error("registry entry at byte {offset} is malformed")]
        Malformed {
            /// Offset of the entry among the entries.
            offset: usize,
        },
        /// There are more entries than ids.
        #[error("registry has more than {MAX_EVENTS} entries")]
        TooMany,
    }

    /// Reads whole entries from `bytes` (a copy of published registry bytes, without the registry's header) into
    /// `events`. Returns how many bytes the entries took: an entry that is not complete yet is left for a later call.
    ///
    /// # Errors
    /// The first entry that cannot be understood; those before it are in `events`.
    pub fn parse(bytes: &[u8], events: &mut Vec<EventDescription>) -> Result<usize, ParseError> {
        let mut offset = 0;
        while let Some(size) = bytes.get(offset..offset + 4) {
            let size = size.iter().rev().fold(0_usize, |value, &byte| value << 8 | usize::from(byte));
            if !(ENTRY_HEADER..=MAX_ENTRY).contains(&size) || size % 8 != 0 {
                return Err(ParseError::EntrySize { offset });
            }
            let Some(entry) = bytes.get(offset..offset + size) else { break };
            events.push(parse_entry(entry).ok_or(ParseError::Malformed { offset })?);
            offset += size;
        }
        Ok(offset)
    }

    /// The reading side of a registry: follows it while its writer appends to it.
    /// For an example see [`Registry`](super::Registry).
    #[derive(Debug)]
    pub struct RegistryReader {
        memory: HostMemory,
        read: usize,
        /// Event types so far.
        events: usize,
        error: Option<ParseError>,
    }

    impl RegistryReader {
        /// A reader of the registry that fills `memory`.
        #[must_use]
        pub const fn new(memory: HostMemory) -> Self {
            Self { memory, read: 0, events: 0, error: None }
        }

        /// Event types published since the last call. The acquire load of the byte count pairs with
        /// [`Registry::append`](super::Registry::append). After an entry that cannot be understood there is nothing
        /// more to come.
        pub fn poll(&mut self) -> Vec<EventDescription> {
            let mut events = Vec::new();
            let (used, mut bytes) = (self.used(), Vec::new());
            while self.error.is_none() && used > self.read {
                // Entries begin at multiples of 8: so do whole words.
                bytes.resize((used - self.read).min(READ_AT_ONCE) / 8 * 8, 0);
                self.memory.read(REGISTRY_HEADER_SIZE + self.read, &mut bytes);
                let before = events.len();
                match parse(&bytes, &mut events) {
                    Ok(0) => break,
                    Ok(taken) => self.read += taken,
                    Err(error) => self.error = Some(error),
                }
                self.events += events.len() - before;
                if self.events > MAX_EVENTS {
                    self.error = Some(ParseError::TooMany);
                }
            }
            events
        }

        /// Whether event types were published since the last [`poll`](Self::poll) that it would return, or the beginning
        /// of one.
        #[must_use]
        pub fn has_news(&self) -> bool {
            self.error.is_none() && self.used() > self.read
        }

        /// Bytes of entries that are published.
        fn used(&self) -> usize {
            let largest = self.memory.size().saturating_sub(REGISTRY_HEADER_SIZE);
            usize::try_from(self.memory.load(REGISTRY_USED)).map_or(largest, |used| used.min(largest))
        }

        /// Why the rest of the registry cannot be read, if so.
        #[must_use]
        pub const fn error(&self) -> Option<ParseError> {
            self.error
        }
    }

    fn parse_entry(entry: &[u8]) -> Option<EventDescription> {
        let (header, mut rest) = entry.split_at_checked(ENTRY_HEADER)?;
        let id = u16::from_le_bytes([header[4], header[5]]);
        let (class, fields, name_length) = (header[6], usize::from(header[7]), usize::from(header[8]));
        if id == HOLE_ID || id == EXTENDED_ID || class > 63 || fields > MAX_FIELDS {
            return None;
        }
        let name = take_name(&mut rest, name_length, |byte| byte.is_ascii_alphanumeric() || b"_:.-".contains(&byte))?;
        let mut described = Vec::with_capacity(fields);
        for _ in 0..fields {
            let (header, after) = rest.split_at_checked(FIELD_HEADER)?;
            rest = after;
            let ty = FieldType::from_code(header[0], u16::from_le_bytes([header[2], header[3]]))?;
            let name =
                take_name(&mut rest, usize::from(header[4]), |byte| byte.is_ascii_alphanumeric() || byte == b'_')?;
            if name.starts_with(|first: char| first.is_ascii_digit())
                || described.iter().any(|field: &FieldDescription| field.name == name)
            {
                return None;
            }
            described.push(FieldDescription { name, ty, hex: header[1] & FLAG_HEX != 0 });
        }
        Some(EventDescription { id, class, name, fields: described })
    }

    /// Names end up in files that other programs parse: only characters that mean nothing there.
    fn take_name(rest: &mut &[u8], length: usize, allowed: impl Fn(u8) -> bool) -> Option<String> {
        let (name, after) = rest.split_at_checked(length)?;
        if name.is_empty() || name.len() > MAX_NAME || !name.iter().all(|&byte| allowed(byte)) {
            return None;
        }
        *rest = after;
        String::from_utf8(name.to_vec()).ok()
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    //! Shows: The registry parser survives hostile bytes (proptest, up to 512 bytes).

    use super::*;
    use crate::event::{EventDescription, Field, FieldType};
    use crate::host::memory::HostMemory;
    use crate::storage::Smp;
    use proptest::prelude::*;

    const EVENT: Event = Event {
        id: 7,
        class: 0,
        name: "sched:sched_switch",
        fields: &[Field::new("prev_comm", FieldType::CharArray(16)), Field::hex("prev_state", FieldType::U64)],
    };

    #[test]
    fn appended_events_are_read_back() {
        let mut words = [0_u64; 128];
        // SAFETY: `words` outlives the registry, which is its only user.
        let registry = unsafe { Registry::new(Smp::new(words.as_mut_ptr().cast()), 1024) };

        let appended = [registry.append(&EVENT), registry.append(&Event { id: 8, fields: &[], ..EVENT })];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let used = usize::try_from(words[0]).unwrap();
        let mut events = Vec::new();
        let taken = parse(&bytes[REGISTRY_HEADER_SIZE..REGISTRY_HEADER_SIZE + used], &mut events);

        assert_eq!(appended, [true, true]);
        assert_eq!(taken, Ok(used));
        assert_eq!(events[0], EventDescription::from(&EVENT));
        assert_eq!((events.len(), events[1].id), (2, 8));
    }

    #[test]
    fn reader_takes_a_large_registry_in_pieces_and_no_more_entries_than_ids() {
        let memory = HostMemory::private(4 << 20);
        // SAFETY: the memory is aligned, zeroed, that large, and outlives the registry, which alone writes it.
        let registry = unsafe { Registry::new(Smp::new(memory.base()), memory.size()) };
        let mut reader = RegistryReader::new(memory.clone());
        let append = |count, name| (0..count).all(|_| registry.append(&Event { id: 7, class: 0, name, fields: &[] }));

        assert!(append(1_000, "group:an_event_with_a_name_so_long_that_a_thousand_are_two_pieces"));
        assert_eq!((reader.poll().len(), reader.error()), (1_000, None));
        assert!(append(70_000, "x"));
        assert!(reader.poll().len() < 70_000);
        assert_eq!((reader.error(), reader.has_news(), reader.poll().len()), (Some(ParseError::TooMany), false, 0));
    }

    #[test]
    fn append_to_a_full_registry_publishes_nothing() {
        let mut words = [0_u64; 16];
        // SAFETY: as above.
        let registry = unsafe { Registry::new(Smp::new(words.as_mut_ptr().cast()), 128) };

        assert!(registry.append(&EVENT));
        let used = words[0];
        assert!(!registry.append(&EVENT));
        assert_eq!(words[0], used);
    }

    #[test]
    fn tail_follows_what_is_appended() {
        let memory = HostMemory::private(1024);
        // SAFETY: the memory outlives the registry, which is its only writer.
        let registry = unsafe { Registry::new(Smp::new(memory.base()), 1024) };
        let mut reader = RegistryReader::new(memory);

        let before = reader.poll().len();
        let mut has_news = vec![reader.has_news()];
        registry.append(&EVENT);
        has_news.push(reader.has_news());
        let first = reader.poll();
        has_news.push(reader.has_news());
        registry.append(&Event { id: 8, ..EVENT });
        let second = reader.poll();

        assert_eq!(has_news, [false, true, false]);
        assert_eq!((before, first.len(), second.len(), reader.poll().len()), (0, 1, 1, 0));
        assert_eq!((first[0].id, second[0].id), (7, 8));
    }

    #[test]
    fn tail_of_a_count_that_ran_away_stays_inside_the_registry() {
        let memory = HostMemory::private(256);
        memory.store(REGISTRY_USED, u64::MAX);
        let mut reader = RegistryReader::new(memory);

        assert_eq!(reader.poll(), []);
        assert!(reader.error().is_some());
    }

    #[test]
    fn name_that_would_break_metadata_is_refused() {
        let mut entry = [0_u8; 256];
        let size = encode(&Event { name: "a:b\"; };", ..EVENT }, &mut entry).unwrap();

        assert_eq!(parse(&entry[..size], &mut Vec::new()), Err(ParseError::Malformed { offset: 0 }));
    }

    proptest! {
        #[test]
        fn parse_survives_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut events = Vec::new();
            let taken = parse(&bytes, &mut events);
            prop_assert!(taken.unwrap_or(0) <= bytes.len());
        }

        #[test]
        fn parse_survives_damaged_entries(at in 0_usize..64, value in any::<u8>()) {
            let mut entry = [0_u8; 256];
            let size = encode(&EVENT, &mut entry).unwrap();
            entry[at % size] = value;
            let mut events = Vec::new();
            let _ = parse(&entry[..size], &mut events);
            prop_assert!(events.len() <= 1);
        }
    }
}
