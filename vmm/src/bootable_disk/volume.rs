//! A range of an image, read by offset.

use ext4_view::Ext4Read;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Where ext2, ext3 and ext4 have their superblock, bytes.
const SUPERBLOCK: u64 = 1024;
/// Where the superblock has its magic number, and that.
const MAGIC: (u64, [u8; 2]) = (56, [0x53, 0xef]);

/// A range of an image. Nothing outside of it can be read.
#[derive(Clone, Debug)]
pub struct Volume {
    image: Arc<File>,
    start: u64,
    size: u64,
    /// Where a reader by [`Read`] is.
    position: u64,
}

impl Volume {
    /// All of `image`, which has `size` bytes.
    pub fn new(image: File, size: u64) -> Self {
        Self { image: Arc::new(image), start: 0, size, position: 0 }
    }

    /// The `size` bytes from `start` on; `None` if they do not lie within this one.
    pub fn part(&self, start: u64, size: u64) -> Option<Self> {
        start.checked_add(size).filter(|end| *end <= self.size)?;
        Some(Self { image: Arc::clone(&self.image), start: self.start + start, size, position: 0 })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fills `bytes` from `offset` on.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let is_inside = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size);
        if !is_inside {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends before that"));
        }
        self.image.read_exact_at(bytes, self.start + offset)
    }

    /// Whether it begins like a file system of the ext family.
    pub fn is_ext(&self) -> bool {
        let mut magic = [0; 2];
        self.read_at(SUPERBLOCK + MAGIC.0, &mut magic).is_ok() && magic == MAGIC.1
    }

    /// The superblock of such a file system.
    pub fn superblock(&self) -> io::Result<[u8; 1024]> {
        let mut superblock = [0; 1024];
        self.read_at(SUPERBLOCK, &mut superblock)?;
        Ok(superblock)
    }
}

impl Ext4Read for Volume {
    fn read(&mut self, start: u64, bytes: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        Ok(self.read_at(start, bytes)?)
    }
}

impl Read for Volume {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size.saturating_sub(self.position)).unwrap_or(usize::MAX);
        let length = bytes.len().min(left);
        self.read_at(self.position, &mut bytes[..length])?;
        self.position += length as u64;
        Ok(length)
    }
}

impl Seek for Volume {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.size.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
