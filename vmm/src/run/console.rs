//! The terminal as the guest's console.

pub(super) mod output;

use output::{ConsoleLimit, ConsoleOutput, Pace};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, IsTerminal, stdin, stdout};
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

/// Standard output as the guest's screen, within `limit`.
///
/// # Errors
/// When it is closed, or its thread cannot be started.
pub(super) fn screen(limit: Option<ConsoleLimit>) -> io::Result<ConsoleOutput> {
    let pace = if stdout().is_terminal() { Pace::Bytes } else { Pace::Lines };
    ConsoleOutput::start(File::from(stdout().as_fd().try_clone_to_owned()?), pace, limit)
}
