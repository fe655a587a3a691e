//! Whether the recordings of a round hold what honest producers counted.

use crate::guest::{FIRST_HOSTILE_PID, FIRST_PID};
use crate::monitor::Ending;
use crate::promise::{Board, Promise};
use crate::setup::{VCPUS, VmSetup};
use crate::tally::{APPLICATION_THREADS, Tally, VMM_PRODUCER, application_producer, interrupt_producer, task_producer};
use shared_ring::packet::read_header;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use strata_export::{ExportError, Options, ctf};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Layer;
use strata_recording::reader::{Damage, StreamRecord, Trace, TraceLayer};
use tempfile::TempDir;
use trace_merge::check::{self, Problem, Violation};

/// Least bytes that a record of a producer takes in its ring.
const RECORD: u64 = 24;
/// babeltrace2 reads recordings up to so many records: it takes a second for a million.
const MAX_FOR_BABELTRACE: u64 = 3_000_000;
/// What ends the text of the damage that a half-written packet is.
const CUT: &str = " of a truncated packet";
/// Violations that are kept: more than hostile layers have.
const VIOLATIONS: usize = 100_000;

/// An honest layer of a VM.
struct Honest {
    what: String,
    kind: LayerKind,
    /// Of a process.
    pid: Option<u32>,
    producers: Vec<u32>,
}

/// What an honest layer holds of its producers.
#[derive(Debug, Default)]
struct Held {
    /// By stream and producer: the number after the last one.
    next: BTreeMap<(u32, u32), u64>,
    /// Numbers that were skipped behind the first one, in all streams.
    skipped: u64,
    records: u64,
    lost: u64,
    /// What must not be.
    faults: Vec<String>,
}

fn honest(setup: &VmSetup, tally: &Tally) -> Vec<Honest> {
    let vmm = Honest { what: "vmm".into(), kind: LayerKind::Vmm, pid: None, producers: vec![VMM_PRODUCER] };
    if setup.hostile_kernel {
        return vec![vmm];
    }
    let producers = (0..VCPUS).flat_map(|vcpu| [task_producer(vcpu), interrupt_producer(vcpu)]);
    let kernel =
        Honest { what: "guest-kernel".into(), kind: LayerKind::GuestKernel, pid: None, producers: producers.collect() };
    let processes = (0..tally.applications()).map(|number| Honest {
        what: format!("process {number}"),
        kind: LayerKind::GuestUser,
        pid: Some(FIRST_PID + number),
        producers: (0..APPLICATION_THREADS).map(|thread| application_producer(number, thread)).collect(),
    });
    [vmm, kernel].into_iter().chain(processes).collect()
}

/// The producer and the number of a record of an honest layer of `kind`; `None` when it is another event.
fn step(kind: LayerKind, record: &StreamRecord<'_>) -> Option<(u32, u64)> {
    let word = |at: usize| Some(u32::from_le_bytes(record.payload.get(at..at + 4)?.try_into().ok()?));
    let number = |at: usize| Some(u64::from_le_bytes(record.payload.get(at..at + 8)?.try_into().ok()?));
    match (kind, record.schema.name()) {
        (LayerKind::Vmm, "vmm:block_request") => Some((word(0)?, number(20)?)),
        (LayerKind::GuestKernel | LayerKind::GuestUser, "torture:step") => Some((word(0)?, number(4)?)),
        _ => None,
    }
}

impl Held {
    /// Takes in what `layer` holds of `honest` producers. `is_whole` says that nothing may be damaged or rejected.
    fn read(&mut self, layer: &TraceLayer, honest: &Honest, is_whole: bool) {
        for stream in &layer.streams {
            let cpu = stream.description.cpu_id;
            let mut records = layer.records(stream);
            for record in records.by_ref() {
                let Some((who, number)) = step(honest.kind, &record) else { continue };
                if !honest.producers.contains(&who) {
                    self.faults.push(format!("a record of producer {who} in stream {cpu}"));
                    break;
                }
                let expected = self.next.get(&(cpu, who)).copied();
                match expected {
                    Some(next) if number < next => {
                        self.faults.push(format!("stream {cpu}: record {number} of producer {who} after {next}"));
                        break;
                    }
                    Some(next) => self.skipped += number - next,
                    None => {}
                }
                self.next.insert((cpu, who), number + 1);
                self.records += 1;
            }
            let damage = records.damage();
            let described = &stream.description;
            if is_whole && (damage != Damage::default() || described.rejected_bytes > 0 || described.corrupt) {
                let (rejected, corrupt) = (described.rejected_bytes, described.corrupt);
                self.faults.push(format!("stream {cpu}: {damage}, {rejected} bytes rejected, corrupt: {corrupt}"));
            }
        }
    }

    /// What the layer's streams count as lost.
    fn count_lost(&mut self, layer: &TraceLayer) {
        self.lost = layer.streams.iter().map(|stream| stream.description.lost.total()).sum();
    }

    fn fault(&self) -> Result<(), String> {
        if self.faults.is_empty() { Ok(()) } else { Err(self.faults.join("; ")) }
    }
}

fn layer_of<'t>(trace: &'t Trace, honest: &Honest) -> Option<&'t TraceLayer> {
    let is_its = |layer: &&TraceLayer| layer.description.process.as_ref().map(|process| process.pid) == honest.pid;
    trace.layers_of(honest.kind).find(is_its)
}

/// Judges the recording of a VM whose recorder came to its `ending` after it had recorded for `elapsed`; its disk was full
/// where `on_full_disk` says so.
///
/// # Errors
/// When it cannot be judged; a broken promise is not an error.
pub fn finished(
    setup: &VmSetup,
    tally: &Tally,
    ending: &Ending,
    elapsed: Duration,
    on_full_disk: bool,
    board: &mut Board,
) -> anyhow::Result<()> {
    let trace = match Trace::open(&setup.trace) {
        Ok(trace) => trace,
        Err(error) => {
            board.check(Promise::Strata, Err(format!("{}: {error:#}", setup.name)));
            return Ok(());
        }
    };
    let all = honest(setup, tally);
    let reported = [
        "no file descriptors were left",
        "was dropped to keep within",
        "more than a recording keeps apart or describes",
        "more than a recording describes, whose records are left out",
    ];
    let refused = ending.missing.iter().any(|line| reported.iter().any(|reported| line.contains(reported)));
    for honest in &all {
        let attempted: u64 = honest.producers.iter().map(|&producer| tally.attempted(producer)).sum();
        // One whose types of events were refused holds as little as one that is not there.
        let layer = layer_of(&trace, honest).filter(|layer| !refused || !layer.description.events.is_empty());
        let Some(layer) = layer else {
            // A refused one is reported; one that recorded nothing may never have been seen.
            if attempted > 0 && !on_full_disk && !setup.flight_recorder {
                let reported =
                    if refused { Ok(()) } else { Err(format!("{} of {} is not there", honest.what, setup.name)) };
                board.check(Promise::Reported, reported);
            }
            continue;
        };
        let mut held = Held::default();
        held.read(layer, honest, !on_full_disk);
        held.count_lost(layer);
        if let Some(rate) = setup.limit {
            let most = most_records(rate, elapsed, setup.rings_of(honest.kind) / RECORD * (2 + ending.flushes));
            board.check_limit(
                Promise::Rate,
                held.records * 100 / most,
                100,
                &format!("{} of {}", honest.what, setup.name),
            );
        }
        judge(setup, tally, honest, layer, &held, attempted, on_full_disk, board);
    }
    // Where the manifest has no room, Strata's tools know what it said last.
    let described = if ending.error.is_some() { &[] } else { all.as_slice() };
    read_by_others(&setup.trace, &trace, &setup.name, described, false, board);
    Ok(())
}

/// Records that a layer with a limit of `rate` a second holds at most after `elapsed`: what the rate allows, its burst of
/// a second, and `taken` at once: what rings hold, for the look that uses the burst up, for the last one, and for each
/// flush.
fn most_records(rate: u64, elapsed: Duration, taken: u64) -> u64 {
    rate.saturating_mul(elapsed.as_secs() + 2).saturating_add(taken)
}

#[allow(clippy::too_many_arguments, reason = "one layer, from every side")]
fn judge(
    setup: &VmSetup,
    tally: &Tally,
    honest: &Honest,
    layer: &TraceLayer,
    held: &Held,
    attempted: u64,
    on_full_disk: bool,
    board: &mut Board,
) {
    let name = format!("{} of {}", honest.what, setup.name);
    let fault = held.fault().map_err(|fault| format!("{name}: {fault}"));
    if on_full_disk {
        let is_bounded = held.records + held.lost <= attempted;
        let bounded = || if is_bounded { Ok(()) } else { Err(format!("{name}: {held:?} of {attempted}")) };
        board.check(Promise::Strata, fault.and_then(|()| bounded()));
    } else if setup.flight_recorder {
        // Of a producer that records seldom, nothing may be left.
        let last = |(&(_, producer), &next): (&(u32, u32), &u64)| next == tally.attempted(producer);
        // A process's threads record into several rings; each keeps what it has room for.
        let is_whole =
            honest.pid.is_some() || held.skipped == held.lost && held.records > 0 && held.next.iter().all(last);
        let whole = || if is_whole { Ok(()) } else { Err(format!("{name}: {held:?} of {attempted}")) };
        board.check(Promise::Youngest, fault.and_then(|()| whole()));
    } else {
        let delivered = held.records + dropped(&layer.description, honest);
        let is_exact = delivered + held.lost == attempted;
        let exact = || {
            let text = || format!("{name}: {delivered} delivered + {} lost, of {attempted}", held.lost);
            if is_exact { Ok(()) } else { Err(text()) }
        };
        board.check(Promise::Exact, fault.and_then(|()| exact()));
        board.produced += attempted;
        board.delivered += delivered;
        board.lost += held.lost;
    }
}

/// Records of a layer's `honest` producers that were dropped to keep within a size. The VMM's entries and exits are in
/// other streams than what its producer counts.
fn dropped(layer: &Layer, honest: &Honest) -> u64 {
    let streams = layer.streams.iter().filter(|stream| honest.kind != LayerKind::Vmm || stream.cpu_id == VCPUS);
    streams.filter_map(|stream| Some(stream.dropped?.records)).sum()
}

/// Judges what is left of a VM whose recorder was killed: its recording, and what is recovered from its `region`.
///
/// # Errors
/// When the region cannot be recovered into a folder.
pub fn killed(setup: &VmSetup, tally: &Tally, region: &Path, board: &mut Board) -> anyhow::Result<()> {
    board.kills.killed += 1;
    let out = setup.folder.join("recovered");
    let recovered = match strata_recorder::recover::recover(region, &out) {
        Ok(recovered) => recovered,
        Err(error) => {
            board.check(Promise::Recovered, Err(format!("{}: {:#}", setup.name, anyhow::Error::from(error))));
            return Ok(());
        }
    };
    let all = honest(setup, tally);
    let open = |path: &Path| Trace::open(path).map_err(|error| format!("{}: {error:#}", path.display()));
    let (before, after) = match (open(&setup.trace), open(&out)) {
        (Ok(before), Ok(after)) => (before, after),
        (before, after) => {
            for error in [before.err(), after.err()].into_iter().flatten() {
                board.check(Promise::Strata, Err(error));
            }
            return Ok(());
        }
    };
    // Slots of processes that ended are other processes' by now: what these lost last is not known.
    for honest in all.iter().filter(|honest| honest.pid.is_none()) {
        let attempted: u64 = honest.producers.iter().map(|&producer| tally.attempted(producer)).sum();
        let (mut held, mut room) = (Held::default(), 0);
        for trace in [&before, &after] {
            if let Some(layer) = layer_of(trace, honest) {
                held.read(layer, honest, false);
                held.count_lost(layer);
                room = layer.description.packet_size / RECORD * u64::from(VCPUS + 1);
            }
        }
        let there = held.records + held.lost;
        let is_there = there <= attempted && attempted - there <= room;
        let text = || format!("{} of {}: {held:?} of {attempted}, {room} may be missing", honest.what, setup.name);
        board.check(Promise::Recovered, held.fault().and(if is_there { Ok(()) } else { Err(text()) }));
    }
    let of_hostile = |damage: &&String| !setup.hostile_kernel && !damage.is_empty();
    let damage = recovered.damage.iter().find(of_hostile);
    board.check(Promise::Recovered, damage.map_or(Ok(()), |damage| Err(damage.clone())));
    board.kills.cut += u64::from(read_by_others(&setup.trace, &before, &setup.name, &all, true, board));
    let broken_before = board.broken();
    read_by_others(&out, &after, &setup.name, &all, false, board);
    board.kills.recovered += u64::from(board.broken() == broken_before);
    Ok(())
}

/// Has `strata check` and babeltrace2 read the recording. One that `may_be_cut` was being written when its recorder was
/// killed: a packet may be half there, which is found and returned, and which babeltrace2 need not read.
fn read_by_others(
    path: &Path,
    trace: &Trace,
    name: &str,
    honest: &[Honest],
    may_be_cut: bool,
    board: &mut Board,
) -> bool {
    let checked = check::check(trace, VIOLATIONS).map_err(|error| format!("{name}: {error:#}"));
    let paths: Vec<&str> =
        honest.iter().filter_map(|honest| Some(layer_of(trace, honest)?.description.path.as_str())).collect();
    let mut is_cut = false;
    let clean = checked.and_then(|mut result| {
        let cut = |violation: &Violation| {
            may_be_cut && matches!(&violation.problem, Problem::Damaged { what } if what.ends_with(CUT))
        };
        is_cut = result.violations.iter().any(cut);
        result.violations.retain(|violation| !cut(violation));
        let is_honest = |stream: &str| paths.iter().any(|path| stream.starts_with(&format!("{path}/")));
        let violation = result.violations.iter().find(|violation| is_honest(&violation.stream));
        violation.map_or(Ok(()), |violation| Err(format!("{name}: {violation:?}")))
    });
    board.check(Promise::Strata, clean);
    // A layer that has no event types and began just before the kill is in none of Strata's checks.
    let is_compressed = trace.manifest().compression.is_some();
    if is_cut || may_be_cut && !is_compressed && has_cut_stream(path) {
        return true;
    }
    let records = trace.layers().iter().flat_map(|layer| &layer.streams).map(|stream| stream.description.records);
    if records.fold(0, u64::saturating_add) > MAX_FOR_BABELTRACE {
        return false;
    }
    let exported = is_compressed.then(|| exported(trace)).transpose();
    let read = exported.and_then(|exported| {
        let path = exported.as_ref().map_or(path, TempDir::path);
        Command::new("babeltrace2").arg("--output-format=dummy").arg(path).output().map_err(ExportError::Write)
    });
    board.check(
        Promise::Babeltrace,
        match read {
            Ok(output) if output.status.success() && output.stderr.is_empty() => Ok(()),
            Ok(output) => {
                let printed = String::from_utf8_lossy(&output.stderr);
                Err(format!("{name}: {}: {}", output.status, printed.lines().take(6).collect::<Vec<_>>().join("; ")))
            }
            Err(error) => Err(format!("{name}: babeltrace2 cannot read it: {error}")),
        },
    );
    false
}

/// A compressed recording as others read it; one without a packet is empty then.
fn exported(trace: &Trace) -> Result<TempDir, ExportError> {
    let folder = TempDir::new().map_err(ExportError::Write)?;
    match ctf::export(trace, ctf::Version::V1_8, &Options::default(), folder.path()) {
        Ok(_) | Err(ExportError::Nothing) => Ok(folder),
        Err(error) => Err(error),
    }
}

/// Whether a stream in `folder`, or in a folder in it, ends within a packet.
fn has_cut_stream(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        let is_stream = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"stream_"));
        if is_stream { fs::read(&path).is_ok_and(|bytes| is_cut(&bytes)) } else { has_cut_stream(&path) }
    })
}

/// Whether a stream of these bytes ends within a packet: all of its packets are as large as the first one.
fn is_cut(stream: &[u8]) -> bool {
    let packet_size = read_header(stream).map(|header| header.packet_size / 8);
    !stream.is_empty() && packet_size.is_none_or(|size| size == 0 || !(stream.len() as u64).is_multiple_of(size))
}

const _: () = assert!(FIRST_PID + crate::tally::MAX_APPLICATIONS < FIRST_HOSTILE_PID, "a process is honest or hostile");

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::layout::{PACKET_HEADER_SIZE, PacketHeader};
    use std::mem::offset_of;

    #[test]
    fn stream_is_cut_where_its_packets_do_not_fill_it() {
        let mut packet = vec![0; 2 * PACKET_HEADER_SIZE];
        let at = offset_of!(PacketHeader, packet_size);
        let bits = packet.len() as u64 * 8;
        packet[at..at + 8].copy_from_slice(&bits.to_le_bytes());
        let stream = [packet.clone(), packet].concat();

        let cut = [0, 1, stream.len() - 1, stream.len()].map(|length| is_cut(&stream[..length]));

        assert_eq!(cut, [false, true, true, false]);
    }
}
