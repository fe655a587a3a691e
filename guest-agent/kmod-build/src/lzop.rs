//! Kernels that LZO compresses, unpacked by the program `lzop`.
//!
//! The kernel's `scripts/extract-vmlinux` does so, too: the library of the format is under the GPL, and no other is kept
//! well.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

/// Why `lzop` unpacked nothing.
#[derive(Debug, thiserror::Error)]
pub enum LzopError {
    /// It cannot be run.
    #[error("cannot run it: install the package lzop, or name the uncompressed vmlinux instead")]
    Start(#[source] io::Error),
    /// It cannot be read from or waited for.
    #[error("cannot follow it")]
    Follow(#[source] io::Error),
    /// It takes the input for damaged.
    #[error("it takes the payload for damaged ({0})")]
    Refused(ExitStatus),
    /// What comes out is larger than wanted.
    #[error("the payload is larger than any kernel")]
    TooLarge,
}

/// What `payload` expands to, of `largest` bytes at most.
///
/// # Errors
///
/// When `lzop` is not installed or refuses the payload, or what comes out is larger.
pub(crate) fn decompress(payload: &[u8], largest: usize) -> Result<Vec<u8>, LzopError> {
    let mut program = Command::new("lzop");
    program.args(["--decompress", "--stdout", "--quiet"]);
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut lzop = Lzop(program.spawn().map_err(LzopError::Start)?);
    let (input, output) = (lzop.0.stdin.take(), lzop.0.stdout.take());
    let mut kernel = Vec::new();
    thread::scope(|scope| {
        // where it ends before it has read all, its status says why
        scope.spawn(move || input.map(|mut input| input.write_all(payload)));
        output.map(|output| output.take((largest as u64).saturating_add(1)).read_to_end(&mut kernel)).transpose()
    })
    .map_err(LzopError::Follow)?;
    if kernel.len() > largest {
        return Err(LzopError::TooLarge);
    }
    match lzop.0.wait().map_err(LzopError::Follow)? {
        status if status.success() => Ok(kernel),
        status => Err(LzopError::Refused(status)),
    }
}

/// A running `lzop`, which ends with its use.
struct Lzop(Child);

impl Drop for Lzop {
    fn drop(&mut self) {
        // nothing to do where it has ended by itself
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
