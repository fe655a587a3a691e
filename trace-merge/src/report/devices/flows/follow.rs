//! Follows requests from milestone to milestone.

use super::{Flow, Milestone, SLOWEST};
use crate::report::devices::flow_step::{FlowTask, steps};
use crate::report::devices::followed::{Ended, Followed};
use crate::report::devices::follower::{GuestRecord, Kind};
use crate::report::devices::interrupts::Likeliest;
use crate::report::devices::io_path::{IoPath, UNDER_WAY};
use crate::report::statistics::distribution::Durations;
use crate::report::statistics::samples::{ReportedBy, Samples, reported};
use foldhash::HashMap;
use strata_analysis::event::{self, BlockRequest, Event, Interrupt, Tid};
use strata_analysis::names::device;
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::{Current, TaskIndex};
use strata_analysis::timeline::{Input, Origin};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{DISK_THREAD, Vm};
use strata_recording::reader::{Trace, TraceLayer};

/// Minor numbers of the guest's virtio disks count by partitions: 16 for each disk.
const MINORS_PER_DISK: u64 = 16;
/// What a request does, as far as both sides tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
    Flush,
    #[default]
    Other,
}

/// A request under way.
#[derive(Clone, Debug, Default)]
pub struct Request {
    times: [Option<u64>; Milestone::ALL.len()],
    operation: Operation,
    kind: String,
    sector: u64,
    bytes: u64,
    /// The guest's device.
    device: Option<u64>,
    /// The VMM's disk, once it has begun.
    disk: Option<u32>,
    issuer: Option<TaskIndex>,
    woken: Option<TaskIndex>,
    host_io: Option<(u64, u64)>,
}

impl Request {
    fn new(operation: Operation, sector: u64, bytes: u64) -> Self {
        Self { operation, sector, bytes, ..Self::default() }
    }

    /// Whether the VMM's request is this one of the guest.
    fn is(&self, operation: Operation, sector: u64, bytes: u64) -> bool {
        // A flush has no place.
        let is_there = operation == Operation::Flush || (self.sector, self.bytes) == (sector, bytes);
        self.operation == operation && is_there
    }
}

impl Followed for Request {
    type Milestone = Milestone;
    type Flow = Flow;

    const SLOWEST: usize = SLOWEST;

    fn times(&self) -> &[Option<u64>] {
        &self.times
    }

    fn times_mut(&mut self) -> &mut [Option<u64>] {
        &mut self.times
    }

    fn woken(&mut self) -> &mut Option<TaskIndex> {
        &mut self.woken
    }

    fn flow(&self, ticks: u64, guest: &Guest, clock: &Clock) -> Flow {
        let passed = self.passed();
        Flow {
            disk: self.disk.unwrap_or(0),
            device: self.device.map(device::name),
            kind: self.kind.clone(),
            sector: self.sector,
            bytes: self.bytes,
            issuer: self.issuer.map(|task| FlowTask::of(task, guest)),
            woken: self.woken.map(|task| FlowTask::of(task, guest)),
            begin: passed.first().map_or(0, |&(_, time)| time),
            ticks,
            total_ns: clock.ticks_to_ns(ticks),
            steps: steps(&passed, clock),
            host_io_ns: self.host_io.map(|(begin, end)| clock.ticks_to_ns(end.saturating_sub(begin))),
        }
    }
}

/// The requests of the disks of one VM.
#[derive(Debug, Default)]
pub struct Requests {
    pub(super) guest_block_events: bool,
    /// Whether the VMM's interrupts are recorded: a recording of an older version has no event for them.
    interrupts_are_recorded: bool,
    /// The disk of each interrupt.
    disks: Likeliest<i32, u32>,
    /// The disks of the VMM's threads that serve one each.
    disk_threads: HashMap<Tid, u32>,
    /// The disks for which the host's block I/O under way was issued, by device and sector; `None` where that is not
    /// known.
    host_io_of: HashMap<(Option<u64>, Option<u64>), Option<u32>>,
    /// Issued by the guest, not begun by the VMM; the oldest first.
    issued: Vec<Request>,
    /// Begun by the VMM and not completed by the guest; the oldest first.
    begun: Vec<Request>,
    pub(super) ended: Ended<Request>,
    pub(super) host_io: Durations,
    pub(super) unfinished: u64,
}

impl Kind for Requests {
    type Item = Request;

    const REPORTED_BY: &'static [ReportedBy] = &[
        reported(LayerKind::Vmm, event::name::DISK_REQUEST),
        reported(LayerKind::Vmm, "vmm:disk_notified"),
        reported(LayerKind::Vmm, event::name::DISK_INTERRUPT),
        reported(LayerKind::HostKernel, "kvm:kvm_mmio"),
        reported(LayerKind::HostKernel, "kvm:kvm_inj_virq"),
        reported(LayerKind::GuestKernel, event::name::BLOCK_ISSUE),
        reported(LayerKind::GuestKernel, event::name::BLOCK_COMPLETE),
        reported(LayerKind::GuestKernel, "irq:irq_handler_entry"),
        reported(LayerKind::GuestKernel, "sched:sched_wak*"),
        reported(LayerKind::GuestKernel, event::name::SWITCH),
    ];

    fn begin(trace: &Trace, vm: &Vm) -> Option<Self> {
        let of_vm = |layer: &&TraceLayer| layer.description.vm.as_ref() == Some(&vm.name);
        let vmm: Vec<_> = trace.layers_of(LayerKind::Vmm).filter(of_vm).collect();
        let is_recorded = |event| vmm.iter().any(|layer| event::is_recorded(layer, event));
        if !is_recorded(event::name::DISK_REQUEST) {
            return None;
        }
        let guest_block_events = trace.kernel_layers(&vm.name).any(|layer| {
            event::is_recorded(layer, event::name::BLOCK_ISSUE)
                && event::is_recorded(layer, event::name::BLOCK_COMPLETE)
        });
        let disk_of = |name: &str| name.strip_prefix(DISK_THREAD)?.parse().ok();
        let disk_threads = vm.strata_threads.iter().filter_map(|thread| Some((thread.tid, disk_of(&thread.name)?)));
        Some(Self {
            guest_block_events,
            interrupts_are_recorded: is_recorded(event::name::DISK_INTERRUPT),
            disk_threads: disk_threads.collect(),
            ..Self::default()
        })
    }

    fn takes(input: &Input<'_>) -> bool {
        match input.event {
            Some(Event::InterruptEnter(Interrupt::Irq(_)) | Event::InterruptExit(_)) => {
                matches!(input.origin, Origin::Guest { .. })
            }
            Some(
                Event::BlockIssue(_)
                | Event::BlockComplete(_)
                | Event::DiskNotified { .. }
                | Event::DiskRequest { .. }
                | Event::DiskInterrupt { .. },
            ) => true,
            _ => false,
        }
    }

    fn add_guest(&mut self, path: &mut IoPath<Request>, record: &GuestRecord<'_>) {
        match *record.event {
            Event::BlockIssue(ref reported) => self.issue(path, reported, record),
            Event::BlockComplete(ref reported) => self.complete(path, reported, record),
            Event::InterruptEnter(_) => {
                if let Some(number) = record.virtio_handler() {
                    self.handle(path, number, record);
                }
            }
            Event::InterruptExit(interrupt)
                if path.within(record.cpu).is_some_and(|(within, _)| within == interrupt) =>
            {
                self.leave(path, record.cpu);
            }
            _ => {}
        }
    }

    fn add_host(&mut self, time: u64, event: &Event<'_>, is_vcpu: &dyn Fn(Tid) -> bool) {
        match event {
            // Completions interrupt whatever thread.
            Event::BlockComplete(reported) => {
                let disk = self.host_io_of.remove(&(reported.device, reported.sector)).flatten();
                self.host_io(disk, time);
            }
            // A vCPU's thread issues nothing.
            Event::BlockIssue(reported) if !reported.thread.is_some_and(is_vcpu) => {
                let disk = reported.thread.and_then(|thread| self.disk_threads.get(&thread).copied());
                if self.host_io_of.len() < UNDER_WAY {
                    self.host_io_of.insert((reported.device, reported.sector), disk);
                }
                self.host_io(disk, time);
            }
            _ => {}
        }
    }

    fn add_vmm(&mut self, path: &mut IoPath<Request>, time: u64, event: &Event<'_>) {
        match *event {
            Event::DiskNotified { disk } => path.pick_up(disk, time),
            Event::DiskRequest { disk, is_done: false, kind, sector, bytes } => {
                self.start(path, disk, time, kind, (sector, bytes));
            }
            Event::DiskRequest { disk, is_done: true, .. } => {
                let serving =
                    |request: &&mut Request| request.disk == Some(disk) && request.at(Milestone::Finished).is_none();
                if let Some(request) = self.begun.iter_mut().find(serving) {
                    request.pass(Milestone::Finished, time);
                }
            }
            Event::DiskInterrupt { disk } => {
                let answered =
                    |request: &&mut Request| request.disk == Some(disk) && request.at(Milestone::Finished).is_some();
                self.begun.iter_mut().filter(answered).for_each(|request| request.pass(Milestone::Raised, time));
            }
            _ => {}
        }
    }

    fn forget(&mut self) -> usize {
        let under_way = self.under_way();
        self.issued.clear();
        self.begun.clear();
        self.host_io_of.clear();
        under_way
    }

    fn end(&mut self, path: &mut IoPath<Request>, request: Request) {
        let host_io = request.host_io;
        if self.ended.record(request, &mut path.kept)
            && let Some((begin, end)) = host_io
        {
            self.host_io.add(end.saturating_sub(begin));
        }
    }

    fn sample(samples: &mut Samples, vm: usize, flow: &Flow) {
        for step in &flow.steps {
            samples.add(Some(vm), step.end, step.ticks, || step.name());
        }
        let end = flow.begin.saturating_add(flow.ticks);
        samples.add(Some(vm), end, flow.ticks, || format!("whole request: {}", flow.kind));
    }
}

impl Requests {
    /// How many requests the guest has issued or the VMM has begun, and the guest has not completed.
    pub(super) const fn under_way(&self) -> usize {
        self.issued.len() + self.begun.len()
    }

    fn issue(&mut self, path: &mut IoPath<Request>, reported: &BlockRequest<'_>, record: &GuestRecord<'_>) {
        let Some(mut request) = guest_request(reported) else { return };
        if path.counts_as_lost() {
            return;
        }
        request.pass(Milestone::Issued, record.time());
        // What an interrupt issues is not of the task that it came upon.
        request.issuer = match (record.recorder, record.interrupt()) {
            (Current::Task(task), None) => Some(task),
            _ => None,
        };
        if self.issued.len() == UNDER_WAY {
            self.issued.remove(0);
            self.unfinished += 1;
        }
        self.issued.push(request);
    }

    /// The guest enters the handler of the interrupt `number`, which is a virtio device's.
    fn handle(&mut self, path: &mut IoPath<Request>, number: i32, record: &GuestRecord<'_>) {
        let handler = path.enter_handler(record.cpu, record.time());
        let answered = if self.interrupts_are_recorded { Milestone::Raised } else { Milestone::Finished };
        let is_answered =
            |request: &Request| request.at(answered).is_some() && request.at(Milestone::Handled).is_none();
        let answered_by = self.begun.iter().filter(|request| is_answered(request)).filter_map(|request| request.disk);
        let Some(disk) = self.disks.meet(number, answered_by) else { return };
        for request in self.begun.iter_mut().filter(|request| request.disk == Some(disk) && is_answered(request)) {
            request.pass_handler(request.at(answered).unwrap_or(0), handler);
        }
        if !self.guest_block_events {
            // A request ends with the first handler after its interrupt.
            let handled = |request: &mut Request| request.at(Milestone::Handled).is_some();
            let handled: Vec<_> = self.begun.extract_if(.., handled).collect();
            handled.into_iter().for_each(|request| self.end(path, request));
        }
    }

    fn complete(&mut self, path: &mut IoPath<Request>, reported: &BlockRequest<'_>, record: &GuestRecord<'_>) {
        let Some(reported) = guest_request(reported) else { return };
        let is_it = |request: &Request| {
            let same_place = reported.operation == Operation::Flush || request.sector == reported.sector;
            request.device == reported.device && request.operation == reported.operation && same_place
        };
        let Some(at) = self.begun.iter().position(is_it) else { return };
        let mut request = self.begun.remove(at);
        request.pass(Milestone::Completed, record.time());
        if let (Some(Interrupt::Irq(number)), Some(disk)) = (record.interrupt(), request.disk) {
            self.disks.confirm(number, disk);
        }
        self.leave(path, record.cpu);
        let number = path.arrive(record.cpu, request);
        path.may_wake(record.cpu, number);
        if let Some(interrupt) = record.interrupt() {
            path.enter(record.cpu, interrupt, record.time());
        }
    }

    /// What was completed on the guest's `cpu` has woken nobody.
    fn leave(&mut self, path: &mut IoPath<Request>, cpu: u32) {
        path.leave(cpu).into_iter().for_each(|request| self.end(path, request));
    }

    /// There was block I/O of the host for the request that is being served: that of `disk`, if that is known, else the
    /// one that was begun last.
    fn host_io(&mut self, disk: Option<u32>, time: u64) {
        let serving = |request: &&mut Request| {
            request.at(Milestone::Finished).is_none() && (disk.is_none() || request.disk == disk)
        };
        if let Some(request) = self.begun.iter_mut().rev().find(serving) {
            request.host_io = Some((request.host_io.map_or(time, |(begin, _)| begin), time));
        }
    }

    fn start(&mut self, path: &mut IoPath<Request>, disk: u32, time: u64, kind: &[u8], (sector, bytes): (u64, u64)) {
        let operation = match kind {
            b"read" => Operation::Read,
            b"write" => Operation::Write,
            b"flush" => Operation::Flush,
            _ => Operation::Other,
        };
        let is_it = |request: &Request| request.is(operation, sector, bytes);
        let same_number = |request: &Request| {
            request.device.is_some_and(|device| device::minor(device) / MINORS_PER_DISK == u64::from(disk))
        };
        let at = self.issued.iter().position(|request| is_it(request) && same_number(request));
        let at = at.or_else(|| self.issued.iter().position(is_it));
        let mut request = match at {
            Some(at) => self.issued.remove(at),
            // Not the guest's block layer's: an identification, or one that was issued before the recording.
            None if self.guest_block_events => return,
            None if path.counts_as_lost() => return,
            None => Request::new(operation, sector, bytes),
        };
        (request.disk, request.kind) = (Some(disk), String::from_utf8_lossy(kind).into_owned());
        let issued = request.at(Milestone::Issued).unwrap_or(u64::MAX);
        path.pass_kick(&mut request, disk, issued);
        if let Some(picked_up) = path.served(disk)
            && (picked_up >= issued || !self.guest_block_events)
        {
            request.pass(Milestone::PickedUp, picked_up);
        }
        request.pass(Milestone::Started, time);
        if self.begun.len() == UNDER_WAY {
            self.begun.remove(0);
            self.unfinished += 1;
        }
        self.begun.push(request);
    }
}

/// The request that a block event of the guest is about.
fn guest_request(reported: &BlockRequest<'_>) -> Option<Request> {
    let (sector, sectors, flags) = (reported.sector?, reported.sectors?, reported.flags?);
    let operation = match flags.first() {
        Some(b'F') if sectors == 0 => Operation::Flush,
        // A flush before or after a write is marked in front of it.
        Some(b'F') if flags.contains(&b'W') => Operation::Write,
        Some(b'F') => Operation::Flush,
        Some(b'R') => Operation::Read,
        Some(b'W') => Operation::Write,
        _ => Operation::Other,
    };
    let mut request = Request::new(operation, sector, sectors.saturating_mul(512));
    request.device = reported.device;
    Some(request)
}
