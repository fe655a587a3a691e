//! Recordings for tests, made record by record.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

pub mod disk_request;
pub mod packet;

use crate::clock::{Clock, NS_PER_SECOND, UtcAnchor};
use crate::clock_snapshots::{self, ClockReading, ClockSnapshot};
use crate::files::kallsyms;
use crate::layer::LayerKind;
use crate::manifest::{
    Attached, CpuLimit, FORMAT_VERSION, FlagNames, Guest, Host, Manifest, Process, Started, StrataThread, VcpuThread,
    Vm,
};
use crate::metadata::TraceDescription;
use crate::reader::Trace;
use crate::writer::{LayerWriter, NewLayer};
use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer};
use std::collections::BTreeMap;
use tempfile::TempDir;
use uuid::Uuid;

/// 2 GHz, tick 1000 at 2023-11-14T22:13:20Z, 100 ns of error.
#[must_use]
pub fn clock() -> Clock {
    Clock {
        uuid: Uuid::from_bytes([1; 16]),
        frequency_hz: 2_000_000_000,
        utc: UtcAnchor { ticks: 1000, utc_ns: 1_700_000_000 * NS_PER_SECOND, uncertainty_ns: 0 },
        source: "x86-tsc".into(),
        vcpus: Vec::new(),
        error_bound_ns: 100,
        bound_derivation: "one counter".into(),
        given_up_ticks: None,
        epochs: Vec::new(),
    }
}

/// What a host's clocks show at `ticks` of [`clock`]: all of them an hour more.
#[must_use]
pub const fn clock_snapshot(ticks: u64) -> ClockSnapshot {
    let reading = ClockReading { ticks, ns: ticks / 2 + 3600 * NS_PER_SECOND, uncertainty_ns: 20 };
    ClockSnapshot { host: None, monotonic_raw: reading, monotonic: reading, boottime: reading, realtime: reading }
}

/// An event type with `u32` fields of the given names.
#[must_use]
pub fn event(id: u16, name: &str, fields: &[&str]) -> EventDescription {
    let field = |name: &&str| FieldDescription { name: (*name).into(), ty: FieldType::U32, hex: false };
    EventDescription { id, class: 0, name: name.into(), fields: fields.iter().map(field).collect() }
}

/// A layer of a process whose name has to be quoted.
#[must_use]
pub fn trace_description() -> TraceDescription {
    TraceDescription {
        uuid: Uuid::from_bytes([2; 16]),
        kind: LayerKind::GuestUser,
        vm: Some("vm0".into()),
        process: Some(Process { pid: 42, comm: "say \"hi\"\\\n".into() }),
        clock: clock(),
        host: Host { hostname: "machine".into(), ..Host::default() },
        strata: "0.1.0".into(),
        has_numbered_streams: false,
    }
}

/// When recordings of [`manifest_of`] began, ns since 1970.
const STARTED: u64 = 1_700_000_000_000_000_000;

/// A recording of `vms` without layers; a tick is a nanosecond, and clocks have no error.
#[must_use]
pub fn manifest_of(vms: Vec<Vm>) -> Manifest {
    Manifest {
        format: FORMAT_VERSION,
        strata: "0.1.0".into(),
        started: Started::at(STARTED),
        clock: Clock {
            uuid: Uuid::from_bytes([1; 16]),
            frequency_hz: 1_000_000_000,
            utc: UtcAnchor { ticks: 0, utc_ns: STARTED, uncertainty_ns: 0 },
            source: "x86-tsc".into(),
            vcpus: Vec::new(),
            error_bound_ns: 0,
            bound_derivation: "one counter".into(),
            given_up_ticks: None,
            epochs: Vec::new(),
        },
        host: Host::default(),
        vms,
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: Some("power-off".into()),
    }
}

/// A recording of one VM, without layers.
#[must_use]
pub fn manifest() -> Manifest {
    Manifest {
        format: FORMAT_VERSION,
        strata: "0.1.0".into(),
        started: Started::at(1_700_000_000_000_000_000),
        clock: clock(),
        host: Host::default(),
        vms: vec![Vm { name: "vm0".into(), vcpus: 2, ..Vm::default() }],
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: Some("power-off".into()),
    }
}

/// Value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// An `i64` field.
    Number(i64),
    /// A `u64` field shown in hexadecimal.
    Hex(u64),
    /// Floating point.
    Float(f64),
    /// A NUL-terminated text.
    Text(&'static str),
    /// The six arguments of a system call: these, then 0.
    Arguments([u64; 2]),
    /// A sequence of addresses.
    Stack(&'static [u64]),
}

impl Field {
    const fn ty(self) -> FieldType {
        match self {
            Self::Number(_) => FieldType::I64,
            Self::Hex(_) => FieldType::U64,
            Self::Float(_) => FieldType::F64,
            Self::Text(_) => FieldType::String,
            Self::Arguments(_) => FieldType::Array(Integer::U64, 6),
            Self::Stack(_) => FieldType::Sequence(Integer::U64),
        }
    }

    /// Writes it in its place in `payload`, and what follows after the last field to `behind`.
    fn put(self, payload: &mut Vec<u8>, behind: &mut Vec<u8>) {
        match self {
            Self::Stack(addresses) => {
                payload.extend_from_slice(&u16::try_from(addresses.len()).unwrap().to_le_bytes());
                behind.extend(addresses.iter().flat_map(|address| address.to_le_bytes()));
            }
            Self::Number(number) => payload.extend_from_slice(&number.to_le_bytes()),
            Self::Hex(number) => payload.extend_from_slice(&number.to_le_bytes()),
            Self::Float(number) => payload.extend_from_slice(&number.to_le_bytes()),
            Self::Text(text) => {
                payload.extend_from_slice(text.as_bytes());
                payload.push(0);
            }
            Self::Arguments(arguments) => {
                let all = arguments.into_iter().chain(std::iter::repeat(0)).take(6);
                payload.extend(all.flat_map(u64::to_le_bytes));
            }
        }
    }
}

/// A record to be: kind of the layer, process of a user layer, CPU or thread, time in ticks, event, fields.
struct TestRecord {
    layer: (LayerKind, Option<u32>),
    cpu: u32,
    time: u64,
    name: &'static str,
    fields: Vec<(&'static str, Field)>,
}

/// A recording of one VM, `vm0`, in the making. An event type is what its first record says.
pub struct TestTrace {
    manifest: Manifest,
    records: Vec<TestRecord>,
    /// Lost records, and how many records came before them.
    losses: Vec<(usize, LayerKind, u32, u64)>,
    /// Guests' CPUs that never began to record.
    never_joined: Vec<u32>,
    /// Layers whose kernel's symbols are saved, and those.
    symbols: Vec<(&'static str, &'static str)>,
    clocks: Vec<ClockSnapshot>,
    flag_names: Vec<FlagNames>,
}

impl Default for TestTrace {
    fn default() -> Self {
        Self::new()
    }
}

impl TestTrace {
    /// A recording of a VM of two vCPUs whose threads are 100 and 101; a tick is half a nanosecond.
    pub fn new() -> Self {
        let vm = Vm { name: "vm0".into(), vcpus: 2, vcpu_threads: vec![100, 101], ..Vm::default() };
        let manifest = Manifest { vms: vec![vm], ..manifest() };
        let (records, losses, never_joined) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            manifest,
            records,
            losses,
            never_joined,
            symbols: Vec::new(),
            clocks: Vec::new(),
            flag_names: Vec::new(),
        }
    }

    /// The same beside another VM on its host, `name`, of one vCPU with this thread and without records of its own.
    pub fn with_neighbour(mut self, name: &str, thread: i32) -> Self {
        self.manifest.vms.push(Vm { name: name.into(), vcpus: 1, vcpu_threads: vec![thread], ..Vm::default() });
        self
    }

    /// Says that a thread of strata's had used that much of a CPU, ns.
    pub fn strata_thread(mut self, tid: i32, name: &str, cpu_ns: u64) -> Self {
        self.manifest.vms[0].strata_threads.push(StrataThread { tid, name: name.into(), cpu_ns });
        self
    }

    /// Says that this thread ran `vcpu` before the one that does.
    pub fn earlier_thread(mut self, vcpu: u32, tid: i32) -> Self {
        self.manifest.vms[0].earlier_vcpu_threads.push(VcpuThread { vcpu, tid });
        self
    }

    /// Says that the VM is run by this process, to which the recording was attached.
    pub fn attached_to(mut self, pid: u32, comm: &str) -> Self {
        self.manifest.vms[0].attached = Some(Attached { pid, comm: comm.into() });
        self
    }

    /// Says what a control group of the VM's counted.
    pub fn cpu_limit(mut self, limit: CpuLimit) -> Self {
        self.manifest.vms[0].cpu_limits.push(limit);
        self
    }

    /// Adds a record.
    pub fn record(
        mut self,
        kind: LayerKind,
        cpu: u32,
        time: u64,
        name: &'static str,
        fields: &[(&'static str, Field)],
    ) -> Self {
        self.records.push(TestRecord { layer: (kind, None), cpu, time, name, fields: fields.to_vec() });
        self
    }

    /// Adds a record of the guest's kernel.
    pub fn guest(self, cpu: u32, time: u64, name: &'static str, fields: &[(&'static str, Field)]) -> Self {
        self.record(LayerKind::GuestKernel, cpu, time, name, fields)
    }

    /// Adds a record of the host's kernel.
    pub fn host(self, cpu: u32, time: u64, name: &'static str, fields: &[(&'static str, Field)]) -> Self {
        self.record(LayerKind::HostKernel, cpu, time, name, fields)
    }

    /// Adds a record of the VMM.
    pub fn vmm(self, thread: u32, time: u64, name: &'static str, fields: &[(&'static str, Field)]) -> Self {
        self.record(LayerKind::Vmm, thread, time, name, fields)
    }

    /// Adds a record of the guest's process `pid`.
    pub fn user(mut self, pid: u32, cpu: u32, time: u64, name: &'static str, fields: &[(&'static str, Field)]) -> Self {
        let layer = (LayerKind::GuestUser, Some(pid));
        self.records.push(TestRecord { layer, cpu, time, name, fields: fields.to_vec() });
        self
    }

    /// Adds a switch of the guest's CPU `cpu` from task `prev` to task `next`, which are called `taskN`.
    pub fn switch(self, cpu: u32, time: u64, prev: i64, next: i64) -> Self {
        let comm = |pid| match pid {
            0 => "swapper",
            1 => "init",
            7 => "seven",
            8 => "eight",
            _ => "task",
        };
        self.named_switch((cpu, time), (prev, comm(prev)), 0, (next, comm(next)))
    }

    /// Adds a switch of the guest's CPU `cpu` between tasks by thread id and name; the first is in `prev_state` then.
    pub fn named_switch(
        self,
        (cpu, time): (u32, u64),
        prev: (i64, &'static str),
        prev_state: i64,
        next: (i64, &'static str),
    ) -> Self {
        let fields = [
            ("prev_comm", Field::Text(prev.1)),
            ("prev_pid", Field::Number(prev.0)),
            ("prev_state", Field::Number(prev_state)),
            ("next_comm", Field::Text(next.1)),
            ("next_pid", Field::Number(next.0)),
        ];
        self.guest(cpu, time, "sched:sched_switch", &fields)
    }

    /// Adds that the guest's task `tid` is called `after` from now on, and not `before`.
    pub fn rename(self, cpu: u32, time: u64, tid: i64, before: &'static str, after: &'static str) -> Self {
        let fields = [("pid", Field::Number(tid)), ("oldcomm", Field::Text(before)), ("newcomm", Field::Text(after))];
        self.guest(cpu, time, "task:task_rename", &fields)
    }

    /// Adds a symbol of the guest's kernel: of 128 bytes from `begin`.
    pub fn symbol(self, time: u64, begin: u64, name: &'static str) -> Self {
        let fields = [("begin", Field::Hex(begin)), ("size", Field::Number(0x80)), ("name", Field::Text(name))];
        self.guest(0, time, "strata:symbol", &fields)
    }

    /// Saves the symbols of the kernel of the layer at `path`, as `/proc/kallsyms` has them.
    pub fn kallsyms(mut self, path: &'static str, text: &'static str) -> Self {
        self.symbols.push((path, text));
        self
    }

    /// Says which releases the kernels of the host and the guest are.
    pub fn releases(mut self, host: &str, guest: &str) -> Self {
        self.manifest.host.kernel = host.into();
        let guest = Guest { kernel: guest.into(), agent_abi: 0, processes_refused: 0, processes_over_quota: 0 };
        self.manifest.vms[0].guest = Some(guest);
        self
    }

    /// Says that the recording goes on, or that its recorder was killed.
    pub fn unfinished(mut self) -> Self {
        self.manifest.outcome = None;
        self
    }

    /// Says that `count` records of a stream were lost after those that are there so far.
    pub fn lost(mut self, kind: LayerKind, cpu: u32, count: u64) -> Self {
        self.losses.push((self.records.len(), kind, cpu, count));
        self
    }

    /// Says that the guest's CPU `cpu` never began to record.
    pub fn never_joined(mut self, cpu: u32) -> Self {
        self.never_joined.push(cpu);
        self
    }

    /// Says what flags in a field of the host's events are called.
    pub fn flags(mut self, event: &str, field: &str, flags: &[(u64, &str)]) -> Self {
        let flags = flags.iter().map(|&(mask, name)| (mask, name.to_owned())).collect();
        self.flag_names.push(FlagNames { fields: vec![(event.into(), field.into())], flags });
        self
    }

    /// Says what the host's clocks showed.
    pub fn clocks(mut self, snapshots: &[ClockSnapshot]) -> Self {
        self.clocks.extend_from_slice(snapshots);
        self
    }

    /// Writes the recording and opens it. The folder must be kept.
    pub fn open(mut self) -> (TempDir, Trace) {
        let dir = TempDir::new().unwrap();
        let mut layers: BTreeMap<(LayerKind, Option<u32>), (LayerWriter, Vec<EventDescription>)> = BTreeMap::new();
        for (index, record) in self.records.iter().enumerate() {
            let (kind, pid) = record.layer;
            let (layer, events) = layers.entry(record.layer).or_insert_with(|| {
                let vm = (kind != LayerKind::HostKernel).then(|| "vm0".to_string());
                let process = pid.map(|pid| Process { pid, comm: "process".into() });
                let new = NewLayer { kind, vm, process, packet_size: 4096 };
                (LayerWriter::create(dir.path(), &self.manifest, new).unwrap(), Vec::new())
            });
            if events.is_empty() {
                for &(_, _, cpu, count) in self.losses.iter().filter(|loss| loss.0 == 0 && loss.1 == kind) {
                    layer.add_lost(cpu, count);
                }
            }
            let known = events.iter().find(|event| event.name == record.name).map(|event| event.id);
            let id = known.unwrap_or_else(|| {
                let field = |&(name, value): &(&str, Field)| FieldDescription {
                    name: name.into(),
                    ty: value.ty(),
                    hex: matches!(value, Field::Hex(_)),
                };
                let id = u16::try_from(events.len() + 1).unwrap();
                let fields = record.fields.iter().map(field).collect();
                events.push(EventDescription { id, class: 0, name: record.name.into(), fields });
                layer.add_events(&events[events.len() - 1..]).unwrap();
                id
            });
            let (mut payload, mut behind) = (Vec::new(), Vec::new());
            record.fields.iter().for_each(|(_, value)| value.put(&mut payload, &mut behind));
            payload.extend(behind);
            layer.record(record.cpu, record.time, id, &payload).unwrap();
            for &(_, _, cpu, count) in self.losses.iter().filter(|loss| loss.0 == index + 1 && loss.1 == kind) {
                layer.add_lost(cpu, count);
            }
        }
        for (mut layer, _) in layers.into_values() {
            if layer.kind() == LayerKind::GuestKernel {
                self.never_joined.iter().for_each(|&cpu| layer.set_never_joined(cpu));
            }
            layer.flush().unwrap();
            let mut described = layer.layer();
            if described.kind == LayerKind::HostKernel {
                described.flag_names.clone_from(&self.flag_names);
            }
            self.manifest.layers.push(described);
        }
        Manifest::save(&self.manifest, dir.path()).unwrap();
        clock_snapshots::write(&self.clocks, dir.path()).unwrap();
        for (path, text) in self.symbols {
            kallsyms::write(dir.path(), path, text.as_bytes(), &mut || {}).unwrap();
        }
        let trace = Trace::open(dir.path()).unwrap();
        (dir, trace)
    }
}
