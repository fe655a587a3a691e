//! Whatever is taken out of a complete recording, no known time, duration or count of a report becomes larger, and the
//! check finds nothing but what was damaged; nothing at all when the loss is counted, or when what is missing would have
//! come at the end of a recording that goes on.
//!
//! Shows: Lost or cut records enlarge no known figure; unfinished recordings and parts that are cut out pass `strata check` (proptest).
#![allow(missing_docs, clippy::unwrap_used)] // A test binary: nothing to document, may panic.

mod cut;

use proptest::prelude::*;
use serde_json::Value;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::layout::PacketHeader;
use shared_ring::packet::{Records, read_header, write_header};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, Vm};
use strata_recording::reader::Trace;
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;
use trace_merge::check;
use trace_merge::critical_path::{self, Cause, CriticalPath, CriticalPathError, CriticalPathOptions, Step};
use trace_merge::report::devices::{blocks, flows};
use trace_merge::report::kernels::{exits, functions, irqs, locks, syscalls};
use trace_merge::report::scheduling::{tasks, vcpus, wakeups};
use trace_merge::report::{Report, ReportError, ReportOptions, Window, summary};

const PACKET: usize = 512;
const IO: i64 = 0x7b;
const HALT: i64 = 0x78;
/// Address of a function of the guest's kernel.
const KERNEL_ADDRESS: i64 = i64::MIN + 0x4200;
const LAYERS: [LayerKind; 3] = [LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestKernel];

#[derive(Clone, Copy)]
enum Field {
    Number(i64),
    Text(&'static str),
}

use Field::{Number, Text};

type Fields = Vec<(&'static str, Field)>;

/// Events of all layers in the making.
#[derive(Default)]
struct Events {
    events: Vec<(u64, LayerKind, u32, &'static str, Fields)>,
    draws: u64,
}

impl Events {
    fn put(&mut self, kind: LayerKind, cpu: u32, time: u64, name: &'static str, fields: &[(&'static str, Field)]) {
        self.events.push((time, kind, cpu, name, fields.to_vec()));
    }

    /// A number below `limit`, from the seed on always the same ones.
    fn draw(&mut self, limit: u64) -> u64 {
        self.draws = self.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.draws >> 33) % limit
    }

    /// `time` a while later.
    fn later(&mut self, time: &mut u64) -> u64 {
        *time += 20 + self.draw(900);
        *time
    }

    fn switch(&mut self, kind: LayerKind, cpu: u32, time: u64, prev: i64, state: i64, next: i64) {
        let comm = |tid| if tid == 0 { "swapper" } else { "task" };
        let fields = [
            ("common_pid", Number(prev)),
            ("prev_comm", Text(comm(prev))),
            ("prev_pid", Number(prev)),
            ("prev_state", Number(state)),
            ("next_comm", Text(comm(next))),
            ("next_pid", Number(next)),
        ];
        self.put(kind, cpu, time, "sched:sched_switch", &fields);
    }

    fn waking(&mut self, kind: LayerKind, cpu: u32, time: u64, by: i64, tid: i64) {
        let fields = [
            ("common_pid", Number(by)),
            ("comm", Text("task")),
            ("pid", Number(tid)),
            ("target_cpu", Number(cpu.into())),
        ];
        self.put(kind, cpu, time, "sched:sched_waking", &fields);
        self.put(kind, cpu, time, "sched:sched_wakeup", &fields);
    }

    fn guest(&mut self, cpu: u32, time: u64, name: &'static str, field: &'static str, value: i64) {
        self.put(LayerKind::GuestKernel, cpu, time, name, &[(field, Number(value)), ("ret", Number(0))]);
    }

    /// A process's file is mapped, in the place of another one.
    fn mapping(&mut self, cpu: u32, time: u64, process: i64, path: &'static str) {
        let fields =
            [("pid", Number(process)), ("begin", Number(0x1000)), ("end", Number(0x9000)), ("path", Text(path))];
        self.put(LayerKind::GuestKernel, cpu, time, "strata:mapping", &fields);
    }

    fn exec(&mut self, cpu: u32, time: u64, process: i64) {
        let fields = [("pid", Number(process)), ("old_pid", Number(process)), ("filename", Text("/bin/task"))];
        self.put(LayerKind::GuestKernel, cpu, time, "sched:sched_process_exec", &fields);
    }

    fn sample(&mut self, cpu: u32, time: u64, process: i64, address: i64) {
        let fields = [
            ("ip", Number(address)),
            ("pid", Number(process)),
            ("tid", Number(process)),
            ("user", Number(i64::from(address > 0))),
        ];
        self.put(LayerKind::GuestKernel, cpu, time, "strata:sample", &fields);
    }

    fn symbol(&mut self, cpu: u32, time: u64) {
        let fields = [("begin", Number(KERNEL_ADDRESS)), ("size", Number(64)), ("name", Text("schedule"))];
        self.put(LayerKind::GuestKernel, cpu, time, "strata:symbol", &fields);
    }

    /// What a process does to its memory, or what it is found at.
    fn memory(&mut self, cpu: u32, time: u64, process: i64) {
        match self.draw(16) {
            0 => self.exec(cpu, time, process),
            1 => self.mapping(cpu, time, process, "/bin/one"),
            2 => self.mapping(cpu, time, process, "/bin/two"),
            3 => self.mapping(cpu, time, process, "/bin/three"),
            4 => self.mapping(cpu, time, process, "/bin/four"),
            5 => self.symbol(cpu, time),
            6 => self.sample(cpu, time, process, KERNEL_ADDRESS),
            _ => self.sample(cpu, time, process, 0x2345),
        }
    }

    fn enter(&mut self, vcpu: u32, time: u64) {
        let fields = [("common_pid", Number(100 + i64::from(vcpu))), ("vcpu_id", Number(vcpu.into()))];
        self.put(LayerKind::HostKernel, vcpu, time, "kvm:kvm_entry", &fields);
    }

    fn exit(&mut self, vcpu: u32, time: u64, reason: i64) {
        let fields = [
            ("common_pid", Number(100 + i64::from(vcpu))),
            ("exit_reason", Number(reason)),
            ("isa", Number(2)),
            ("vcpu_id", Number(vcpu.into())),
        ];
        self.put(LayerKind::HostKernel, vcpu, time, "kvm:kvm_exit", &fields);
    }

    fn vmm(&mut self, vcpu: u32, time: u64, name: &'static str) {
        let fields = [("vcpu", Number(vcpu.into())), ("reason", Number(2)), ("port", Number(0x3f8))];
        self.put(LayerKind::Vmm, vcpu, time, name, &fields);
    }

    /// What a vCPU does between two halts: two of its tasks run, with calls, interrupts, a lock, exits, a preemption.
    fn turn(&mut self, vcpu: u32, time: &mut u64) {
        let (host, guest) = (LayerKind::HostKernel, LayerKind::GuestKernel);
        let thread = 100 + i64::from(vcpu);
        let (one, other) = (10 + 2 * i64::from(vcpu), 11 + 2 * i64::from(vcpu));
        let now = self.later(time);
        self.waking(host, vcpu, now, 0, thread);
        let now = self.later(time);
        self.switch(host, vcpu, now, 0, 0, thread);
        let now = self.later(time);
        self.enter(vcpu, now);
        let now = self.later(time);
        self.waking(guest, vcpu, now, 0, one);
        let now = self.later(time);
        self.switch(guest, vcpu, now, 0, 0, one);
        let calls = 1 + self.draw(3);
        for _ in 0..calls {
            let now = self.later(time);
            self.memory(vcpu, now, one);
            let call = i64::try_from(self.draw(3)).unwrap();
            let now = self.later(time);
            self.guest(vcpu, now, "raw_syscalls:sys_enter", "id", call);
            if self.draw(2) == 0 {
                let now = self.later(time);
                self.guest(vcpu, now, "lock:contention_begin", "lock_addr", 0x1000);
                let now = self.later(time);
                self.guest(vcpu, now, "lock:contention_end", "lock_addr", 0x1000);
            }
            let now = self.later(time);
            self.guest(vcpu, now, "irq_vectors:local_timer_entry", "vector", 236);
            let now = self.later(time);
            self.guest(vcpu, now, "irq_vectors:local_timer_exit", "vector", 236);
            let now = self.later(time);
            self.guest(vcpu, now, "irq:softirq_entry", "vec", 1);
            let now = self.later(time);
            self.guest(vcpu, now, "irq:softirq_exit", "vec", 1);
            let now = self.later(time);
            self.guest(vcpu, now, "raw_syscalls:sys_exit", "id", call);
        }
        let now = self.later(time);
        self.exit(vcpu, now, IO);
        if self.draw(2) == 0 {
            let now = self.later(time);
            self.switch(host, vcpu, now, thread, 0x100, 200);
            let now = self.later(time);
            self.switch(host, vcpu, now, 200, 1, thread);
        }
        for name in ["vmm:vcpu_exit", "vmm:port_access", "vmm:vcpu_enter"] {
            let now = self.later(time);
            self.vmm(vcpu, now, name);
        }
        let now = self.later(time);
        self.enter(vcpu, now);
        let now = self.later(time);
        self.waking(guest, vcpu, now, one, other);
        let now = self.later(time);
        self.switch(guest, vcpu, now, one, 1, other);
        let now = self.later(time);
        self.switch(guest, vcpu, now, other, 1, 0);
        let now = self.later(time);
        self.exit(vcpu, now, HALT);
        let now = self.later(time);
        self.switch(host, vcpu, now, thread, 1, 0);
    }
}

/// Writes a complete recording of two vCPUs to `dir`.
fn record(dir: &Path, seed: u64) {
    let mut made = Events { draws: seed, ..Events::default() };
    made.put(LayerKind::Vmm, 2, 1, "vmm:control", &[("what", Text("started"))]);
    for vcpu in 0..2 {
        let mut time = 1000 + u64::from(vcpu);
        made.vmm(vcpu, time, "vmm:vcpu_enter");
        (0..12).for_each(|_| made.turn(vcpu, &mut time));
    }
    made.events.sort_by_key(|event| event.0);
    let vm = Vm { name: "vm0".into(), vcpus: 2, vcpu_threads: vec![100, 101], ..Vm::default() };
    let mut manifest = strata_recording::test_trace::manifest_of(vec![vm]);
    for kind in LAYERS {
        let vm = (kind != LayerKind::HostKernel).then(|| "vm0".to_string());
        let new = NewLayer { kind, vm, process: None, packet_size: PACKET as u64 };
        let mut layer = LayerWriter::create(dir, &manifest, new).unwrap();
        let mut ids = BTreeMap::new();
        for (time, _, cpu, name, fields) in made.events.iter().filter(|event| event.1 == kind) {
            let next = u16::try_from(ids.len() + 1).unwrap();
            let id = *ids.entry(*name).or_insert(next);
            let description = |&(name, field): &(&str, Field)| FieldDescription {
                name: name.into(),
                ty: if matches!(field, Number(_)) { FieldType::I64 } else { FieldType::String },
                hex: false,
            };
            let fields_of = fields.iter().map(description).collect();
            layer.add_events(&[EventDescription { id, class: 0, name: (*name).into(), fields: fields_of }]).unwrap();
            let payload = fields.iter().flat_map(|&(_, field)| match field {
                Number(number) => number.to_le_bytes().to_vec(),
                Text(text) => [text.as_bytes(), &[0]].concat(),
            });
            layer.record(*cpu, *time, id, &payload.collect::<Vec<_>>()).unwrap();
        }
        layer.flush().unwrap();
        manifest.layers.push(layer.layer());
    }
    manifest.save(dir).unwrap();
}

/// What happens to packets of a stream. Packets are counted from 0, modulo their number.
#[derive(Clone, Copy, Debug)]
enum Change {
    Take(usize),
    Zero(usize),
    CutFrom(usize),
    /// Records are lost, and the packet before or behind them counts that.
    Lose(usize, bool),
    /// The recording goes on, or its recorder was killed: each stream ends with a packet of its own, drawn from the seed.
    Unfinished(u64),
}

fn change() -> impl Strategy<Value = (usize, Change)> {
    let packet = 0..64_usize;
    let change = (packet, 0..8_usize, any::<u64>()).prop_map(|(packet, what, seed)| match what {
        0 => Change::Take(packet),
        1 => Change::Zero(packet),
        2 => Change::CutFrom(packet),
        3 => Change::Lose(packet, false),
        4 => Change::Lose(packet, true),
        _ => Change::Unfinished(seed),
    });
    (0..16_usize, change)
}

/// Whether nothing is missing between `next` and the packet `before` it, as their headers say. Only then may a recorder have
/// found the stream complete up to `next`.
fn follows(next: &PacketHeader, before: Option<&PacketHeader>) -> bool {
    let (sequence, discarded) = before.map_or((0, 0), |before| (before.sequence + 1, before.events_discarded));
    next.sequence == sequence && next.events_discarded == discarded
}

/// Leaves of each stream of the recording the packets up to one of its own, as `seed` draws it, and says what a recorder that
/// goes on says of them. It may have looked later than their last one ends, and may say nothing of a stream that it is
/// known to have.
fn leave_unfinished(dir: &Path, seed: u64) {
    let mut manifest = Manifest::load(dir).unwrap();
    let mut draws = Events { draws: seed, ..Events::default() };
    manifest.outcome = None;
    for layer in &mut manifest.layers {
        let folder = dir.join(&layer.path);
        let is_known = layer.kind != LayerKind::HostKernel;
        layer.streams.retain_mut(|stream| {
            let path = folder.join(&stream.file);
            let bytes = fs::read(&path).unwrap_or_default();
            let headers: Vec<_> = bytes.chunks(PACKET).map(|packet| read_header(packet).unwrap()).collect();
            let kept = usize::try_from(draws.draw(headers.len() as u64 + 1)).unwrap();
            let (bytes, missing) = (&bytes[..kept * PACKET], &headers[kept..]);
            if kept > 0 {
                fs::write(&path, bytes).unwrap();
            } else if path.exists() {
                fs::remove_file(&path).unwrap();
            }
            let begins = headers[..kept].iter().map(|header| header.time_begin);
            let counts =
                bytes.chunks(PACKET).zip(begins).map(|(packet, begin)| Records::new(packet, PACKET, begin).count());
            (stream.packets, stream.records) = (kept as u64, counts.sum::<usize>() as u64);
            let next = missing.first().filter(|_| draws.draw(2) == 0);
            let next = next.filter(|next| follows(next, headers[..kept].last()));
            stream.complete_until = next.map(|header| header.time_begin.saturating_sub(1));
            !is_known || stream.complete_until.is_some() || draws.draw(2) == 0
        });
    }
    manifest.save(dir).unwrap();
}

/// Does `change` to the `number`th stream.
fn apply(dir: &Path, number: usize, change: Change) {
    if let Change::Unfinished(seed) = change {
        return leave_unfinished(dir, seed);
    }
    let mut manifest = Manifest::load(dir).unwrap();
    let count = manifest.layers.iter().map(|layer| layer.streams.len()).sum::<usize>();
    let layers = manifest.layers.iter_mut();
    let mut streams = layers.flat_map(|layer| layer.streams.iter_mut().map(|stream| (layer.path.clone(), stream)));
    // A recording that goes on may have none.
    let Some((path, stream)) = streams.nth(number % count.max(1)) else { return };
    let path = dir.join(path).join(&stream.file);
    let mut packets: Vec<Vec<u8>> = fs::read(&path).unwrap_or_default().chunks(PACKET).map(<[u8]>::to_vec).collect();
    if packets.is_empty() {
        return;
    }
    match change {
        Change::Take(packet) => drop(packets.remove(packet % packets.len())),
        Change::Zero(packet) => {
            let packet = packet % packets.len();
            packets[packet].fill(0);
        }
        Change::CutFrom(packet) => packets.truncate(packet % packets.len()),
        Change::Lose(packet, is_counted_before) => {
            let lost = packets.remove(packet % packets.len());
            let Some(header) = read_header(&lost).filter(|header| header.magic != 0) else { return };
            let records = Records::new(&lost, PACKET, header.time_begin).count() as u64;
            let at = packet % (packets.len() + 1);
            for (index, bytes) in packets.iter_mut().enumerate() {
                let Some(mut header) = read_header(bytes).filter(|header| header.magic != 0) else { continue };
                if index >= at {
                    header.sequence -= 1;
                }
                if index >= at || (is_counted_before && index + 1 == at) {
                    header.lost_full += records;
                    header.events_discarded += records;
                }
                write_header(bytes, &header);
            }
            stream.lost.full += records;
            stream.packets -= 1;
            stream.records -= records;
        }
        Change::Unfinished(_) => {}
    }
    fs::write(&path, packets.concat()).unwrap();
    drop(streams);
    manifest.save(dir).unwrap();
}

type Figures = BTreeMap<String, u64>;

/// Figures that say what is not known, that are not sums or maxima, or that are moments.
const NOT_COMPARED: [&str; 39] = [
    "unknown",
    "wall_ticks",
    "wall_ns",
    "window",
    "frequency_hz",
    "unfinished",
    "returns_only",
    "not_needed",
    "mean_ns",
    "min_ns",
    "p50_ns",
    "p90_ns",
    "p95_ns",
    "p99_ns",
    "p999_ns",
    "median_ns",
    "histogram",
    "buckets",
    "worst",
    "slowest",
    "longest",
    "completeness",
    "unattributed",
    "unnamed",
    // Of layers, in the summary.
    "outcome",
    "lost",
    "rejected_bytes",
    "corrupt_streams",
    "absent_streams",
    "damage",
    "first_ticks",
    "first_utc",
    "last_ticks",
    "incomplete",
    "missing",
    "clock",
    "host",
    // Estimates: of fewer times a part may be larger.
    "each_ns",
    "estimated_ns",
];

/// Adds the numbers in `value` to `figures`, under the names of what they belong to.
fn collect(value: &Value, at: &str, figures: &mut Figures) {
    match value {
        Value::Number(number) => *figures.entry(at.into()).or_default() += number.as_u64().unwrap_or(0),
        Value::Array(items) => items.iter().for_each(|item| collect(item, at, figures)),
        Value::Object(fields) => {
            let ids = ["tid", "pid", "vcpu", "cpu", "number", "address", "context"];
            let id = ids.iter().filter_map(|name| Some(format!("{name} {}", fields.get(*name)?)));
            let id: Vec<String> = id.collect();
            let compared = |name: &str| !ids.contains(&name) && !NOT_COMPARED.contains(&name);
            let texts = fields.iter().filter(|(name, _)| compared(name)).map(|(_, field)| field.as_str());
            let texts: Vec<&str> = texts.flatten().collect();
            let is_not = |name: &str| fields.get(name) == Some(&Value::Bool(false));
            let is_unnamed = is_not("is_certain") || texts.contains(&"[kernel]") && is_not("is_named");
            let name = if id.is_empty() { texts.iter().map(ToString::to_string).collect() } else { id };
            if is_unnamed || name.iter().any(|name| name.contains("unknown") || name.contains('?')) {
                return;
            }
            let at = format!("{at}[{}]", name.join(", "));
            for (name, field) in fields.iter().filter(|(name, _)| compared(name)) {
                collect(field, &format!("{at}.{name}"), figures);
            }
        }
        _ => {}
    }
}

fn figures_of<R: Report>(dir: &Path, make: impl FnOnce(&Trace, Window) -> Result<R, ReportError>) -> Figures {
    let window = ReportOptions::default().window(&Trace::open(dir).unwrap()).unwrap();
    figures_within(dir, window, make)
}

fn figures_within<R: Report>(
    dir: &Path,
    window: Window,
    make: impl FnOnce(&Trace, Window) -> Result<R, ReportError>,
) -> Figures {
    let mut figures = Figures::new();
    let trace = Trace::open(dir).unwrap();
    match make(&trace, window) {
        Ok(report) => collect(&serde_json::to_value(&report).unwrap(), "", &mut figures),
        Err(ReportError::Nothing { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    figures
}

/// The figures of the reports, by their names.
fn reports(dir: &Path) -> Vec<(&'static str, Figures)> {
    vec![
        ("tasks", figures_of(dir, tasks::report)),
        ("vcpus", figures_of(dir, vcpus::report)),
        ("exits", figures_of(dir, exits::report)),
        ("wakeups", figures_of(dir, wakeups::report)),
        ("syscalls", figures_of(dir, syscalls::report)),
        ("locks", figures_of(dir, locks::report)),
        ("irqs", figures_of(dir, irqs::report)),
        ("functions", figures_of(dir, functions_without_symbols)),
        ("summary", figures_of(dir, summary::report)),
    ]
}

fn grown(whole: &Figures, rest: &Figures) -> Vec<String> {
    let grown = rest.iter().filter(|(name, now)| whole.get(*name).copied().unwrap_or(0) < **now);
    grown.map(|(name, now)| format!("{name}: {:?} became {now}", whole.get(name))).collect()
}

#[test]
fn complete_recording_passes_and_has_figures_in_every_report() {
    let dir = TempDir::new().unwrap();
    record(dir.path(), 7);

    let checked = check::check(&Trace::open(dir.path()).unwrap(), 10).unwrap();

    assert!(checked.passed() && checked.completeness.complete, "{checked:?}");
    let empty: Vec<_> = reports(dir.path()).into_iter().filter(|(_, figures)| figures.is_empty()).collect();
    assert!(empty.is_empty(), "{empty:?}");
}

fn functions_without_symbols(trace: &Trace, window: Window) -> Result<functions::FunctionsReport, ReportError> {
    functions::report(trace, window, None)
}

/// The report on tasks without the details of states: without the host's records an exit has the VMM's reason in place
/// of the processor's.
fn tasks_by_state(trace: &Trace, window: Window) -> Result<tasks::Tasks, ReportError> {
    let mut report = tasks::report(trace, window)?;
    report.vms.iter_mut().flat_map(|vm| &mut vm.tasks).for_each(|task| task.parts.clear());
    Ok(report)
}

/// The report on vCPUs with one part for each state, for the same reason.
fn vcpus_by_state(trace: &Trace, window: Window) -> Result<vcpus::Vcpus, ReportError> {
    let mut report = vcpus::report(trace, window)?;
    for vcpu in report.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
        let mut states: BTreeMap<&str, vcpus::VcpuPart> = BTreeMap::new();
        for part in std::mem::take(&mut vcpu.parts) {
            let none = vcpus::VcpuPart { detail: None, count: 0, ticks: 0, ns: 0, ..part.clone() };
            let sum = states.entry(part.state).or_insert(none);
            (sum.ticks, sum.ns) = (sum.ticks + part.ticks, sum.ns + part.ns);
        }
        vcpu.parts = states.into_values().collect();
    }
    Ok(report)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn check_finds_nothing_but_the_damage(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        let dir = TempDir::new().unwrap();
        record(dir.path(), seed);
        changes.iter().for_each(|&(stream, change)| apply(dir.path(), stream, change));
        let is_counted =
            changes.iter().all(|(_, change)| matches!(change, Change::Lose(..) | Change::Unfinished(_)));

        let Ok(checked) = check::check(&Trace::open(dir.path()).unwrap(), 10) else { return Ok(()) };

        prop_assert_eq!(checked.total(), checked.damaged, "{:?}", checked.violations);
        prop_assert!(!is_counted || checked.passed(), "{:?}", checked.violations);
    }
}

/// No figure of the report that `report` makes becomes larger.
fn check_figures(
    report: impl Fn(&Path) -> Figures,
    seed: u64,
    changes: &[(usize, Change)],
) -> Result<(), TestCaseError> {
    let dir = TempDir::new().unwrap();
    record(dir.path(), seed);
    let whole = report(dir.path());
    changes.iter().for_each(|&(stream, change)| apply(dir.path(), stream, change));
    let grown = grown(&whole, &report(dir.path()));
    prop_assert!(grown.is_empty(), "{grown:#?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_wakeups_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, wakeups::report), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_syscalls_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, syscalls::report), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_locks_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, locks::report), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_irqs_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, irqs::report), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_exits_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, exits::report), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_vcpus_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, vcpus_by_state), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_tasks_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, tasks_by_state), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_blocks_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, blocks::report), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_flows_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, flows::report), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_functions_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, functions_without_symbols), seed, &changes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn figures_of_the_summary_do_not_become_larger(seed in any::<u64>(), changes in proptest::collection::vec(change(), 1..4)) {
        check_figures(|dir| figures_of(dir, summary::report), seed, &changes)?;
    }
}

/// The critical paths of the task `tid`; none where the records that are left do not tell of it.
fn critical_paths(dir: &Path, options: &CriticalPathOptions) -> Vec<CriticalPath> {
    match critical_path::critical_paths(&Trace::open(dir).unwrap(), options) {
        Ok((answer, _)) => answer.paths,
        Err(
            CriticalPathError::NothingInWindow
            | CriticalPathError::Outside(_)
            | CriticalPathError::NoTask { .. }
            | CriticalPathError::NoInterval { .. },
        ) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

fn asking_for(tid: u64) -> CriticalPathOptions {
    CriticalPathOptions::of(format!("*/{tid}").parse().unwrap())
}

/// What steps without any below them add up to, ticks.
fn sum_of_leaves(steps: &[Step]) -> u64 {
    steps.iter().map(|step| if step.steps.is_empty() { step.ticks } else { sum_of_leaves(&step.steps) }).sum()
}

/// The shares of a path by cause and task: those in which a vCPU or a guest's CPU did something. A wait of which less
/// is known counts as the wait that it is.
fn shares(paths: &[CriticalPath]) -> Figures {
    let is_compared = |cause| {
        matches!(
            cause,
            Cause::Running
                | Cause::Interrupted
                | Cause::Exit
                | Cause::Vmm
                | Cause::Preempted
                | Cause::NotAllowed
                | Cause::WokenLate
                | Cause::Halted
                | Cause::WaitsForCpu
        )
    };
    let mut figures = Figures::new();
    for share in paths.iter().flat_map(|path| &path.shares).filter(|share| is_compared(share.cause)) {
        // The last name that a task is known by may be an earlier one.
        let tid = share.task.rsplit('/').next().unwrap_or_default();
        *figures.entry(format!("{:?} of {tid}", share.cause)).or_default() += share.ticks;
    }
    figures
}

#[test]
fn critical_path_of_a_complete_recording_follows_waits() {
    let dir = TempDir::new().unwrap();
    record(dir.path(), 7);

    let paths = critical_paths(dir.path(), &asking_for(11));

    let figures = shares(&paths);
    assert!(figures.contains_key("Running of 10") && figures.contains_key("Running of 11"), "{figures:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn critical_path_adds_up_in_any_window(
        seed in any::<u64>(),
        tid in 10..14_u64,
        (from, length) in (0..300_000_u64, 1..300_000_u64),
        worst in proptest::option::of(1..20_usize),
        changes in proptest::collection::vec(change(), 0..3),
    ) {
        let dir = TempDir::new().unwrap();
        record(dir.path(), seed);
        changes.iter().for_each(|&(stream, change)| apply(dir.path(), stream, change));
        let (from, to) = (Some(Duration::from_nanos(from)), Some(Duration::from_nanos(from + length)));

        let paths = critical_paths(dir.path(), &CriticalPathOptions { from, to, worst, ..asking_for(tid) });

        for path in paths {
            prop_assert_eq!(path.wall_ticks, path.window.end - path.window.begin);
            prop_assert_eq!(path.steps.iter().map(|step| step.ticks).sum::<u64>(), path.wall_ticks);
            prop_assert_eq!(sum_of_leaves(&path.steps), path.wall_ticks);
            prop_assert_eq!(path.shares.iter().map(|share| share.ticks).sum::<u64>(), path.wall_ticks);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn known_shares_of_a_critical_path_do_not_become_larger(
        seed in any::<u64>(),
        tid in 10..14_u64,
        changes in proptest::collection::vec(change(), 1..4),
    ) {
        check_figures(|dir| shares(&critical_paths(dir, &asking_for(tid))), seed, &changes)?;
    }
}
