//! The reader of an event registry, with the registry changing between its calls.
//!
//! An input is a [`script`](crate::script) with one kind of step: look for new event types. Its bytes are also parsed
//! as they are, as a copy of a registry's entries.

use crate::script::{Op, Script};
use shared_ring::event::{EventDescription, MAX_FIELDS, MAX_NAME};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{EXTENDED_ID, HOLE_ID, REGISTRY_HEADER_SIZE};
use shared_ring::registry::{RegistryReader, parse};

/// Step: look for new event types.
pub const POLL: u8 = 0;
/// Number of kinds of steps.
pub const STEPS: u8 = 1;
/// Bytes of the registry.
pub const SIZE: usize = 4096;
/// Fewest bytes of an entry: its header and a name of one character, padded.
const MIN_ENTRY: usize = 16;

/// Gives an input to the reader and checks what must hold.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let mut events = Vec::new();
    let taken = parse(data, &mut events);
    assert!(taken.unwrap_or(0) <= data.len());
    assert!(events.len() <= data.len() / MIN_ENTRY);
    events.iter().for_each(check);

    let memory = HostMemory::private(SIZE);
    let mut reader = RegistryReader::new(memory.clone());
    let mut total = 0;
    for op in Script::new(data, STEPS) {
        op.apply(&memory);
        if let Op::Step { .. } = op {
            let failed = reader.error().is_some();
            let events = reader.poll();
            assert!(!failed || events.is_empty(), "nothing comes after an error");
            events.iter().for_each(check);
            total += events.len();
        }
    }
    assert!(total <= (SIZE - REGISTRY_HEADER_SIZE) / MIN_ENTRY, "a registry is read once");
}

/// What holds for every event type that is handed on.
fn check(event: &EventDescription) {
    let is_name = |name: &str| !name.is_empty() && name.len() <= MAX_NAME && name.is_ascii();
    assert!(event.id != HOLE_ID && event.id != EXTENDED_ID && event.class < 64);
    assert!(is_name(&event.name) && !event.name.contains(['"', '\\', ';', '\n', ' ']));
    assert!(event.fields.len() <= MAX_FIELDS);
    for (index, field) in event.fields.iter().enumerate() {
        assert!(is_name(&field.name) && field.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
        assert!(!field.name.starts_with(|first: char| first.is_ascii_digit()));
        assert!(event.fields[..index].iter().all(|before| before.name != field.name));
    }
    let _ = event.accepts(&[0; 64]);
}
