//! What reports count, row by row: wakeups, system calls, waits for locks, exits, interrupts, samples, disk requests,
//! packets.

use super::columns::cell::Cell;
use super::output::Output;
use super::places::Place;
use super::rows::FixedRows;
use super::task::{Named, Numbers, Tasks};
use super::{Maker, Selection};
use serde_json::json;
use strata_analysis::event::{self, Access, name};
use strata_analysis::exit_reason::ExitReason;
use strata_analysis::kernel_symbols::KernelSymbols;
use strata_analysis::timeline::states::{Current, TaskIndex};
use strata_analysis::timeline::{Change, ChangeKind, Input, Kernel, Timeline};
use strata_analysis::{Analysis, Gap, Passed, names};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::window::Window;
use trace_merge::report::devices::blocks::BlockTimes;
use trace_merge::report::devices::flow_step::{FlowMilestone, FlowStep, FlowTask};
use trace_merge::report::devices::flows::{Flow, FlowTimes};
use trace_merge::report::devices::net_flows::{Direction, NetFlowTimes, PacketFlow};
use trace_merge::report::kernels::exits::{ExitTimes, Parts};
use trace_merge::report::kernels::functions::FunctionSampling;
use trace_merge::report::kernels::irqs::{InterruptKind, InterruptTimes};
use trace_merge::report::kernels::locks::{LockTimes, WaitEnd};
use trace_merge::report::kernels::syscalls::SyscallTimes;
use trace_merge::report::kernels::{locks, syscalls};
use trace_merge::report::scheduling::wakeups::WakeupTimes;
use trace_merge::report::statistics::ended::{Ended, KeepsEnded};

/// Those of the tables here that are in `selection`.
pub(super) fn makers<'m>(
    trace: &Trace,
    timeline: &Timeline,
    window: Window,
    selection: &Selection,
    output: &Output,
) -> Vec<Box<dyn Maker + 'm>> {
    let table = |name| FixedRows::new(name, output);
    let mut makers: Vec<Box<dyn Maker>> = Vec::new();
    if selection.has("wakeups") {
        let rows = Wakeups { table: table("wakeups").keyed(&[Named::COLUMNS]), tasks: Tasks::default() };
        makers.push(Box::new(Listed { times: WakeupTimes::keeping_ended(window), rows }));
    }
    if selection.has("syscalls") {
        let table = table("syscalls").keyed(&[Named::COLUMNS, 3]);
        let rows = Syscalls { table, tasks: Tasks::default() };
        makers.push(Box::new(Listed { times: SyscallTimes::keeping_ended(), rows }));
    }
    if selection.has("locks") {
        let table = table("locks").keyed(&[Named::COLUMNS]);
        let rows = Locks { table, tasks: Tasks::default(), symbols: symbols(trace, timeline) };
        makers.push(Box::new(Listed { times: LockTimes::keeping_ended(), rows }));
    }
    if selection.has("exits") {
        let rows = Exits { table: table("exits").keyed(&[3]), whats: Numbers::new() };
        makers.push(Box::new(Listed { times: ExitTimes::keeping_ended(window), rows }));
    }
    let chosen = |name| selection.has(name).then(|| table(name));
    if selection.has("interrupts") || selection.has("injections") {
        let handled = chosen("interrupts").map(|table| table.keyed(&[5]));
        let injected = chosen("injections").map(|table| table.keyed(&[2]));
        let rows = Interrupts { handled, injected, whats: Numbers::new(), vectors: Numbers::new() };
        makers.push(Box::new(Listed { times: InterruptTimes::keeping_ended(), rows }));
    }
    if selection.has("samples") {
        let rows = Samples { table: table("samples").keyed(&[Named::COLUMNS]), tasks: Tasks::default() };
        makers.push(Box::new(Listed { times: FunctionSampling::keeping_ended(trace), rows }));
    }
    if selection.has("block_requests") {
        let rows = BlockRequests { table: table("block_requests").keyed(&[2]), whats: Numbers::new() };
        makers.push(Box::new(Listed { times: BlockTimes::keeping_ended(), rows }));
    }
    if selection.has("flows") || selection.has("flow_steps") {
        let rows = Flows { table: chosen("flows"), steps: chosen("flow_steps"), count: 0 };
        makers.push(Box::new(Listed { times: FlowTimes::keeping_ended(trace), rows }));
    }
    if selection.has("packets") || selection.has("packet_steps") {
        let rows = Packets { table: chosen("packets"), steps: chosen("packet_steps"), count: 0 };
        makers.push(Box::new(Listed { times: NetFlowTimes::keeping_ended(trace), rows }));
    }
    makers
}

/// By VM: the symbols of its guest's kernel, where waits for its locks were recorded. They may be recorded after the
/// waits.
fn symbols(trace: &Trace, timeline: &Timeline) -> Vec<Option<KernelSymbols>> {
    let of = |vm: &strata_analysis::timeline::Vm| {
        let waits = trace.kernel_layers(&vm.name).any(|layer| event::is_recorded(layer, name::CONTENTION_BEGIN));
        waits.then(|| KernelSymbols::of_guest(trace, &vm.name))
    };
    timeline.vms.iter().map(of).collect()
}

/// A report in the making, and the rows of what it counts.
struct Listed<T, R> {
    times: T,
    rows: R,
}

/// Makes rows of what a report in the making has counted.
trait List<T>: Send {
    /// Takes what has ended since the last time. `at_end` says that no record is to come.
    fn list(&mut self, times: &mut T, timeline: &Timeline, at_end: bool);
}

impl<T: KeepsEnded, R: List<T>> Listed<T, R> {
    fn list_ended(&mut self, timeline: &Timeline) {
        if self.times.has_ended() {
            self.rows.list(&mut self.times, timeline, false);
        }
    }
}

impl<T: KeepsEnded, R: List<T>> Analysis for Listed<T, R> {
    fn layers(&self) -> &'static [LayerKind] {
        self.times.layers()
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        self.times.takes_record(input)
    }

    fn takes_change(&self, kind: ChangeKind) -> bool {
        self.times.takes_change(kind)
    }

    fn before(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.times.before(input, timeline);
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.times.record(input, timeline);
        self.list_ended(timeline);
    }

    fn change(&mut self, change: &Change, timeline: &Timeline) {
        self.times.change(change, timeline);
        self.list_ended(timeline);
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        self.times.gap(gap, timeline);
    }

    fn is_unfinished(&self) -> bool {
        self.times.is_unfinished()
    }
}

impl<T: KeepsEnded, R: List<T>> Maker for Listed<T, R> {
    fn finish(&mut self, passed: &Passed) {
        self.rows.list(&mut self.times, &passed.timeline, true);
    }
}

/// The guest's task of `ended`; an idle CPU's where it is none.
fn named<'t, R>(tasks: &'t mut Tasks, timeline: &'t Timeline, ended: &Ended<R>) -> Named<'t> {
    ended.task.map_or(Named::IDLE, |task: TaskIndex| tasks.named(timeline, ended.vm, task))
}

struct Wakeups {
    table: FixedRows,
    tasks: Tasks,
}

impl List<WakeupTimes> for Wakeups {
    fn list(&mut self, times: &mut WakeupTimes, timeline: &Timeline, _at_end: bool) {
        for ended in times.take_ended() {
            let task = named(&mut self.tasks, timeline, &ended);
            let Some(row) = self.table.lasting(Place::Vm(ended.vm), (ended.begin, ended.end)) else { continue };
            let meanwhile = serde_json::to_string(&ended.what.meanwhile).unwrap_or_default();
            let row = row.keyed(task.number.into(), |give| task.give(&[], give));
            row.cells([ended.what.cpu.into(), meanwhile.as_str().into()]).end();
        }
    }
}

struct Syscalls {
    table: FixedRows,
    tasks: Tasks,
}

impl List<SyscallTimes> for Syscalls {
    fn list(&mut self, times: &mut SyscallTimes, timeline: &Timeline, at_end: bool) {
        let clock = timeline.clock();
        for ended in times.take_ended(at_end) {
            let task = named(&mut self.tasks, timeline, &ended);
            let Some(row) = self.table.lasting(Place::Vm(ended.vm), (ended.begin, ended.end)) else { continue };
            let call = &ended.what;
            let row = row.keyed(task.number.into(), |give| task.give(&[], give));
            let row = row.keyed(call.number.cast_unsigned(), |give| {
                let (abi, number) = names::syscall::abi(call.number);
                give(&[syscalls::name(call.number).as_str().into(), abi.name().into(), number.into()]);
            });
            let own = [
                call.outcome.name().into(),
                call.result.into(),
                call.result.map_or(Cell::Null, |_| Cell::Flag(call.is_error())),
                call.cpu.map(|ticks| clock.ticks_to_ns(ticks)).into(),
                call.page_faults.into(),
                clock.ticks_to_ns(call.page_faults_at_most).into(),
            ];
            row.cells(own).end();
        }
    }
}

struct Locks {
    table: FixedRows,
    tasks: Tasks,
    /// By VM.
    symbols: Vec<Option<KernelSymbols>>,
}

impl List<LockTimes> for Locks {
    fn list(&mut self, times: &mut LockTimes, timeline: &Timeline, at_end: bool) {
        for ended in times.take_ended(at_end) {
            let task = named(&mut self.tasks, timeline, &ended);
            let Some(row) = self.table.lasting(Place::Vm(ended.vm), (ended.begin, ended.end)) else { continue };
            let row = row.keyed(task.number.into(), |give| task.give(&[], give));
            let outcome = ended.what.outcome(ended.end.is_some());
            let symbols = self.symbols.get(ended.vm).and_then(Option::as_ref);
            let (mut name, mut calls) = (None, None);
            let (what, address, kind, context) = match &ended.what {
                WaitEnd::Kernel { address, kind, context, calls: stack } => {
                    if let Some(symbols) = symbols {
                        name = locks::name_of_lock(symbols, *address);
                        calls = (!stack.is_empty()).then(|| json!(locks::calls(symbols, stack)).to_string());
                    }
                    ("kernel", *address, *kind, context.as_str())
                }
                WaitEnd::Futex { address, operation, .. } => ("futex", *address, *operation, "futex"),
            };
            let own = [
                what.into(),
                Cell::Unsigned(address),
                name.as_deref().into(),
                kind.into(),
                context.into(),
                calls.as_deref().into(),
                outcome.into(),
            ];
            row.cells(own).end();
        }
    }
}

struct Exits {
    table: FixedRows,
    /// Of vCPUs, why they left the guest, and what they accessed.
    whats: Numbers<(u32, ExitReason, Option<Access>)>,
}

impl List<ExitTimes> for Exits {
    fn list(&mut self, times: &mut ExitTimes, timeline: &Timeline, at_end: bool) {
        let clock = timeline.clock();
        for ended in times.take_ended(at_end) {
            let exit = &ended.what;
            let Some(row) = self.table.lasting(Place::Vm(ended.vm), (ended.begin, ended.end)) else { continue };
            let row = row.keyed(self.whats.of((exit.vcpu, exit.reason, exit.access)), |give| {
                let (reason, place) = (exit.reason.name(), exit.place());
                give(&[exit.vcpu.into(), (*reason).into(), place.as_deref().into()]);
            });
            let part =
                |of: fn(&Parts) -> u64| Cell::from(exit.parts.as_ref().map(|parts| clock.ticks_to_ns(of(parts))));
            let own = [
                part(|parts| parts.kvm),
                part(|parts| parts.vmm),
                part(|parts| parts.stolen),
                part(|parts| parts.halted),
                part(|parts| parts.blocked),
            ];
            row.cells(own).end();
        }
    }
}

struct Interrupts {
    handled: Option<FixedRows>,
    injected: Option<FixedRows>,
    /// Of kernels' CPUs, what was handled.
    whats: Numbers<(Kernel, u32, InterruptKind, i64)>,
    /// Of VMs' vCPUs, vectors.
    vectors: Numbers<(u32, i64)>,
}

impl List<InterruptTimes> for Interrupts {
    fn list(&mut self, times: &mut InterruptTimes, timeline: &Timeline, at_end: bool) {
        let clock = timeline.clock();
        let Self { handled, injected, whats, vectors } = self;
        for interrupt in times.take_handled() {
            let place = interrupt.kernel.into();
            let Some(row) = handled.as_mut().and_then(|table| table.in_window(place, interrupt.window)) else {
                continue;
            };
            let (cpu, vcpu) = match interrupt.kernel {
                Kernel::Host(_) => (Some(interrupt.cpu), None),
                Kernel::Guest(_) => (None, Some(interrupt.cpu)),
            };
            let (kind, number) = (interrupt.kind, interrupt.number);
            let row = row.keyed(whats.of((interrupt.kernel, interrupt.cpu, kind, number)), |give| {
                give(&[cpu.into(), vcpu.into(), kind.name().into(), number.into(), (*interrupt.name).into()]);
            });
            row.end();
        }
        for interrupt in times.take_injected(at_end) {
            let time = (Some(interrupt.begin), interrupt.end);
            let place = Place::Vm(interrupt.vm);
            let Some(row) = injected.as_mut().and_then(|table| table.lasting(place, time)) else { continue };
            let key = (interrupt.vcpu, interrupt.vector);
            let row = row.keyed(vectors.of(key), |give| give(&[key.0.into(), key.1.into()]));
            let pending = interrupt.pending.map(|ticks| clock.ticks_to_ns(ticks));
            row.cells([interrupt.handler.as_deref().into(), pending.into()]).end();
        }
    }
}

struct Samples {
    table: FixedRows,
    tasks: Tasks,
}

impl List<FunctionSampling> for Samples {
    fn list(&mut self, times: &mut FunctionSampling, timeline: &Timeline, _at_end: bool) {
        let samples: Vec<_> = times.take_samples().collect();
        for sample in samples {
            let task = match sample.current {
                Current::Task(task) => self.tasks.named(timeline, sample.vm, task),
                Current::Idle => Named::IDLE,
                Current::Unknown => Named::UNKNOWN,
            };
            let Some(row) = self.table.moment(Place::Vm(sample.vm), sample.time) else { continue };
            let row = row.keyed(task.number.into(), |give| task.give(&[], give));
            let mut functions = sample.functions.iter().filter_map(|&function| times.function(sample.vm, function));
            let (name, module) = functions.next().unzip();
            let calls: Vec<_> = functions.map(|(name, _)| name).collect();
            let calls = (!calls.is_empty()).then(|| json!(calls).to_string());
            row.cells([sample.vcpu.into(), name.into(), module.into(), calls.as_deref().into()]).end();
        }
    }
}

struct BlockRequests {
    table: FixedRows,
    /// Devices, and what was done with them.
    whats: Numbers<(String, &'static str)>,
}

impl List<BlockTimes> for BlockRequests {
    fn list(&mut self, times: &mut BlockTimes, _timeline: &Timeline, _at_end: bool) {
        for request in times.take_ended() {
            let Some(row) = self.table.in_window(request.kernel.into(), request.window) else { continue };
            let (device, operation) = (request.device, request.operation);
            let row = row.keyed(self.whats.of((device.clone(), operation)), |give| {
                give(&[device.as_str().into(), operation.into()]);
            });
            row.cells([request.sector.into(), request.bytes.into()]).end();
        }
    }
}

struct Flows {
    table: Option<FixedRows>,
    steps: Option<FixedRows>,
    /// Requests so far.
    count: u64,
}

impl List<FlowTimes> for Flows {
    fn list(&mut self, times: &mut FlowTimes, timeline: &Timeline, at_end: bool) {
        for (vm, flow) in times.take_ended(timeline, at_end) {
            self.add(vm, &flow);
            self.count += 1;
        }
    }
}

impl Flows {
    fn add(&mut self, vm: usize, flow: &Flow) {
        if let Some(table) = &mut self.table {
            let tid = |task: &Option<FlowTask>| Cell::from(task.as_ref().map(|task| task.tid));
            let own = [
                self.count.into(),
                flow.disk.into(),
                flow.device.as_deref().into(),
                flow.kind.as_str().into(),
                flow.sector.into(),
                flow.bytes.into(),
                tid(&flow.issuer),
                flow.issuer.as_ref().map(|task| task.comm.as_str()).into(),
                tid(&flow.woken),
                flow.woken.as_ref().map(|task| task.comm.as_str()).into(),
                flow.host_io_ns.into(),
            ];
            table.push_window(Place::Vm(vm), lasting(flow.begin, flow.ticks), &own);
        }
        add_steps(&mut self.steps, (vm, self.count, &flow.kind), &flow.steps);
    }
}

struct Packets {
    table: Option<FixedRows>,
    steps: Option<FixedRows>,
    /// Packets so far.
    count: u64,
}

impl List<NetFlowTimes> for Packets {
    fn list(&mut self, times: &mut NetFlowTimes, timeline: &Timeline, at_end: bool) {
        for (vm, (direction, flow)) in times.take_ended(timeline, at_end) {
            self.add(vm, direction, &flow);
            self.count += 1;
        }
    }
}

impl Packets {
    fn add(&mut self, vm: usize, direction: Direction, flow: &PacketFlow) {
        if let Some(table) = &mut self.table {
            let own = [
                self.count.into(),
                flow.net.into(),
                direction.name().into(),
                flow.id.into(),
                flow.device.as_deref().into(),
                flow.bytes.into(),
                flow.task.as_ref().map(|task| task.tid).into(),
                flow.task.as_ref().map(|task| task.comm.as_str()).into(),
            ];
            table.push_window(Place::Vm(vm), lasting(flow.begin, flow.ticks), &own);
        }
        add_steps(&mut self.steps, (vm, self.count, direction.name()), &flow.steps);
    }
}

/// The time of what takes `ticks` from `begin` on.
const fn lasting(begin: u64, ticks: u64) -> Window {
    Window { begin, end: begin.saturating_add(ticks) }
}

/// Adds a row for each of the `steps` of what has this `number` in its table and is of this `kind`.
fn add_steps<M: FlowMilestone>(
    table: &mut Option<FixedRows>,
    (vm, number, kind): (usize, u64, &str),
    steps: &[FlowStep<M>],
) {
    let Some(table) = table else { return };
    for (place, step) in (0_u64..).zip(steps) {
        let (name, whose) = (step.name(), step.whose());
        let own = [number.into(), place.into(), name.as_str().into(), whose.as_str().into(), kind.into()];
        table.push_window(Place::Vm(vm), lasting(step.end.saturating_sub(step.ticks), step.ticks), &own);
    }
}
