//! How young a record can be.

/// Returns the youngest time that a record may have which has been read just now, ticks. Callers call it after each packet was
/// read: a drain may be held up, by a slow disk or a host that lets this thread wait, and records are made meanwhile.
pub type Latest<'a> = &'a dyn Fn() -> u64;
