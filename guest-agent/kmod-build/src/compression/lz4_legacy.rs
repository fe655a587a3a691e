//! The legacy frames of LZ4, which `lz4 -l` writes and the kernel's build uses.
//!
//! Nothing in a frame says where it ends. As the kernel's `lib/decompress_unlz4.c`, the reader takes the end of its
//! input, or a block of no bytes, for the end.

use std::io::{self, Error, ErrorKind, Read};

/// How a frame begins.
pub(super) const MAGIC: &[u8] = &MAGIC_NUMBER.to_le_bytes();
const MAGIC_NUMBER: u32 = 0x184c_2102;
/// Every block of a frame holds this much but for the last, which holds less.
const BLOCK: usize = 8 << 20;
/// Most bytes that a block is compressed to (`LZ4_COMPRESSBOUND`).
const COMPRESSED_BLOCK: usize = BLOCK + BLOCK / 255 + 16;

/// Reads what frames hold.
#[derive(Debug)]
pub(super) struct Lz4LegacyReader<R> {
    input: R,
    /// The block that is being read, and how far.
    block: Vec<u8>,
    read: usize,
    has_ended: bool,
}

impl<R: Read> Lz4LegacyReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, block: Vec::new(), read: 0, has_ended: false }
    }

    /// Up to `count` bytes of the input: fewer at its end.
    fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(count as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn next_block(&mut self) -> io::Result<()> {
        self.read = 0;
        self.block.clear();
        let length = match self.take(size_of::<u32>())?.first_chunk() {
            Some(length) => u32::from_le_bytes(*length),
            None => 0,
        };
        match length {
            MAGIC_NUMBER => return Ok(()),
            0 => {
                self.has_ended = true;
                return Ok(());
            }
            _ => {}
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > COMPRESSED_BLOCK {
            return Err(Error::new(ErrorKind::InvalidData, "a block of LZ4 is too large"));
        }
        let compressed = self.take(length)?;
        if compressed.len() < length {
            return Err(Error::new(ErrorKind::UnexpectedEof, "the data ends inside a block of LZ4"));
        }
        self.block.resize(BLOCK, 0);
        let written = lz4_flex::block::decompress_into(&compressed, &mut self.block)
            .map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        self.block.truncate(written);
        Ok(())
    }
}

impl<R: Read> Read for Lz4LegacyReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read == self.block.len() && !self.has_ended {
            self.next_block()?;
        }
        let rest = &self.block[self.read..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        Ok(count)
    }
}
