//! Every byte of the trace region, as constants and `repr(C)` structures whose offsets are asserted at compile time.
//!
//! All integers are little-endian. `docs/abi.md` describes the same layout for readers, and
//! [`c_header`](crate::layout::c_header) writes its C view; neither is a second source.
//!
//! Shows: The shared layout has fixed offsets and sizes, by assertions at compile time.

#[cfg(feature = "std")]
pub mod c_header;
mod geometry;

pub use geometry::{Geometry, GeometryError};

/// First eight bytes of a region: `"STRATA\0\1"`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"STRATA\0\x01");

/// Version of this layout: `major << 16 | minor`. A reader refuses another major version.
pub const ABI_VERSION: u32 = 2 << 16 | 8;

/// Granularity of everything that is mapped on its own, in bytes.
pub const PAGE_SIZE: usize = 4096;

/// Number of session slots in a region.
pub const SESSION_SLOTS: usize = 4;

/// Most vCPUs that a region describes.
pub const MAX_VCPUS: u32 = 256;

/// Most process slots in the user ring pool: one page of host acknowledgement words.
pub const MAX_PROCESS_SLOTS: u32 = 512;

/// Event ids below this one can be enabled and disabled one by one.
pub const MAX_EVENTS: usize = 4096;

/// [`Superblock::features`]: the host reads rings of processes whose [`RING_RESTARTABLE`] is 1.
pub const FEATURE_RESTARTABLE_RINGS: u64 = 1;
/// The host knows of fields of floating point: to another one they are described as hexadecimal numbers.
pub const FEATURE_FLOAT_FIELDS: u64 = 2;

/// Offset of the session table in the region, bytes.
pub const SESSION_TABLE_OFFSET: usize = PAGE_SIZE;

/// Offset of the first clock entry in the region, bytes.
pub const CLOCK_OFFSET: usize = SESSION_TABLE_OFFSET + SESSION_SLOTS * SESSION_SLOT_SIZE;

/// Size of one vCPU's clock entry, bytes. `clock-sync` defines what is in it.
pub const CLOCK_ENTRY_SIZE: usize = 256;

/// Size of one [`SessionSlot`], bytes.
pub const SESSION_SLOT_SIZE: usize = 1024;

/// What the host tells the guest about the region. Written by the host only; the guest maps it read-only.
///
/// Every `*_offset` counts bytes from the start of the region, every `*_size` and `*_stride` is in bytes.
/// For an example see [`RegionLayout`](crate::region::RegionLayout), for the bytes `docs/abi.md`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "std", derive(zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable))]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`] of the host.
    pub abi_version: u32,
    /// Number of vCPUs, hence of clock entries and of rings in each ring set.
    pub vcpus: u32,
    /// Feature bits: [`FEATURE_RESTARTABLE_RINGS`], [`FEATURE_FLOAT_FIELDS`]; a guest ignores those that it does not know.
    pub features: u64,
    /// Size of the whole region.
    pub region_size: u64,
    /// Everything below this offset is written by the host only and read-only for the guest.
    pub guest_writable_offset: u64,
    /// The [`AgentState`] page.
    pub agent_offset: u64,
    /// The process table: one [`ProcessEntry`] per process slot.
    pub process_table_offset: u64,
    /// The kernel's event registry.
    pub registry_offset: u64,
    /// Size of the kernel's event registry.
    pub registry_size: u64,
    /// One `u64` per process slot, written by the host: the generation that it has drained completely.
    pub process_ack_offset: u64,
    /// First process slot of the user ring pool.
    pub process_pool_offset: u64,
    /// Distance between two process slots.
    pub process_stride: u64,
    /// Number of process slots.
    pub process_slots: u32,
    /// Sub-buffers of each ring of a process slot.
    pub process_sub_buffers: u32,
    /// Size of each such sub-buffer.
    pub process_sub_buffer_size: u64,
    /// Size of the event registry of a process slot, which follows its [`ProcessHeader`] page.
    pub process_registry_size: u64,
    /// 1 while a host consumes the rings, 0 before and after.
    pub host_alive: u64,
    /// UUID of the recording; all layers of a recording share it as their clock's identity.
    pub clock_uuid: [u8; 16],
    /// Frequency of the trace clock, Hz.
    pub clock_frequency: u64,
    /// All sessions' [`SessionSlot::class_mask`] together: the one word that is read when an event's class is off.
    pub any_class_mask: u64,
    /// [`Mode`] of the rings of process slots.
    pub process_mode: u32,
    /// Global system interrupt (edge-triggered) that the host raises when it has changed a session or asks for a flush; 0
    /// when it raises none, and the guest has to look from time to time.
    pub doorbell: u32,
}

/// A tracing session's settings. Written by the host only; the guest maps it read-only.
/// For an example see [`host::Region`](crate::host::Region).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "std", derive(zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable))]
pub struct SessionSlot {
    /// Major classes that are enabled: bit *n* stands for class *n*. Zero while the session is inactive, so that this
    /// one word is all that a masked event reads.
    pub class_mask: u64,
    /// [`MODE_DISCARD`] or [`MODE_FLIGHT_RECORDER`].
    pub mode: u32,
    /// Sub-buffers of each ring, a power of two.
    pub sub_buffers: u32,
    /// Size of a sub-buffer, a power of two.
    pub sub_buffer_size: u64,
    /// Ring of vCPU 0; zero when the session has no rings.
    pub rings_offset: u64,
    /// Distance between the rings of two vCPUs.
    pub ring_stride: u64,
    /// Name, NUL-padded UTF-8.
    pub name: [u8; 32],
    /// Number of this use of the slot, never the same twice; zero while the slot is not in use. The host changes mode,
    /// geometry and rings only while it is zero and every ring's [`RING_ADOPTED`] is zero too.
    pub generation: u64,
    /// Reserved, zero.
    pub reserved: [u64; 54],
    /// Enabled events: bit `id % 64` of word `id / 64`.
    pub event_enable: [u64; MAX_EVENTS / 64],
}

/// [`SessionSlot::mode`]: when a ring is full, new records are dropped and counted.
pub const MODE_DISCARD: u32 = 0;
/// [`SessionSlot::mode`]: when a ring is full, the oldest sub-buffer is overwritten.
pub const MODE_FLIGHT_RECORDER: u32 = 1;

/// What happens when a ring is full.
///
/// ```
/// use shared_ring::layout::Mode;
///
/// assert_eq!(Mode::from_code(Mode::FlightRecorder.code()), Some(Mode::FlightRecorder));
/// assert_eq!(Mode::from_code(7), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Mode {
    /// New records are dropped and counted.
    #[default]
    Discard,
    /// The oldest sub-buffer is overwritten. The ring has one more physical sub-buffer than logical ones: the
    /// consumer's spare, which it exchanges for the one that it reads.
    FlightRecorder,
}

impl Mode {
    /// The mode that [`MODE_DISCARD`] or [`MODE_FLIGHT_RECORDER`] stands for; `None` for another number.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            MODE_DISCARD => Some(Self::Discard),
            MODE_FLIGHT_RECORDER => Some(Self::FlightRecorder),
            _ => None,
        }
    }

    /// [`MODE_DISCARD`] or [`MODE_FLIGHT_RECORDER`].
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Discard => MODE_DISCARD,
            Self::FlightRecorder => MODE_FLIGHT_RECORDER,
        }
    }
}

/// What the guest kernel's agent tells the host. Written by the guest.
/// For an example see [`host::Region`](crate::host::Region).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "std", derive(zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable))]
pub struct AgentState {
    /// [`AGENT_ABSENT`], [`AGENT_ALIVE`] or [`AGENT_GONE`].
    pub state: u64,
    /// [`ABI_VERSION`] of the agent.
    pub abi_version: u64,
    /// The guest kernel's release string, NUL-padded.
    pub kernel_release: [u8; 64],
    /// Processes that asked for a slot when there was none, so that what they recorded is missing or late.
    pub processes_refused: u64,
    /// Processes whose user had as many slots as one user gets.
    pub processes_over_quota: u64,
    /// When the kernel, which had panicked, was left for its crash kernel, ticks; 0 while that has not happened.
    pub crash_kernel_at: u64,
    /// Address of the kernel's function `schedule`, by which the host knows how far the kernel lies from where its image was
    /// linked for; 0 while no agent has told it, or one of an ABI before 2.7.
    pub schedule_at: u64,
}

/// [`AgentState::state`]: no agent has been loaded.
pub const AGENT_ABSENT: u64 = 0;
/// [`AgentState::state`]: an agent is loaded and records.
pub const AGENT_ALIVE: u64 = 1;
/// [`AgentState::state`]: the agent was unloaded; its rings no longer change.
pub const AGENT_GONE: u64 = 2;

/// One process slot's owner, as the guest kernel names it. Written by the guest kernel, not mapped into processes.
/// For an example see [`ProcessState`](crate::view::ProcessState).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "std", derive(zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable))]
pub struct ProcessEntry {
    /// Generation in the upper 32 bits, [`PROCESS_FREE`], [`PROCESS_ACTIVE`] or [`PROCESS_CLOSED`] in the lower ones.
    /// The slot may be given to another process, under the next generation, once the host has acknowledged this one.
    pub state: u64,
    /// Process id (thread group id) in the guest's initial namespace.
    pub pid: u32,
    /// Reserved, zero.
    pub reserved: u32,
    /// The process's name when it opened the slot, NUL-padded.
    pub comm: [u8; 16],
    /// Reserved, zero.
    pub reserved2: [u64; 4],
}

/// [`ProcessEntry::state`]: never used.
pub const PROCESS_FREE: u32 = 0;
/// [`ProcessEntry::state`]: mapped into a running process.
pub const PROCESS_ACTIVE: u32 = 1;
/// [`ProcessEntry::state`]: the process is gone and its rings no longer change.
pub const PROCESS_CLOSED: u32 = 2;

/// First page of a process slot, filled by the guest kernel before the slot is mapped into the process.
/// For an example see [`ProcessState`](crate::view::ProcessState).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "std", derive(zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable))]
pub struct ProcessHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// Number of rings in this slot, one per vCPU.
    pub vcpus: u32,
    /// Size of the event registry that follows this page.
    pub registry_size: u64,
    /// First ring, from the start of the slot.
    pub rings_offset: u64,
    /// Distance between two rings.
    pub ring_stride: u64,
    /// Size of a sub-buffer.
    pub sub_buffer_size: u64,
    /// Sub-buffers of each ring.
    pub sub_buffers: u32,
    /// Index of the session whose mask the process honours.
    pub session: u32,
    /// Bytes of the region that the process may map read-only (superblock, sessions, clock entries).
    pub host_area_size: u64,
    /// [`Mode`] of the rings.
    pub mode: u32,
    /// Reserved, zero.
    pub reserved: u32,
    /// vCPU index of each of the guest kernel's CPU numbers; `u16::MAX` where there is none.
    pub vcpu_of_cpu: [u16; MAX_VCPUS as usize],
}

/// Bytes that a ring's control words take before its first sub-buffer.
pub const RING_HEADER_SIZE: usize = 3 * PAGE_SIZE;
/// Offset in a ring of `write_count`: free-running bytes reserved.
pub const RING_WRITE_COUNT: usize = 0;
/// Offset in a ring of `read_count`: free-running bytes consumed. Written by the host; in flight-recorder mode also by the
/// producer, which pushes it in front of itself.
pub const RING_READ_COUNT: usize = 64;
/// Offset in a ring of the count of records lost because the ring was full.
pub const RING_LOST_FULL: usize = 128;
/// Offset in a ring of the count of records lost because they would have wrapped over an unfinished writer, or because
/// theirs never finished them.
pub const RING_LOST_WRAPPED: usize = 136;
/// Offset in a ring of the count of records lost because they were too large for a sub-buffer.
pub const RING_LOST_TOO_LARGE: usize = 144;
/// Offset in a ring of the count of sub-buffers that were overwritten before a consumer had read them.
pub const RING_OVERWRITTEN: usize = 152;
/// Offset in a ring of the last [`RING_FLUSH_REQUEST`] that the producer has honoured.
pub const RING_FLUSH_DONE: usize = 160;
/// Offset in a ring of the [`SessionSlot::generation`] that the guest's producer of this ring works for; zero while
/// nothing is recorded into it.
pub const RING_ADOPTED: usize = 168;
/// Offset in a ring of 1 + the count of records that were not made because the CPU was making another one in the same
/// context; zero while the ring has had no producer that counts them.
pub const RING_NESTED: usize = 176;
/// Offset in a ring of how its records are made: 0 by reserve and commit, 1 each by one restartable sequence
/// ([`restartable`](crate::restartable)). Set before the first record, and never changed.
pub const RING_RESTARTABLE: usize = 184;
/// Offset in a ring of the number of the host's last request to close the current sub-buffer.
pub const RING_FLUSH_REQUEST: usize = 192;
/// Offset in a ring of the largest record that was lost as too large for a sub-buffer: its event's id in the upper 32 bits,
/// its payload's bytes in the lower; zero while there is none. Where contexts lose records at once, one of theirs.
pub const RING_LARGEST_LOST: usize = 256;
/// Offset in a ring of the sub-buffer table: [`SUB_BUFFER_ENTRY_SIZE`] bytes per sub-buffer.
pub const RING_SUB_BUFFER_TABLE: usize = PAGE_SIZE;
/// Size of a sub-buffer table entry: `commit_count` (bytes committed, free-running), `commit_seq` (the last
/// `commit_count` that was a whole number of sub-buffers, which is what the consumer reads), `exchange` (flight recorder:
/// see docs/abi.md), `commit_prefix` (flight recorder: a `commit_count` below which there was no hole).
pub const SUB_BUFFER_ENTRY_SIZE: usize = 32;
/// Offset in such an entry, which `commit_count` begins, of `commit_seq`.
pub(crate) const ENTRY_COMMIT_SEQ: usize = 8;
/// Of `exchange`.
pub(crate) const ENTRY_EXCHANGE: usize = 16;
/// Of `commit_prefix`.
pub(crate) const ENTRY_COMMIT_PREFIX: usize = 24;
/// Smallest sub-buffer, bytes.
pub const MIN_SUB_BUFFER_SIZE: u64 = 4096;
/// Largest sub-buffer, bytes.
pub const MAX_SUB_BUFFER_SIZE: u64 = 4 << 20;
/// Fewest sub-buffers in a ring.
pub const MIN_SUB_BUFFERS: u32 = 2;
/// Most sub-buffers in a ring: the sub-buffer table is two pages.
pub const MAX_SUB_BUFFERS: u32 = 256;

/// Start of every sub-buffer, and so of every packet of a recorded stream: the CTF packet header and packet context.
///
/// The producer writes the times, `content_size`, `sequence` and the loss counts; the host rewrites the whole header
/// from what it knows and has checked before it stores the packet.
/// For an example see [`packet::read_header`](crate::packet::read_header).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "std", derive(zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable))]
pub struct PacketHeader {
    /// [`CTF_MAGIC`].
    pub magic: u32,
    /// UUID of the layer's trace.
    pub uuid: [u8; 16],
    /// CTF stream class; always 0.
    pub stream_id: u32,
    /// Time of the first record, trace clock ticks.
    pub time_begin: u64,
    /// Time at which the sub-buffer was closed, trace clock ticks.
    pub time_end: u64,
    /// Bits in use, this header included.
    pub content_size: u64,
    /// Bits of the whole packet.
    pub packet_size: u64,
    /// Position of this packet in its stream, counted from 0 (`write_count / sub_buffer_size` in the ring).
    pub sequence: u64,
    /// Records lost in this stream up to the end of this packet; the sum of the next three.
    pub events_discarded: u64,
    /// Lost because the ring was full.
    pub lost_full: u64,
    /// Lost because they would have wrapped over an unfinished writer, or theirs never finished them.
    pub lost_wrapped: u64,
    /// Lost because they were too large for a sub-buffer.
    pub lost_too_large: u64,
    /// The vCPU (guest layers), thread (VMM) or host CPU (host-kernel) that recorded the stream.
    pub cpu_id: u32,
    /// [`PACKET_IN_GAP`] or 0.
    pub flags: u32,
    /// Bytes of this stream that the host could not accept, up to the end of this packet: corrupt or never committed.
    pub rejected_bytes: u64,
    /// Sub-buffers before this packet that were overwritten before its consumer had read them. Flight recorder only.
    pub overwritten: u64,
    /// Reserved, zero.
    pub reserved2: u64,
}

/// [`PacketHeader::flags`]: records may be missing before, between and behind the packet's records, if it holds any. In
/// recordings that were made of others, where what one of them lacks lies beside what another one has.
pub const PACKET_IN_GAP: u32 = 1;
/// Size of a [`PacketHeader`], bytes.
pub const PACKET_HEADER_SIZE: usize = 128;
/// First four bytes of a CTF 1.8 packet.
pub const CTF_MAGIC: u32 = 0xC1FC_1FC1;

/// Size of a record header, bytes: one little-endian word, see [`RecordHeader`].
pub const RECORD_HEADER_SIZE: usize = 8;
/// Size of what follows a record header whose id is [`EXTENDED_ID`]: the full time (`u64`), the event id (`u16`) and
/// six zero bytes.
pub const EXTENDED_HEADER_SIZE: usize = 16;
/// Id 0 is never an event. A zero header word marks bytes that were reserved but not committed. A record of this id whose
/// header word is not zero was discarded by its producer, and is passed over; its header has the size of its payload as
/// others do. One with an extended header has the id there.
pub const HOLE_ID: u16 = 0;
/// Id of a record with an extended header, used when its time is 2³² ticks or more after its packet began.
pub const EXTENDED_ID: u16 = 0xffff;
/// Records and their payloads start at multiples of this, bytes.
pub const RECORD_ALIGNMENT: usize = 8;

/// A record's header word: low 32 bits of the time, event id, payload bytes.
///
/// ```
/// use shared_ring::layout::RecordHeader;
///
/// let header = RecordHeader { time_low: 7, id: 3, payload: 12 };
/// assert_eq!(RecordHeader::from_word(header.to_word()).payload, 12);
/// // With the header word, and padded to 8 bytes.
/// assert_eq!(header.record_size(), 24);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Low 32 bits of the record's time.
    pub time_low: u32,
    /// Event id, or [`EXTENDED_ID`].
    pub id: u16,
    /// Payload bytes, without the padding after them.
    pub payload: u16,
}

impl RecordHeader {
    /// The header as it lies in memory.
    #[must_use]
    #[inline(always)]
    pub const fn to_word(self) -> u64 {
        self.time_low as u64 | (self.id as u64) << 32 | (self.payload as u64) << 48
    }

    /// The header that `word` holds; every word is one.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "each cast takes the field that the shift put there")]
    pub const fn from_word(word: u64) -> Self {
        Self { time_low: word as u32, id: (word >> 32) as u16, payload: (word >> 48) as u16 }
    }

    /// Bytes of the whole record: header, extension where there is one, payload and padding.
    #[must_use]
    #[inline(always)]
    pub const fn record_size(self) -> usize {
        padded(self.unpadded_size())
    }

    /// Bytes of the record without its padding.
    #[must_use]
    #[inline(always)]
    pub const fn unpadded_size(self) -> usize {
        let extension = if self.id == EXTENDED_ID { EXTENDED_HEADER_SIZE } else { 0 };
        RECORD_HEADER_SIZE + extension + self.payload as usize
    }
}

/// `bytes` rounded up to [`RECORD_ALIGNMENT`].
#[must_use]
#[inline(always)]
pub const fn padded(bytes: usize) -> usize {
    (bytes + RECORD_ALIGNMENT - 1) & !(RECORD_ALIGNMENT - 1)
}

/// Offset in a registry of the count of published bytes (`u64`); entries follow at [`REGISTRY_HEADER_SIZE`].
pub const REGISTRY_USED: usize = 0;
/// Bytes before a registry's first entry.
pub const REGISTRY_HEADER_SIZE: usize = 64;

/// One structure of the layout as a table, for the generated C header.
/// For an example see [`SUPERBLOCK`].
#[derive(Clone, Copy, Debug)]
pub struct StructLayout {
    /// Name of the structure in the C header's constants.
    pub name: &'static str,
    /// Size, bytes.
    pub size: usize,
    /// Name and offset of each field.
    pub fields: &'static [(&'static str, usize)],
}

/// Asserts offsets and sizes at compile time (a changed field is a changed ABI) and keeps them as a table.
macro_rules! assert_layout {
    ($table:ident: $type:ident, size $size:expr, $($field:ident @ $offset:expr),* $(,)?) => {
        const _: () = {
            assert!(core::mem::size_of::<$type>() == $size);
            $(assert!(core::mem::offset_of!($type, $field) == $offset);)*
        };
        #[doc = concat!("Offsets of [`", stringify!($type), "`].")]
        pub const $table: StructLayout =
            StructLayout { name: stringify!($table), size: $size, fields: &[$((stringify!($field), $offset)),*] };
    };
}

assert_layout!(SUPERBLOCK: Superblock, size 168,
    magic @ 0, abi_version @ 8, vcpus @ 12, features @ 16, region_size @ 24, guest_writable_offset @ 32,
    agent_offset @ 40, process_table_offset @ 48, registry_offset @ 56, registry_size @ 64, process_ack_offset @ 72,
    process_pool_offset @ 80, process_stride @ 88, process_slots @ 96, process_sub_buffers @ 100,
    process_sub_buffer_size @ 104, process_registry_size @ 112, host_alive @ 120, clock_uuid @ 128,
    clock_frequency @ 144, any_class_mask @ 152, process_mode @ 160, doorbell @ 164);
assert_layout!(SESSION: SessionSlot, size SESSION_SLOT_SIZE,
    class_mask @ 0, mode @ 8, sub_buffers @ 12, sub_buffer_size @ 16, rings_offset @ 24, ring_stride @ 32, name @ 40,
    generation @ 72, reserved @ 80, event_enable @ 512);
assert_layout!(AGENT: AgentState, size 112,
    state @ 0, abi_version @ 8, kernel_release @ 16, processes_refused @ 80, processes_over_quota @ 88,
    crash_kernel_at @ 96, schedule_at @ 104);
assert_layout!(PROCESS_ENTRY: ProcessEntry, size 64, state @ 0, pid @ 8, comm @ 16);
assert_layout!(PROCESS_HEADER: ProcessHeader, size 584,
    magic @ 0, abi_version @ 8, vcpus @ 12, registry_size @ 16, rings_offset @ 24, ring_stride @ 32,
    sub_buffer_size @ 40, sub_buffers @ 48, session @ 52, host_area_size @ 56, mode @ 64, reserved @ 68,
    vcpu_of_cpu @ 72);
assert_layout!(PACKET: PacketHeader, size PACKET_HEADER_SIZE,
    magic @ 0, uuid @ 4, stream_id @ 20, time_begin @ 24, time_end @ 32, content_size @ 40, packet_size @ 48,
    sequence @ 56, events_discarded @ 64, lost_full @ 72, lost_wrapped @ 80, lost_too_large @ 88, cpu_id @ 96,
    flags @ 100, rejected_bytes @ 104, overwritten @ 112, reserved2 @ 120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_header_survives_its_word() {
        let header = RecordHeader { time_low: 0x1234_5678, id: 0xabcd, payload: 40 };

        assert_eq!(RecordHeader::from_word(header.to_word()), header);
        assert_eq!(header.to_word().to_le_bytes(), [0x78, 0x56, 0x34, 0x12, 0xcd, 0xab, 40, 0]);
    }

    #[test]
    fn extended_record_counts_its_extension() {
        let short = RecordHeader { time_low: 0, id: 1, payload: 9 };
        let extended = RecordHeader { id: EXTENDED_ID, ..short };

        assert_eq!(short.record_size(), 24);
        assert_eq!(extended.record_size(), 40);
    }

    #[test]
    fn modes_survive_their_codes() {
        assert_eq!(Mode::from_code(Mode::Discard.code()), Some(Mode::Discard));
        assert_eq!(Mode::from_code(Mode::FlightRecorder.code()), Some(Mode::FlightRecorder));
        assert_eq!(Mode::from_code(2), None);
    }
}
