//! The guest's own `/init`, read out of its initrd as the kernel would unpack it.
//!
//! An initrd is a chain of `newc` cpio archives, each compressed or not, with zeros between them: the kernel's
//! `Documentation/driver-api/early-userspace/buffer-format.rst`, and `init/initramfs.c`. A later file replaces an earlier
//! one of the same name. All of it may have been made by the guest: nothing in it is believed, and what it takes of time
//! and memory is bounded.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use strata_kmod_build::compression::{Compression, MAGIC_SIZE, is_lzo};
use thiserror::Error;

/// What the kernel runs as the first program, without the leading slash, as are those below.
pub(super) const INIT_PATH: &str = "init";
/// The overlay's program, and where the overlay keeps the guest's own first one.
pub(super) const PROGRAM_PATH: &str = "strata-init";
pub(super) const KEPT_INIT_PATH: &str = "strata-init.guest";

/// Most bytes of all archives, decompressed: more than any initrd has.
const LARGEST_CONTENT: u64 = 1 << 30;
/// Most bytes that a decompressor takes for itself.
const LARGEST_DICTIONARY: u64 = 128 << 20;
/// Most bytes of an `/init`.
const LARGEST_INIT: u64 = 64 << 20;
/// Most entries of all archives, and parts that are compressed.
const MOST_ENTRIES: u32 = 1 << 20;
const MOST_COMPRESSED: u32 = 256;
/// Most bytes of a name, with the zero at its end: the kernel passes over an entry with a longer one (`PATH_MAX`).
const LONGEST_NAME: u32 = 4096;

const MAGICS: [&[u8]; 2] = [b"070701", b"070702"];
/// Bytes of a header: the magic number, and thirteen numbers of eight hexadecimal digits.
const HEADER_SIZE: usize = 110;
const FIELDS: usize = 13;
const ALIGNMENT: u64 = 4;
const TRAILER: &[u8] = b"TRAILER!!!";

const FILE_TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const SYMBOLIC_LINK: u32 = 0o120_000;

/// Why there is no telling what the guest's own `/init` is.
#[derive(Debug, Error)]
pub enum InitrdError {
    /// It begins like nothing that is known, or goes on like that.
    #[error("the initrd is compressed by {0}")]
    Compression(&'static str),
    /// It cannot be read, or does not decompress.
    #[error("the initrd cannot be read")]
    Read(#[source] io::Error),
    /// It is no archive, or a damaged one.
    #[error("the initrd is damaged: {0}")]
    Damaged(&'static str),
    /// A bound of the reader is met.
    #[error("the initrd has too much: {0}")]
    TooMuch(&'static str),
    /// There is none.
    #[error("the initrd has no /init")]
    NoInit,
    /// Its data has another name, and went by unseen.
    #[error("the initrd's /init is a hard link to a file before it")]
    HardLink,
}

/// The first program of an initrd: a regular file or a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestInit {
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// When it was changed, seconds since 1970.
    pub mtime: u32,
    /// The file's bytes, or the link's target.
    pub content: Vec<u8>,
}

/// Whether a file that begins with `start` may be an initrd: an archive, or a compressed one.
#[must_use]
pub fn begins_like_an_initrd(start: &[u8]) -> bool {
    let is_archive = MAGICS.iter().any(|magic| start.starts_with(magic));
    is_archive || Compression::of(start).is_some() || is_lzo(start)
}

/// The `/init` that the kernel would run of `initrd`; the guest's own one, if the agent's overlay is a part of it already.
///
/// # Errors
/// There is none, or the initrd cannot be read as a whole.
pub fn find_init(initrd: impl BufRead + Seek) -> Result<GuestInit, InitrdError> {
    find_init_within(initrd, LARGEST_CONTENT)
}

/// As [`find_init`], of an initrd whose archives have up to `largest` bytes, decompressed.
///
/// # Errors
/// As those of [`find_init`].
pub fn find_init_within(initrd: impl BufRead + Seek, largest: u64) -> Result<GuestInit, InitrdError> {
    let mut search = Search { left: largest, entries: 0, init: None, own: None };
    search.initrd(&mut Stream { input: initrd, position: 0 }, largest)?;
    let is_ours = |init: &Found| init.is(SYMBOLIC_LINK) && init.init.content == PROGRAM_PATH.as_bytes();
    let found = match search.init {
        Some(init) if is_ours(&init) => search.own,
        init => init,
    };
    let found = found.ok_or(InitrdError::NoInit)?;
    if found.is_hard_link && found.init.content.is_empty() {
        return Err(InitrdError::HardLink);
    }
    Ok(found.init)
}

/// Bytes that are read once, with their place in what the kernel aligns entries by.
struct Stream<R> {
    input: R,
    position: u64,
}

impl<R: BufRead> Stream<R> {
    /// The next byte, if there is one.
    fn peek(&mut self) -> Result<Option<u8>, InitrdError> {
        self.input.fill_buf().map(|bytes| bytes.first().copied()).map_err(InitrdError::Read)
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), InitrdError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => InitrdError::Damaged("it ends inside an entry"),
            _ => InitrdError::Read(error),
        })?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, InitrdError> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(count).read_to_end(&mut bytes).map_err(InitrdError::Read)?;
        self.passed(bytes.len() as u64, count)?;
        Ok(bytes)
    }

    fn skip(&mut self, count: u64) -> Result<(), InitrdError> {
        let skipped = io::copy(&mut self.input.by_ref().take(count), &mut io::sink()).map_err(InitrdError::Read)?;
        self.passed(skipped, count)
    }

    fn passed(&mut self, count: u64, wanted: u64) -> Result<(), InitrdError> {
        self.position += count;
        if count < wanted { Err(InitrdError::Damaged("it ends inside an entry")) } else { Ok(()) }
    }

    /// Passes over what is left to the next place where an entry may begin. The end of the last one may be missing.
    fn align(&mut self) -> Result<(), InitrdError> {
        let count = self.position.next_multiple_of(ALIGNMENT) - self.position;
        self.position += count;
        io::copy(&mut self.input.by_ref().take(count), &mut io::sink()).map_err(InitrdError::Read)?;
        Ok(())
    }

    /// Passes over zeros, and says how many. It stops where there are more than `most`.
    fn skip_zeros(&mut self, most: u64) -> Result<u64, InitrdError> {
        let from = self.position;
        loop {
            let bytes = self.input.fill_buf().map_err(InitrdError::Read)?;
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            let is_all = zeros == bytes.len();
            self.input.consume(zeros);
            self.position += zeros as u64;
            let count = self.position - from;
            if !is_all || zeros == 0 || count > most {
                return Ok(count);
            }
        }
    }
}

/// What the kernel takes of an entry's header.
struct Header {
    inode: Inode,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    mtime: u32,
    size: u32,
    name_size: u32,
}

/// What hard links of an archive have in common: number, and the device's two.
type Inode = [u32; 3];

impl Header {
    fn parse(bytes: &[u8; HEADER_SIZE]) -> Result<Self, InitrdError> {
        let (magic, digits) = bytes.split_at(MAGIC_SIZE);
        if !MAGICS.contains(&magic) {
            return Err(InitrdError::Damaged("an entry is not of the format newc"));
        }
        let mut fields = [0; FIELDS];
        for (field, digits) in fields.iter_mut().zip(digits.chunks(8)) {
            let text = str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'));
            let number = text.and_then(|text| u32::from_str_radix(text, 16).ok());
            *field = number.ok_or(InitrdError::Damaged("a header has something else for a number"))?;
        }
        let [inode, mode, uid, gid, links, mtime, size, major, minor, _, _, name_size, _] = fields;
        Ok(Self { inode: [inode, major, minor], mode, uid, gid, links, mtime, size, name_size })
    }

    fn is(&self, kind: u32) -> bool {
        self.mode & FILE_TYPE == kind
    }

    fn is_hard_link(&self) -> bool {
        self.is(REGULAR) && self.links > 1
    }
}

/// A file of a name that is looked for.
struct Found {
    init: GuestInit,
    is_hard_link: bool,
    /// By what its other names are known, as long as its archive goes on.
    linked: Option<Inode>,
}

impl Found {
    /// The file of an entry's `header` and the content that follows; `None` for what cannot be executed.
    fn read(stream: &mut Stream<impl BufRead>, header: &Header) -> Result<Option<Self>, InitrdError> {
        if !header.is(REGULAR) && !header.is(SYMBOLIC_LINK) {
            return stream.skip(header.size.into()).map(|()| None);
        }
        let Header { mode, uid, gid, mtime, inode, .. } = *header;
        let init = GuestInit { mode, uid, gid, mtime, content: content(stream, header)? };
        Ok(Some(Self { init, linked: header.is_hard_link().then_some(inode), is_hard_link: header.is_hard_link() }))
    }

    fn is(&self, kind: u32) -> bool {
        self.init.mode & FILE_TYPE == kind
    }
}

struct Search {
    /// Bytes of archives that may still come.
    left: u64,
    entries: u32,
    /// The last `/init`.
    init: Option<Found>,
    /// The guest's own one beside an overlay of ours.
    own: Option<Found>,
}

impl Search {
    fn initrd<R: BufRead + Seek>(&mut self, initrd: &mut Stream<R>, largest: u64) -> Result<(), InitrdError> {
        let begin = initrd.input.stream_position().map_err(InitrdError::Read)?;
        let memory = usize::try_from(largest.min(LARGEST_DICTIONARY)).unwrap_or(usize::MAX);
        for _ in 0..=MOST_COMPRESSED {
            self.archives(initrd)?;
            if initrd.peek()?.is_none() {
                return Ok(());
            }
            let mut head = Vec::new();
            initrd.input.by_ref().take(MAGIC_SIZE as u64).read_to_end(&mut head).map_err(InitrdError::Read)?;
            let back = i64::try_from(head.len()).unwrap_or_default();
            initrd.input.seek_relative(-back).map_err(InitrdError::Read)?;
            let unread = if is_lzo(&head) { "LZO" } else { "nothing that is known" };
            let compression = Compression::of(&head).ok_or(InitrdError::Compression(unread))?;
            let decoder = compression.decoder(&mut initrd.input, memory).map_err(InitrdError::Read)?;
            let mut content = Stream { input: BufReader::with_capacity(1 << 16, decoder), position: 0 };
            self.archives(&mut content)?;
            if content.peek()?.is_some() {
                return Err(InitrdError::Damaged("something else follows a compressed archive"));
            }
            let ahead = i64::try_from(content.input.into_inner().read_ahead()).unwrap_or_default();
            let end = initrd.input.seek(SeekFrom::Current(-ahead)).map_err(InitrdError::Read)?;
            initrd.position = end.saturating_sub(begin);
        }
        Err(InitrdError::TooMuch("compressed parts"))
    }

    /// Reads archives of `stream` until it ends, or goes on otherwise.
    fn archives(&mut self, stream: &mut Stream<impl BufRead>) -> Result<(), InitrdError> {
        loop {
            let zeros = stream.skip_zeros(self.left)?;
            self.spend(zeros)?;
            if stream.peek()? != Some(b'0') || !stream.position.is_multiple_of(ALIGNMENT) {
                return Ok(());
            }
            self.entry(stream)?;
        }
    }

    fn spend(&mut self, bytes: u64) -> Result<(), InitrdError> {
        self.left = self.left.checked_sub(bytes).ok_or(InitrdError::TooMuch("bytes"))?;
        Ok(())
    }

    fn entry(&mut self, stream: &mut Stream<impl BufRead>) -> Result<(), InitrdError> {
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(InitrdError::TooMuch("entries"));
        }
        let mut bytes = [0; HEADER_SIZE];
        stream.read_exact(&mut bytes)?;
        let header = Header::parse(&bytes)?;
        self.spend(HEADER_SIZE as u64 + u64::from(header.name_size) + u64::from(header.size))?;
        let name = match header.name_size {
            1..=LONGEST_NAME => stream.bytes(header.name_size.into())?,
            other => {
                stream.skip(other.into())?;
                Vec::new()
            }
        };
        stream.align()?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if name == TRAILER {
            [&mut self.init, &mut self.own].into_iter().flatten().for_each(|found| found.linked = None);
        }
        match in_root(name) {
            Some(name) if name == INIT_PATH.as_bytes() => self.init = Found::read(stream, &header)?,
            Some(name) if name == KEPT_INIT_PATH.as_bytes() => self.own = Found::read(stream, &header)?,
            _ => self.other(stream, &header)?,
        }
        stream.align()
    }

    /// Reads the content of an entry that is not looked for by its name. It may be another link to a file that is.
    fn other(&mut self, stream: &mut Stream<impl BufRead>, header: &Header) -> Result<(), InitrdError> {
        let found = [&mut self.init, &mut self.own].into_iter().flatten();
        let mut links: Vec<&mut Found> = found.filter(|found| found.linked == Some(header.inode)).collect();
        if links.is_empty() || !header.is_hard_link() || header.size == 0 {
            return stream.skip(header.size.into());
        }
        let content = content(stream, header)?;
        links.iter_mut().for_each(|found| found.init.content.clone_from(&content));
        Ok(())
    }
}

/// The content of an entry that is looked for.
fn content(stream: &mut Stream<impl BufRead>, header: &Header) -> Result<Vec<u8>, InitrdError> {
    let largest = if header.is(SYMBOLIC_LINK) { u64::from(LONGEST_NAME) } else { LARGEST_INIT };
    match u64::from(header.size) {
        size if size <= largest => stream.bytes(size),
        _ => Err(InitrdError::TooMuch("bytes of its /init")),
    }
}

/// The name of what lies in the root by the path `path`; `None` for what does not.
fn in_root(path: &[u8]) -> Option<&[u8]> {
    let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let name = parts.next()?;
    parts.next().is_none().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::newc::{self, Builder};
    use std::io::{Cursor, Write};
    use std::process::{Command, Stdio};

    const SCRIPT: &[u8] = b"#!/bin/sh\nexec busybox\n";

    /// An archive of `entries`.
    fn archive<const N: usize>(entries: [(Builder, &[u8]); N]) -> Vec<u8> {
        let mut archive = Vec::new();
        for (entry, content) in entries {
            let mut writer = entry.write(&mut archive, u32::try_from(content.len()).unwrap());
            writer.write_all(content).unwrap();
            writer.finish().unwrap();
        }
        newc::trailer(&mut archive).unwrap();
        archive
    }

    fn file(name: &str) -> Builder {
        Builder::new(name).mode(REGULAR | 0o755).nlink(1)
    }

    fn link(name: &str) -> Builder {
        Builder::new(name).mode(SYMBOLIC_LINK | 0o777).nlink(1)
    }

    /// What processors' microcode comes in, ahead of the archive proper.
    fn early() -> Vec<u8> {
        let mut early = archive([(file("kernel/x86/microcode/GenuineIntel.bin"), b"microcode")]);
        early.resize(early.len().next_multiple_of(512), 0);
        early
    }

    fn with_init() -> Vec<u8> {
        archive([(file("bin/init"), b"another"), (file("init").uid(1), SCRIPT), (file("etc/x"), b"")])
    }

    /// `content` as `program` packs it.
    fn packed(program: &str, options: &[&str], content: &[u8]) -> Vec<u8> {
        let mut running =
            Command::new(program).args(options).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        running.stdin.take().unwrap().write_all(content).unwrap();
        running.wait_with_output().unwrap().stdout
    }

    /// A frame of LZ4 whose one block is of literals alone.
    fn lz4(content: &[u8]) -> Vec<u8> {
        let count = content.len() - 15;
        let mut block = vec![0xf0];
        block.extend(std::iter::repeat_n(255, count / 255));
        block.push(u8::try_from(count % 255).unwrap());
        block.extend(content);
        [&[0x02, 0x21, 0x4c, 0x18], &u32::try_from(block.len()).unwrap().to_le_bytes()[..], &block].concat()
    }

    /// `content` by each compression.
    fn each_compression(content: &[u8]) -> [Vec<u8>; 6] {
        [
            packed("gzip", &[], content),
            packed("bzip2", &[], content),
            packed("xz", &["--format=lzma", "--lzma1=dict=64KiB"], content),
            packed("xz", &["--check=crc32", "--lzma2=dict=64KiB"], content),
            zstd::encode_all(content, 1).unwrap(),
            lz4(content),
        ]
    }

    fn find(initrd: &[u8]) -> Result<GuestInit, InitrdError> {
        find_init(Cursor::new(initrd))
    }

    #[track_caller]
    fn assert_finds(initrd: &[u8], content: &[u8]) {
        assert_eq!(find(initrd).unwrap().content, content);
    }

    #[test]
    fn init_is_found_with_its_mode_and_owner() {
        let found = find(&with_init()).unwrap();

        assert_eq!(found, GuestInit { mode: 0o100_755, uid: 1, gid: 0, mtime: 0, content: SCRIPT.into() });
    }

    #[test]
    fn init_is_found_behind_early_microcode_in_each_compression() {
        for compressed in each_compression(&with_init()) {
            assert_finds(&[&*early(), &compressed].concat(), SCRIPT);
        }
    }

    #[test]
    fn last_init_of_a_chain_counts_whatever_its_parts_are_compressed_by() {
        for compressed in each_compression(&with_init()) {
            let zeros = vec![0; compressed.len().next_multiple_of(4) + 4 - compressed.len()];
            let plain = archive([(file("./init"), b"plain")]);

            assert_finds(&[&*compressed, &zeros, &plain].concat(), b"plain");
            assert_finds(&[&*compressed, &zeros, &plain, &packed("gzip", &[], &with_init())].concat(), SCRIPT);
        }
    }

    #[test]
    fn archives_inside_a_compressed_part_are_a_chain_too() {
        let both = [early(), archive([(file("/init"), b"second")])].concat();

        assert_finds(&packed("gzip", &[], &both), b"second");
    }

    #[test]
    fn link_is_found_by_its_target() {
        let found = find(&archive([(file("init"), b"first"), (link("init"), b"usr/lib/systemd/systemd")])).unwrap();

        assert_eq!((found.mode, &*found.content), (0o120_777, &b"usr/lib/systemd/systemd"[..]));
    }

    #[test]
    fn guests_own_init_is_found_where_an_overlay_has_taken_its_place() {
        let overlay = archive([(file(KEPT_INIT_PATH), SCRIPT), (link("init"), PROGRAM_PATH.as_bytes())]);

        assert_finds(&[early(), overlay].concat(), SCRIPT);
    }

    #[test]
    fn hard_link_has_the_data_that_follows_in_its_archive() {
        let linked = |name| file(name).ino(7).nlink(2);

        assert_finds(&archive([(linked("init"), b""), (linked("bin/busybox"), SCRIPT)]), SCRIPT);
        assert_finds(&archive([(linked("bin/busybox"), b""), (linked("init"), SCRIPT)]), SCRIPT);
    }

    #[test]
    fn hard_link_whose_data_went_by_is_not_followed() {
        let linked = |name| file(name).ino(7).nlink(2);
        let before = archive([(linked("bin/busybox"), SCRIPT), (linked("init"), b"")]);
        let in_another = [archive([(linked("init"), b"")]), archive([(linked("bin/busybox"), SCRIPT)])].concat();

        assert!(matches!(find(&before), Err(InitrdError::HardLink)));
        assert!(matches!(find(&in_another), Err(InitrdError::HardLink)));
    }

    #[test]
    fn initrd_without_an_init_to_run_has_none() {
        let folder = Builder::new("init").mode(0o040_755).nlink(2);

        assert!(matches!(find(&[]), Err(InitrdError::NoInit)));
        assert!(matches!(find(&early()), Err(InitrdError::NoInit)));
        assert!(matches!(find(&archive([(file("init"), SCRIPT), (folder, b"")])), Err(InitrdError::NoInit)));
    }

    #[test]
    fn other_files_are_refused_by_what_they_are() {
        let why = |initrd: &[u8]| find(initrd).unwrap_err().to_string();

        assert!(why(b"\x89LZO\0\r\n").contains("compressed by LZO"));
        assert!(why(b"\x7fELF").contains("nothing that is known"));
        assert!(why(&[&*early(), b"070"].concat()).contains("ends inside an entry"));
        assert!(why(&[b"070707", &[b'0'; 104][..]].concat()).contains("not of the format newc"));
        assert!(why(&[b"070701", &[b'x'; 104][..]].concat()).contains("something else for a number"));
        let followed = packed("gzip", &[], &[&*with_init(), b"more"].concat());
        assert!(why(&followed).contains("follows a compressed archive"));
    }

    #[test]
    fn initrd_that_is_cut_short_is_refused() {
        let plain = with_init();
        let early = early();

        assert!(find(&plain[..plain.len() / 2]).is_err());
        for compressed in each_compression(&plain) {
            assert!(find(&[&*early, &compressed[..compressed.len() - 9]].concat()).is_err());
        }
    }

    #[test]
    fn archives_larger_than_the_bound_are_refused() {
        let zeros = [with_init(), vec![0; 1 << 20]].concat();
        let entry = archive([(file("etc/large"), &[7; 1 << 20])]);
        let parts: Vec<Vec<u8>> = [&zeros, &entry].into_iter().flat_map(|content| each_compression(content)).collect();

        for bomb in parts.iter().chain([&zeros, &entry]) {
            let found = find_init_within(Cursor::new(bomb), 1 << 20);

            assert!(matches!(found, Err(InitrdError::TooMuch("bytes"))), "{found:?}");
        }
    }

    #[test]
    fn zeros_without_end_are_refused() {
        let zeros = BufReader::new(io::repeat(0));
        let mut search = Search { left: 1 << 20, entries: 0, init: None, own: None };

        let found = search.archives(&mut Stream { input: zeros, position: 0 });

        assert!(matches!(found, Err(InitrdError::TooMuch("bytes"))), "{found:?}");
    }

    #[test]
    fn size_that_a_header_claims_takes_no_memory() {
        let mut claimed = archive([(file("init"), b"")]);
        claimed[54..62].copy_from_slice(b"ffffffff");
        let found = find(&claimed);
        assert!(matches!(found, Err(InitrdError::TooMuch(_))), "{found:?}");

        claimed[54..62].copy_from_slice(b"03ffffff");
        let found = find(&claimed);
        assert!(matches!(found, Err(InitrdError::Damaged(_))), "{found:?}");

        let mut named = archive([(file("init"), b"")]);
        named[94..102].copy_from_slice(b"2fffffff");
        let found = find(&named);
        assert!(matches!(found, Err(InitrdError::Damaged(_))), "{found:?}");
    }

    #[test]
    fn more_parts_than_any_initrd_has_are_refused() {
        let parts = packed("gzip", &[], b"").repeat(1000);

        assert!(matches!(find(&parts), Err(InitrdError::TooMuch("compressed parts"))));
    }
}
