//! How a ring is divided into sub-buffers, and where each of its parts lies.

use super::{
    ENTRY_COMMIT_PREFIX, ENTRY_COMMIT_SEQ, ENTRY_EXCHANGE, MAX_SUB_BUFFER_SIZE, MAX_SUB_BUFFERS, MIN_SUB_BUFFER_SIZE,
    MIN_SUB_BUFFERS, Mode, RING_HEADER_SIZE, RING_SUB_BUFFER_TABLE, SUB_BUFFER_ENTRY_SIZE,
};

/// Why rings cannot have sub-buffers of some size or number.
///
/// ```
/// use shared_ring::layout::Geometry;
///
/// assert!(Geometry::new(5_000, 4).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeometryError {
    /// The size of a sub-buffer is not a power of two within [`MIN_SUB_BUFFER_SIZE`]..=[`MAX_SUB_BUFFER_SIZE`].
    SubBufferSize {
        /// Bytes of a sub-buffer that were requested.
        bytes: u64,
    },
    /// The number of sub-buffers is not a power of two within [`MIN_SUB_BUFFERS`]..=[`MAX_SUB_BUFFERS`].
    SubBuffers {
        /// Sub-buffers that were requested.
        count: u32,
    },
}

impl core::fmt::Display for GeometryError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::SubBufferSize { bytes } => write!(
                formatter,
                "sub-buffers of {bytes} bytes are not possible: \
                 give a power of two from {MIN_SUB_BUFFER_SIZE} to {MAX_SUB_BUFFER_SIZE}"
            ),
            Self::SubBuffers { count } => write!(
                formatter,
                "{count} sub-buffers are not possible: give a power of two from {MIN_SUB_BUFFERS} to {MAX_SUB_BUFFERS}"
            ),
        }
    }
}

impl core::error::Error for GeometryError {}

/// Sub-buffer size and count of a ring, known to be within the limits of the layout.
///
/// ```
/// use shared_ring::layout::{Geometry, GeometryError, Mode};
///
/// let geometry = Geometry::new(4096, 4)?;
/// assert_eq!(geometry.data_size(), 4 * 4096);
/// assert!(geometry.ring_size(Mode::FlightRecorder) > geometry.ring_size(Mode::Discard));
/// assert_eq!(Geometry::new(5000, 4), Err(GeometryError::SubBufferSize { bytes: 5000 }));
/// # Ok::<(), GeometryError>(())
/// ```
///
/// ```
/// use shared_ring::layout::{Geometry, GeometryError};
///
/// let geometry = Geometry::new(4096, 4)?;
/// assert_eq!(geometry.data_size(), 16_384);
/// // Byte 20,480 since the ring began is in sub-buffer 1, in the second lap.
/// assert_eq!((geometry.index(20_480), geometry.lap(20_480)), (1, 1));
/// # Ok::<(), GeometryError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    sub_buffer_order: u8,
    ring_order: u8,
    // What follows from these, a producer would compute anew with each record.
    /// How much less the order of a sub-buffer's table entry is than that of the sub-buffer.
    table_order: u8,
    /// The bits of a count that say where in its sub-buffer it lies.
    sub_buffer_mask: u64,
    /// Those that say in which sub-buffer.
    index_mask: u64,
    /// Bytes of a sub-buffer: multiplying takes fewer instructions than shifting by a variable amount.
    sub_buffer_size: u64,
    /// Bytes of all sub-buffers together.
    data_size: u64,
}

#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
impl Geometry {
    /// Rings of `sub_buffers` sub-buffers of `sub_buffer_size` bytes.
    ///
    /// # Errors
    /// When one of them is not a power of two within its limits.
    pub const fn new(sub_buffer_size: u64, sub_buffers: u32) -> Result<Self, GeometryError> {
        let size_fits = sub_buffer_size >= MIN_SUB_BUFFER_SIZE && sub_buffer_size <= MAX_SUB_BUFFER_SIZE;
        let count_fits = sub_buffers >= MIN_SUB_BUFFERS && sub_buffers <= MAX_SUB_BUFFERS;
        if !size_fits || !sub_buffer_size.is_power_of_two() {
            return Err(GeometryError::SubBufferSize { bytes: sub_buffer_size });
        }
        if !count_fits || !sub_buffers.is_power_of_two() {
            return Err(GeometryError::SubBuffers { count: sub_buffers });
        }
        Ok(Self::of(sub_buffer_size, sub_buffers))
    }

    const fn of(sub_buffer_size: u64, sub_buffers: u32) -> Self {
        let sub_buffer_order = sub_buffer_size.trailing_zeros() as u8;
        let ring_order = sub_buffer_order + sub_buffers.trailing_zeros() as u8;
        let sub_buffer_mask = (1 << sub_buffer_order) - 1;
        Self {
            sub_buffer_order,
            ring_order,
            table_order: sub_buffer_order - SUB_BUFFER_ENTRY_SIZE.trailing_zeros() as u8,
            sub_buffer_mask,
            index_mask: ((1 << ring_order) - 1) & !sub_buffer_mask,
            sub_buffer_size,
            data_size: 1 << ring_order,
        }
    }

    /// Rings too small for use, whose every schedule a model checker can run: any powers of two that hold a packet
    /// header and a record.
    ///
    /// # Panics
    /// When they are not.
    #[cfg(feature = "verification")]
    #[must_use]
    pub const fn for_verification(sub_buffer_size: u64, sub_buffers: u32) -> Self {
        assert!(sub_buffer_size.is_power_of_two() && sub_buffer_size > super::PACKET_HEADER_SIZE as u64);
        assert!(sub_buffers.is_power_of_two() && sub_buffers >= MIN_SUB_BUFFERS && sub_buffers <= MAX_SUB_BUFFERS);
        Self::of(sub_buffer_size, sub_buffers)
    }

    /// Bytes of a sub-buffer.
    #[must_use]
    #[inline(always)]
    pub const fn sub_buffer_size(self) -> u64 {
        self.sub_buffer_size
    }

    /// Number of sub-buffers.
    #[must_use]
    #[inline(always)]
    pub const fn sub_buffers(self) -> u32 {
        1 << (self.ring_order - self.sub_buffer_order)
    }

    /// Bytes of all sub-buffers together.
    #[must_use]
    #[inline(always)]
    pub const fn data_size(self) -> u64 {
        self.data_size
    }

    /// Bytes of a ring: control words, data and, in flight-recorder mode, the consumer's spare sub-buffer.
    #[must_use]
    #[inline(always)]
    pub const fn ring_size(self, mode: Mode) -> usize {
        let spare = match mode {
            Mode::Discard => 0,
            Mode::FlightRecorder => self.sub_buffer_size() as usize,
        };
        RING_HEADER_SIZE + self.data_size as usize + spare
    }

    /// Position in its sub-buffer of free-running offset `count`.
    #[must_use]
    #[inline(always)]
    pub const fn within(self, count: u64) -> u64 {
        count & self.sub_buffer_mask
    }

    /// Whether `bytes` are fewer than a sub-buffer has.
    #[must_use]
    #[inline(always)]
    pub const fn is_inside(self, bytes: u64) -> bool {
        bytes <= self.sub_buffer_mask
    }

    /// Index of the sub-buffer that free-running offset `count` lies in.
    #[must_use]
    #[inline(always)]
    pub const fn index(self, count: u64) -> usize {
        (self.start(count) >> self.sub_buffer_order) as usize
    }

    /// Where the sub-buffer that `count` lies in begins, bytes behind the first one.
    #[must_use]
    #[inline(always)]
    pub const fn start(self, count: u64) -> u64 {
        count & self.index_mask
    }

    /// Number of the sub-buffer that `count` lies in, counted from the ring's beginning and never wrapped.
    #[must_use]
    #[inline(always)]
    pub const fn sequence(self, count: u64) -> u64 {
        count >> self.sub_buffer_order
    }

    /// What the commit count of `count`'s sub-buffer is when all earlier laps are committed and this one has not begun.
    #[must_use]
    #[inline(always)]
    pub const fn committed_before(self, count: u64) -> u64 {
        (count >> self.ring_order) << self.sub_buffer_order
    }

    /// Offset in the ring of free-running offset `count`.
    #[must_use]
    #[inline(always)]
    pub const fn data_offset(self, count: u64) -> usize {
        RING_HEADER_SIZE + (self.start(count) + self.within(count)) as usize
    }

    /// Number of the lap of the ring that `count` lies in.
    #[must_use]
    #[inline(always)]
    pub const fn lap(self, count: u64) -> u64 {
        count >> self.ring_order
    }

    /// Bytes that `sub_buffers` sub-buffers take.
    #[must_use]
    #[inline(always)]
    pub const fn at_number(self, sub_buffers: u64) -> u64 {
        sub_buffers * self.sub_buffer_size
    }

    /// Offset in the ring of physical sub-buffer `physical`: the spare of a flight recorder is number
    /// [`sub_buffers`](Self::sub_buffers) at first.
    #[must_use]
    #[inline(always)]
    pub const fn physical_offset(self, physical: usize) -> usize {
        RING_HEADER_SIZE + (physical << self.sub_buffer_order)
    }

    /// Offset in the ring of what the sub-buffer table says of the sub-buffer that `count` lies in.
    #[must_use]
    #[inline(always)]
    pub const fn table_offset(self, count: u64) -> usize {
        RING_SUB_BUFFER_TABLE + self.offset_in_table(count)
    }

    /// The same from the beginning of the table.
    #[must_use]
    #[inline(always)]
    pub const fn offset_in_table(self, count: u64) -> usize {
        (self.start(count) >> self.table_order) as usize
    }

    /// Offset in the ring of the commit count of sub-buffer `index`.
    #[must_use]
    #[inline(always)]
    pub const fn commit_count_offset(self, index: usize) -> usize {
        RING_SUB_BUFFER_TABLE + index * SUB_BUFFER_ENTRY_SIZE
    }

    /// Offset in the ring of the published commit count of sub-buffer `index`.
    #[must_use]
    #[inline(always)]
    pub const fn commit_seq_offset(self, index: usize) -> usize {
        self.commit_count_offset(index) + ENTRY_COMMIT_SEQ
    }

    /// Offset in the ring of the count below which all of sub-buffer `index` is known to be committed.
    #[must_use]
    #[inline(always)]
    pub const fn commit_prefix_offset(self, index: usize) -> usize {
        self.commit_count_offset(index) + ENTRY_COMMIT_PREFIX
    }

    /// Offset in the ring of the exchange word of sub-buffer `index`.
    #[must_use]
    #[inline(always)]
    pub const fn exchange_offset(self, index: usize) -> usize {
        self.commit_count_offset(index) + ENTRY_EXCHANGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_refuses_what_the_layout_cannot_hold() {
        let bad_sizes = [4095, 6144, 0, 8 << 20].map(|bytes| (Geometry::new(bytes, 2), bytes));
        let bad_counts = [0, 1, 3, 512].map(|count| (Geometry::new(4096, count), count));

        assert!(bad_sizes.iter().all(|&(made, bytes)| made == Err(GeometryError::SubBufferSize { bytes })));
        assert!(bad_counts.iter().all(|&(made, count)| made == Err(GeometryError::SubBuffers { count })));
    }

    #[test]
    fn geometry_splits_a_free_running_count() {
        let geometry = Geometry::new(4096, 4).unwrap();
        let count = 4096 * 9 + 100;

        assert_eq!(geometry.within(count), 100);
        assert_eq!(geometry.index(count), 1);
        assert_eq!(geometry.sequence(count), 9);
        assert_eq!(geometry.committed_before(count), 2 * 4096);
        assert_eq!(geometry.data_offset(count), RING_HEADER_SIZE + 4096 + 100);
        assert_eq!((geometry.start(count), geometry.table_offset(count)), (4096, geometry.commit_count_offset(1)));
        assert_eq!((geometry.lap(count), geometry.physical_offset(1)), (2, RING_HEADER_SIZE + 4096));
    }

    #[test]
    fn flight_recorder_ring_has_a_spare_sub_buffer() {
        let geometry = Geometry::new(4096, 4).unwrap();

        assert_eq!(geometry.ring_size(Mode::Discard), RING_HEADER_SIZE + 4 * 4096);
        assert_eq!(geometry.ring_size(Mode::FlightRecorder), RING_HEADER_SIZE + 5 * 4096);
    }

    #[test]
    fn sub_buffer_table_of_the_largest_ring_fits_its_pages() {
        let geometry = Geometry::new(4096, MAX_SUB_BUFFERS).unwrap();

        assert!(geometry.exchange_offset(MAX_SUB_BUFFERS as usize - 1) + 16 <= RING_HEADER_SIZE);
    }
}
