//! Files that `/proc` has of another process. How long they are is up to that process, so that each is read up to a bound.

use std::fs::File;
use std::io::{self, Read};

/// Most that is read of a command line, bytes: QEMU's has some 16 KiB for a VM with many devices.
const MAX_COMMAND_LINE: u64 = 64 << 10;

/// The command line of process `pid`: its words, each with a zero byte behind it. Of a longer one than 64 KiB, the words
/// that are whole by then.
///
/// # Errors
/// There is no such process, or this user may not look into it.
pub fn command_line(pid: u32) -> io::Result<Vec<u8>> {
    begin(File::open(format!("/proc/{pid}/cmdline"))?, MAX_COMMAND_LINE, 0)
}

/// What process `pid` maps, as `/proc/PID/maps` tells it: a line for each mapping. Of more than `most` bytes, the lines
/// that are whole by then.
///
/// # Errors
/// There is no such process, or this user may not look into it.
pub fn maps(pid: u32, most: u64) -> io::Result<String> {
    let maps = begin(File::open(format!("/proc/{pid}/maps"))?, most, b'\n')?;
    // A path need not be text: that is not a reason to know nothing of the others.
    Ok(String::from_utf8_lossy(&maps).into_owned())
}

/// What of `file` is within `most` bytes: of a longer one, up to the last `end`.
fn begin(file: impl Read, most: u64, end: u8) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = file.take(most).read_to_end(&mut bytes)?;
    if read as u64 == most {
        bytes.truncate(bytes.iter().rposition(|&byte| byte == end).map_or(0, |last| last + 1));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn file_without_an_end_is_read_up_to_the_bound_and_cut_behind_a_whole_part() {
        let lines = b"one\ntwo\n".chain(io::repeat(b'x'));

        assert_eq!(begin(lines, 1024, b'\n').unwrap(), b"one\ntwo\n");
        assert_eq!(begin(io::repeat(b'x'), 1024, b'\n').unwrap(), b"");
        assert_eq!(begin(&b"one\0two"[..], 1024, 0).unwrap(), b"one\0two");
    }

    #[test]
    fn long_command_line_of_another_process_is_read_up_to_its_last_whole_word() {
        let words = ["x".repeat(20 << 10), "x".repeat(80 << 10)];
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo; read x"]).args(&words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        // A process has its command line once it runs.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();

        let line = command_line(child.id()).unwrap();
        child.wait().unwrap();

        assert!(line == format!("sh\0-c\0echo; read x\0{}\0", words[0]).into_bytes(), "{} bytes", line.len());
    }

    #[test]
    fn mappings_are_whole_lines_within_the_bound() {
        let this = std::process::id();

        let (all, some) = (maps(this, 8 << 20).unwrap(), maps(this, 200).unwrap());

        assert!(all.len() > 200 && some.len() < 200 && some.ends_with('\n'), "{some}");
    }
}
