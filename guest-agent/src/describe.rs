//! What a tracer has to know of an event type: its id and its description.

use shared_ring::event::{Event, MAX_NAME};
use shared_ring::layout::{EXTENDED_ID, MAX_EVENTS};
use std::sync::atomic::{AtomicU16, Ordering};

/// The next id to be given to an event type of this process.
static NEXT_ID: AtomicU16 = AtomicU16::new(1);

/// Stands for an id where all are given away.
const NO_ID: u16 = EXTENDED_ID;

/// An id that no other event type of the process has; [`NO_ID`] when there are none left.
pub(crate) fn next_id() -> u16 {
    const LIMIT: usize = if MAX_EVENTS < NO_ID as usize { MAX_EVENTS } else { NO_ID as usize };
    let next = |id: u16| (usize::from(id) < LIMIT).then_some(id + 1);
    NEXT_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(NO_ID)
}

/// What a tracer has to know of an event type.
pub(crate) trait Describe {
    /// Id of the event type in this process.
    fn id(&self) -> u16;

    /// Description of the event type, as the registry takes it.
    fn event(&'static self) -> Event;
}

/// Whether a trace can hold `name` as it is.
pub(crate) const fn is_name(name: &str, of_event: bool) -> bool {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_NAME || (!of_event && bytes[0].is_ascii_digit()) {
        return false;
    }
    let mut index = 0;
    while index < bytes.len() {
        let allowed = match bytes[index] {
            b'_' => true,
            b':' | b'.' | b'-' => of_event,
            other => other.is_ascii_alphanumeric(),
        };
        if !allowed {
            return false;
        }
        index += 1;
    }
    true
}
