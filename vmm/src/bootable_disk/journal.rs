//! The journal of an ext4 file system whose every byte may be made up.
//!
//! The library remembers what it reads of a journal. So one is replayed only if it has a size that journals have, and
//! names each of its blocks once: it then takes about as much memory as the image has bytes for it. One that names the
//! same few blocks again and again would take gigabytes.

use super::superblock::{block_size, word};
use super::volume::Volume;
use std::ops::Range;

/// Largest journal that is replayed, bytes: `mke2fs` makes no larger one by itself.
pub const JOURNAL_MAX: u64 = 1 << 30;
/// Features in the superblock's words at 0x5c and 0x60: there is a journal, it is to be replayed, and numbers of blocks
/// have 64 bits.
const HAS_JOURNAL: u64 = 4;
const NEEDS_REPLAY: u64 = 4;
const IS_64_BIT: u64 = 0x80;
/// Flag of an inode, in its word at 0x20: extents name its blocks.
const HAS_EXTENTS: u64 = 0x8_0000;
/// Bytes of an entry of a node of extents, and of its head.
const ENTRY: usize = 12;
/// Most nodes of extents outside of the inode: with blocks of 4 KiB, a journal may be in 87 000 pieces.
const NODES_MAX: usize = 256;
/// Largest block that the library takes, bytes.
const BLOCK_MAX: usize = 64 << 10;

/// A journal that the library replays.
pub struct Journal {
    /// What counts of it.
    inode: [u8; 0x70],
    /// Bytes.
    block_size: u64,
}

impl Journal {
    /// The journal that the library replays when it opens the file system with this `superblock` on `volume`; `None`
    /// where it replays none, or refuses it for where that would lie.
    pub fn to_replay(volume: &Volume, superblock: &[u8; 1024]) -> Option<Self> {
        let field = |at: usize| word(superblock, at);
        let is_replayed = field(0x5c) & HAS_JOURNAL != 0 && field(0x60) & NEEDS_REPLAY != 0;
        let index = field(0xe0).checked_sub(1).filter(|_| is_replayed)?;
        let (block_size, is_64_bit) = (block_size(superblock), field(0x60) & IS_64_BIT != 0);
        let (descriptor_size, read) = if is_64_bit { (field(0xfe) & 0xffff, 0x2c) } else { (32, 0x20) };
        let per_block = block_size.checked_div(descriptor_size)?;
        let inodes = field(0x28);
        let group = index.checked_div(inodes)?;
        let block = group.checked_div(per_block)? + if block_size == 1024 { 2 } else { 1 };
        let place = block.checked_mul(block_size)?.checked_add(group.checked_rem(per_block)? * descriptor_size)?;
        let mut descriptor = [0; 0x2c];
        volume.read_at(place, &mut descriptor[..read]).ok()?;
        let table = word(&descriptor, 0x28) << 32 | word(&descriptor, 8);
        let offset = index.checked_rem(inodes)?.checked_mul(field(0x58) & 0xffff)?;
        let mut inode = [0; 0x70];
        volume.read_at(table.checked_mul(block_size)?.checked_add(offset)?, &mut inode).ok()?;
        Some(Self { inode, block_size })
    }

    /// Bytes, as its inode says.
    pub fn size(&self) -> u64 {
        word(&self.inode, 0x6c) << 32 | word(&self.inode, 4)
    }

    /// Whether extents name its blocks, and none of them twice. What names blocks without extents, as on ext3, is not
    /// looked through: the library replays only journals with features that ext3 does not have.
    pub fn names_each_block_once(&self, volume: &Volume) -> bool {
        self.extents(volume).is_some_and(|mut extents| {
            extents.sort_unstable_by_key(|extent| extent.start);
            extents.windows(2).all(|pair| pair[0].end <= pair[1].start)
        })
    }

    /// Its blocks; `None` if they are not named by extents, or by more than a journal has.
    fn extents(&self, volume: &Volume) -> Option<Vec<Range<u64>>> {
        if word(&self.inode, 0x20) & HAS_EXTENTS == 0 {
            return None;
        }
        let block_size = usize::try_from(self.block_size).ok().filter(|size| *size <= BLOCK_MAX)?;
        let half = |bytes: &[u8], at: usize| word(bytes, at) & 0xffff;
        let mut nodes = vec![self.inode[0x28..0x64].to_vec()];
        let (mut extents, mut nodes_left) = (Vec::new(), NODES_MAX);
        while let Some(node) = nodes.pop() {
            let (entries, depth) = (usize::try_from(half(&node, 2)).ok()?, half(&node, 6));
            for entry in node.chunks_exact(ENTRY).skip(1).take(entries) {
                if depth == 0 {
                    let start = half(entry, 6) << 32 | word(entry, 8);
                    extents.push(start..start + half(entry, 4));
                } else {
                    nodes_left = nodes_left.checked_sub(1)?;
                    let block = half(entry, 8) << 32 | word(entry, 4);
                    let mut child = vec![0; block_size];
                    volume.read_at(block.checked_mul(self.block_size)?, &mut child).ok()?;
                    nodes.push(child);
                }
            }
        }
        Some(extents)
    }
}
