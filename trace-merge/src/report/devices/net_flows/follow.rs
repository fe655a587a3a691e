//! Follows packets from milestone to milestone.

use super::packet::{Gone, Packet};
use super::{Direction, Milestone, PacketFlow};
use crate::report::devices::followed::{Followed, Handler};
use crate::report::devices::follower::{GuestRecord, Kind};
use crate::report::devices::interrupts::{Likeliest, PARTNERS};
use crate::report::devices::io_path::{IoPath, UNDER_WAY};
use crate::report::statistics::samples::{ReportedBy, Samples, reported};
use foldhash::HashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use strata_analysis::event::{self, Event, Interrupt, NetworkPacket, PacketPlace, PacketProgress, Tid};
use strata_analysis::timeline::states::{Current, TaskIndex};
use strata_analysis::timeline::{Input, Origin};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Vm;
use strata_recording::reader::{Trace, TraceLayer};

/// The queue that the guest sends by (virtio 1.2, 5.1.2).
const SEND_QUEUE: u32 = 1;
/// Bytes of an Ethernet header, which a kernel takes off what it receives before it tells of it.
const ETHERNET_HEADER: u64 = 14;
/// The soft interrupt in which networks are received (`NET_RX_SOFTIRQ`).
const NET_RX: Interrupt = Interrupt::Softirq(3);
/// Names of network devices that are distinguished; they are the guest's choice.
const DEVICES: usize = 64;
/// Handlers that are remembered of an interrupt.
const HANDLERS: usize = 64;
/// The device whose packets never leave a kernel.
const LOOPBACK: &[u8] = b"lo";
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
    /// The host's devices that got its packets while the VMM wrote them, and how many.
    taps: BTreeMap<Vec<u8>, u64>,
    /// When the VMM began to serve what the guest receives last.
    served: Option<u64>,
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

/// The packets of the network devices of one VM.
#[derive(Debug, Default)]
pub struct Packets {
    nets: BTreeMap<u32, Net>,
    /// The handlers of each of the guest's interrupts that may be a network device's.
    handlers: BTreeMap<i32, VecDeque<Handler>>,
    /// The interrupt of each device.
    interrupts: Likeliest<u32, i32>,
    /// Those that came before a packet: kept so that no packet takes memory for them.
    came: Vec<i32>,
    /// When each task entered the system call that it is in.
    calls: HashMap<TaskIndex, u64>,
    /// By address.
    queued: HashMap<u64, Queued>,
    /// Given to the driver of a device of the guest; the oldest first.
    given: BTreeMap<Vec<u8>, VecDeque<Packet>>,
    /// The numbers of received packets that protocols have not got, by address.
    merging: HashMap<u64, u64>,
    recorded: Recorded,
    pub(super) sent: Gone,
    pub(super) got: Gone,
    /// Devices whose packets the host's kernel moved.
    pub(super) moved_by_host_kernel: BTreeSet<u32>,
}

/// Which packets of a guest were recorded so far: those that its driver sends, those that it receives, and those that
/// protocols get.
#[derive(Clone, Copy, Debug, Default)]
struct Recorded {
    gives: bool,
    receives: bool,
    /// The driver itself, and not only the protocols.
    by_driver: bool,
    passes_up: bool,
    /// That it notifies the host.
    kicks: bool,
}

impl Kind for Packets {
    type Item = Packet;

    const REPORTED_BY: &'static [ReportedBy] = &[
        reported(LayerKind::Vmm, event::name::NET_SEND),
        reported(LayerKind::Vmm, event::name::NET_RECEIVE),
        reported(LayerKind::Vmm, "vmm:net_notified"),
        reported(LayerKind::Vmm, "vmm:net_interrupt"),
        reported(LayerKind::HostKernel, "kvm:kvm_mmio"),
        reported(LayerKind::HostKernel, "kvm:kvm_inj_virq"),
        reported(LayerKind::HostKernel, "net:net*"),
        reported(LayerKind::GuestKernel, "net:n*"),
        reported(LayerKind::GuestKernel, event::name::SYSCALL_ENTER),
        reported(LayerKind::GuestKernel, "irq:irq_handler_entry"),
        reported(LayerKind::GuestKernel, "irq:softirq_e*"),
        reported(LayerKind::GuestKernel, "sched:sched_wak*"),
        reported(LayerKind::GuestKernel, event::name::SWITCH),
    ];

    fn begin(trace: &Trace, vm: &Vm) -> Option<Self> {
        let of_vm = |layer: &&TraceLayer| layer.description.vm.as_ref() == Some(&vm.name);
        let reports = |layer: &TraceLayer| {
            event::is_recorded(layer, event::name::NET_SEND) || event::is_recorded(layer, event::name::NET_RECEIVE)
        };
        trace.layers_of(LayerKind::Vmm).filter(of_vm).any(reports).then(Self::default)
    }

    fn takes(input: &Input<'_>) -> bool {
        match input.event {
            Some(
                Event::InterruptEnter(_)
                | Event::InterruptExit(_)
                | Event::SyscallEnter { .. }
                | Event::SyscallExit { .. },
            ) => matches!(input.origin, Origin::Guest { .. }),
            Some(
                Event::NetNotified { .. }
                | Event::NetPacket { .. }
                | Event::NetInterrupt { .. }
                | Event::NetVhost { .. }
                | Event::Packet(_)
                | Event::Control { .. },
            ) => true,
            _ => false,
        }
    }

    fn add_guest(&mut self, path: &mut IoPath<Packet>, record: &GuestRecord<'_>) {
        let (cpu, time) = (record.cpu, record.time());
        match *record.event {
            Event::SyscallEnter { .. } => {
                if let Current::Task(task) = record.recorder {
                    self.calls.insert(task, time);
                }
            }
            Event::SyscallExit { .. } => {
                if let Current::Task(task) = record.recorder {
                    self.calls.remove(&task);
                }
            }
            Event::Packet(ref packet) if packet.device != LOOPBACK => self.add_guest_packet(path, packet, record),
            Event::InterruptEnter(NET_RX) => path.enter(cpu, NET_RX, time),
            Event::InterruptEnter(_) => {
                if let Some(number) = record.virtio_handler()
                    && (self.handlers.len() < PARTNERS || self.handlers.contains_key(&number))
                {
                    let handlers = self.handlers.entry(number).or_default();
                    if handlers.len() == HANDLERS {
                        handlers.pop_front();
                    }
                    handlers.push_back(path.enter_handler(cpu, time));
                }
            }
            Event::InterruptExit(NET_RX) => path.leave(cpu).into_iter().for_each(|packet| self.end(path, packet)),
            _ => {}
        }
    }

    fn add_host(&mut self, time: u64, event: &Event<'_>, _is_vcpu: &dyn Fn(Tid) -> bool) {
        if let Event::Packet(packet) = event {
            self.add_host_packet(time, packet);
        }
    }

    fn add_vmm(&mut self, path: &mut IoPath<Packet>, time: u64, event: &Event<'_>) {
        match *event {
            Event::NetNotified { net, queue: SEND_QUEUE } => {
                self.nets.entry(net).or_default();
                path.pick_up(net, time);
            }
            Event::NetNotified { net, .. } => {
                let net = self.nets.entry(net).or_default();
                (net.served, net.is_unsure) = (Some(time), false);
            }
            Event::NetPacket { net, is_received: false, id, bytes, progress } => match progress {
                PacketProgress::Taken => self.take(path, net, id, bytes, time),
                PacketProgress::Done | PacketProgress::Dropped => self.finish_sending(path, (net, id), time, progress),
            },
            Event::NetPacket { net, is_received: true, id, bytes, progress } => match progress {
                PacketProgress::Taken => self.read(path, net, id, bytes, time),
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
            Event::NetVhost { net, moves: true } => {
                self.moved_by_host_kernel.insert(net);
            }
            // What is recorded from here on may begin or end anywhere.
            Event::Control { what } if what.starts_with(EVENTS_CHANGE) => path.forget(self.forget()),
            _ => {}
        }
    }

    fn is_its_queue(value: Option<u64>) -> bool {
        value.is_none_or(|queue| queue == u64::from(SEND_QUEUE))
    }

    fn kicked(&mut self, path: &IoPath<Packet>, page: u64) {
        self.recorded.kicks = true;
        // The guest notifies when the VMM has taken all that came before.
        let its = self.nets.iter_mut().filter(|(number, _)| path.page_of(**number).is_none_or(|known| known == page));
        its.for_each(|(_, net)| net.takes_unseen = false);
    }

    fn forget(&mut self) -> usize {
        let given: usize = self.given.values().map(VecDeque::len).sum();
        let in_vmm: usize = self.nets.values().map(|net| net.inbound.len() + usize::from(net.sending.is_some())).sum();
        for net in self.nets.values_mut() {
            (net.served, net.sending) = (None, None);
            net.on_tap.clear();
            net.inbound.clear();
            (net.receives_unseen, net.takes_unseen) = (true, self.recorded.kicks);
        }
        self.handlers.clear();
        self.calls.clear();
        self.queued.clear();
        self.given.clear();
        self.merging.clear();
        given + in_vmm
    }

    fn end(&mut self, path: &mut IoPath<Packet>, packet: Packet) {
        self.merging.remove(&packet.skb);
        self.got.ended.record(packet, &mut path.kept);
    }

    fn end_all(&mut self, path: &mut IoPath<Packet>) {
        for mut net in std::mem::take(&mut self.nets).into_values() {
            std::mem::take(&mut net.inbound).into_iter().for_each(|packet| self.end_unseen(path, packet));
            self.sent.unfinished += u64::from(net.sending.is_some());
            let given = net.device.and_then(|device| self.given.remove(&device));
            self.sent.unfinished += given.map_or(0, |given| given.len()) as u64;
        }
    }

    fn sample(samples: &mut Samples, vm: usize, (direction, flow): &(Direction, PacketFlow)) {
        for step in &flow.steps {
            samples.add(Some(vm), step.end, step.ticks, || format!("{}: {}", direction.name(), step.name()));
        }
        let end = flow.begin.saturating_add(flow.ticks);
        samples.add(Some(vm), end, flow.ticks, || format!("whole packet: {}", direction.name()));
    }
}

impl Packets {
    /// A network device of the guest has a packet.
    fn add_guest_packet(&mut self, path: &mut IoPath<Packet>, packet: &NetworkPacket<'_>, record: &GuestRecord<'_>) {
        let (cpu, time) = (record.cpu, record.time());
        match packet.place {
            PacketPlace::Queued => {
                let task = if record.interrupt().is_none() { record.recorder } else { Current::Unknown };
                self.queue(packet, time, task);
            }
            PacketPlace::Given => self.give(path, packet, time),
            PacketPlace::Answered if packet.is_refused => {
                if let Some(given) = self.given.get_mut(packet.device) {
                    given.retain(|known| known.skb != packet.skb);
                }
            }
            PacketPlace::Received => self.receive(path, cpu, packet, time, Milestone::Received),
            PacketPlace::PassedUp => self.pass_up(path, cpu, packet, time),
            PacketPlace::Answered | PacketPlace::Left => {}
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
    fn give(&mut self, path: &mut IoPath<Packet>, reported: &NetworkPacket<'_>, time: u64) {
        self.recorded.gives = true;
        if path.counts_as_lost() {
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

    /// The VMM's network device that the guest's `device` is, by a packet of it for which `is_it` holds.
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
    fn receive(
        &mut self,
        path: &mut IoPath<Packet>,
        cpu: u32,
        reported: &NetworkPacket<'_>,
        time: u64,
        milestone: Milestone,
    ) {
        self.recorded.receives = true;
        self.recorded.by_driver |= milestone == Milestone::Received;
        let bytes = reported.bytes.saturating_add(ETHERNET_HEADER);
        let is_it = |packet: &Packet| packet.bytes == bytes;
        let Some(number) = self.net_of(reported.device, is_it) else { return };
        let Some(net) = self.nets.get_mut(&number) else { return };
        let Some(at) = net.inbound.iter().position(is_it) else {
            self.got.unmatched += u64::from(path.is_whole());
            return;
        };
        // The ring keeps the order: those before it never came.
        self.got.unmatched += at as u64;
        let Some(mut packet) = net.inbound.drain(..=at).next_back() else { return };
        if net.receives_unseen {
            path.across_lost_records += 1;
            return;
        }
        (packet.device, packet.skb) = (Some(reported.device.to_vec()), reported.skb);
        self.set_handled(&mut packet, time);
        if let Some((_, begun)) = path.within(cpu) {
            packet.pass(Milestone::Polled, begun);
        }
        packet.pass(milestone, time);
        let number = path.arrive(cpu, packet);
        if milestone == Milestone::PassedUp || !self.recorded.passes_up {
            path.may_wake(cpu, number);
        }
        if milestone == Milestone::Received {
            self.merging.insert(reported.skb, number);
        }
    }

    /// Says when the interrupt for a packet that was received at `received` was handled.
    fn set_handled(&mut self, packet: &mut Packet, received: u64) {
        let Some(raised) = packet.at(Milestone::Raised) else { return };
        let is_its = |handler: &&Handler| (raised..=received).contains(&handler.time);
        let of_another =
            |number: &i32| self.nets.keys().any(|&net| net != packet.net && self.interrupts.of(net) == Some(*number));
        let mut came = std::mem::take(&mut self.came);
        came.clear();
        let handled = self.handlers.iter().filter(|(_, all)| all.iter().any(|handler| is_its(&handler)));
        came.extend(handled.map(|(&number, _)| number).filter(|number| !of_another(number)));
        // A driver that polls is not interrupted.
        let met = if came.is_empty() { None } else { self.interrupts.meet(packet.net, came.iter().copied()) };
        self.came = came;
        let Some(number) = met else { return };
        if let Some(&handler) = self.handlers.get(&number).and_then(|all| all.iter().find(is_its)) {
            packet.pass_handler(raised, handler);
        }
    }

    /// The guest's protocols get a packet.
    fn pass_up(&mut self, path: &mut IoPath<Packet>, cpu: u32, reported: &NetworkPacket<'_>, time: u64) {
        self.recorded.passes_up = true;
        if let Some(number) = self.merging.remove(&reported.skb) {
            if let Some(packet) = path.arrived(number) {
                packet.pass(Milestone::PassedUp, time);
                path.may_wake(cpu, number);
            }
        } else if !self.recorded.by_driver {
            self.receive(path, cpu, reported, time, Milestone::PassedUp);
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

    /// The VMM takes a packet that the guest sends.
    fn take(&mut self, path: &mut IoPath<Packet>, number: u32, id: u64, bytes: u64, time: u64) {
        if path.counts_as_lost() {
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
                    path.across_lost_records += 1;
                    return;
                }
                packet
            }
            None if self.recorded.gives => {
                self.sent.unmatched += 1;
                return;
            }
            None => Packet::new(number, id, bytes),
        };
        (packet.net, packet.id) = (number, id);
        let since = packet.at(Milestone::Given).unwrap_or(u64::MAX);
        path.pass_kick(&mut packet, number, since);
        if let Some(served) = path.served(number).filter(|&served| served >= since || since == u64::MAX) {
            packet.pass(Milestone::PickedUp, served);
        }
        packet.pass(Milestone::Taken, time);
        net.sending = Some(packet);
    }

    /// The VMM is done with a packet that the guest sends.
    fn finish_sending(
        &mut self,
        path: &mut IoPath<Packet>,
        (net, id): (u32, u64),
        time: u64,
        progress: PacketProgress,
    ) {
        let sending = self.nets.get_mut(&net).and_then(|net| net.sending.take_if(|packet| packet.id == id));
        if progress == PacketProgress::Dropped {
            self.sent.dropped += 1;
        } else if let Some(mut packet) = sending {
            packet.pass(Milestone::Sent, time);
            self.sent.ended.record(packet, &mut path.kept);
        }
    }

    /// The VMM has read a packet that the guest receives.
    fn read(&mut self, path: &mut IoPath<Packet>, number: u32, id: u64, bytes: u64, time: u64) {
        if path.counts_as_lost() {
            return;
        }
        let net = self.nets.entry(number).or_default();
        let mut packet = Packet::new(number, id, bytes);
        let served = net.served.unwrap_or(0);
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
        if let Some(served) = net.served.filter(|&served| served >= since) {
            packet.pass(Milestone::Noticed, served);
        }
        packet.pass(Milestone::Read, time);
        if net.inbound.len() == UNDER_WAY
            && let Some(oldest) = net.inbound.pop_front()
        {
            self.end_unseen(path, oldest);
        }
        if let Some(net) = self.nets.get_mut(&number) {
            net.inbound.push_back(packet);
        }
    }

    /// The VMM raises the interrupt for what it delivered since it was notified. The guest asks for one only when it
    /// has taken all that came before.
    fn raise(&mut self, number: u32, time: u64) {
        let Some(net) = self.nets.get_mut(&number) else { return };
        let Some(served) = net.served else { return };
        for packet in net.inbound.iter_mut().filter(|packet| packet.at(Milestone::Read).is_some_and(|at| at >= served))
        {
            if packet.at(Milestone::Delivered).is_some() {
                packet.pass(Milestone::Raised, time);
            }
        }
        net.receives_unseen = false;
        if self.recorded.receives {
            let before = net.inbound.len();
            net.inbound.retain(|packet| packet.at(Milestone::Delivered).is_none_or(|at| at >= served));
            self.got.unmatched += (before - net.inbound.len()) as u64;
        }
    }

    /// A packet that the guest was given and did not tell of.
    fn end_unseen(&mut self, path: &mut IoPath<Packet>, packet: Packet) {
        if self.recorded.receives {
            self.got.unfinished += 1;
        } else if packet.at(Milestone::Delivered).is_some() {
            self.got.ended.record(packet, &mut path.kept);
        }
    }
}
