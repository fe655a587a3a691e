//! Follows packets from milestone to milestone.

use super::packet::{Gone, Packet};
use super::{Direction, Milestone, PacketFlow, VmNetFlows};
use crate::report::devices::followed::Followed;
use foldhash::HashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use strata_analysis::event::{
    self, Event, FIRST_SYSTEM_VECTOR, Interrupt, NetworkPacket, PacketPlace, PacketProgress, Task, Tid,
};
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::{Current, TaskIndex};
use strata_analysis::timeline::{Input, Origin, Timeline};
use strata_recording::clock::Clock;

/// Offset of the queue notification register of a virtio device on MMIO, in its page (virtio 1.2, 4.2.2).
const QUEUE_NOTIFY: u64 = 0x50;
const PAGE: u64 = 0x1000;
/// The queue that the guest sends by (virtio 1.2, 5.1.2).
const SEND_QUEUE: u32 = 1;
/// Bytes of an Ethernet header, which a kernel takes off what it receives before it tells of it.
const ETHERNET_HEADER: u64 = 14;
/// The soft interrupt in which networks are received (`NET_RX_SOFTIRQ`).
const NET_RX: Interrupt = Interrupt::Softirq(3);
/// Packets under way at once that are followed, by place: more than any queue holds.
const UNDER_WAY: usize = 4096;
/// Names of network devices that are distinguished; they are the guest's choice.
const DEVICES: usize = 64;
/// Handlers that are remembered of an interrupt.
const HANDLERS: usize = 64;
/// The device whose packets never leave a kernel.
const LOOPBACK: &[u8] = b"lo";
/// What the kernel's threads are called that run soft interrupts which came too often.
const SOFTIRQ_THREADS: &[u8] = b"ksoftirqd/";
/// What the VMM says of itself when another choice of events begins.
const EVENTS_CHANGE: &[u8] = b"events_";

/// A packet in the guest's queueing discipline.
#[derive(Clone, Copy, Debug)]
struct Queued {
    time: u64,
    /// When its task entered the system call, and the task.
    called: Option<(u64, TaskIndex)>,
}

/// A packet that the host's kernel gave to the tap.
#[derive(Clone, Copy, Debug)]
struct OnTap {
    time: u64,
    skb: u64,
    bytes: u64,
}

/// A network device of the VMM.
#[derive(Clone, Debug, Default)]
struct Net {
    /// Its name in the guest, once a packet could only be its.
    device: Option<Vec<u8>>,
    /// The page of its registers, once one notification could only be its.
    page: Option<u64>,
    /// Its interrupt in the guest, once one handler could only be its.
    interrupt: Option<i32>,
    /// The host's devices that got its packets while the VMM wrote them, and how many.
    taps: BTreeMap<Vec<u8>, u64>,
    /// When the VMM began to serve what the guest sends, and what it receives.
    served: [Option<u64>; 2],
    /// Kicks that the VMM picked up last.
    picked_up: Vec<u64>,
    /// The packet that the VMM sends at the moment.
    sending: Option<Packet>,
    /// Packets on the tap that the VMM has not read; the oldest first.
    on_tap: VecDeque<OnTap>,
    /// Whether a packet was read that was not seen on the tap, since the VMM began to serve the queue.
    is_unsure: bool,
    /// Packets that the VMM has read and the guest has not received; the oldest first.
    inbound: VecDeque<Packet>,
    /// Whether the guest may still receive packets, or the VMM still take some, that were under way when records were
    /// lost: of the next ones nobody can tell which they are.
    receives_unseen: bool,
    takes_unseen: bool,
}

impl Net {
    /// The host's device that it is on, as far as packets tell.
    fn tap(&self) -> Option<&[u8]> {
        self.taps.iter().max_by_key(|(_, count)| **count).map(|(name, _)| name.as_slice())
    }
}

/// A vCPU.
#[derive(Clone, Debug, Default)]
struct Vcpu {
    /// When it left the guest last.
    exit: u64,
    /// When KVM injected the device's interrupt that the guest has not entered the handler of yet, for the first time.
    injected: Option<u64>,
    /// When the soft interrupt that receives began, while it runs.
    net_rx: Option<u64>,
    /// Packets received in it, by number.
    received: Vec<u64>,
    /// The one of them that may wake a task.
    current: Option<u64>,
}

/// A device's handler that the guest entered.
#[derive(Clone, Copy, Debug)]
struct Handler {
    time: u64,
    injected: Option<u64>,
}

/// Follows the packets of one VM. Takes the records of its layers and of its host's kernel in time order.
#[derive(Debug, Default)]
pub(super) struct Follower {
    nets: BTreeMap<u32, Net>,
    vcpus: HashMap<u32, Vcpu>,
    /// Kicks of a send queue that were not picked up, by page.
    kicks: BTreeMap<u64, Vec<u64>>,
    /// The handlers of each of the guest's interrupts that may be a network device's.
    handlers: BTreeMap<i32, VecDeque<Handler>>,
    /// When each task entered the system call that it is in.
    calls: HashMap<TaskIndex, u64>,
    /// By address.
    queued: HashMap<u64, Queued>,
    /// Given to the driver of a device of the guest; the oldest first.
    given: BTreeMap<Vec<u8>, VecDeque<Packet>>,
    /// Received by the guest, by number.
    received: HashMap<u64, Packet>,
    /// Of those the ones that protocols have not got, by address.
    merging: HashMap<u64, u64>,
    /// Those whose task was woken, by task.
    woken: HashMap<TaskIndex, Vec<u64>>,
    next_number: u64,
    reports: Tells,
    /// Streams whose records are missing at the moment.
    gaps: usize,
    sent: Gone,
    got: Gone,
    across_lost_records: u64,
}

/// Which packets of a guest were recorded so far: those that its driver sends, those that it receives, and those that
/// protocols get.
#[derive(Clone, Copy, Debug, Default)]
struct Tells {
    gives: bool,
    receives: bool,
    /// The driver itself, and not only the protocols.
    by_driver: bool,
    passes_up: bool,
    /// That it notifies the host.
    kicks: bool,
}

impl Follower {
    /// Whether it takes in records like `input`: by which event it is alone.
    pub(super) const fn takes(input: &Input<'_>) -> bool {
        match input.event {
            Some(
                Event::InterruptEnter(_)
                | Event::InterruptExit(_)
                | Event::Wakeup { .. }
                | Event::Switch { .. }
                | Event::SyscallEnter { .. }
                | Event::SyscallExit { .. },
            ) => matches!(input.origin, Origin::Guest { .. }),
            Some(
                Event::KvmExit { .. }
                | Event::KvmInject { .. }
                | Event::KvmMmio { .. }
                | Event::NetNotified { .. }
                | Event::NetPacket { .. }
                | Event::NetInterrupt { .. }
                | Event::Packet(_)
                | Event::Control { .. },
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

    /// Takes in that records of a stream are missing from now on, or that they go on. Whatever is under way while they
    /// are may go on unseen.
    pub(super) fn gap(&mut self, begins: bool) {
        self.gaps = if begins { self.gaps + 1 } else { self.gaps.saturating_sub(1) };
        if begins {
            self.forget();
        }
    }

    /// Forgets what is under way.
    fn forget(&mut self) {
        let given: usize = self.given.values().map(VecDeque::len).sum();
        let in_vmm: usize = self.nets.values().map(|net| net.inbound.len() + usize::from(net.sending.is_some())).sum();
        self.across_lost_records += (given + in_vmm + self.received.len()) as u64;
        for net in self.nets.values_mut() {
            (net.served, net.sending) = ([None; 2], None);
            net.picked_up.clear();
            net.on_tap.clear();
            net.inbound.clear();
            (net.receives_unseen, net.takes_unseen) = (true, self.reports.kicks);
        }
        self.vcpus.clear();
        self.kicks.clear();
        self.handlers.clear();
        self.calls.clear();
        self.queued.clear();
        self.given.clear();
        self.received.clear();
        self.merging.clear();
        self.woken.clear();
    }

    fn add_guest(&mut self, cpu: u32, input: &Input<'_>, event: Event<'_>, guest: &Guest, recorder: Current) {
        let time = input.time();
        let interrupt = || guest.cpu(cpu).and_then(|cpu| cpu.view().0.interrupt);
        match event {
            Event::SyscallEnter { .. } => {
                if let Current::Task(task) = recorder {
                    self.calls.insert(task, time);
                }
            }
            Event::SyscallExit { .. } => {
                if let Current::Task(task) = recorder {
                    self.calls.remove(&task);
                }
            }
            Event::Packet(packet) if packet.device != LOOPBACK => match packet.place {
                PacketPlace::Queued => {
                    let task = if interrupt().is_none() { recorder } else { Current::Unknown };
                    self.queue(&packet, time, task);
                }
                PacketPlace::Given => self.give(&packet, time),
                PacketPlace::Answered if packet.is_refused => {
                    if let Some(given) = self.given.get_mut(packet.device) {
                        given.retain(|known| known.skb != packet.skb);
                    }
                }
                PacketPlace::Received => self.receive(cpu, &packet, time, Milestone::Received),
                PacketPlace::PassedUp => self.pass_up(cpu, &packet, time),
                PacketPlace::Answered | PacketPlace::Left => {}
            },
            Event::InterruptEnter(Interrupt::Irq(number)) => {
                let is_virtio = event::handler_name(&input.record).is_none_or(|name| name.starts_with("virtio"));
                if is_virtio {
                    let injected = self.vcpus.entry(cpu).or_default().injected.take();
                    let handlers = self.handlers.entry(number).or_default();
                    if handlers.len() == HANDLERS {
                        handlers.pop_front();
                    }
                    handlers.push_back(Handler { time, injected });
                }
            }
            Event::InterruptEnter(NET_RX) => self.vcpus.entry(cpu).or_default().net_rx = Some(time),
            Event::InterruptExit(NET_RX) => self.end_received(cpu),
            Event::Wakeup { task, .. } => self.wake(cpu, task, time, interrupt(), guest),
            Event::Switch { next, .. } => {
                self.end_received(cpu);
                let numbers = guest.living(next.tid).and_then(|next| self.woken.remove(&next));
                for number in numbers.unwrap_or_default() {
                    if let Some(packet) = self.received.get_mut(&number) {
                        packet.pass(Milestone::Running, time);
                    }
                    self.end(number);
                }
            }
            _ => {}
        }
    }

    /// The guest queues a packet; `recorder` does, unless it is an interrupt.
    fn queue(&mut self, packet: &NetworkPacket<'_>, time: u64, recorder: Current) {
        let called = match recorder {
            Current::Task(task) => self.calls.get(&task).map(|&called| (called, task)),
            Current::Idle | Current::Unknown => None,
        };
        if self.queued.len() >= UNDER_WAY {
            // What never came to a driver was thrown away, which is not recorded.
            self.queued.clear();
        }
        self.queued.insert(packet.skb, Queued { time, called });
    }

    /// The driver of a device of the guest gets a packet.
    fn give(&mut self, reported: &NetworkPacket<'_>, time: u64) {
        self.reports.gives = true;
        if self.gaps > 0 {
            self.across_lost_records += 1;
            return;
        }
        let mut packet = Packet::new(0, 0, reported.bytes);
        packet.skb = reported.skb;
        let queued = self.queued.remove(&reported.skb);
        // A device on top of this one hands its packets down. On this one, the structure of a packet that is gone is
        // used again.
        for (name, given) in &mut self.given {
            let Some(at) = given.iter().position(|known| known.skb == reported.skb) else { continue };
            let Some(known) = given.remove(at) else { continue };
            if name == reported.device {
                self.sent.unmatched += 1;
            } else {
                (packet.times, packet.task) = (known.times, known.task);
                packet.times[Milestone::Given as usize] = None;
            }
        }
        if let Some(Queued { time, called }) = queued {
            if let Some((called, task)) = called {
                packet.pass(Milestone::Called, called);
                packet.task = packet.task.or(Some(task));
            }
            packet.pass(Milestone::Queued, time);
        }
        packet.pass(Milestone::Given, time);
        packet.device = Some(reported.device.to_vec());
        if self.given.len() >= DEVICES && !self.given.contains_key(reported.device) {
            return;
        }
        let given = self.given.entry(reported.device.to_vec()).or_default();
        if given.len() == UNDER_WAY {
            given.pop_front();
        }
        given.push_back(packet);
    }

    /// The network device of the VMM that the guest's `device` is, of which a packet came for which `is_it` holds.
    fn net_of(&mut self, device: &[u8], is_it: impl Fn(&Packet) -> bool) -> Option<u32> {
        let known = self.nets.iter().find(|(_, net)| net.device.as_deref() == Some(device));
        if let Some((&number, _)) = known {
            return Some(number);
        }
        let mut free = self.nets.iter().filter(|(_, net)| net.device.is_none() && net.inbound.iter().any(&is_it));
        let (Some((&only, _)), None) = (free.next(), free.next()) else { return None };
        self.nets.get_mut(&only)?.device = Some(device.to_vec());
        Some(only)
    }

    /// The guest's driver receives a packet, or, where that is not recorded, its protocols do.
    fn receive(&mut self, cpu: u32, reported: &NetworkPacket<'_>, time: u64, milestone: Milestone) {
        self.reports.receives = true;
        self.reports.by_driver |= milestone == Milestone::Received;
        let bytes = reported.bytes.saturating_add(ETHERNET_HEADER);
        let is_it = |packet: &Packet| packet.bytes == bytes;
        let Some(number) = self.net_of(reported.device, is_it) else { return };
        let Some(net) = self.nets.get_mut(&number) else { return };
        let Some(at) = net.inbound.iter().position(is_it) else {
            self.got.unmatched += u64::from(self.gaps == 0);
            return;
        };
        // The ring keeps the order: those before it never came.
        self.got.unmatched += at as u64;
        let Some(mut packet) = net.inbound.drain(..=at).next_back() else { return };
        if net.receives_unseen {
            self.across_lost_records += 1;
            return;
        }
        (packet.device, packet.skb) = (Some(reported.device.to_vec()), reported.skb);
        self.set_handled(&mut packet, time);
        let vcpu = self.vcpus.entry(cpu).or_default();
        if let Some(begun) = vcpu.net_rx {
            packet.pass(Milestone::Polled, begun);
        }
        packet.pass(milestone, time);
        let number = self.next_number;
        self.next_number += 1;
        vcpu.received.push(number);
        if milestone == Milestone::PassedUp || !self.reports.passes_up {
            vcpu.current = Some(number);
        }
        if milestone == Milestone::Received {
            self.merging.insert(reported.skb, number);
        }
        self.received.insert(number, packet);
    }

    /// Says when the interrupt for a packet that was received at `received` was handled.
    fn set_handled(&mut self, packet: &mut Packet, received: u64) {
        let Some(raised) = packet.at(Milestone::Raised) else { return };
        let Some(net) = self.nets.get(&packet.net) else { return };
        let is_its = |handler: &&Handler| (raised..=received).contains(&handler.time);
        let number = net.interrupt.or_else(|| {
            let taken = |number: &i32| self.nets.values().any(|net| net.interrupt == Some(*number));
            let mut came =
                self.handlers.iter().filter(|(number, all)| !taken(number) && all.iter().any(|h| is_its(&h)));
            let (Some((&only, _)), None) = (came.next(), came.next()) else { return None };
            Some(only)
        });
        let Some(number) = number else { return };
        if let Some(net) = self.nets.get_mut(&packet.net) {
            net.interrupt = Some(number);
        }
        let Some(handler) = self.handlers.get(&number).and_then(|all| all.iter().find(is_its)) else { return };
        // What came before the VMM raised the interrupt was another one's.
        if let Some(injected) = handler.injected.filter(|&injected| injected >= raised) {
            packet.pass(Milestone::Injected, injected);
        }
        packet.pass(Milestone::Handled, handler.time);
    }

    /// The guest's protocols get a packet.
    fn pass_up(&mut self, cpu: u32, reported: &NetworkPacket<'_>, time: u64) {
        self.reports.passes_up = true;
        if let Some(number) = self.merging.remove(&reported.skb) {
            if let Some(packet) = self.received.get_mut(&number) {
                packet.pass(Milestone::PassedUp, time);
                self.vcpus.entry(cpu).or_default().current = Some(number);
            }
        } else if !self.reports.by_driver {
            self.receive(cpu, reported, time, Milestone::PassedUp);
        }
    }

    /// The guest's `cpu` leaves the soft interrupt in which it received: packets that woke nobody are at their end.
    fn end_received(&mut self, cpu: u32) {
        let Some(vcpu) = self.vcpus.get_mut(&cpu) else { return };
        (vcpu.net_rx, vcpu.current) = (None, None);
        let numbers = std::mem::take(&mut vcpu.received);
        numbers.into_iter().for_each(|number| self.end(number));
    }

    /// Something on the guest's `cpu`, in `interrupt`, wakes `task`.
    fn wake(&mut self, cpu: u32, task: Task<'_>, time: u64, interrupt: Option<Interrupt>, guest: &Guest) {
        let Some(index) = guest.living(task.tid) else { return };
        if guest.task(index).is_some_and(|task| task.comm.starts_with(SOFTIRQ_THREADS)) {
            return;
        }
        let Some(vcpu) = self.vcpus.get_mut(&cpu) else { return };
        if vcpu.net_rx.is_some() && interrupt != Some(NET_RX) {
            return;
        }
        let Some(number) = vcpu.current.take() else { return };
        vcpu.received.retain(|&received| received != number);
        if let Some(packet) = self.received.get_mut(&number) {
            packet.pass(Milestone::Woken, time);
            packet.task = Some(index);
            self.woken.entry(index).or_default().push(number);
        }
    }

    fn add_host(&mut self, (host, vm): (usize, usize), time: u64, event: Event<'_>, timeline: &Timeline) {
        let vcpu_of = |tid: Tid| timeline.vcpu_of_thread(host, tid).filter(|&(of, _)| of == vm).map(|(_, vcpu)| vcpu);
        match event {
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
            Event::KvmMmio { tid, address, is_write: true, value } if address % PAGE == QUEUE_NOTIFY => {
                let Some(vcpu) = tid.and_then(vcpu_of) else { return };
                if value.is_some_and(|queue| queue != u64::from(SEND_QUEUE)) {
                    return;
                }
                self.reports.kicks = true;
                // The guest notifies when the VMM has taken all that came before.
                let page = address / PAGE;
                let its = |net: &&mut Net| net.page.is_none_or(|known| known == page);
                self.nets.values_mut().filter(its).for_each(|net| net.takes_unseen = false);
                let exit = self.vcpus.get(&vcpu).map_or(0, |vcpu| vcpu.exit);
                let kicks = self.kicks.entry(address / PAGE).or_default();
                if kicks.len() < UNDER_WAY {
                    kicks.push(if exit == 0 { time } else { exit });
                }
            }
            Event::Packet(packet) => self.add_host_packet(time, &packet),
            _ => {}
        }
    }

    /// A network device of the host has a packet.
    fn add_host_packet(&mut self, time: u64, reported: &NetworkPacket<'_>) {
        match reported.place {
            PacketPlace::PassedUp | PacketPlace::Left => {
                let bytes = reported.bytes.saturating_add(ETHERNET_HEADER);
                for net in self.nets.values_mut() {
                    let Some(packet) = net.sending.as_mut().filter(|packet| packet.bytes == bytes) else { continue };
                    if packet.at(Milestone::ToHost).is_some() {
                        continue;
                    }
                    if net.taps.len() < DEVICES || net.taps.contains_key(reported.device) {
                        *net.taps.entry(reported.device.to_vec()).or_default() += 1;
                    }
                    let most = net.taps.iter().max_by_key(|(_, count)| **count);
                    if most.is_some_and(|(name, _)| name == reported.device) {
                        packet.pass(Milestone::ToHost, time);
                    }
                }
            }
            PacketPlace::Given => {
                let of_tap = self.nets.values_mut().filter(|net| net.tap() == Some(reported.device));
                for net in of_tap {
                    // The structure of a packet that is gone is used again.
                    net.on_tap.retain(|known| known.skb != reported.skb);
                    if net.on_tap.len() == UNDER_WAY {
                        net.on_tap.pop_front();
                    }
                    net.on_tap.push_back(OnTap { time, skb: reported.skb, bytes: reported.bytes });
                }
            }
            PacketPlace::Answered if reported.is_refused => {
                let of_tap = self.nets.values_mut().filter(|net| net.tap() == Some(reported.device));
                of_tap.for_each(|net| net.on_tap.retain(|known| known.skb != reported.skb));
            }
            PacketPlace::Queued | PacketPlace::Received | PacketPlace::Answered => {}
        }
    }

    fn add_vmm(&mut self, time: u64, event: Event<'_>) {
        match event {
            Event::NetNotified { net, queue } => {
                let is_send = queue == SEND_QUEUE;
                if is_send {
                    self.learn_page(net);
                }
                let state = self.nets.entry(net).or_default();
                state.served[usize::from(is_send)] = Some(time);
                state.is_unsure &= is_send;
                if is_send && let Some(kicks) = state.page.and_then(|page| self.kicks.get_mut(&page)) {
                    state.picked_up = std::mem::take(kicks);
                }
            }
            Event::NetPacket { net, is_received: false, id, bytes, progress } => match progress {
                PacketProgress::Taken => self.take(net, id, bytes, time),
                PacketProgress::Done | PacketProgress::Dropped => self.finish_sending(net, id, time, progress),
            },
            Event::NetPacket { net, is_received: true, id, bytes, progress } => match progress {
                PacketProgress::Taken => self.read(net, id, bytes, time),
                PacketProgress::Done => {
                    let inbound = self.nets.get_mut(&net).and_then(|net| net.inbound.iter_mut().rfind(|p| p.id == id));
                    inbound.into_iter().for_each(|packet| packet.pass(Milestone::Delivered, time));
                }
                PacketProgress::Dropped => {
                    if let Some(net) = self.nets.get_mut(&net) {
                        net.inbound.retain(|packet| packet.id != id);
                    }
                    self.got.dropped += 1;
                }
            },
            Event::NetInterrupt { net, queue } if queue != SEND_QUEUE => self.raise(net, time),
            // What is recorded from here on may begin or end anywhere.
            Event::Control { what } if what.starts_with(EVENTS_CHANGE) => self.forget(),
            _ => {}
        }
    }

    /// Which page is `net`'s: the only one with a kick that was not picked up and that is no other device's.
    fn learn_page(&mut self, net: u32) {
        if self.nets.get(&net).is_some_and(|net| net.page.is_some()) {
            return;
        }
        let free = |page: &u64| !self.nets.values().any(|net| net.page == Some(*page));
        let kicked = self.kicks.iter().filter(|(page, kicks)| !kicks.is_empty() && free(page));
        let kicked: Vec<u64> = kicked.map(|(page, _)| *page).collect();
        if let [page] = kicked[..] {
            self.nets.entry(net).or_default().page = Some(page);
            return;
        }
        // Nobody picks up the kicks of another kind of device, a balloon's for instance: only what comes from here on
        // counts the next time.
        for page in kicked {
            self.kicks.remove(&page);
        }
    }

    /// The VMM takes a packet that the guest sends.
    fn take(&mut self, number: u32, id: u64, bytes: u64, time: u64) {
        if self.gaps > 0 {
            self.across_lost_records += 1;
            return;
        }
        let is_it = |packet: &Packet| packet.bytes == bytes;
        let net = self.nets.entry(number).or_default();
        if net.device.is_none() {
            let taken = |device: &Vec<u8>| self.nets.values().any(|net| net.device.as_ref() == Some(device));
            let mut free = self.given.iter().filter(|(device, given)| given.iter().any(is_it) && !taken(device));
            let only =
                if let (Some((device, _)), None) = (free.next(), free.next()) { Some(device.clone()) } else { None };
            self.nets.entry(number).or_default().device = only;
        }
        let net = self.nets.entry(number).or_default();
        let given = net.device.as_ref().and_then(|device| self.given.get_mut(device));
        let mut packet = match given.and_then(|given| given.iter().position(is_it).map(|at| (given, at))) {
            Some((given, at)) => {
                // The ring keeps the order: those before it never came to it.
                self.sent.unmatched += at as u64;
                let Some(packet) = given.drain(..=at).next_back() else { return };
                if net.takes_unseen {
                    self.across_lost_records += 1;
                    return;
                }
                packet
            }
            None if self.reports.gives => {
                self.sent.unmatched += 1;
                return;
            }
            None => Packet::new(number, id, bytes),
        };
        (packet.net, packet.id) = (number, id);
        let since = packet.at(Milestone::Given).unwrap_or(u64::MAX);
        let pending = net.page.and_then(|page| self.kicks.get(&page)).into_iter().flatten();
        if let Some(&kick) = net.picked_up.iter().chain(pending).find(|&&kick| kick >= since) {
            packet.pass(Milestone::Kicked, kick);
        }
        if let Some(served) = net.served[1].filter(|&served| served >= since || since == u64::MAX) {
            packet.pass(Milestone::PickedUp, served);
        }
        packet.pass(Milestone::Taken, time);
        net.sending = Some(packet);
    }

    /// The VMM is done with a packet that the guest sends.
    fn finish_sending(&mut self, net: u32, id: u64, time: u64, progress: PacketProgress) {
        let sending = self.nets.get_mut(&net).and_then(|net| net.sending.take_if(|packet| packet.id == id));
        if progress == PacketProgress::Dropped {
            self.sent.dropped += 1;
        } else if let Some(mut packet) = sending {
            packet.pass(Milestone::Sent, time);
            self.sent.ended.record(packet);
        }
    }

    /// The VMM has read a packet that the guest receives.
    fn read(&mut self, number: u32, id: u64, bytes: u64, time: u64) {
        if self.gaps > 0 {
            self.across_lost_records += 1;
            return;
        }
        let net = self.nets.entry(number).or_default();
        let mut packet = Packet::new(number, id, bytes);
        let served = net.served[0].unwrap_or(0);
        // The tap keeps the order. But of the host's kernel there are records only while one of the VM's threads runs.
        let found = net.on_tap.iter().position(|on_tap| on_tap.bytes == bytes);
        match found.and_then(|at| net.on_tap.drain(..=at).next_back()) {
            Some(on_tap) if !net.is_unsure => packet.pass(Milestone::FromHost, on_tap.time),
            Some(_) => {}
            None => {
                // Any packet of this length that was read since the queue was last empty may have been the one without
                // a record, and have taken that of the next one.
                net.is_unsure = true;
                let since = |packet: &&mut Packet| packet.at(Milestone::Read).is_some_and(|read| read >= served);
                for packet in net.inbound.iter_mut().filter(since).filter(|packet| packet.bytes == bytes) {
                    packet.times[Milestone::FromHost as usize] = None;
                }
            }
        }
        let since = packet.at(Milestone::FromHost).unwrap_or(0);
        if let Some(served) = net.served[0].filter(|&served| served >= since) {
            packet.pass(Milestone::Noticed, served);
        }
        packet.pass(Milestone::Read, time);
        if net.inbound.len() == UNDER_WAY
            && let Some(oldest) = net.inbound.pop_front()
        {
            self.end_unseen(oldest);
        }
        if let Some(net) = self.nets.get_mut(&number) {
            net.inbound.push_back(packet);
        }
    }

    /// The VMM raises the interrupt for what it delivered since it was notified. The guest asks for one only when it
    /// has taken all that came before.
    fn raise(&mut self, number: u32, time: u64) {
        let Some(net) = self.nets.get_mut(&number) else { return };
        let Some(served) = net.served[0] else { return };
        for packet in net.inbound.iter_mut().filter(|packet| packet.at(Milestone::Read).is_some_and(|at| at >= served))
        {
            if packet.at(Milestone::Delivered).is_some() {
                packet.pass(Milestone::Raised, time);
            }
        }
        net.receives_unseen = false;
        if self.reports.receives {
            let before = net.inbound.len();
            net.inbound.retain(|packet| packet.at(Milestone::Delivered).is_none_or(|at| at >= served));
            self.got.unmatched += (before - net.inbound.len()) as u64;
        }
    }

    /// A packet that the guest was given and did not tell of.
    fn end_unseen(&mut self, packet: Packet) {
        if self.reports.receives {
            self.got.unfinished += 1;
        } else if packet.at(Milestone::Delivered).is_some() {
            self.got.ended.record(packet);
        }
    }

    /// The received packet is at its end.
    fn end(&mut self, number: u64) {
        if let Some(packet) = self.received.remove(&number) {
            self.merging.remove(&packet.skb);
            self.got.ended.record(packet);
        }
    }

    /// Keeps the packets that end, to be taken one by one.
    pub(super) fn keep_ended(&mut self) {
        self.sent.ended.keep();
        self.got.ended.keep();
    }

    /// The packets that have ended since the last call.
    pub(super) fn take_ended(&mut self, guest: &Guest, clock: &Clock) -> Vec<(Direction, PacketFlow)> {
        let sent = self.sent.take(guest, clock).into_iter().map(|flow| (Direction::Sent, flow));
        let received = self.got.take(guest, clock).into_iter().map(|flow| (Direction::Received, flow));
        sent.chain(received).collect()
    }

    /// Whether packets have ended that were not taken yet.
    pub(super) fn has_ended(&self) -> bool {
        self.sent.ended.are_kept() || self.got.ended.are_kept()
    }

    /// Ends what is under way: no record is to come.
    pub(super) fn end_all(&mut self) {
        let mut numbers: Vec<_> = self.received.keys().copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().for_each(|number| self.end(number));
        for mut net in std::mem::take(&mut self.nets).into_values() {
            std::mem::take(&mut net.inbound).into_iter().for_each(|packet| self.end_unseen(packet));
            self.sent.unfinished += u64::from(net.sending.is_some());
            let given = net.device.and_then(|device| self.given.remove(&device));
            self.sent.unfinished += given.map_or(0, |given| given.len()) as u64;
        }
    }

    pub(super) fn finish(mut self, vm: String, guest: &Guest, clock: &Clock) -> VmNetFlows {
        self.end_all();
        VmNetFlows {
            vm,
            sent: self.sent.flows(Direction::Sent, guest, clock),
            received: self.got.flows(Direction::Received, guest, clock),
            across_lost_records: self.across_lost_records,
            moved_by_host_kernel: BTreeSet::new(),
        }
    }
}
