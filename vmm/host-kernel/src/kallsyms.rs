//! The symbols of this machine's kernel (`/proc/kallsyms`). Whether it shows addresses is decided when it is opened, by what
//! the user may then; it is read later, when modules have been loaded.

use std::fs::File;
use std::io::{self, Read, Seek};

/// What is read at once, bytes.
const CHUNK: u64 = 256 << 10;
/// Shown addresses are not all 0 in so many bytes of it.
const BEGIN: u64 = 4 << 10;
/// No kernel has more symbols, bytes.
const MAX_BYTES: usize = 32 << 20;

/// The file, opened.
#[derive(Debug)]
pub struct Kallsyms(File);

impl Kallsyms {
    /// Opens it, if this user may see addresses of the kernel.
    #[must_use]
    pub fn open() -> Option<Self> {
        Self::of(File::open("/proc/kallsyms").ok()?)
    }

    fn of(mut file: File) -> Option<Self> {
        let mut begin = Vec::new();
        (&mut file).take(BEGIN).read_to_end(&mut begin).ok()?;
        // Addresses that are hidden are all zeros. Some per-CPU symbols at the beginning are at 0.
        let is_shown = |line: &[u8]| line.len() > 16 && line.iter().take(16).any(|&digit| digit != b'0');
        begin.split(|&byte| byte == b'\n').any(is_shown).then_some(Self(file))
    }

    /// What it has now. Calls `meanwhile` behind each part of it, which takes some milliseconds.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self, meanwhile: &mut dyn FnMut()) -> io::Result<Vec<u8>> {
        let mut file = &self.0;
        let mut text = Vec::new();
        file.rewind()?;
        while file.take(CHUNK).read_to_end(&mut text)? > 0 && text.len() < MAX_BYTES {
            meanwhile();
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn symbols_are_read_whole_and_again_with_a_look_elsewhere_between_parts() {
        let text = "ffffffff81000000 T _text\n".repeat(20_000);
        let kallsyms = Kallsyms::of(file(&text)).unwrap();

        let mut looks = 0;
        let read = kallsyms.read(&mut || looks += 1).unwrap();

        assert_eq!((read == text.as_bytes(), looks), (true, 2));
        assert_eq!(kallsyms.read(&mut || {}).unwrap(), read);
    }

    #[test]
    fn symbols_that_begin_at_0_are_shown() {
        let text = "0000000000000000 A fixed_percpu_data\n0000000000000000 A __per_cpu_start\n0000000000001000 A cpu_debug_store\n";

        assert!(Kallsyms::of(file(text)).is_some());
    }

    #[test]
    fn addresses_that_are_hidden_are_no_symbols() {
        assert!(Kallsyms::of(file("0000000000000000 T _text\n0000000000000000 T _stext\n")).is_none());
        assert!(Kallsyms::of(file("")).is_none());
    }
}
