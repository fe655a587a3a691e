//! What an ext4 file system's superblock says, whose every byte may be made up.

/// Most block groups of a file system: 128 TiB in groups of the usual size.
const GROUPS_MAX: u64 = 1 << 20;

/// The word at `at` of what the disk has; 0 behind its end.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word).into())
}

/// Bytes of a block of a file system with this superblock; 0 for what cannot be.
pub fn block_size(superblock: &[u8; 1024]) -> u64 {
    1024_u64.checked_shl(u32::try_from(word(superblock, 24)).unwrap_or(u32::MAX)).unwrap_or(0)
}

/// Whether a file system with this superblock lies within `size` bytes. The library makes room for the description of
/// every block group before it reads one.
pub fn is_within(superblock: &[u8; 1024], size: u64) -> bool {
    let (blocks, blocks_per_group) = (word(superblock, 0x150) << 32 | word(superblock, 4), word(superblock, 32));
    let block_size = block_size(superblock);
    let bytes = blocks.checked_mul(block_size);
    let fits = block_size > 0 && bytes.is_some_and(|bytes| bytes <= size);
    fits && blocks_per_group > 0 && blocks.div_ceil(blocks_per_group) <= GROUPS_MAX
}
