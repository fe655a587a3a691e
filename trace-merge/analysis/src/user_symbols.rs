//! Symbols of a guest's programs and libraries, from their files.
//!
//! The paths come from the guest. They are looked up as the guest would: in the folder that holds its root, from which
//! neither `..` nor a symbolic link leads out. The files are parsed by `blazesym`.

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

/// Most files that are kept open; the others have no symbols.
const MAX_FILES: usize = 256;

/// Finds symbols in the files of one guest. A thread of its own does the work: what `blazesym` keeps cannot go from one
/// thread to another.
#[derive(Debug)]
pub struct UserSymbols {
    questions: mpsc::Sender<(String, u64)>,
    answers: mpsc::Receiver<Option<String>>,
}

impl UserSymbols {
    /// Symbols of the files under `root`, which holds the guest's root folder or what matters of it.
    ///
    /// # Errors
    /// When there is no such folder, or no thread can be had.
    pub fn new(root: &Path) -> io::Result<Self> {
        let root = open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let (questions, to_answer) = mpsc::channel::<(String, u64)>();
        let (answer, answers) = mpsc::channel();
        thread::Builder::new().name("strata-symbols".into()).spawn(move || {
            let mut files = Files::new(root);
            for (path, offset) in to_answer {
                if answer.send(files.function(&path, offset)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { questions, answers })
    }

    /// The function at `offset`, bytes, of the file `path` of the guest, demangled; `None` when the file is not there or
    /// has no symbol for it.
    pub fn function(&mut self, path: &str, offset: u64) -> Option<String> {
        self.questions.send((path.into(), offset)).ok()?;
        self.answers.recv().ok()?
    }
}

/// The files whose symbols were requested.
struct Files {
    root: OwnedFd,
    symbolizer: Symbolizer,
    open: HashMap<String, Option<File>>,
}

/// A file of the guest, kept open because `blazesym` reads it again by its path.
struct File {
    _descriptor: OwnedFd,
    path: PathBuf,
}

impl Files {
    fn new(root: OwnedFd) -> Self {
        let symbolizer = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build();
        Self { root, symbolizer, open: HashMap::new() }
    }

    fn function(&mut self, path: &str, offset: u64) -> Option<String> {
        if !self.open.contains_key(path) {
            let file = if self.open.len() < MAX_FILES { self.open(path) } else { None };
            self.open.insert(path.into(), file);
        }
        let file = self.open.get(path)?.as_ref()?;
        let source = Source::Elf(Elf::new(&file.path));
        let found = self.symbolizer.symbolize_single(&source, Input::FileOffset(offset)).ok()?;
        let name = found.as_sym()?.name.to_string();
        (!name.is_empty()).then_some(name)
    }

    fn open(&self, path: &str) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let descriptor = openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        let status = rustix::fs::fstat(&descriptor).ok()?;
        if rustix::fs::FileType::from_raw_mode(status.st_mode) != rustix::fs::FileType::RegularFile {
            return None;
        }
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into();
        Some(File { _descriptor: descriptor, path })
    }
}

#[cfg(any(test, feature = "test-recordings"))]
pub mod own_function;

#[cfg(test)]
mod tests {
    use super::own_function::own_function;
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    #[test]
    fn function_of_a_file_is_found_by_its_offset() {
        let (path, offset) = own_function();
        let mut symbols = UserSymbols::new(Path::new("/")).unwrap();

        let function = symbols.function(&path, offset + 1).unwrap();

        assert!(function.contains("function_to_be_found"), "{function}");
        assert_eq!(symbols.function("/no/such/file", 0), None);
    }

    #[test]
    fn guests_paths_stay_in_the_guests_root() {
        let (path, offset) = own_function();
        let dir = TempDir::new().unwrap();
        symlink("/", dir.path().join("out")).unwrap();
        let mut symbols = UserSymbols::new(dir.path()).unwrap();

        assert_eq!(symbols.function(&format!("../../../../../../{path}"), offset), None);
        assert_eq!(symbols.function(&format!("/out{path}"), offset), None);
        assert_eq!(symbols.function("/", 0), None);
    }

    #[test]
    fn root_must_be_a_folder() {
        assert!(UserSymbols::new(Path::new("/proc/self/status")).is_err());
    }
}
