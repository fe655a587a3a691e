//! The terminal as the guest's console.

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, IsTerminal, LineWriter, Stdout, Write, stdin, stdout};
use std::os::fd::AsFd;

/// Standard input as the guest's keyboard. A terminal passes keys on one by one and unechoed as long as this lives;
/// Ctrl-C still ends the run.
#[derive(Debug)]
pub struct Keyboard {
    before: Option<Termios>,
}

impl Keyboard {
    /// Takes over standard input. `None` where there is no input to be had: it is closed, for instance.
    #[must_use]
    pub fn take() -> (Self, Option<File>) {
        let input = stdin().as_fd().try_clone_to_owned().ok().map(File::from);
        let before = isatty(stdin()).then(|| tcgetattr(stdin()).ok()).flatten();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            raw.special_codes[SpecialCodeIndex::VMIN] = 1;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            // A terminal that refuses stays as it is: line by line.
            let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
        }
        (Self { before }, input)
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

/// Standard output as the guest's screen. A terminal shows each byte at once; anything else gets whole lines, since a
/// system call for each of a boot's thousands of bytes would slow the guest down.
#[must_use]
pub fn screen() -> Box<dyn Write + Send> {
    if stdout().is_terminal() { Box::new(stdout()) } else { Box::new(Lines(LineWriter::new(stdout()))) }
}

/// Passes whole lines on; a flush in mid-line is ignored, and what is left is written at the end.
struct Lines(LineWriter<Stdout>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // There is nobody left to tell.
        let _ = self.0.flush();
    }
}
