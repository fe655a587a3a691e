//! A recording in one file, to attach to a report of a bug: a tar archive of the files of its folder, compressed with zstd.
//! `tar --zstd -xf FILE` makes the folder of it. An archive that is not compressed, or that has the folder itself at its
//! top, is read as well.
//!
//! It is read without a folder. The archive is unpacked into a temporary file that has no name, so that nothing stays
//! behind, however its reader ends, and nobody changes it meanwhile. Zeros take no space there.
#![allow(unsafe_code)] // The temporary file is mapped.

use super::mapped_file::MappedFile;
use super::{MANIFEST_FILE, open_regular, temporary_folder};
use crate::files::compression::most_decompressed;
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tar::{Archive, EntryType};
use thiserror::Error;
use zstd::stream::read::Decoder;

/// What the names of such files end with.
pub const EXTENSION: &str = "strata";
/// What a frame of zstd begins with.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// What the header of an entry holds of a tar archive, and where.
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");
/// Bytes of that header.
const TAR_HEADER: usize = 512;
/// Zeros at the end of an archive, at least.
const TAR_END: usize = 2 * TAR_HEADER;
/// How many times its own size such a file may be decompressed to: holes of streams are zeros in it.
const MAX_RATIO: u64 = 1000;
/// Most files in one.
const MAX_FILES: usize = 1 << 18;
/// Bytes that are decompressed at once.
const BUFFER: usize = 128 << 10;

/// Why one file cannot be read as a recording.
#[derive(Debug, Error)]
pub enum PackedError {
    /// It cannot be read.
    #[error("{}: cannot be read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its end is missing.
    #[error("{}: truncated; copy the whole file again", .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// It does not decompress, or not to an archive.
    #[error("{}: damaged; copy it again", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// It decompresses to more than a recording of its size.
    #[error("{}: decompresses to more than {limit} bytes, which no recording of its size does", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What it may decompress to.
        limit: u64,
    },
    /// There is no room for what it decompresses to.
    #[error("{}: {} cannot hold what it decompresses to; set TMPDIR to a folder with more room", .path.display(), .folder.display())]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The folder for temporary files.
        folder: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is something in it that no recording has.
    #[error("{}: is not a file of `strata cut`: {name:?} in it {problem}", .path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// Name in the archive.
        name: String,
        /// What is wrong with that.
        problem: &'static str,
    },
    /// There is more in it than recordings have.
    #[error("{}: is not a file of `strata cut`: more than {MAX_FILES} files are in it", .path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
    },
    /// There is no recording in it.
    #[error("{}: is not a file of `strata cut`: there is no {MANIFEST_FILE} at the top of the archive", .path.display())]
    NoTrace {
        /// The file.
        path: PathBuf,
    },
}

/// Whether a recording that is written to `path` becomes one file.
#[must_use]
pub fn is_name(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// How the archive lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Zstd,
    Plain,
}

/// The file at `path`, if a tar archive begins in it. One that is compressed and that [`is_name`] names is taken for one
/// that is damaged, too.
fn open_archive(path: &Path) -> Option<(File, Form)> {
    let mut file = open_regular(path).ok()?;
    let begins_archive = |reader: &mut dyn Read| {
        let mut header = [0; TAR_HEADER];
        let (at, magic) = TAR_MAGIC;
        reader.read_exact(&mut header).is_ok() && header[at..].starts_with(magic)
    };
    let mut magic = [0; ZSTD_MAGIC.len()];
    file.read_exact_at(&mut magic, 0).ok()?;
    let form = if magic == ZSTD_MAGIC {
        let is_archive = Decoder::new(&file).is_ok_and(|mut decoder| begins_archive(&mut decoder));
        (is_archive || is_name(path)).then_some(Form::Zstd)
    } else {
        begins_archive(&mut file).then_some(Form::Plain)
    };
    file.rewind().ok()?;
    form.map(|form| (file, form))
}

/// What a file of `packed` bytes may decompress to, bytes.
pub(crate) const fn limit_of(packed: u64) -> u64 {
    most_decompressed(packed, MAX_RATIO)
}

/// One file with a recording, decompressed.
#[derive(Debug)]
pub(crate) struct Packed {
    path: PathBuf,
    /// The archive.
    map: Arc<Mmap>,
    /// Where the files lie in it.
    files: BTreeMap<String, Range<usize>>,
}

impl Packed {
    /// The recording in the file at `path`; `None` when that is no such file.
    ///
    /// # Errors
    /// When it is one, and is damaged or holds what recordings do not.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, PackedError> {
        let Some((file, form)) = open_archive(path) else { return Ok(None) };
        let size = file.metadata().map_err(|source| PackedError::Read { path: path.into(), source })?.len();
        Self::within(path, &file, form, limit_of(size)).map(Some)
    }

    /// The recording in `file`, which is at `path` and may decompress to `limit` bytes.
    fn within(path: &Path, file: &File, form: Form, limit: u64) -> Result<Self, PackedError> {
        let archive = unpack(path, file, form, limit)?;
        // SAFETY: the mapping is read-only, and the file has no name by which somebody could change it or its length.
        let map = unsafe { Mmap::map(&archive) };
        let map = map.map_err(|source| PackedError::Damaged { path: path.into(), source })?;
        let files = without_the_folder(index(path, &map)?);
        if !files.contains_key(MANIFEST_FILE) {
            return Err(PackedError::NoTrace { path: path.into() });
        }
        Ok(Self { path: path.into(), map: Arc::new(map), files })
    }

    /// Where the one file is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the files in `folder`.
    pub(crate) fn names_in(&self, folder: &str) -> Vec<String> {
        let folder = plain(folder).unwrap_or_default() + "/";
        let within = self.files.range(folder.clone()..).map(|(path, _)| path);
        let names = within.map_while(|path| path.strip_prefix(&folder)).filter(|name| !name.contains('/'));
        names.map(Into::into).collect()
    }

    /// The file `path` in it; `None` when it is empty.
    ///
    /// # Errors
    /// When it is not there.
    pub(crate) fn file(&self, path: &str) -> io::Result<Option<MappedFile>> {
        let range = plain(path).and_then(|path| self.files.get(&path));
        let range = range.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(MappedFile::part(&self.map, range.clone()))
    }
}

/// Copies the archive in `file`, which is at `path`, into a temporary file of `limit` bytes at most.
fn unpack(path: &Path, file: &File, form: Form, limit: u64) -> Result<File, PackedError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::UnexpectedEof => PackedError::Truncated { path: path.into() },
        _ => PackedError::Damaged { path: path.into(), source },
    };
    let no_room = |source| PackedError::NoRoom { path: path.into(), folder: temporary_folder(), source };
    let archive = tempfile::tempfile_in(temporary_folder()).map_err(no_room)?;
    let mut reader: Box<dyn Read> = match form {
        Form::Zstd => Box::new(Decoder::new(file).map_err(failed)?),
        Form::Plain => Box::new(file),
    };
    let (mut buffer, mut length) = (vec![0; BUFFER], 0_u64);
    loop {
        let bytes = match reader.read(&mut buffer).map_err(failed)? {
            0 => break,
            read => &buffer[..read],
        };
        let end = length.saturating_add(bytes.len() as u64);
        if end > limit {
            return Err(PackedError::TooLarge { path: path.into(), limit });
        }
        if bytes.iter().any(|&byte| byte != 0) {
            archive.write_all_at(bytes, length).map_err(no_room)?;
        }
        length = end;
    }
    // Nothing is an archive without files, whose end is zeros.
    archive.set_len(length.max(TAR_END as u64)).map_err(no_room)?;
    Ok(archive)
}

/// Where the files of `archive` lie in it, which was in the file at `path`.
fn index(path: &Path, archive: &[u8]) -> Result<BTreeMap<String, Range<usize>>, PackedError> {
    let damaged = |source| PackedError::Damaged { path: path.into(), source };
    let truncated = || PackedError::Truncated { path: path.into() };
    if !archive.len().is_multiple_of(TAR_HEADER) {
        return Err(truncated());
    }
    let (mut files, mut files_end) = (BTreeMap::new(), 0);
    let mut reader = Archive::new(Cursor::new(archive));
    // As they are: an extension that renames what follows is nothing that is in such a file.
    for entry in reader.entries_with_seek().map_err(damaged)?.raw(true) {
        let entry = entry.map_err(damaged)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let refused = |problem| PackedError::Entry { path: path.into(), name: name.clone(), problem };
        let place = plain(&name).ok_or_else(|| refused("leads out of it"))?;
        match entry.header().entry_type() {
            EntryType::Directory => continue,
            EntryType::Regular if !place.is_empty() => {}
            _ => return Err(refused("is not a regular file")),
        }
        let begin = usize::try_from(entry.raw_file_position()).unwrap_or(usize::MAX);
        let end = begin.saturating_add(usize::try_from(entry.size()).unwrap_or(usize::MAX));
        if end > archive.len() {
            return Err(truncated());
        }
        files_end = end.next_multiple_of(TAR_HEADER);
        if files.insert(place, begin..end).is_some() {
            return Err(refused("is there twice"));
        }
        if files.len() > MAX_FILES {
            return Err(PackedError::TooMany { path: path.into() });
        }
    }
    if archive.len() < files_end + TAR_END {
        return Err(truncated());
    }
    Ok(files)
}

/// `files` as they lie in the folder of the recording, where that is all there is at the top of the archive.
fn without_the_folder(files: BTreeMap<String, Range<usize>>) -> BTreeMap<String, Range<usize>> {
    let top = files.keys().next().and_then(|first| first.split_once('/')).map(|(folder, _)| format!("{folder}/"));
    let Some(top) = top.filter(|top| files.keys().all(|name| name.starts_with(top.as_str()))) else { return files };
    files.into_iter().map(|(name, range)| (name[top.len()..].to_owned(), range)).collect()
}

/// `path` by its parts alone, with a slash between them; `None` for one that leads out of its folder.
fn plain(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    //! Shows: One file with a recording reads as its folder does; a forged, damaged or huge one is refused in a line.

    use super::*;
    use crate::manifest::{Manifest, ManifestError};
    use crate::one_file::pack::pack;
    use crate::reader::merge::Merge;
    use crate::reader::{ReadError, Trace};
    use crate::test_trace::{Field, TestTrace, manifest};
    use std::fs;
    use tar::Header;
    use tempfile::TempDir;

    fn recording() -> (TempDir, Trace) {
        let number = |number| [("number", Field::Number(number))];
        let trace = TestTrace::new().host(0, 10, "test:host", &number(1)).guest(1, 20, "test:guest", &number(2));
        trace.user(42, 0, 30, "app:event", &[]).open()
    }

    fn packed(trace: &Trace) -> Vec<u8> {
        let mut bytes = Vec::new();
        let length = pack(trace, &mut bytes).unwrap();
        assert_eq!(length, bytes.len() as u64);
        bytes
    }

    /// A file of these bytes.
    fn file_of(bytes: &[u8]) -> (TempDir, PathBuf) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("trace.strata");
        fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    fn records(trace: &Trace) -> Vec<(u64, Vec<u8>)> {
        Merge::new(trace.layers(), 0).map(|merged| (merged.record.time, merged.record.payload.to_vec())).collect()
    }

    /// An archive, compressed, with files of these names and types. Names are as they are given, whatever they say.
    fn archive_of(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = Header::new_ustar();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        zstd::encode_all(&*archive.into_inner().unwrap(), 1).unwrap()
    }

    /// A recording without layers.
    fn description() -> Vec<u8> {
        serde_json::to_vec(&manifest()).unwrap()
    }

    /// The line in which a file of these bytes is refused.
    fn refusal(bytes: &[u8]) -> String {
        let (_dir, path) = file_of(bytes);
        let error = Trace::open(&path).unwrap_err();
        let line = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        line.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    #[test]
    fn one_file_reads_as_its_folder_does() {
        let (_folder, whole) = recording();
        let (_dir, path) = file_of(&packed(&whole));

        let read = Trace::open(&path).unwrap();

        assert_eq!(records(&read), records(&whole));
        assert_eq!((read.path(), read.manifest()), (&*path, whole.manifest()));
        assert!(read.layers().iter().all(|layer| layer.metadata_problem().is_none()));
    }

    #[test]
    fn compressed_streams_of_one_file_are_unpacked_before_they_are_decompressed() {
        let (_folder, whole) = recording();
        let (_dir, path) = file_of(&packed(&whole));

        let printed = [&Trace::open(&path).unwrap(), &whole].map(|trace| trace.files().unpacking());

        assert_eq!(
            printed.map(|printed| (printed.contains("tar --zstd -xf"), printed.contains("zstd -d"))),
            [(true, true), (false, true)]
        );
    }

    #[test]
    fn same_files_make_the_same_file_whoever_packs_them() {
        let (_folder, whole) = recording();
        let bytes = packed(&whole);
        let (_dir, path) = file_of(&bytes);

        assert_eq!(packed(&Trace::open(&path).unwrap()), bytes);
        let archive = zstd::decode_all(&*bytes).unwrap();
        let mut reader = Archive::new(&*archive);
        let reported = |header: &Header| (header.mtime().unwrap(), header.uid().unwrap(), header.mode().unwrap());
        assert!(reader.entries().unwrap().all(|entry| reported(entry.unwrap().header()) == (0, 0, 0o600)));
    }

    #[test]
    fn only_files_of_the_recording_are_packed() {
        let (folder, whole) = recording();
        fs::write(folder.path().join("notes"), "private").unwrap();
        fs::write(folder.path().join("host-kernel/core"), "private").unwrap();

        let archive = zstd::decode_all(&*packed(&whole)).unwrap();

        let mut reader = Archive::new(&*archive);
        let names = reader.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
        let names: Vec<String> = names.collect();
        let layers = ["host-kernel", "vm0/guest-kernel", "vm0/guest-user/42"];
        assert_eq!(names[0], MANIFEST_FILE);
        assert_eq!(names.len(), 1 + 2 * layers.len(), "{names:?}");
        assert!(names[1..].chunks(2).zip(layers).all(|(files, layer)| files[0] == format!("{layer}/metadata")));
    }

    #[test]
    fn recording_that_goes_on_takes_its_journal_along() {
        let dir = TempDir::new().unwrap();
        Manifest { outcome: None, ..manifest() }.save(dir.path()).unwrap();
        fs::write(dir.path().join("session.journal"), "half a line").unwrap();

        let (_dir, path) = file_of(&packed(&Trace::open(dir.path()).unwrap()));

        let archive = zstd::decode_all(File::open(&path).unwrap()).unwrap();
        assert!(index(&path, &archive).unwrap().contains_key("session.journal"));
        assert_eq!(Trace::open(&path).unwrap().manifest().outcome, None);
    }

    #[test]
    fn archive_that_a_user_made_of_the_folder_is_read_too() {
        let bytes = archive_of(&[
            ("./", EntryType::Directory, b""),
            ("./session.json", EntryType::Regular, &description()),
            ("./vm0/", EntryType::Directory, b""),
        ]);
        let (_dir, path) = file_of(&bytes);

        assert_eq!(Trace::open(&path).unwrap().manifest(), &manifest());
    }

    #[test]
    fn archive_of_the_folder_itself_is_read_whether_it_is_compressed_or_not() {
        let (folder, whole) = recording();
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_dir_all("web-trace", folder.path()).unwrap();
        let archive = archive.into_inner().unwrap();
        let path = folder.path().join("trace.tar");

        let read = [archive.clone(), zstd::encode_all(&*archive, 1).unwrap()].map(|bytes| {
            fs::write(&path, bytes).unwrap();
            records(&Trace::open(&path).unwrap())
        });

        assert_eq!(read, [records(&whole), records(&whole)]);
    }

    #[test]
    fn archive_that_is_not_compressed_is_truncated_where_it_ends_early() {
        let archive = zstd::decode_all(&*packed(&recording().1)).unwrap();

        let lengths = (TAR_HEADER..archive.len() - TAR_HEADER).step_by(TAR_HEADER / 2);
        let lines: Vec<String> = lengths.map(|length| refusal(&archive[..length])).collect();

        assert!(lines.iter().all(|line| line.ends_with("truncated; copy the whole file again")), "{lines:?}");
    }

    #[test]
    fn entries_that_no_recording_has_are_refused_by_name() {
        let refused = |name, kind| {
            let entries = [(MANIFEST_FILE, EntryType::Regular, &description()[..]), (name, kind, b"")];
            refusal(&archive_of(&entries))
        };

        let out = ["../../etc/passwd", "/etc/passwd", "vm0/../../up"].map(|name| refused(name, EntryType::Regular));
        let kinds = [
            EntryType::Symlink,
            EntryType::Link,
            EntryType::Char,
            EntryType::Block,
            EntryType::Fifo,
            EntryType::GNULongName,
            EntryType::XHeader,
            EntryType::GNUSparse,
        ];
        let special = kinds.map(|kind| refused("odd\u{1b}name", kind));
        let twice = ["session.json", "./session.json"].map(|name| refused(name, EntryType::Regular));

        assert!(out.iter().all(|line| line.ends_with("in it leads out of it")), "{out:?}");
        assert!(special.iter().all(|line| line.ends_with("in it is not a regular file")), "{special:?}");
        assert!(twice.iter().all(|line| line.ends_with("in it is there twice")), "{twice:?}");
        let all = [&out[..], &special, &twice].concat();
        assert!(all.iter().all(|line| !line.contains(['\n', '\u{1b}'])), "{all:?}");
    }

    #[test]
    fn file_that_is_cut_anywhere_is_truncated() {
        let bytes = packed(&recording().1);

        let lines: Vec<String> = (5..bytes.len()).step_by(7).map(|length| refusal(&bytes[..length])).collect();

        assert!(lines.iter().all(|line| line.ends_with("truncated; copy the whole file again")), "{lines:?}");
    }

    #[test]
    fn entry_that_is_longer_than_the_archive_is_truncated() {
        let archive = zstd::decode_all(&*archive_of(&[(MANIFEST_FILE, EntryType::Regular, &description())])).unwrap();

        let line = refusal(&zstd::encode_all(&archive[..600], 1).unwrap());

        assert!(line.ends_with("truncated; copy the whole file again"), "{line}");
    }

    #[test]
    fn damaged_file_is_refused_by_its_checksum() {
        let mut bytes = packed(&recording().1);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;

        assert!(refusal(&bytes).contains("damaged; copy it again: "));
    }

    #[test]
    fn what_decompresses_without_end_is_refused() {
        let (_dir, path) = file_of(&packed(&recording().1));
        let file = File::open(&path).unwrap();

        let refused = Packed::within(&path, &file, Form::Zstd, 1000).unwrap_err().to_string();

        assert!(refused.ends_with("decompresses to more than 1000 bytes, which no recording of its size does"));
        assert_eq!([0, 1 << 20, 1 << 30, u64::MAX].map(limit_of), [1 << 30, 1 << 30, 1000 << 30, u64::MAX]);
    }

    #[test]
    fn archive_without_a_recording_says_so() {
        let other = refusal(&archive_of(&[("readme", EntryType::Regular, b"text")]));
        let nothing = refusal(&zstd::encode_all(&b""[..], 1).unwrap());
        let text = refusal(&zstd::encode_all(&b"text"[..], 1).unwrap());

        assert!(other.ends_with("there is no session.json at the top of the archive"), "{other}");
        assert!(nothing.ends_with("there is no session.json at the top of the archive"), "{nothing}");
        assert!(text.contains("damaged; copy it again"), "{text}");
    }

    #[test]
    fn compressed_file_of_another_name_is_reported_as_before() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("log.zst");
        fs::write(&path, zstd::encode_all(&b"text"[..], 1).unwrap()).unwrap();

        let error = Trace::open(&path).unwrap_err();

        assert!(matches!(error, ReadError::Manifest(ManifestError::Foreign { .. })), "{error}");
        assert!(open_archive(&path).is_none() && open_archive(dir.path()).is_none());
    }
}
