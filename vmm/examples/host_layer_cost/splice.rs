//! Moves the kernel's pages into files as they are, and does nothing else.

use super::instance::{Instance, counts};
use super::{LONGEST_PAUSE, print, processor_ns, start_load};
use anyhow::Context;
use rustix::io::Errno;
use rustix::pipe::{self, SpliceFlags, pipe};
use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::Instant;
use strata_recorder::drain::polling::{Found, PollInterval};

/// What a pipe holds: 16 pages.
const PIPE_BYTES: usize = 64 << 10;
/// Pipes that are filled from one CPU before the next one has its turn: as much as the recorder reads.
const PIPES_PER_POLL: usize = 4;

pub fn splice(trace: &Path, events: &str, load: [&str; 3]) -> anyhow::Result<()> {
    let mut child = start_load(load)?;
    let instance = Instance::called(&format!("splice-{}", std::process::id()))?;
    fs::create_dir(instance.folder()).context("cannot make a tracing instance")?;
    fs::create_dir(trace).with_context(|| format!("cannot make {}", trace.display()))?;
    instance.write("tracing_on", "0")?;
    instance.write("buffer_size_kb", "8192")?;
    instance.write("trace_clock", "x86-tsc")?;
    instance.write("options/event-fork", "1")?;
    instance.write("set_event_pid", &child.id().to_string())?;
    // The whole list at once: opening the file for writing empties it.
    instance.write("set_event", &events.replace(',', "\n"))?;
    let mut cpus = Vec::new();
    for cpu in fs::read_dir(instance.folder().join("per_cpu"))? {
        let cpu = cpu?;
        let pages =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(cpu.path().join("trace_pipe_raw"))?;
        cpus.push((pages, File::create(trace.join(cpu.file_name()))?));
    }
    let (from_pipe, to_pipe) = pipe()?;
    instance.write("tracing_on", "1")?;
    drop(child.stdin.take());

    let (begun, used) = (Instant::now(), processor_ns());
    let (mut interval, mut polls, mut bytes) = (PollInterval::new(), 0_u64, 0_u64);
    let mut is_over = false;
    while !is_over {
        // After the load has ended, all that is left.
        is_over = child.try_wait()?.is_some();
        polls += 1;
        let moved = move_pages(&mut cpus, (&from_pipe, &to_pipe), if is_over { usize::MAX } else { PIPES_PER_POLL })?;
        bytes += moved;
        thread::sleep(interval.after(if moved > 0 { Found::More } else { Found::Nothing }, LONGEST_PAUSE));
    }
    let (cpu_ns, wall) = (processor_ns() - used, begun.elapsed());
    let (records, lost) = counts(instance.folder())?;
    print(&[("records", records), ("lost", lost), ("polls", polls), ("bytes", bytes)], cpu_ns, wall);
    Ok(())
}

/// Moves whole pages of each CPU through the pipe into its file, up to so many times what the pipe holds. Bytes moved.
fn move_pages(cpus: &mut [(File, File)], (from, to): (&OwnedFd, &OwnedFd), most: usize) -> anyhow::Result<u64> {
    let mut moved = 0;
    for (pages, file) in cpus {
        for _ in 0..most {
            let mut in_pipe = match pipe::splice(&*pages, None, to, None, PIPE_BYTES, SpliceFlags::NONBLOCK) {
                Ok(0) | Err(Errno::AGAIN | Errno::NODEV) => break,
                Ok(bytes) => bytes,
                Err(error) => return Err(error).context("cannot move the kernel's pages"),
            };
            moved += in_pipe as u64;
            while in_pipe > 0 {
                let written = pipe::splice(from, None, &*file, None, in_pipe, SpliceFlags::MOVE);
                in_pipe -= written.context("cannot write the pages")?;
            }
        }
    }
    Ok(moved)
}
