//! The compressions of kernels and of the initrds that they unpack: all that Linux can read but for LZO, for which no crate
//! is kept well.

use crate::compression::lz4_legacy::Lz4LegacyReader;
use bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;
use lzma_rust2::{LzmaReader, XzReader};
use std::fmt;
use std::io::{self, BufRead, Read};
use zstd::stream::read::Decoder as ZstdDecoder;

mod lz4_legacy;

/// Most bytes of a window of Zstandard, as a power of two: what the kernel's build uses at its highest level.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Bytes by which [`Compression::of`] tells them apart.
pub const MAGIC_SIZE: usize = 6;

/// What data is compressed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952.
    Gzip,
    /// bzip2.
    Bzip2,
    /// The format of the LZMA utilities (`.lzma`).
    Lzma,
    /// XZ.
    Xz,
    /// Zstandard, RFC 8878.
    Zstd,
    /// The legacy frames of `lz4 -l`.
    Lz4,
}

/// How data of each begins.
const MAGICS: [(&[u8], Compression); 6] = [
    (&[0x1f, 0x8b], Compression::Gzip),
    (b"BZh", Compression::Bzip2),
    (&[0x5d, 0, 0], Compression::Lzma),
    (b"\xfd7zXZ\0", Compression::Xz),
    (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Zstd),
    (lz4_legacy::MAGIC, Compression::Lz4),
];

impl Compression {
    /// The compression of data that begins with `start` ([`MAGIC_SIZE`] bytes); `None` for one that is not read.
    #[must_use]
    pub fn of(start: &[u8]) -> Option<Self> {
        MAGICS.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, compression)| *compression)
    }

    /// A reader of what `input` holds compressed, from its first byte on. It takes up to `memory` bytes, and some
    /// megabytes, whatever `input` says.
    ///
    /// # Errors
    /// The data begins otherwise, or needs more memory.
    pub fn decoder<R: BufRead>(self, input: R, memory: usize) -> io::Result<Decoder<R>> {
        let kibibytes = u32::try_from(memory >> 10).unwrap_or(u32::MAX);
        Ok(Decoder(match self {
            Self::Gzip => Kind::Gzip(Box::new(GzDecoder::new(input))),
            Self::Bzip2 => Kind::Bzip2(BzDecoder::new(input)),
            Self::Lzma => Kind::Lzma(Box::new(LzmaReader::new_mem_limit(input, kibibytes, None)?)),
            Self::Xz => Kind::Xz(Box::new(XzReader::new_mem_limit(input, false, kibibytes))),
            Self::Zstd => {
                let mut decoder = ZstdDecoder::with_buffer(input)?.single_frame();
                decoder.window_log_max(memory.max(1).ilog2().min(ZSTD_WINDOW_LOG))?;
                Kind::Zstd(decoder)
            }
            Self::Lz4 => Kind::Lz4(Lz4LegacyReader::new(input)),
        }))
    }
}

/// Whether data that begins with `start` is compressed by LZO.
#[must_use]
pub fn is_lzo(start: &[u8]) -> bool {
    start.starts_with(b"\x89LZO")
}

/// Reads what one stream of compressed data holds. Once that ends, its input stands behind the stream, but for what
/// [`Decoder::read_ahead`] says.
pub struct Decoder<R: BufRead>(Kind<R>);

enum Kind<R: BufRead> {
    Gzip(Box<GzDecoder<R>>),
    Bzip2(BzDecoder<R>),
    Lzma(Box<LzmaReader<R>>),
    Xz(Box<XzReader<R>>),
    Zstd(ZstdDecoder<'static, R>),
    Lz4(Lz4LegacyReader<R>),
}

impl<R: BufRead> Decoder<R> {
    /// Bytes of its input that it has taken and not used.
    #[must_use]
    pub fn read_ahead(self) -> usize {
        match self.0 {
            Kind::Lzma(decoder) => decoder.into_parts().1.len(),
            Kind::Gzip(_) | Kind::Bzip2(_) | Kind::Xz(_) | Kind::Zstd(_) | Kind::Lz4(_) => 0,
        }
    }
}

impl<R: BufRead> fmt::Debug for Decoder<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Kind::Gzip(decoder) => decoder.read(buffer),
            Kind::Bzip2(decoder) => decoder.read(buffer),
            Kind::Lzma(decoder) => decoder.read(buffer),
            Kind::Xz(decoder) => decoder.read(buffer),
            Kind::Zstd(decoder) => decoder.read(buffer),
            Kind::Lz4(decoder) => decoder.read(buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_image::tests::packed_by;

    const TEXT: &[u8] = b"what is compressed";
    const FOLLOWING: &[u8] = b"\0\0\0\0what follows";

    fn lz4(text: &[u8]) -> Vec<u8> {
        let block = lz4_flex::block::compress(text);
        [lz4_legacy::MAGIC, &u32::try_from(block.len()).unwrap().to_le_bytes(), &block].concat()
    }

    /// [`TEXT`] by each compression.
    fn packed() -> [(Compression, Vec<u8>); 6] {
        let mut bzip2 = Vec::new();
        bzip2::bufread::BzEncoder::new(TEXT, bzip2::Compression::best()).read_to_end(&mut bzip2).unwrap();
        [
            (Compression::Gzip, packed_by("gzip", &["-n"], TEXT)),
            (Compression::Bzip2, bzip2),
            (Compression::Lzma, packed_by("xz", &["--format=lzma"], TEXT)),
            (Compression::Xz, packed_by("xz", &["--check=crc32"], TEXT)),
            (Compression::Zstd, zstd::bulk::compress(TEXT, 1).unwrap()),
            (Compression::Lz4, lz4(TEXT)),
        ]
    }

    #[test]
    fn decoder_reads_the_stream_and_leaves_what_follows() {
        for (compression, stream) in packed() {
            let both = [&*stream, FOLLOWING].concat();
            let mut input = &*both;

            let mut decoder = compression.decoder(&mut input, 16 << 20).unwrap();
            let mut text = Vec::new();
            decoder.read_to_end(&mut text).unwrap();
            let left = decoder.read_ahead() + input.len();

            assert_eq!((Compression::of(&stream), &*text), (Some(compression), TEXT));
            // the end of a frame of LZ4 is a block of no bytes
            let used = if compression == Compression::Lz4 { 4 } else { 0 };
            assert_eq!(left, FOLLOWING.len() - used, "{compression:?}");
        }
    }

    #[test]
    fn decoder_refuses_a_stream_that_is_cut_short() {
        for (compression, stream) in packed() {
            let cut = &stream[..stream.len() - 3];

            let decoder = compression.decoder(cut, 16 << 20);

            assert!(
                decoder.and_then(|mut decoder| io::copy(&mut decoder, &mut io::sink())).is_err(),
                "{compression:?}"
            );
        }
    }

    #[test]
    fn decoder_takes_no_more_memory_than_it_may() {
        let large_window = ["--format=lzma", "--lzma1=dict=64MiB"];
        let lzma = packed_by("xz", &large_window, TEXT);
        let xz = packed_by("xz", &["--check=crc32", "--lzma2=dict=64MiB"], TEXT);

        for (compression, stream) in [(Compression::Lzma, lzma), (Compression::Xz, xz)] {
            let decoder = compression.decoder(&*stream, 16 << 20);

            assert!(
                decoder.and_then(|mut decoder| io::copy(&mut decoder, &mut io::sink())).is_err(),
                "{compression:?}"
            );
        }
    }

    #[test]
    fn block_of_lz4_that_is_larger_than_any_is_refused() {
        let stream = [lz4_legacy::MAGIC, b"0707", b"01"].concat();

        let read = Compression::Lz4.decoder(&*stream, 16 << 20).unwrap().read(&mut [0]);

        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn frames_of_lz4_may_follow_each_other() {
        let mut text = Vec::new();

        let both = [lz4(TEXT), lz4(TEXT)].concat();
        Compression::Lz4.decoder(&*both, 16 << 20).unwrap().read_to_end(&mut text).unwrap();

        assert_eq!(text, [TEXT, TEXT].concat());
    }
}
