//! Programs in C that measure themselves when they are asked: see `include/chunks.h`.

use crate::sampling::{CHUNK, CHUNKS};
use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Where `chunks.h` lies.
pub const INCLUDES: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");

/// A running program; killed when dropped.
pub struct MeasuredProgram {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl MeasuredProgram {
    /// Starts it, and waits until it is ready.
    ///
    /// # Errors
    /// When it cannot be started, or says something else.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the program has no pipes");
        };
        let mut program = Self { child, input, output: BufReader::new(output) };
        let answer = program.answer()?;
        ensure!(answer.trim() == "ready", "the program said {answer:?}");
        Ok(program)
    }

    /// One sample of `what`: nanoseconds of an operation.
    ///
    /// # Errors
    /// When it has ended.
    pub fn sample(&mut self, what: u32) -> anyhow::Result<f64> {
        writeln!(self.input, "{what} {CHUNK} {CHUNKS}")?;
        self.input.flush()?;
        Ok(self.answer()?.trim().parse()?)
    }

    fn answer(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the program ended");
        Ok(line)
    }
}

impl Drop for MeasuredProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `command` writes.
///
/// # Errors
/// When it cannot be started or fails; the error holds the last line that it said.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", message.lines().last().unwrap_or_default());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
