//! What recording the host's kernel costs the recorder for each record: `cargo xtask bench host`. Prints a JSON object.
//!
//! `host_layer_cost record TRACE EVENTS THREADS CALLS RATE`: records `EVENTS` of a process of `THREADS` threads, each
//! of which makes `CALLS` system calls (`getppid`), `RATE` of them a second or, with 0, as fast as it can.
//! `host_layer_cost splice TRACE EVENTS THREADS CALLS RATE`: the same, but the kernel's pages are moved into files as
//! they are, as `trace-cmd record` does. `EVENTS` are then names as `set_event` takes them.
//! `host_layer_cost load THREADS CALLS RATE` is that process: it begins when its standard input ends.

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::pipe::{self, SpliceFlags, pipe};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use trace_merge::clock::{Clock, UtcAnchor};
use trace_merge::manifest::{FORMAT_VERSION, Manifest, Started};
use uuid::Uuid;
use vmm::clock::HostClock;
use vmm::host_kernel::Tracefs;
use vmm::machine::probe_kvm;
use vmm::tracing::host_description::describe_host;
use vmm::tracing::host_layer::HostLayer;
use vmm::tracing::host_tracer::start_host_tracer;
use vmm::tracing::polling::{Found, PollInterval};
use vmm::tracing::selection::Selection;

/// Longest pause between two polls: the recorder's.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
/// What a pipe holds: 16 pages.
const PIPE_BYTES: usize = 64 << 10;
/// Pipes that are filled from one CPU before the next one has its turn: as much as the recorder reads.
const PIPES_PER_POLL: usize = 4;
/// Part of a second in which a paced thread makes its calls at once, and then sleeps.
const SLOTS: u64 = 1000;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["load", threads, calls, rate] => load(threads.parse()?, calls.parse()?, rate.parse()?),
        ["record", trace, events, threads, calls, rate] => record(Path::new(trace), events, [threads, calls, rate]),
        ["splice", trace, events, threads, calls, rate] => splice(Path::new(trace), events, [threads, calls, rate]),
        _ => bail!("give record TRACE EVENTS THREADS CALLS RATE"),
    }
}

fn load(threads: u32, calls: u64, rate: u64) -> anyhow::Result<()> {
    io::stdin().read_to_end(&mut Vec::new())?;
    let threads: Vec<_> = (0..threads).map(|_| thread::spawn(move || make_calls(calls, rate))).collect();
    for thread in threads {
        thread.join().ok().context("a thread of the load failed")?;
    }
    Ok(())
}

/// Makes `calls` system calls, `rate` of them a second unless that is 0.
fn make_calls(calls: u64, rate: u64) {
    let slot = if rate == 0 { calls } else { rate.div_ceil(SLOTS) };
    let (begun, mut slots, mut left) = (Instant::now(), 0, calls);
    while left > 0 {
        let now = slot.min(left);
        for _ in 0..now {
            let _ = rustix::process::getppid();
        }
        left -= now;
        slots += 1;
        if rate != 0 {
            let next = begun + Duration::from_micros(slots * (1_000_000 / SLOTS));
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
}

/// The load, which waits for the end of its standard input.
fn start_load(load: [&str; 3]) -> anyhow::Result<Child> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("load").args(load).stdin(Stdio::piped()).spawn().context("cannot start the load")
}

fn record(trace: &Path, events: &str, load: [&str; 3]) -> anyhow::Result<()> {
    let mut child = start_load(load)?;
    let probed = probe_kvm();
    let clock = HostClock::observe(probed.tsc_khz);
    let tracer = start_host_tracer(&Selection::parse(events)?, clock.time, child.id(), vec![child.id()])?;
    let tracer = tracer.context("EVENTS names none of the host's kernel")?;
    let manifest = Manifest {
        format: FORMAT_VERSION,
        strata: env!("CARGO_PKG_VERSION").into(),
        started: Started::at(0),
        clock: Clock {
            uuid: Uuid::new_v4(),
            frequency_hz: clock.trace_frequency(),
            utc: UtcAnchor { ticks: 0, utc_ns: 0, uncertainty_ns: 0 },
            source: clock.time.trace_clock().into(),
            vcpus: Vec::new(),
            error_bound_ns: clock.error_bound_ns(),
            bound_derivation: "one counter".into(),
            epochs: Vec::new(),
            utc_readings: Vec::new(),
        },
        host: describe_host(&probed),
        vms: Vec::new(),
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: Some("measured".into()),
    };
    let mut layer = HostLayer::create(None, trace, &manifest, tracer)?;
    // The first poll leaves this thread out of the trace and finds nothing yet.
    layer.drain(None);
    drop(child.stdin.take());

    let (begun, used) = (Instant::now(), processor_ns());
    let (mut interval, mut polls) = (PollInterval::new(), 0_u64);
    while child.try_wait()?.is_none() {
        polls += 1;
        let found = layer.drain(None);
        thread::sleep(interval.after(found, LONGEST_PAUSE));
    }
    let missing = layer.finish(None);
    let (cpu_ns, wall) = (processor_ns() - used, begun.elapsed());

    let mut finished = manifest.clone();
    finished.layers = vec![layer.layer()];
    finished.missing = missing;
    finished.save(trace)?;
    let streams = &finished.layers[0].streams;
    let records: u64 = streams.iter().map(|stream| stream.records).sum();
    let lost: u64 = streams.iter().map(|stream| stream.lost.full).sum();
    print(&[("records", records), ("lost", lost), ("polls", polls)], cpu_ns, wall);
    Ok(())
}

fn print(counts: &[(&str, u64)], cpu_ns: i64, wall: Duration) {
    let mut figures = json!({ "cpu_ns": cpu_ns, "wall_s": wall.as_secs_f64() });
    for (name, count) in counts {
        figures[*name] = (*count).into();
    }
    println!("{figures}");
}

/// A tracing instance that is removed at the end.
struct Instance(PathBuf);

impl Instance {
    fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = self.0.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write to {}", path.display()))
    }

    /// The sum over all CPUs of what `stats` calls `name`.
    fn count(&self, name: &str) -> anyhow::Result<u64> {
        let mut sum = 0;
        for cpu in fs::read_dir(self.0.join("per_cpu"))? {
            let stats = fs::read_to_string(cpu?.path().join("stats"))?;
            let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            sum += line.with_context(|| format!("the kernel does not count \"{name}\""))?.trim().parse::<u64>()?;
        }
        Ok(sum)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // What is left of it can be removed by hand.
        let _ = fs::remove_dir(&self.0);
    }
}

fn splice(trace: &Path, events: &str, load: [&str; 3]) -> anyhow::Result<()> {
    let mut child = start_load(load)?;
    let instance = Instance(Tracefs::find()?.root().join(format!("instances/splice-{}", std::process::id())));
    fs::create_dir(&instance.0).context("cannot make a tracing instance")?;
    fs::create_dir(trace).with_context(|| format!("cannot make {}", trace.display()))?;
    instance.write("tracing_on", "0")?;
    instance.write("buffer_size_kb", "8192")?;
    instance.write("trace_clock", "x86-tsc")?;
    instance.write("options/event-fork", "1")?;
    instance.write("set_event_pid", &child.id().to_string())?;
    // The whole list at once: opening the file for writing empties it.
    instance.write("set_event", &events.replace(',', "\n"))?;
    let mut cpus = Vec::new();
    for cpu in fs::read_dir(instance.0.join("per_cpu"))? {
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
    let records = instance.count("read events")? + instance.count("entries")?;
    let lost = instance.count("overrun")? + instance.count("dropped events")?;
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

/// Processor time of this thread, ns: what others run meanwhile does not count.
fn processor_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
