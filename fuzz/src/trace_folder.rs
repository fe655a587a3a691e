//! The tools that read a recording, on one whose description and streams hold anything.
//!
//! An input is six blocks (`u16` length, bytes): `session.json`, then a stream of the host's kernel, of the guest's
//! kernel and of a process, a compressed one of that process, and `session.journal`. An empty description stands for the
//! one that [`manifest`] makes; without the last blocks there is no compressed stream and no journal.

use crate::events;
use crate::script::Input;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use strata_export::{ExportError, html, perfetto};
use strata_recording::clock::{Clock, UtcAnchor};
use strata_recording::files::{JOURNAL_FILE, MANIFEST_FILE};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{FORMAT_VERSION, Host, Layer, Manifest, Process, Started, StreamDescription, Vm};
use strata_recording::reader::Trace;
use tempfile::TempDir;
use trace_merge::check::{self, CheckOptions};
use trace_merge::critical_path::{self, CriticalPathError, CriticalPathOptions};
use trace_merge::events::EventsOptions;
use trace_merge::report::death::LastMoments;
use trace_merge::report::{self, ReportError, ReportOptions, registry};
use uuid::Uuid;

/// Bytes of a packet.
pub const PACKET_SIZE: u64 = 512;
/// Folders of the layers, in the order of their blocks.
pub const FOLDERS: [&str; 3] = ["host-kernel", "vm0/guest-kernel", "vm0/guest-user/42"];
/// Traces of the layers.
pub const UUIDS: [Uuid; 3] = [Uuid::from_bytes([1; 16]), Uuid::from_bytes([2; 16]), Uuid::from_bytes([3; 16])];

/// The description of a whole recording with one stream in each layer.
#[must_use]
pub fn manifest() -> Manifest {
    let clock = Clock {
        uuid: Uuid::from_bytes([9; 16]),
        frequency_hz: 1_000_000_000,
        utc: UtcAnchor { ticks: 0, utc_ns: 1_700_000_000_000_000_000, uncertainty_ns: 0 },
        source: "x86-tsc".into(),
        vcpus: Vec::new(),
        error_bound_ns: 0,
        bound_derivation: "one counter".into(),
        given_up_ticks: None,
        epochs: Vec::new(),
    };
    let layer = |index: usize, kind, vm: Option<&str>, process, events| Layer {
        kind,
        vm: vm.map(Into::into),
        host: None,
        path: FOLDERS[index].into(),
        uuid: UUIDS[index],
        packet_size: PACKET_SIZE,
        process,
        events,
        flag_names: Vec::new(),
        limit: None,
        ended: None,
        another_kernel: false,
        streams: vec![StreamDescription { file: "stream_0".into(), records: 6, ..StreamDescription::default() }],
    };
    let process = Process { pid: 42, comm: "work\u{1b}load".into() };
    Manifest {
        format: FORMAT_VERSION,
        strata: "0.1.0".into(),
        started: Started::at(1_700_000_000_000_000_000),
        clock,
        host: Host::default(),
        vms: vec![Vm { name: "vm0".into(), vcpus: 1, vcpu_threads: vec![77], ..Vm::default() }],
        layers: vec![
            layer(0, LayerKind::HostKernel, None, None, host_events()),
            layer(1, LayerKind::GuestKernel, Some("vm0"), None, events::described()),
            layer(2, LayerKind::GuestUser, Some("vm0"), Some(process), events::described()),
        ],
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: Some("power-off".into()),
    }
}

/// Entry into and exit from the guest, as far as the tools look at them.
#[must_use]
pub fn host_events() -> Vec<EventDescription> {
    let field = |name: &str| FieldDescription { name: name.into(), ty: FieldType::U32, hex: false };
    let event = |id, name: &str, fields: &[&str]| EventDescription {
        id,
        class: 48,
        name: name.into(),
        fields: fields.iter().map(|name| field(name)).collect(),
    };
    vec![
        event(1, "kvm:kvm_entry", &["common_pid", "vcpu_id"]),
        event(2, "kvm:kvm_exit", &["common_pid", "vcpu_id", "exit_reason", "isa"]),
    ]
}

/// A folder for recordings; the same one for the whole process, since each input takes the place of the one before it.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let dir = TempDir::new().expect("the folder for temporary files is writable").keep();
        FOLDERS.iter().for_each(|layer| fs::create_dir_all(dir.join(layer)).expect("the new folder is writable"));
        dir
    })
}

/// Gives an input to the reader and checks what must hold.
///
/// # Panics
/// When a property that the target checks does not hold, or when files cannot be written.
pub fn run(data: &[u8]) {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let mut input = Input(data);
    let dir = folder();
    let description = match input.block() {
        [] => WHOLE.get_or_init(|| serde_json::to_vec(&manifest()).expect("a description can be written")),
        given => given,
    };
    fs::write(dir.join(MANIFEST_FILE), description).expect("the folder is writable");
    for layer in FOLDERS {
        fs::write(dir.join(layer).join("stream_0"), input.block()).expect("the folder is writable");
    }
    for file in [dir.join(FOLDERS[2]).join("stream_1.zst"), dir.join(JOURNAL_FILE)] {
        match input.block() {
            [] => drop(fs::remove_file(file)),
            block => fs::write(file, block).expect("the folder is writable"),
        }
    }
    read(dir);
}

/// Reads the recording in `dir` with every tool.
fn read(dir: &Path) {
    let Ok(trace) = Trace::open(dir) else { return };
    for layer in trace.layers() {
        for stream in &layer.streams {
            let mut records = layer.records(stream);
            let found = records.by_ref().count();
            let damage = records.damage();
            if stream.description.file == "stream_0" {
                // The largest file is a block of an input.
                assert!(found <= usize::from(u16::MAX) / 8);
                assert!(damage.truncated_bytes < layer.description.packet_size);
            }
            let _ = damage.to_string();
            let start = trace.start().unwrap_or(0);
            let later = layer.records(stream).starting_at(start.saturating_add(1)).count();
            assert!(later <= found);
        }
    }
    let mut out = Vec::new();
    for (json, utc) in [(false, false), (true, true)] {
        let options = EventsOptions { json, utc, ..EventsOptions::default() };
        trace_merge::events::list(&trace, &options, &mut out).expect("a listing of everything can be written");
        let options = ReportOptions { json, ..ReportOptions::default() };
        // A report that finds nothing to be made of says so; that the parts add up is asserted in all of them.
        report::run(dir, &options, &mut out, |trace, window| registry::all(trace, window, None))
            .expect("a recording that can be opened can be reported on");
        let ended = report::run(dir, &options, &mut out, |trace, window| Ok(LastMoments::new(trace, window)));
        // One without records of a VM has no end.
        assert!(matches!(ended, Ok(_) | Err(ReportError::Nothing { .. })), "{ended:?}");
        // That the steps add up is asserted there.
        let why = CriticalPathOptions { json, ..CriticalPathOptions::of("*".parse().expect("a glob is a task")) };
        let answered = critical_path::run(dir, &why, &mut out);
        assert!(!matches!(answered, Err(CriticalPathError::Report(_))), "{answered:?}");
        // A recording without a readable host layer has nothing to be checked against, which is an error.
        let _ = check::run(dir, &CheckOptions { json, ..CheckOptions::default() }, &mut out);
    }
    let options = strata_export::Options::default();
    let exported = [perfetto::export(&trace, &options, &mut out), html::export(&trace, &options, None, None, &mut out)];
    // One without records of kernels and VMMs has nothing to be drawn.
    assert!(exported.iter().all(|exported| matches!(exported, Ok(_) | Err(ExportError::Nothing))), "{exported:?}");
}
