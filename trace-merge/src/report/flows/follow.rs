//! Follows requests from milestone to milestone.

use super::{Flow, FlowStep, FlowTask, Milestone, SLOWEST, StepTimes, VmFlows};
use crate::clock::Clock;
use crate::event_index::EventIndex;
use crate::guest_tasks::{GuestTasks, Tid};
use crate::merge::MergedRecord;
use crate::reader::StreamRecord;
use crate::report::distribution::Durations;
use crate::session::LayerKind;
use std::collections::{BTreeMap, HashMap};

/// Offset of the queue notification register of a virtio device on MMIO, in its page (virtio 1.2, 4.2.2).
const QUEUE_NOTIFY: u64 = 0x50;
const PAGE: u64 = 0x1000;
/// `type` of `kvm:kvm_mmio` for a write.
const MMIO_WRITE: i64 = 2;
/// Minor numbers of the guest's virtio disks count by partitions: 16 for each disk.
const MINORS_PER_DISK: u64 = 16;
/// The kernel's device number: major above, minor in the lower 20 bits.
const MINOR_BITS: u32 = 20;
/// Requests under way at once that are followed: more than any queue holds.
const UNDER_WAY: usize = 4096;
/// Vectors from here on are not those of devices.
const FIRST_SYSTEM_VECTOR: i64 = 0xec;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Issue,
    Complete,
    Exit,
    Mmio,
    FastMmio,
    Notified,
    Request,
    Interrupt,
    Injected,
    HandlerEntry,
    HandlerExit,
    Wakeup,
    Switch,
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "block:block_rq_issue" => Kind::Issue,
        "block:block_rq_complete" => Kind::Complete,
        "kvm:kvm_exit" => Kind::Exit,
        "kvm:kvm_mmio" => Kind::Mmio,
        "kvm:kvm_fast_mmio" => Kind::FastMmio,
        "vmm:disk_notified" => Kind::Notified,
        "vmm:block_request" => Kind::Request,
        "vmm:disk_interrupt" => Kind::Interrupt,
        "kvm:kvm_inj_virq" => Kind::Injected,
        "irq:irq_handler_entry" => Kind::HandlerEntry,
        "irq:irq_handler_exit" => Kind::HandlerExit,
        "sched:sched_waking" | "sched:sched_wakeup" => Kind::Wakeup,
        "sched:sched_switch" => Kind::Switch,
        _ => return None,
    })
}

/// What a request does, as far as both sides tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
    Flush,
    Other,
}

/// A request under way.
#[derive(Clone, Debug)]
struct Request {
    times: [Option<u64>; Milestone::ALL.len()],
    operation: Operation,
    kind: String,
    sector: u64,
    bytes: u64,
    /// The guest's device.
    device: Option<u64>,
    /// The VMM's disk, once it has begun.
    disk: Option<u32>,
    issuer: Option<Tid>,
    woken: Option<Tid>,
    host_io: Option<(u64, u64)>,
}

impl Request {
    fn new(operation: Operation, sector: u64, bytes: u64) -> Self {
        let times = [None; Milestone::ALL.len()];
        let (kind, device, disk, issuer) = (String::new(), None, None, None);
        Self { times, operation, kind, sector, bytes, device, disk, issuer, woken: None, host_io: None }
    }

    const fn at(&self, milestone: Milestone) -> Option<u64> {
        self.times[milestone as usize]
    }

    /// Passes `milestone` at `time`, unless it has already.
    fn pass(&mut self, milestone: Milestone, time: u64) {
        self.times[milestone as usize].get_or_insert(time);
    }

    /// Whether the VMM's request is this one of the guest.
    fn is(&self, operation: Operation, sector: u64, bytes: u64) -> bool {
        // A flush has no place.
        let is_there = operation == Operation::Flush || (self.sector, self.bytes) == (sector, bytes);
        self.operation == operation && is_there
    }

    /// The milestones that were passed, in time order: one whose event came late does not turn time back.
    fn passed(&self) -> Vec<(Milestone, u64)> {
        let mut passed: Vec<(Milestone, u64)> = Vec::new();
        for milestone in Milestone::ALL {
            let Some(time) = self.at(milestone) else { continue };
            if passed.last().is_none_or(|&(_, before)| before <= time) {
                passed.push((milestone, time));
            }
        }
        passed
    }
}

/// The kicks of a device's page, ticks.
#[derive(Clone, Debug, Default)]
struct Kicks {
    /// Those that the VMM picked up last.
    picked_up: Vec<u64>,
    /// Those that it has not picked up yet.
    pending: Vec<u64>,
}

/// A vCPU.
#[derive(Clone, Debug, Default)]
struct Vcpu {
    /// When it left the guest last.
    exit: u64,
    /// When KVM last injected a device's interrupt.
    injected: Option<u64>,
    /// When the guest entered the interrupt handler in which it is.
    handler: Option<u64>,
    /// The request that was completed last there and may wake a task: its place among the finished ones.
    completed: Option<u64>,
}

/// Follows the requests of one VM. Takes the records of its layers and of its host's kernel in time order.
pub(super) struct Follower<'t> {
    tasks: GuestTasks,
    index: EventIndex<Kind>,
    vcpu_threads: &'t [i32],
    guest_block_events: bool,
    interrupts_are_recorded: bool,
    vcpus: HashMap<u32, Vcpu>,
    /// By page of the device.
    kicks: BTreeMap<u64, Kicks>,
    /// The page of each disk, once one notification could only be its.
    pages: HashMap<u32, u64>,
    /// By disk: when its queue was served last.
    picked_up: HashMap<u32, u64>,
    /// Issued by the guest, not begun by the VMM; the oldest first.
    issued: Vec<Request>,
    /// Begun by the VMM and not completed by the guest; the oldest first.
    begun: Vec<Request>,
    /// Completed, and waiting for the task that they wake, by number.
    completed: HashMap<u64, Request>,
    /// The completed requests whose task was woken, by task.
    woken: HashMap<Tid, Vec<u64>>,
    next_number: u64,
    steps: BTreeMap<(Milestone, Milestone), Durations>,
    total: Durations,
    host_io: Durations,
    slowest: Vec<(u64, Request)>,
    unfinished: u64,
    across_lost_records: u64,
}

impl<'t> Follower<'t> {
    /// Follows the requests of a guest with `tasks` whose vCPUs run in the host's threads `vcpu_threads`.
    pub(super) fn new(
        tasks: GuestTasks,
        vcpu_threads: &'t [i32],
        guest_block_events: bool,
        interrupts_are_recorded: bool,
    ) -> Self {
        Self {
            tasks,
            index: EventIndex::new(kind),
            vcpu_threads,
            guest_block_events,
            interrupts_are_recorded,
            vcpus: HashMap::new(),
            kicks: BTreeMap::new(),
            pages: HashMap::new(),
            picked_up: HashMap::new(),
            issued: Vec::new(),
            begun: Vec::new(),
            completed: HashMap::new(),
            woken: HashMap::new(),
            next_number: 0,
            steps: BTreeMap::new(),
            total: Durations::default(),
            host_io: Durations::default(),
            slowest: Vec::new(),
            unfinished: 0,
            across_lost_records: 0,
        }
    }

    pub(super) fn add(&mut self, merged: &MergedRecord<'_>) {
        let kind = self.index.kind(merged);
        let layer = merged.layer.description.kind;
        let running = match layer {
            LayerKind::GuestKernel => self.tasks.running(merged, matches!(kind, Some(Kind::Switch))),
            _ => None,
        };
        if merged.record.after_gap {
            self.forget();
        }
        let Some(kind) = kind else { return };
        match layer {
            LayerKind::GuestKernel => self.add_guest(kind, running, merged),
            LayerKind::HostKernel => self.add_host(kind, &merged.record),
            LayerKind::Vmm => self.add_vmm(kind, &merged.record),
            LayerKind::GuestUser => {}
        }
    }

    /// Records were lost: whatever is under way may have gone on unseen.
    fn forget(&mut self) {
        let under_way = self.issued.len() + self.begun.len() + self.completed.len();
        self.across_lost_records += under_way as u64;
        self.issued.clear();
        self.begun.clear();
        self.completed.clear();
        self.woken.clear();
        self.kicks.clear();
        self.picked_up.clear();
        self.vcpus.clear();
    }

    fn add_guest(&mut self, kind: Kind, running: Option<Tid>, merged: &MergedRecord<'_>) {
        let record = &merged.record;
        let (cpu, time) = (merged.stream.description.cpu_id, record.time);
        match kind {
            Kind::Issue => {
                let Some(mut request) = guest_request(record) else { return };
                request.pass(Milestone::Issued, time);
                request.issuer = running;
                if self.issued.len() == UNDER_WAY {
                    self.issued.remove(0);
                    self.unfinished += 1;
                }
                self.issued.push(request);
            }
            Kind::Complete => self.complete(cpu, record),
            Kind::HandlerEntry => {
                self.vcpus.entry(cpu).or_default().handler = Some(time);
                if !self.guest_block_events && record.text("name").is_some_and(|name| name.starts_with("virtio")) {
                    self.handle_unknown(cpu, time);
                }
            }
            Kind::HandlerExit => {
                let vcpu = self.vcpus.entry(cpu).or_default();
                vcpu.handler = None;
                if let Some(number) = vcpu.completed.take() {
                    self.end(number);
                }
            }
            Kind::Wakeup => {
                let number = self.vcpus.get_mut(&cpu).and_then(|vcpu| vcpu.completed.take());
                let (Some(number), Some(tid)) = (number, tid_of(record.number("pid"))) else { return };
                if let Some(request) = self.completed.get_mut(&number) {
                    request.pass(Milestone::Woken, time);
                    request.woken = Some(tid);
                    self.woken.entry(tid).or_default().push(number);
                }
            }
            Kind::Switch => {
                if let Some(number) = self.vcpus.get_mut(&cpu).and_then(|vcpu| vcpu.completed.take()) {
                    self.end(number);
                }
                let numbers = tid_of(record.number("next_pid")).and_then(|next| self.woken.remove(&next));
                for number in numbers.unwrap_or_default() {
                    if let Some(request) = self.completed.get_mut(&number) {
                        request.pass(Milestone::Running, time);
                    }
                    self.end(number);
                }
            }
            _ => {}
        }
    }

    fn complete(&mut self, cpu: u32, record: &StreamRecord<'_>) {
        let Some(told) = guest_request(record) else { return };
        let is_it = |request: &Request| {
            let same_place = told.operation == Operation::Flush || request.sector == told.sector;
            request.device == told.device && request.operation == told.operation && same_place
        };
        let Some(at) = self.begun.iter().position(is_it) else { return };
        let mut request = self.begun.remove(at);
        let vcpu = self.vcpus.entry(cpu).or_default();
        // What came before the VMM raised the interrupt was another one's.
        let raised = request.at(Milestone::Raised).or(request.at(Milestone::Finished)).unwrap_or(0);
        if let Some(handler) = vcpu.handler.filter(|&handler| handler >= raised) {
            if let Some(injected) = vcpu.injected.filter(|injected| (raised..=handler).contains(injected)) {
                request.pass(Milestone::Injected, injected);
            }
            request.pass(Milestone::Handled, handler);
        }
        request.pass(Milestone::Completed, record.time);
        let before = vcpu.completed.replace(self.next_number);
        self.completed.insert(self.next_number, request);
        self.next_number += 1;
        if let Some(before) = before {
            self.end(before);
        }
    }

    /// Without the guest's block events, a request ends with the first handler after its interrupt.
    fn handle_unknown(&mut self, cpu: u32, time: u64) {
        let injected = self.vcpus.get(&cpu).and_then(|vcpu| vcpu.injected);
        // A recording of an older version has no event for the interrupt.
        let last = if self.interrupts_are_recorded { Milestone::Raised } else { Milestone::Finished };
        let answered: Vec<_> = self.begun.extract_if(.., |request| request.at(last).is_some()).collect();
        for mut request in answered {
            let raised = request.at(last).unwrap_or(0);
            if let Some(injected) = injected.filter(|&injected| injected >= raised) {
                request.pass(Milestone::Injected, injected);
            }
            request.pass(Milestone::Handled, time);
            self.record(request);
        }
    }

    fn add_host(&mut self, kind: Kind, record: &StreamRecord<'_>) {
        let thread = record.number("common_pid");
        let vcpu = self.vcpu_threads.iter().position(|&known| Some(i64::from(known)) == thread);
        let time = record.time;
        // Completions interrupt whatever thread; a vCPU's thread issues nothing.
        match (kind, vcpu) {
            (Kind::Complete, _) | (Kind::Issue, None) => self.host_io(time),
            _ => {}
        }
        let Some(vcpu) = vcpu.and_then(|vcpu| u32::try_from(vcpu).ok()) else { return };
        let state = self.vcpus.entry(vcpu).or_default();
        match kind {
            Kind::Exit => state.exit = time,
            Kind::Injected => {
                let vector = record.number("vector").or_else(|| record.number("irq"));
                if vector.is_some_and(|vector| vector < FIRST_SYSTEM_VECTOR) {
                    state.injected = Some(time);
                }
            }
            Kind::Mmio | Kind::FastMmio => {
                let is_write = matches!(kind, Kind::FastMmio) || record.number("type") == Some(MMIO_WRITE);
                let Some(address) = record.unsigned("gpa").filter(|gpa| is_write && gpa % PAGE == QUEUE_NOTIFY) else {
                    return;
                };
                let exit = if state.exit == 0 { time } else { state.exit };
                let kicks = self.kicks.entry(address / PAGE).or_default();
                if kicks.pending.len() < UNDER_WAY {
                    kicks.pending.push(exit);
                }
            }
            _ => {}
        }
    }

    /// The VMM's thread did block I/O for the request that it serves.
    fn host_io(&mut self, time: u64) {
        let serving = |request: &&mut Request| request.at(Milestone::Finished).is_none();
        if let Some(request) = self.begun.iter_mut().rev().find(serving) {
            request.host_io = Some((request.host_io.map_or(time, |(begin, _)| begin), time));
        }
    }

    fn add_vmm(&mut self, kind: Kind, record: &StreamRecord<'_>) {
        let Some(disk) = record.number("disk").and_then(|disk| u32::try_from(disk).ok()) else { return };
        let time = record.time;
        match kind {
            Kind::Notified => {
                self.picked_up.insert(disk, time);
                self.learn_page(disk);
                if let Some(kicks) = self.pages.get(&disk).and_then(|page| self.kicks.get_mut(page)) {
                    kicks.picked_up = std::mem::take(&mut kicks.pending);
                }
            }
            Kind::Request if record.number("done") == Some(0) => self.begin(disk, record),
            Kind::Request => {
                let serving =
                    |request: &&mut Request| request.disk == Some(disk) && request.at(Milestone::Finished).is_none();
                if let Some(request) = self.begun.iter_mut().find(serving) {
                    request.pass(Milestone::Finished, time);
                }
            }
            Kind::Interrupt => {
                let answered =
                    |request: &&mut Request| request.disk == Some(disk) && request.at(Milestone::Finished).is_some();
                self.begun.iter_mut().filter(answered).for_each(|request| request.pass(Milestone::Raised, time));
            }
            _ => {}
        }
    }

    /// Which page is `disk`'s: the only one with a kick that was not picked up and that is no other disk's.
    fn learn_page(&mut self, disk: u32) {
        if self.pages.contains_key(&disk) {
            return;
        }
        let free = |page: &u64| !self.pages.values().any(|taken| taken == page);
        let mut kicked = self.kicks.iter().filter(|(page, kicks)| !kicks.pending.is_empty() && free(page));
        if let (Some((&page, _)), None) = (kicked.next(), kicked.next()) {
            self.pages.insert(disk, page);
        }
    }

    fn begin(&mut self, disk: u32, record: &StreamRecord<'_>) {
        let kind = record.text("kind").unwrap_or_default();
        let operation = match &*kind {
            "read" => Operation::Read,
            "write" => Operation::Write,
            "flush" => Operation::Flush,
            _ => Operation::Other,
        };
        let (sector, bytes) = (record.unsigned("sector").unwrap_or(0), record.unsigned("bytes").unwrap_or(0));
        let is_it = |request: &Request| request.is(operation, sector, bytes);
        let same_number =
            |request: &Request| request.device.is_some_and(|device| minor(device) / MINORS_PER_DISK == u64::from(disk));
        let at = self.issued.iter().position(|request| is_it(request) && same_number(request));
        let at = at.or_else(|| self.issued.iter().position(is_it));
        let mut request = match at {
            Some(at) => self.issued.remove(at),
            // Not the guest's block layer's: an identification, or one that was issued before the recording.
            None if self.guest_block_events => return,
            None => Request::new(operation, sector, bytes),
        };
        (request.disk, request.kind) = (Some(disk), kind.into_owned());
        let issued = request.at(Milestone::Issued).unwrap_or(u64::MAX);
        if let Some(kicks) = self.pages.get(&disk).and_then(|page| self.kicks.get(page)) {
            let kick = kicks.picked_up.iter().chain(&kicks.pending).find(|&&kick| kick >= issued);
            kick.into_iter().for_each(|&kick| request.pass(Milestone::Kicked, kick));
        }
        if let Some(&picked_up) = self.picked_up.get(&disk)
            && (picked_up >= issued || !self.guest_block_events)
        {
            request.pass(Milestone::PickedUp, picked_up);
        }
        request.pass(Milestone::Started, record.time);
        if self.begun.len() == UNDER_WAY {
            self.begun.remove(0);
            self.unfinished += 1;
        }
        self.begun.push(request);
    }

    /// The request is at its end.
    fn end(&mut self, number: u64) {
        if let Some(request) = self.completed.remove(&number) {
            self.record(request);
        }
    }

    fn record(&mut self, request: Request) {
        let passed = request.passed();
        let (Some(&(_, begin)), Some(&(_, end))) = (passed.first(), passed.last()) else { return };
        for step in passed.windows(2) {
            if let &[(from, left), (to, reached)] = step {
                self.steps.entry((from, to)).or_default().add(reached - left);
            }
        }
        self.total.add(end - begin);
        if let Some((begin, end)) = request.host_io {
            self.host_io.add(end.saturating_sub(begin));
        }
        let place = self.slowest.partition_point(|&(ticks, _)| ticks >= end - begin);
        if place < SLOWEST {
            self.slowest.insert(place, (end - begin, request));
            self.slowest.truncate(SLOWEST);
        }
    }

    pub(super) fn finish(mut self, vm: String, clock: &Clock) -> VmFlows {
        // Completed without a task to be seen running: they end there.
        let mut numbers: Vec<_> = self.completed.keys().copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().for_each(|number| self.end(number));
        let unfinished = self.unfinished + (self.issued.len() + self.begun.len()) as u64;
        let steps = self.steps.iter();
        let steps = steps.map(|(&(from, to), times)| StepTimes { from, to, times: times.distribution(clock) });
        let task = |tid: Tid| FlowTask { tid, comm: self.tasks.comm(tid).unwrap_or("?").into() };
        let flow = |(ticks, request): &(u64, Request)| {
            let passed = request.passed();
            let steps = passed.windows(2).filter_map(|step| match *step {
                [(from, left), (to, end)] => {
                    let ticks = end - left;
                    Some(FlowStep { from, to, end, ticks, ns: clock.ticks_to_ns(ticks) })
                }
                _ => None,
            });
            Flow {
                disk: request.disk.unwrap_or(0),
                device: request.device.map(|device| format!("{}:{}", device >> MINOR_BITS, minor(device))),
                kind: request.kind.clone(),
                sector: request.sector,
                bytes: request.bytes,
                issuer: request.issuer.map(task),
                woken: request.woken.map(task),
                begin: passed.first().map_or(0, |&(_, time)| time),
                ticks: *ticks,
                total_ns: clock.ticks_to_ns(*ticks),
                steps: steps.collect(),
                host_io_ns: request.host_io.map(|(begin, end)| clock.ticks_to_ns(end.saturating_sub(begin))),
            }
        };
        VmFlows {
            vm,
            total: self.total.distribution(clock),
            steps: steps.collect(),
            host_io: self.host_io.distribution(clock),
            slowest: self.slowest.iter().map(flow).collect(),
            guest_block_events: self.guest_block_events,
            unfinished,
            across_lost_records: self.across_lost_records,
        }
    }
}

/// The request that a `block:block_rq_*` event of the guest is about.
fn guest_request(record: &StreamRecord<'_>) -> Option<Request> {
    let (sector, sectors) = (record.unsigned("sector")?, record.unsigned("nr_sector")?);
    let flags = record.text("rwbs")?;
    let operation = match flags.bytes().next() {
        Some(b'F') if sectors == 0 => Operation::Flush,
        // A flush before or after a write is marked in front of it.
        Some(b'F') if flags.contains('W') => Operation::Write,
        Some(b'F') => Operation::Flush,
        Some(b'R') => Operation::Read,
        Some(b'W') => Operation::Write,
        _ => Operation::Other,
    };
    let mut request = Request::new(operation, sector, sectors.saturating_mul(512));
    request.device = record.unsigned("dev");
    Some(request)
}

const fn minor(device: u64) -> u64 {
    device & ((1 << MINOR_BITS) - 1)
}

fn tid_of(number: Option<i64>) -> Option<Tid> {
    number.and_then(|number| Tid::try_from(number).ok())
}
