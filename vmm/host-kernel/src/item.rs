//! What reading hands on: an event of a CPU, or that some were lost.

/// One event as the kernel recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRecord<'a> {
    /// CPU that recorded it.
    pub cpu: u32,
    /// Time in ticks of the time stamp counter, or ns of CLOCK_MONOTONIC_RAW where the kernel gave that up. Does not decrease from record to record of a CPU.
    pub time: u64,
    /// The kernel's number of the event: the id of [`super::EventSchema::description`].
    pub event_id: u16,
    /// Thread that the CPU was running; 0 if it was idle.
    pub common_pid: i32,
    /// The whole raw record, from `common_type` on: what [`super::EventSchema::encode`] takes.
    pub payload: &'a [u8],
}

/// What a poll hands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostItem<'a> {
    /// An event.
    Record(HostRecord<'a>),
    /// Events of this CPU were lost here: after the record of that CPU handed on last, before the one that comes next.
    Lost {
        /// CPU whose events are lost.
        cpu: u32,
        /// How many, if that is known.
        count: Option<u64>,
    },
    /// From here on further events of this CPU may be missing between any two records, or not any more: one of its two
    /// buffers lost some, and records of the other one come before that one's next.
    Gap {
        /// CPU whose events may be missing.
        cpu: u32,
        /// Whether that begins, and does not end.
        begins: bool,
    },
}

impl HostItem<'_> {
    /// The CPU that it comes from.
    #[must_use]
    pub const fn cpu(&self) -> u32 {
        match self {
            Self::Record(record) => record.cpu,
            Self::Lost { cpu, .. } | Self::Gap { cpu, .. } => *cpu,
        }
    }
}
