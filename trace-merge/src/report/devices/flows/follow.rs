//! Follows requests from milestone to milestone.

use super::{Flow, Milestone, SLOWEST, VmFlows};
use crate::report::devices::flow_step::{FlowTask, steps};
use crate::report::devices::followed::{Ended, Followed};
use crate::report::statistics::distribution::Durations;
use foldhash::HashMap;
use std::collections::BTreeMap;
use strata_analysis::event::{self, BlockRequest, Event, FIRST_SYSTEM_VECTOR, Interrupt, Task, Tid};
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::{Current, TaskIndex};
use strata_analysis::timeline::{Input, Origin, Timeline};
use strata_recording::clock::Clock;
use strata_recording::manifest::{DISK_THREAD, Vm};

/// Offset of the queue notification register of a virtio device on MMIO, in its page (virtio 1.2, 4.2.2).
const QUEUE_NOTIFY: u64 = 0x50;
const PAGE: u64 = 0x1000;
/// Minor numbers of the guest's virtio disks count by partitions: 16 for each disk.
const MINORS_PER_DISK: u64 = 16;
/// The kernel's device number: major above, minor in the lower 20 bits.
const MINOR_BITS: u32 = 20;
/// Requests under way at once that are followed: more than any queue holds.
const UNDER_WAY: usize = 4096;
/// What the kernel's threads are called that run soft interrupts which came too often.
const SOFTIRQ_THREADS: &[u8] = b"ksoftirqd/";

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
    issuer: Option<TaskIndex>,
    woken: Option<TaskIndex>,
    host_io: Option<(u64, u64)>,
}

impl Request {
    fn new(operation: Operation, sector: u64, bytes: u64) -> Self {
        let times = [None; Milestone::ALL.len()];
        let (kind, device, disk, issuer) = (String::new(), None, None, None);
        Self { times, operation, kind, sector, bytes, device, disk, issuer, woken: None, host_io: None }
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

    /// What it was, having taken `ticks`.
    fn flow(&self, ticks: u64, guest: &Guest, clock: &Clock) -> Flow {
        let passed = self.passed();
        Flow {
            disk: self.disk.unwrap_or(0),
            device: self.device.map(|device| format!("{}:{}", device >> MINOR_BITS, minor(device))),
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

impl Followed for Request {
    type Milestone = Milestone;

    const SLOWEST: usize = SLOWEST;

    fn at(&self, milestone: Milestone) -> Option<u64> {
        self.times[milestone as usize]
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
    /// When KVM injected the device's interrupt that the guest has not entered the handler of yet, for the first time.
    injected: Option<u64>,
    /// The request that was completed last there and may wake a task: its number, and the interrupt it was completed in.
    completed: Option<(u64, Option<Interrupt>)>,
}

/// Follows the requests of one VM. Takes the records of its layers and of its host's kernel in time order.
#[derive(Debug)]
pub(super) struct Follower {
    guest_block_events: bool,
    interrupts_are_recorded: bool,
    vcpus: HashMap<u32, Vcpu>,
    /// By page of the device.
    kicks: BTreeMap<u64, Kicks>,
    /// The page of each disk, once one notification could only be its.
    pages: HashMap<u32, u64>,
    /// The disk of each of the guest's interrupts, once one handler could only be its.
    disks: HashMap<i32, u32>,
    /// The disks of the VMM's threads that serve one each.
    disk_threads: HashMap<Tid, u32>,
    /// The disks for which the host's block I/O under way was issued, by device and sector; `None` where that is not
    /// known.
    host_io_of: HashMap<(Option<u64>, Option<u64>), Option<u32>>,
    /// By disk: when its queue was served last.
    picked_up: HashMap<u32, u64>,
    /// Issued by the guest, not begun by the VMM; the oldest first.
    issued: Vec<Request>,
    /// Begun by the VMM and not completed by the guest; the oldest first.
    begun: Vec<Request>,
    /// Completed, and waiting for the task that they wake, by number.
    completed: HashMap<u64, Request>,
    /// The completed requests whose task was woken, by task.
    woken: HashMap<TaskIndex, Vec<u64>>,
    next_number: u64,
    /// Streams whose records are missing at the moment.
    gaps: usize,
    ended: Ended<Request>,
    host_io: Durations,
    unfinished: u64,
    across_lost_records: u64,
}

impl Follower {
    /// Follows the requests of `vm`.
    pub(super) fn new(vm: &Vm, guest_block_events: bool, interrupts_are_recorded: bool) -> Self {
        let disk_of = |name: &str| name.strip_prefix(DISK_THREAD)?.parse().ok();
        let disk_threads = vm.strata_threads.iter().filter_map(|thread| Some((thread.tid, disk_of(&thread.name)?)));
        Self {
            guest_block_events,
            interrupts_are_recorded,
            vcpus: HashMap::default(),
            kicks: BTreeMap::new(),
            pages: HashMap::default(),
            disks: HashMap::default(),
            disk_threads: disk_threads.collect(),
            host_io_of: HashMap::default(),
            picked_up: HashMap::default(),
            issued: Vec::new(),
            begun: Vec::new(),
            completed: HashMap::default(),
            woken: HashMap::default(),
            next_number: 0,
            gaps: 0,
            ended: Ended::default(),
            host_io: Durations::default(),
            unfinished: 0,
            across_lost_records: 0,
        }
    }

    /// Keeps the requests that end, to be taken one by one.
    pub(super) fn keep_ended(&mut self) {
        self.ended.keep();
    }

    /// The requests that have ended since the last call.
    pub(super) fn take_ended(&mut self, guest: &Guest, clock: &Clock) -> Vec<Flow> {
        self.ended.take().map(|(ticks, request)| request.flow(ticks, guest, clock)).collect()
    }

    /// Whether requests have ended that were not taken yet.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.are_kept()
    }

    /// Whether it takes in records like `input`.
    pub(super) const fn takes(input: &Input<'_>) -> bool {
        match input.event {
            Some(Event::BlockIssue(_) | Event::BlockComplete(_)) => true,
            Some(
                Event::InterruptEnter(Interrupt::Irq(_))
                | Event::InterruptExit(_)
                | Event::Wakeup { .. }
                | Event::Switch { .. },
            ) => matches!(input.origin, Origin::Guest { .. }),
            Some(
                Event::KvmExit { .. }
                | Event::KvmInject { .. }
                | Event::KvmMmio { .. }
                | Event::DiskNotified { .. }
                | Event::DiskRequest { .. }
                | Event::DiskInterrupt { .. },
            ) => true,
            _ => false,
        }
    }

    /// Takes in a record about the VM at `vm`.
    pub(super) fn add(&mut self, vm: usize, input: &Input<'_>, timeline: &Timeline) {
        let Some(event) = input.event else { return };
        match input.origin {
            Origin::Guest { cpu, .. } => {
                if let Some(known) = timeline.vm(vm) {
                    self.add_guest(cpu, input, event, &known.guest, timeline.recorder());
                }
            }
            Origin::Host { host, .. } => self.add_host((host, vm), input.time(), event, timeline),
            Origin::Vmm { .. } => self.add_vmm(input.time(), event),
            Origin::User { .. } => {}
        }
    }

    /// Takes in that records of a stream are missing from now on, or that they go on. Whatever is under way while they are
    /// may go on unseen.
    pub(super) fn gap(&mut self, begins: bool) {
        self.gaps = if begins { self.gaps + 1 } else { self.gaps.saturating_sub(1) };
        if !begins {
            return;
        }
        let under_way = self.issued.len() + self.begun.len() + self.completed.len();
        self.across_lost_records += under_way as u64;
        self.issued.clear();
        self.begun.clear();
        self.completed.clear();
        self.woken.clear();
        self.kicks.clear();
        self.picked_up.clear();
        self.host_io_of.clear();
        self.vcpus.clear();
    }

    fn add_guest(&mut self, cpu: u32, input: &Input<'_>, event: Event<'_>, guest: &Guest, recorder: Current) {
        let time = input.time();
        match event {
            Event::BlockIssue(reported) => self.issue(&reported, time, recorder),
            Event::BlockComplete(reported) => {
                let interrupt = guest.cpu(cpu).and_then(|cpu| cpu.view().0.interrupt);
                self.complete(cpu, &reported, time, interrupt);
            }
            Event::InterruptEnter(Interrupt::Irq(number)) => {
                let is_disk = event::handler_name(&input.record).is_none_or(|name| name.starts_with("virtio"));
                if is_disk {
                    self.handle(cpu, number, time);
                }
            }
            Event::InterruptExit(interrupt) => {
                let vcpu = self.vcpus.entry(cpu).or_default();
                if let Some((number, _)) = vcpu.completed.take_if(|(_, within)| *within == Some(interrupt)) {
                    self.end(number);
                }
            }
            Event::Wakeup { task, .. } => self.wake(cpu, task, time, guest),
            Event::Switch { next, .. } => {
                if let Some((number, _)) = self.vcpus.get_mut(&cpu).and_then(|vcpu| vcpu.completed.take()) {
                    self.end(number);
                }
                let numbers = guest.living(next.tid).and_then(|next| self.woken.remove(&next));
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

    fn issue(&mut self, reported: &BlockRequest<'_>, time: u64, recorder: Current) {
        let Some(mut request) = guest_request(reported) else { return };
        if self.gaps > 0 {
            self.across_lost_records += 1;
            return;
        }
        request.pass(Milestone::Issued, time);
        request.issuer = match recorder {
            Current::Task(task) => Some(task),
            Current::Idle | Current::Unknown => None,
        };
        if self.issued.len() == UNDER_WAY {
            self.issued.remove(0);
            self.unfinished += 1;
        }
        self.issued.push(request);
    }

    /// The guest's `cpu` enters the handler of the interrupt `number`, which is a virtio device's.
    fn handle(&mut self, cpu: u32, number: i32, time: u64) {
        let injected = self.vcpus.get_mut(&cpu).and_then(|vcpu| vcpu.injected.take());
        // A recording of an older version has no event for the interrupt.
        let last = if self.interrupts_are_recorded { Milestone::Raised } else { Milestone::Finished };
        let is_answered = |request: &Request| request.at(last).is_some() && request.at(Milestone::Handled).is_none();
        if !self.disks.contains_key(&number) {
            let taken = |disk: &u32| self.disks.values().any(|taken| taken == disk);
            let mut waiting: Vec<u32> =
                self.begun.iter().filter(|request| is_answered(request)).filter_map(|request| request.disk).collect();
            waiting.retain(|disk| !taken(disk));
            waiting.sort_unstable();
            waiting.dedup();
            if let [only] = *waiting {
                self.disks.insert(number, only);
            }
        }
        let Some(&disk) = self.disks.get(&number) else { return };
        for request in self.begun.iter_mut().filter(|request| request.disk == Some(disk) && is_answered(request)) {
            let raised = request.at(last).unwrap_or(0);
            // What came before the VMM raised the interrupt was another one's.
            if let Some(injected) = injected.filter(|&injected| injected >= raised) {
                request.pass(Milestone::Injected, injected);
            }
            request.pass(Milestone::Handled, time);
        }
        if !self.guest_block_events {
            // A request ends with the first handler after its interrupt.
            let handled = |request: &mut Request| request.at(Milestone::Handled).is_some();
            let handled: Vec<_> = self.begun.extract_if(.., handled).collect();
            handled.into_iter().for_each(|request| self.record(request));
        }
    }

    fn complete(&mut self, cpu: u32, reported: &BlockRequest<'_>, time: u64, interrupt: Option<Interrupt>) {
        let Some(reported) = guest_request(reported) else { return };
        let is_it = |request: &Request| {
            let same_place = reported.operation == Operation::Flush || request.sector == reported.sector;
            request.device == reported.device && request.operation == reported.operation && same_place
        };
        let Some(at) = self.begun.iter().position(is_it) else { return };
        let mut request = self.begun.remove(at);
        request.pass(Milestone::Completed, time);
        let vcpu = self.vcpus.entry(cpu).or_default();
        let before = vcpu.completed.replace((self.next_number, interrupt));
        self.completed.insert(self.next_number, request);
        self.next_number += 1;
        if let Some((before, _)) = before {
            self.end(before);
        }
    }

    /// Something on the guest's `cpu` wakes `task`.
    fn wake(&mut self, cpu: u32, task: Task<'_>, time: u64, guest: &Guest) {
        let Some(index) = guest.living(task.tid) else { return };
        if guest.task(index).is_some_and(|task| task.comm.starts_with(SOFTIRQ_THREADS)) {
            return;
        }
        let Some((number, _)) = self.vcpus.get_mut(&cpu).and_then(|vcpu| vcpu.completed.take()) else { return };
        if let Some(request) = self.completed.get_mut(&number) {
            request.pass(Milestone::Woken, time);
            request.woken = Some(index);
            self.woken.entry(index).or_default().push(number);
        }
    }

    fn add_host(&mut self, (host, vm): (usize, usize), time: u64, event: Event<'_>, timeline: &Timeline) {
        let vcpu_of = |tid| timeline.vcpu_of_thread(host, tid).filter(|&(of, _)| of == vm).map(|(_, vcpu)| vcpu);
        match event {
            // Completions interrupt whatever thread.
            Event::BlockComplete(reported) => {
                let disk = self.host_io_of.remove(&(reported.device, reported.sector)).flatten();
                self.host_io(disk, time);
            }
            // A vCPU's thread issues nothing.
            Event::BlockIssue(reported) if reported.thread.and_then(vcpu_of).is_none() => {
                let disk = reported.thread.and_then(|thread| self.disk_threads.get(&thread).copied());
                if self.host_io_of.len() < UNDER_WAY {
                    self.host_io_of.insert((reported.device, reported.sector), disk);
                }
                self.host_io(disk, time);
            }
            Event::KvmExit { tid, .. } => {
                if let Some(vcpu) = vcpu_of(tid) {
                    self.vcpus.entry(vcpu).or_default().exit = time;
                }
            }
            Event::KvmInject { tid, vector, again, .. } if vector < FIRST_SYSTEM_VECTOR => {
                if let Some(vcpu) = tid.and_then(vcpu_of) {
                    let injected = &mut self.vcpus.entry(vcpu).or_default().injected;
                    // What is injected again has been on its way since the first time.
                    *injected = if again { *injected } else { Some(time) };
                }
            }
            Event::KvmMmio { tid, address, is_write: true, .. } if address % PAGE == QUEUE_NOTIFY => {
                let Some(vcpu) = tid.and_then(vcpu_of) else { return };
                let exit = self.vcpus.get(&vcpu).map_or(0, |vcpu| vcpu.exit);
                let kicks = self.kicks.entry(address / PAGE).or_default();
                if kicks.pending.len() < UNDER_WAY {
                    kicks.pending.push(if exit == 0 { time } else { exit });
                }
            }
            _ => {}
        }
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

    fn add_vmm(&mut self, time: u64, event: Event<'_>) {
        match event {
            Event::DiskNotified { disk } => {
                self.picked_up.insert(disk, time);
                self.learn_page(disk);
                if let Some(kicks) = self.pages.get(&disk).and_then(|page| self.kicks.get_mut(page)) {
                    kicks.picked_up = std::mem::take(&mut kicks.pending);
                }
            }
            Event::DiskRequest { disk, is_done: false, kind, sector, bytes } => {
                self.begin(disk, time, kind, (sector, bytes));
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

    fn begin(&mut self, disk: u32, time: u64, kind: &[u8], (sector, bytes): (u64, u64)) {
        let operation = match kind {
            b"read" => Operation::Read,
            b"write" => Operation::Write,
            b"flush" => Operation::Flush,
            _ => Operation::Other,
        };
        let is_it = |request: &Request| request.is(operation, sector, bytes);
        let same_number =
            |request: &Request| request.device.is_some_and(|device| minor(device) / MINORS_PER_DISK == u64::from(disk));
        let at = self.issued.iter().position(|request| is_it(request) && same_number(request));
        let at = at.or_else(|| self.issued.iter().position(is_it));
        let mut request = match at {
            Some(at) => self.issued.remove(at),
            // Not the guest's block layer's: an identification, or one that was issued before the recording.
            None if self.guest_block_events => return,
            None if self.gaps > 0 => {
                self.across_lost_records += 1;
                return;
            }
            None => Request::new(operation, sector, bytes),
        };
        (request.disk, request.kind) = (Some(disk), String::from_utf8_lossy(kind).into_owned());
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
        request.pass(Milestone::Started, time);
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
        let host_io = request.host_io;
        if self.ended.record(request)
            && let Some((begin, end)) = host_io
        {
            self.host_io.add(end.saturating_sub(begin));
        }
    }

    /// Ends the requests that were completed without a task that was seen to run.
    pub(super) fn end_completed(&mut self) {
        let mut numbers: Vec<_> = self.completed.keys().copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().for_each(|number| self.end(number));
    }

    pub(super) fn finish(mut self, vm: String, guest: &Guest, clock: &Clock) -> VmFlows {
        self.end_completed();
        let unfinished = self.unfinished + (self.issued.len() + self.begun.len()) as u64;
        VmFlows {
            vm,
            total: self.ended.total(clock),
            steps: self.ended.steps(clock),
            host_io: self.host_io.distribution(clock),
            slowest: self.ended.slowest().iter().map(|(ticks, request)| request.flow(*ticks, guest, clock)).collect(),
            guest_block_events: self.guest_block_events,
            unfinished,
            across_lost_records: self.across_lost_records,
        }
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

const fn minor(device: u64) -> u64 {
    device & ((1 << MINOR_BITS) - 1)
}
