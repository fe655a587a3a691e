//! What a program that is not static needs beside it, on a host or in a guest that has nothing.

use crate::process::{self, ProcessError};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries and the dynamic loader of all `programs`, by their absolute paths, each once.
///
/// # Errors
///
/// When a program is not there, or `ldd` does not know what it needs.
pub fn of(programs: &[PathBuf]) -> Result<Vec<PathBuf>, ProcessError> {
    Ok(paths(&process::capture(Command::new("ldd").args(programs))?))
}

/// The program `name`, its libraries and its loader (`ld-linux-x86-64.so.2`), each with its file name: what `$LAB` is to
/// have of it.
///
/// # Errors
///
/// When it is not installed, or `ldd` does not know what it needs.
pub fn with_program(name: &str) -> Result<Vec<(String, PathBuf)>, ProcessError> {
    let program = process::find_program(name).unwrap_or_else(|| name.into());
    let objects = named(std::slice::from_ref(&program))?;
    Ok(std::iter::once((name.to_owned(), program)).chain(objects).collect())
}

/// The libraries and the loader of all `programs`, each once with its file name.
///
/// # Errors
///
/// When a program is not there, or `ldd` does not know what it needs.
pub fn named(programs: &[PathBuf]) -> Result<Vec<(String, PathBuf)>, ProcessError> {
    let named = |path: PathBuf| Some((path.file_name()?.to_str()?.to_owned(), path));
    Ok(of(programs)?.into_iter().filter_map(named).collect())
}

/// The absolute paths in the lines of `ldd`: `libm.so.6 => /lib/libm.so.6 (0x…)` and, of the loader,
/// `/lib64/ld-linux-x86-64.so.2 (0x…)`. For several programs, a line begins with each one's name.
fn paths(ldd: &str) -> Vec<PathBuf> {
    let indented = ldd.lines().filter(|line| line.starts_with(char::is_whitespace));
    let named = indented.filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let mut paths: Vec<_> = named.map(|path| Path::new(path).to_path_buf()).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_objects_are_the_paths_in_ldds_lines_once_each() {
        let listing = "/usr/bin/a:\n\tlinux-vdso.so.1 (0x7ff)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f0)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x7f1)\n/usr/bin/b:\n\tlibc.so.6 => /lib/libc.so.6 (0x7f2)\n";

        assert_eq!(paths(listing), ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from));
    }
}
