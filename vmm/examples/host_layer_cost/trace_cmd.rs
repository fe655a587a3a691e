//! `trace-cmd record` beside the load: the processor time of all of its processes while the load works. What it does
//! before and afterwards (it puts its files together) is left out, in its favour.

use super::instance::counts;
use super::{print, start_load};
use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use strata_host_kernel::Tracefs;

/// Runs a command where no process sees the files by which functions are traced: some machines refuse them even to
/// root, and `trace-cmd` empties them though it traces events alone. The mounts end with the command.
const WITHOUT_FUNCTIONS: &str = r#"
tracefs=$1 files=$2
shift 2
for file in /proc/sys/kernel/ftrace_enabled "$tracefs"/set_ftrace_* "$tracefs"/set_graph_*; do
    test -e "$file" || continue
    : > "$files/${file##*/}"
    mount --bind "$files/${file##*/}" "$file" || exit
done
exec "$@"
"#;
/// How long it may take until it records.
const TO_BEGIN: Duration = Duration::from_secs(30);
/// From the end of the load to the last look at what recording took: it reads every millisecond.
const TO_CATCH_UP: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(10);

/// What it says, in the folder that it records into.
const LOG: &str = "trace-cmd.log";

/// The machine's own switch of recording, which gets back what it was when this is dropped: `trace-cmd` leaves it off.
struct RecordingSwitch {
    file: PathBuf,
    was: String,
}

impl RecordingSwitch {
    fn turned_off(tracefs: &Path) -> anyhow::Result<Self> {
        let file = tracefs.join("tracing_on");
        let was = read(&file)?;
        fs::write(&file, "0").with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self { file, was })
    }

    fn is_on(&self) -> bool {
        read(&self.file).is_ok_and(|text| text.trim() == "1")
    }
}

impl Drop for RecordingSwitch {
    fn drop(&mut self) {
        // The machine may do without.
        let _ = fs::write(&self.file, self.was.trim());
    }
}

/// `trace-cmd record`, ended when this is dropped.
struct Recorder(Child);

impl Drop for Recorder {
    fn drop(&mut self) {
        // It may have ended. One that is killed would leave the processes that it started.
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let _ = self.0.wait();
    }
}

pub fn trace_cmd(trace: &Path, events: &str, load: [&str; 3]) -> anyhow::Result<()> {
    let tracefs = Tracefs::find()?;
    let mut child = start_load(load)?;
    fs::create_dir(trace).with_context(|| format!("cannot make {}", trace.display()))?;
    let switch = RecordingSwitch::turned_off(tracefs.root())?;
    let mut recorder = Recorder(start(trace, tracefs.root(), events, child.id())?);
    wait_until_recording(&mut recorder.0, &switch)
        .with_context(|| fs::read_to_string(trace.join(LOG)).unwrap_or_default())?;

    let (begun, used) = (Instant::now(), processor_ns_of_tree(recorder.0.id())?);
    child.stdin.as_mut().context("the load's standard input")?.write_all(b"\n")?;
    // The load says so when it has made its calls.
    child.stdout.as_mut().context("the load's standard output")?.read_exact(&mut [0])?;
    let wall = begun.elapsed();
    thread::sleep(TO_CATCH_UP);
    let cpu_ns = processor_ns_of_tree(recorder.0.id())? - used;
    let (records, lost) = counts(tracefs.root())?;
    drop(recorder);

    drop(child.stdin.take());
    child.wait()?;
    print(&[("records", records), ("lost", lost)], cpu_ns, wall);
    Ok(())
}

/// Starts it in `trace`, with the buffers and the clock of the others. It gets the machine's own buffers: it does not
/// manage in an instance what it is refused elsewhere.
fn start(trace: &Path, tracefs: &Path, events: &str, load: u32) -> anyhow::Result<Child> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", WITHOUT_FUNCTIONS, "sh"]).args([tracefs, trace]);
    command.args(["trace-cmd", "record", "-q", "-b", "8192", "-C", "x86-tsc", "-P", &load.to_string(), "-c"]);
    command.args(["--compression", "none", "-o"]).arg(trace.join("trace.dat"));
    command.args(events.split(',').flat_map(|event| ["-e", event]));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(trace.join(LOG))?);
    command.spawn().context("cannot start trace-cmd")
}

/// It starts a process for each CPU, then turns recording on.
fn wait_until_recording(recorder: &mut Child, switch: &RecordingSwitch) -> anyhow::Result<()> {
    let until = Instant::now() + TO_BEGIN;
    while !switch.is_on() {
        if let Some(status) = recorder.try_wait()? {
            bail!("trace-cmd record ended before it recorded: {status}");
        }
        ensure!(Instant::now() < until, "trace-cmd record does not begin");
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Processor time of a process and of all that it has started and that live, ns.
fn processor_ns_of_tree(pid: u32) -> anyhow::Result<i64> {
    let times = read(Path::new(&format!("/proc/{pid}/schedstat")))?;
    let own: i64 = times.split(' ').next().unwrap_or_default().parse().context("the kernel counts no time")?;
    children(pid)?.into_iter().try_fold(own, |sum, child| Ok(sum + processor_ns_of_tree(child)?))
}

fn children(pid: u32) -> anyhow::Result<Vec<u32>> {
    let children = read(Path::new(&format!("/proc/{pid}/task/{pid}/children")))?;
    Ok(children.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
