//! A file for trace-cmd: system calls, recorded by ftrace into its own pages, which trace-cmd puts together.

use crate::process;
use anyhow::{Context, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes that a record and its share of a page take at most.
const RECORD_BYTES: u64 = 64;
/// Each turn of the workload is a read and a write, recorded at their begin and end.
const RECORDS_A_TURN: u64 = 4;
const PAGE: usize = 4096;

/// A file that trace-cmd reads.
pub(super) struct Recorded {
    pub(super) file: PathBuf,
    /// Records in it.
    pub(super) events: u64,
}

/// A tracing instance that ends with this.
struct Instance(PathBuf);

impl Drop for Instance {
    fn drop(&mut self) {
        // One that stays is seen in tracefs; it records nothing.
        let _ = fs::write(self.0.join("tracing_on"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// Records about `events` events of the first CPU into `folder`.
pub(super) fn record(folder: &Path, events: u64) -> anyhow::Result<Recorded> {
    let path = PathBuf::from(format!("/sys/kernel/tracing/instances/bench-merge-{}", std::process::id()));
    fs::create_dir(&path).context("no tracing instance can be made (not root, or no tracefs)")?;
    let instance = Instance(path);
    let set = |file: &str, value: &str| {
        let file = instance.0.join(file);
        fs::write(&file, value).with_context(|| format!("cannot write {}", file.display()))
    };
    set("tracing_on", "0")?;
    set("per_cpu/cpu0/buffer_size_kb", &(events * RECORD_BYTES / 1024).to_string())?;
    set("events/raw_syscalls/enable", "1")?;
    let script = format!(
        "echo $$ > {0}/set_event_pid && echo 1 > {0}/tracing_on && \
         exec taskset -c 0 dd if=/dev/zero of=/dev/null bs=1 count={1}",
        instance.0.display(),
        events / RECORDS_A_TURN
    );
    process::capture(Command::new("sh").args(["-c", &script]))?;
    set("tracing_on", "0")?;
    let (recorded, lost) = counts(&fs::read_to_string(instance.0.join("per_cpu/cpu0/stats"))?);
    ensure!(recorded >= events && lost == 0, "ftrace recorded {recorded} events and lost {lost}");
    let pages = folder.join("trace.dat.cpu0");
    copy_pages(&instance.0.join("per_cpu/cpu0/trace_pipe_raw"), &pages)?;
    let (head, file) = (folder.join("head.dat"), folder.join("trace.dat"));
    process::capture(Command::new("trace-cmd").args(["restore", "-c", "-o"]).arg(&head))?;
    process::capture(Command::new("trace-cmd").args(["restore", "-i"]).arg(&head).arg("-o").arg(&file).arg(&pages))?;
    fs::remove_file(pages)?;
    Ok(Recorded { file, events: recorded })
}

/// Entries of a CPU's buffer, and those that it lost.
fn counts(stats: &str) -> (u64, u64) {
    let value = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    (value("entries"), value("overrun") + value("dropped events"))
}

/// Copies the pages that are there; the file has no end.
fn copy_pages(from: &Path, to: &Path) -> anyhow::Result<()> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits())?;
    let mut pages = OpenOptions::new().read(true).custom_flags(nonblocking).open(from)?;
    let mut copy = io::BufWriter::new(File::create(to)?);
    let mut page = [0; PAGE];
    loop {
        match pages.read(&mut page) {
            Ok(0) => break,
            Ok(read) => io::Write::write_all(&mut copy, &page[..read])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error).context("cannot read ftrace's pages"),
        }
    }
    io::Write::flush(&mut copy).context("cannot write ftrace's pages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_kernel() {
        let stats =
            "entries: 800308\noverrun: 3\ncommit overrun: 0\nbytes: 38872052\ndropped events: 4\nread events: 0\n";

        assert_eq!(counts(stats), (800_308, 7));
    }
}
