//! What the traces of a [flight recorder's run](crate::scenarios::flight_recorder) have to show, and what they showed.

use crate::process::{self, ProcessError};
use serde::Deserialize;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All layers of a trace.
const ALL: [&str; 4] = ["host-kernel", "vmm", "guest-kernel", "guest-user"];

/// Why the run did not show what it has to.
#[derive(Debug, thiserror::Error)]
pub enum FlightCheckError {
    /// A program that judges a trace failed.
    #[error("{} cannot be judged", trace.display())]
    Program {
        trace: PathBuf,
        #[source]
        source: ProcessError,
    },
    /// What a program says of a trace cannot be understood.
    #[error("{} cannot be understood", path.display())]
    Json {
        path: PathBuf,
        /// Where it goes wrong.
        #[source]
        source: serde_json::Error,
    },
    /// Something that has to hold does not.
    #[error("{what}: {found}")]
    Unmet {
        /// What has to hold.
        what: &'static str,
        /// What was found.
        found: String,
    },
}

/// One trace of the run.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its folder's name.
    pub trace: &'static str,
    /// Records in it.
    pub records: usize,
    /// From its first to its last record, seconds.
    pub seconds: f64,
    /// From the guest kernel's last record to the trace's last one, milliseconds.
    pub guest_ends_before_ms: f64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<18} {:>8} records over {:>7.1} s; the guest's kernel is silent in the last {:.1} ms",
            self.trace, self.records, self.seconds, self.guest_ends_before_ms
        )
    }
}

/// One event of `strata events --json`.
#[derive(Clone, Debug, Deserialize)]
struct Event {
    /// The trace clock.
    ticks: u64,
    layer: String,
    event: String,
}

#[derive(Deserialize)]
struct Session {
    clock: Clock,
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    kind: String,
    path: String,
    streams: Vec<Stream>,
}

#[derive(Deserialize)]
struct Stream {
    overwritten: u64,
    lost: Lost,
}

#[derive(Deserialize)]
struct Lost {
    full: u64,
}

#[derive(Deserialize)]
struct Clock {
    frequency_hz: u64,
}

/// What `strata report death --json` says.
#[derive(Deserialize)]
struct Death {
    vms: Vec<VmDeath>,
}

#[derive(Debug, Deserialize)]
struct VmDeath {
    cpus: Vec<CpuDeath>,
    host_cpus: Vec<HostCpuDeath>,
}

#[derive(Debug, Deserialize)]
struct CpuDeath {
    guest: String,
    vcpu: String,
    /// When it recorded for the last time, ns before the last record of all.
    last_ns: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct HostCpuDeath {
    runs: String,
    /// When it recorded for the last time, ns before the last record of all; nothing of one that was idle all the time.
    last_ns: Option<i64>,
}

impl VmDeath {
    /// Whether the reports show of both vCPUs what the guest and the vCPU did, up to the guest's last record.
    fn reports_each_vcpu(&self) -> bool {
        let is_reported = |cpu: &CpuDeath| cpu.guest != "not known" && cpu.vcpu != "unknown" && cpu.last_ns.is_some();
        self.cpus.len() == 2
            && self.cpus.iter().all(is_reported)
            && self.cpus.iter().filter_map(|cpu| cpu.last_ns).max() == Some(0)
    }

    /// Whether the reports show what those CPUs of the host ran that recorded it.
    fn reports_to_the_host(&self) -> bool {
        let mut recorded = self.host_cpus.iter().filter(|cpu| cpu.last_ns.is_some()).peekable();
        recorded.peek().is_some() && recorded.all(|cpu| cpu.runs != "not known")
    }
}

struct Results<'a> {
    folder: &'a Path,
    strata: &'a Path,
}

/// A trace, read.
struct Read {
    name: &'static str,
    events: Vec<Event>,
    frequency: u64,
    layers: Vec<Layer>,
}

impl Read {
    /// How much was overwritten of the beginning of the layer in the folder `path`.
    fn overwritten(&self, path: &str) -> u64 {
        let streams = self.layers.iter().filter(|layer| layer.path == path).flat_map(|layer| &layer.streams);
        streams.map(|stream| stream.overwritten).sum()
    }

    /// When the first event of a group of the host's kernel was recorded.
    fn first_of_host(&self, group: &str) -> u64 {
        let mut of_host = self.events.iter().filter(|event| event.layer == "host-kernel");
        of_host.find(|event| event.event.starts_with(group)).map_or(u64::MAX, |event| event.ticks)
    }

    /// Whether `complaint`, a line of babeltrace2's, tells what the trace's own description counts: that an application
    /// has lost records because there was no room for it. The guest starts processes as fast as it can, and has few
    /// places for them while the host is busy.
    fn counts(&self, complaint: &str) -> bool {
        let is_lossy = |layer: &&Layer| layer.streams.iter().any(|stream| stream.lost.full > 0);
        let mut lossy = self.layers.iter().filter(|layer| layer.kind == "guest-user").filter(is_lossy);
        complaint.contains("may have discarded events")
            && lossy.any(|layer| complaint.contains(&format!("/{}/stream_", layer.path)))
    }

    fn last(&self, layer: &str) -> u64 {
        self.events.iter().rev().find(|event| event.layer == layer).map_or(0, |event| event.ticks)
    }

    fn has_layers(&self, layers: &[&str]) -> bool {
        layers.iter().all(|layer| self.events.iter().any(|event| event.layer == *layer))
    }

    #[allow(clippy::cast_precision_loss, reason = "shown with a few digits")]
    fn seconds(&self, ticks: u64) -> f64 {
        ticks as f64 / self.frequency.max(1) as f64
    }

    fn finding(&self) -> Finding {
        let (first, last) = (self.events.first(), self.events.last());
        let end = last.map_or(0, |event| event.ticks);
        let begin = first.map_or(0, |event| event.ticks);
        Finding {
            trace: self.name,
            records: self.events.len(),
            seconds: self.seconds(end.saturating_sub(begin)),
            guest_ends_before_ms: self.seconds(end.saturating_sub(self.last("guest-kernel"))) * 1e3,
        }
    }
}

impl Results<'_> {
    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join(name)).unwrap_or_default()).into_owned()
    }

    fn request(&self, name: &str, command: &mut Command) -> Result<String, FlightCheckError> {
        let trace = self.folder.join(name);
        process::capture(command).map_err(|source| FlightCheckError::Program { trace, source })
    }

    fn read(&self, name: &'static str) -> Result<Read, FlightCheckError> {
        let path = self.folder.join(name);
        let json = |source| FlightCheckError::Json { path: path.clone(), source };
        let text = self.request(name, Command::new(self.strata).arg("events").arg(&path).arg("--json"))?;
        let events: Vec<Event> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>().map_err(json)?;
        let session: Session = serde_json::from_str(&self.text(&format!("{name}/session.json"))).map_err(json)?;
        Ok(Read { name, events, frequency: session.clock.frequency_hz, layers: session.layers })
    }

    /// How the VM of a trace ended.
    fn death(&self, name: &'static str) -> Result<VmDeath, FlightCheckError> {
        let path = self.folder.join(name);
        let text = self.request(name, Command::new(self.strata).args(["report", "death", "--json"]).arg(&path))?;
        let death: Death = serde_json::from_str(&text).map_err(|source| FlightCheckError::Json { path, source })?;
        let missing = || FlightCheckError::Unmet { what: "a trace is of a VM", found: text.clone() };
        death.vms.into_iter().next().ok_or_else(missing)
    }

    /// Reads a trace that babeltrace2 has to read as well, without a complaint beyond losses that are counted, and of
    /// which `strata check` has to say `expected`.
    fn clean(&self, name: &'static str, expected: &[&str]) -> Result<Read, FlightCheckError> {
        let read = self.read(name)?;
        let path = self.folder.join(name);
        let mut babeltrace = Command::new("babeltrace2");
        let output = babeltrace.args(["--clock-cycles", "--names=none"]).arg(&path).output();
        let (lines, complaints) = output.map_or((0, "babeltrace2 cannot be started".into()), |output| {
            let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
            (lines, String::from_utf8_lossy(&output.stderr).into_owned())
        });
        let is_clean = complaints.lines().all(|complaint| read.counts(complaint));
        require("babeltrace2 reads the trace without a complaint", is_clean, || format!("{name}: {complaints}"))?;
        require("babeltrace2 reads every record", lines == read.events.len(), || {
            format!("{name}: {lines} of {}", read.events.len())
        })?;
        let printed = self.request(name, Command::new(self.strata).arg("check").arg(&path))?;
        let as_expected = expected.iter().all(|part| printed.contains(part));
        require("strata check finds nothing wrong", as_expected, || format!("{name}: {printed}"))?;
        Ok(read)
    }
}

fn require(what: &'static str, holds: bool, found: impl FnOnce() -> String) -> Result<(), FlightCheckError> {
    if holds { Ok(()) } else { Err(FlightCheckError::Unmet { what, found: found() }) }
}

/// Judges the results in `folder` by `strata` and babeltrace2.
///
/// # Errors
///
/// When a trace is missing, damaged, inconsistent, or does not reach the moment that it has to.
pub fn check(folder: &Path, strata: &Path) -> Result<Vec<Finding>, FlightCheckError> {
    let results = Results { folder, strata };
    let printed = || results.text("control.log");

    // A trigger on an application, which is armed while it runs; one that nothing meets, and one on no event.
    let triggered = results.clean("flight.trace-snapshots/trigger-1", &["0 violations"])?;
    require("a snapshot by a trigger holds every layer", triggered.has_layers(&ALL), printed)?;
    let reports = [
        "workload:file_read in guest-user",
        "file_read bytes>1000000000: fired 0 times",
        "nearest: sched:sched_switch",
    ];
    require("triggers are reported", reports.iter().all(|words| printed().contains(words)), printed)?;

    // While it runs: two snapshots, and a session that was made meanwhile.
    let first = results.clean("snapshot1.trace", &["0 violations"])?;
    let second = results.clean("snapshot2.trace", &["0 violations"])?;
    require("snapshots hold every layer", first.has_layers(&ALL) && second.has_layers(&ALL), printed)?;
    require("the second snapshot is younger", second.last("guest-kernel") > first.last("guest-kernel"), printed)?;
    let during = results.text("during.ps");
    require("the VM is listed while it runs", during.contains("running"), || during.clone())?;
    let calls = results.clean("calls.trace", &["CAUSALITY WAS NOT CHECKED"])?;
    let only_calls = calls.events.iter().all(|event| event.event.starts_with("raw_syscalls:"));
    require("a session records what it was asked for", only_calls && !calls.events.is_empty(), printed)?;

    // After the panic: the guest's last record is at its death, which the VMM has seen too.
    let status = results.text("flight.status");
    require("a panic ends the run with status 1", status.trim() == "1", || results.text("flight.log"))?;
    let panicked = results.clean("flight.trace", &["0 violations"])?;
    require("the trace of the panic holds every layer", panicked.has_layers(&ALL), printed)?;
    let (guest, vmm) = (panicked.last("guest-kernel"), panicked.last("vmm"));
    let at_death = guest > second.last("guest-kernel") && vmm.abs_diff(guest) < panicked.frequency;
    require("the last record lies at the panic", at_death, || format!("guest {guest}, VMM {vmm}"))?;

    // After the kill: what the guest and the VMM had recorded is left, beyond the snapshot taken just before.
    let before = results.clean("before.trace", &["0 violations"])?;
    // A process of the guest left it in a loop: that took the room of older exits, and of nothing else.
    let (exits, others) = (before.overwritten("host-kernel-2"), before.overwritten("host-kernel"));
    let (since, others_since) = (before.first_of_host("kvm:"), before.first_of_host("sched:"));
    let is_kept = exits > 0 && others_since < since;
    require("a storm of exits takes no other event's room", is_kept, || {
        format!(
            "{exits} exits overwritten, the rest begins at {since}; {others} others, the rest begins at {others_since}"
        )
    })?;
    let recovered = results.clean("recovered.trace", &["from the vmm layer", "0 violations"])?;
    let layers = ["vmm", "guest-kernel", "host-kernel"];
    require("what was left holds all layers", recovered.has_layers(&layers), printed)?;
    for layer in layers {
        let (last, known) = (recovered.last(layer), before.last(layer));
        let printed = || format!("{layer}: last {last}, snapshot before {known}");
        // the host and the VMM may have had nothing to record between the snapshot and the kill
        let lies_at_the_kill = last > known || last == known && layer != "guest-kernel";
        require("the last record lies at the kill", lies_at_the_kill, printed)?;
    }
    let (death, at_snapshot) = (results.death("recovered.trace")?, results.death("before.trace")?);
    require("the report on the death tells what each vCPU did", death.reports_each_vcpu(), || format!("{death:?}"))?;
    require("a snapshot tells what the host's CPUs ran", at_snapshot.reports_to_the_host(), || {
        format!("{at_snapshot:?}")
    })?;
    require("so does the report on the death", death.reports_to_the_host(), || format!("{death:?}"))?;
    let after = results.text("after.ps");
    let listed = after.contains("recoverable") && !after.contains("running");
    require("a killed VM is listed as recoverable", listed, || after.clone())?;

    Ok([first, second, calls, panicked, before, recovered].iter().map(Read::finding).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ticks: u64, layer: &str) -> Event {
        Event { ticks, layer: layer.into(), event: "x".into() }
    }

    #[test]
    fn finding_tells_how_long_the_guest_was_silent() {
        let events = vec![event(1_000, "vmm"), event(3_000, "guest-kernel"), event(4_000, "vmm")];
        let read = Read { name: "t", events, frequency: 1_000, layers: Vec::new() };

        let finding = read.finding();

        assert_eq!((finding.records, finding.seconds, finding.guest_ends_before_ms), (3, 3.0, 1_000.0));
    }

    #[test]
    fn only_losses_of_applications_that_are_counted_may_be_complained_of() {
        let stream = |full| Stream { overwritten: 0, lost: Lost { full } };
        let layer = |kind: &str, path: &str, full| Layer {
            kind: kind.into(),
            path: path.into(),
            streams: vec![stream(0), stream(full)],
        };
        let layers = vec![
            layer("guest-user", "vm/guest-user/7", 1),
            layer("guest-user", "vm/guest-user/8", 0),
            layer("guest-kernel", "vm/guest-kernel", 1),
        ];
        let read = Read { name: "t", events: Vec::new(), frequency: 1_000, layers };
        let lost = "Tracer may have discarded events";

        let counts = |what: &str, path: &str| read.counts(&format!("WARNING: {what} in \"/t/{path}/stream_1\""));

        assert!(counts(lost, "vm/guest-user/7"));
        assert!(!counts(lost, "vm/guest-user/8") && !counts(lost, "vm/guest-kernel"));
        assert!(!counts("Unexpected end", "vm/guest-user/7"));
    }

    #[test]
    fn missing_results_are_not_taken_for_good_ones() {
        let folder = tempfile::tempdir().unwrap();

        let result = check(folder.path(), Path::new("/bin/false"));

        assert!(matches!(result, Err(FlightCheckError::Program { .. })), "{result:?}");
    }
}
