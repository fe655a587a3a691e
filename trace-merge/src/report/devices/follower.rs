//! Follows what goes through a guest, virtio and the host, from milestone to milestone: disk requests and packets. The
//! way from the guest's driver to the VMM, and from the VMM's interrupt to the task that is woken, is the same for both.
//! A [`Kind`] says which of them are joined in between, and by what.

use super::followed::Followed;
use super::io_path::IoPath;
use crate::report::statistics::ended::KeepsEnded;
use crate::report::statistics::samples::{ReportedBy, Sampled, Samples};
use strata_analysis::event::{self, Event, FIRST_SYSTEM_VECTOR, Interrupt, Task, Tid};
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::Current;
use strata_analysis::timeline::{ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Gap};
use strata_recording::manifest::Vm;
use strata_recording::reader::Trace;

/// Offset of the queue notification register of a virtio device on MMIO, in its page (virtio 1.2, 4.2.2).
const QUEUE_NOTIFY: u64 = 0x50;
const PAGE: u64 = 0x1000;
/// What the kernel's threads are called that run soft interrupts which came too often.
const SOFTIRQ_THREADS: &[u8] = b"ksoftirqd/";

/// A kind of what is followed, in one VM.
pub trait Kind: Sized + Send {
    /// One that is under way.
    type Item: Followed;

    /// What tells of it.
    const REPORTED_BY: &'static [ReportedBy];

    /// That of `vm` of `trace`, before the first record; `None` when its VMM can have recorded none.
    fn begin(trace: &Trace, vm: &Vm) -> Option<Self>;

    /// Whether `input` has an event that only this kind takes in.
    fn takes(input: &Input<'_>) -> bool;

    /// Takes in an event of the guest.
    fn add_guest(&mut self, path: &mut IoPath<Self::Item>, record: &GuestRecord<'_>);

    /// Takes in an event of the host's kernel; `is_vcpu` says which of its threads are vCPUs of the VM.
    fn add_host(&mut self, time: u64, event: &Event<'_>, is_vcpu: &dyn Fn(Tid) -> bool);

    /// Takes in an event of the VMM.
    fn add_vmm(&mut self, path: &mut IoPath<Self::Item>, time: u64, event: &Event<'_>);

    /// Whether the guest notifies a queue of this kind by writing `value`.
    fn is_its_queue(_value: Option<u64>) -> bool {
        true
    }

    /// Takes in that the guest notifies the device in `page`.
    fn kicked(&mut self, _path: &IoPath<Self::Item>, _page: u64) {}

    /// Forgets what is under way in it; how many they are.
    fn forget(&mut self) -> usize;

    /// Takes one that is at its end.
    fn end(&mut self, path: &mut IoPath<Self::Item>, item: Self::Item);

    /// Ends what is under way in it: no record is to come.
    fn end_all(&mut self, _path: &mut IoPath<Self::Item>) {}

    /// Adds the steps of one that has ended in `vm` to `samples`.
    fn sample(samples: &mut Samples, vm: usize, flow: &<Self::Item as Followed>::Flow);
}

/// A record of the guest, and what is known of where it was made.
pub struct GuestRecord<'r> {
    pub(super) input: &'r Input<'r>,
    pub(super) event: &'r Event<'r>,
    pub(super) cpu: u32,
    pub(super) guest: &'r Guest,
    /// Who made it.
    pub(super) recorder: Current,
}

impl GuestRecord<'_> {
    /// When it was made, ticks.
    pub(super) fn time(&self) -> u64 {
        self.input.time()
    }

    /// The interrupt that it was made in.
    pub(super) fn interrupt(&self) -> Option<Interrupt> {
        self.guest.cpu(self.cpu).and_then(|cpu| cpu.view().0.interrupt)
    }

    /// The number of the interrupt whose handler it begins, when that may be a virtio device's.
    pub(super) fn virtio_handler(&self) -> Option<i32> {
        let Event::InterruptEnter(Interrupt::Irq(number)) = *self.event else { return None };
        event::handler_name(&self.input.record).is_none_or(|name| name.starts_with("virtio")).then_some(number)
    }
}

/// Follows those of a kind in one VM. Takes the records of its layers and of its host's kernel in time order.
#[derive(Debug)]
pub struct Follower<K: Kind> {
    pub(super) kind: K,
    pub(super) path: IoPath<K::Item>,
}

impl<K: Kind> Follower<K> {
    /// Whether it takes in records like `input`: by which event it is alone.
    fn takes(input: &Input<'_>) -> bool {
        match input.event {
            Some(Event::Wakeup { .. } | Event::Switch { .. }) => matches!(input.origin, Origin::Guest { .. }),
            Some(Event::KvmExit { .. } | Event::KvmInject { .. } | Event::KvmMmio { .. }) => true,
            Some(_) => K::takes(input),
            None => false,
        }
    }

    /// Takes in a record about the VM at `vm`.
    fn add(&mut self, vm: usize, input: &Input<'_>, timeline: &Timeline) {
        let Some(event) = &input.event else { return };
        match input.origin {
            Origin::Guest { cpu, .. } => {
                if let Some(known) = timeline.vm(vm) {
                    let (guest, recorder) = (&known.guest, timeline.recorder());
                    self.add_guest(&GuestRecord { input, event, cpu, guest, recorder });
                }
            }
            Origin::Host { host, .. } => {
                let vcpu_of =
                    |tid| timeline.vcpu_of_thread(host, tid).filter(|&(of, _)| of == vm).map(|(_, vcpu)| vcpu);
                self.add_host(input.time(), event, &vcpu_of);
            }
            Origin::Vmm { .. } => {
                self.kind.add_vmm(&mut self.path, input.time(), event);
            }
            Origin::User { .. } => {}
        }
    }

    fn add_guest(&mut self, record: &GuestRecord<'_>) {
        match *record.event {
            Event::Wakeup { task, .. } => self.wake(task, record),
            Event::Switch { next, .. } => {
                self.path.leave(record.cpu).into_iter().for_each(|item| self.kind.end(&mut self.path, item));
                if let Some(next) = record.guest.living(next.tid) {
                    self.path.run(next, record.time()).into_iter().for_each(|item| self.kind.end(&mut self.path, item));
                }
            }
            _ => self.kind.add_guest(&mut self.path, record),
        }
    }

    fn wake(&mut self, task: Task<'_>, record: &GuestRecord<'_>) {
        let Some(index) = record.guest.living(task.tid) else { return };
        let is_softirq = record.guest.task(index).is_some_and(|task| task.comm.starts_with(SOFTIRQ_THREADS));
        if !is_softirq {
            self.path.wake(record.cpu, record.interrupt(), index, record.time());
        }
    }

    fn add_host(&mut self, time: u64, event: &Event<'_>, vcpu_of: &dyn Fn(Tid) -> Option<u32>) {
        match *event {
            Event::KvmExit { tid, .. } => {
                if let Some(vcpu) = vcpu_of(tid) {
                    self.path.exit(vcpu, time);
                }
            }
            Event::KvmInject { tid, vector, again, .. } if vector < FIRST_SYSTEM_VECTOR => {
                if let Some(vcpu) = tid.and_then(vcpu_of) {
                    self.path.inject(vcpu, time, again);
                }
            }
            Event::KvmMmio { tid, address, is_write: true, value } if address % PAGE == QUEUE_NOTIFY => {
                if let Some(vcpu) = tid.and_then(vcpu_of).filter(|_| K::is_its_queue(value)) {
                    self.kind.kicked(&self.path, address / PAGE);
                    self.path.kick(vcpu, address / PAGE, time);
                }
            }
            _ => self.kind.add_host(time, event, &|tid| vcpu_of(tid).is_some()),
        }
    }

    /// Takes in that records of a stream are missing from now on, or that they go on. Whatever is under way while they
    /// are may go on unseen.
    fn gap(&mut self, begins: bool) {
        self.path.gap(begins);
        if begins {
            self.path.forget(self.kind.forget());
        }
    }

    /// Ends what is under way: no record is to come.
    pub(super) fn end_all(&mut self) {
        self.path.take_all().into_iter().for_each(|item| self.kind.end(&mut self.path, item));
        self.kind.end_all(&mut self.path);
    }
}

/// Those of a kind in all VMs of a recording, in the making. Takes memory for those that are under way.
#[derive(Debug)]
pub struct FollowedTimes<K: Kind> {
    /// By VM; `None` for one whose VMM can have recorded none.
    pub(super) vms: Vec<Option<Follower<K>>>,
    samples: Samples,
}

impl<K: Kind> FollowedTimes<K> {
    /// A report on `trace` before its first record.
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        let follower = |vm| Some(Follower { kind: K::begin(trace, vm)?, path: IoPath::default() });
        Self { vms: trace.manifest().vms.iter().map(follower).collect(), samples: Samples::default() }
    }

    /// The same, which keeps each that ends for [`FollowedTimes::take_ended`].
    #[must_use]
    pub fn keeping_ended(trace: &Trace) -> Self {
        let mut times = Self::new(trace);
        times.vms.iter_mut().flatten().for_each(|follower| follower.path.kept.begin());
        times
    }

    /// Whether records like `input` are looked at.
    #[must_use]
    pub fn follows(input: &Input<'_>) -> bool {
        Follower::<K>::takes(input)
    }

    /// Those that have ended since the last call, each with the index of its VM. `at_end` says that no record is to
    /// come.
    pub fn take_ended(&mut self, timeline: &Timeline, at_end: bool) -> Vec<(usize, <K::Item as Followed>::Flow)> {
        let mut taken = Vec::new();
        for (index, follower) in self.vms.iter_mut().enumerate() {
            let (Some(follower), Some(vm)) = (follower, timeline.vm(index)) else { continue };
            if at_end {
                follower.end_all();
            }
            let ended = follower.path.kept.take();
            taken.extend(ended.map(|(ticks, item)| (index, item.flow(ticks, &vm.guest, timeline.clock()))));
        }
        taken
    }

    /// The followers of the VMs that a record of `origin` may be about, with the indices of the VMs.
    fn concerned<'f>(
        &'f mut self,
        origin: Origin,
        timeline: &'f Timeline,
    ) -> impl Iterator<Item = (usize, &'f mut Follower<K>)> {
        let (first, number) = match origin {
            Origin::Host { .. } => (0, self.vms.len()),
            Origin::Vmm { vm, .. } | Origin::Guest { vm, .. } => (vm, 1),
            Origin::User { .. } => (0, 0),
        };
        self.vms.iter_mut().enumerate().skip(first).take(number).filter_map(move |(index, follower)| {
            let is_concerned = match origin {
                Origin::Host { host, .. } => timeline.vm(index).is_some_and(|vm| vm.host == host),
                _ => true,
            };
            Some((index, follower.as_mut().filter(|_| is_concerned)?))
        })
    }
}

impl<K: Kind> Sampled for FollowedTimes<K> {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(K::REPORTED_BY, &mut self.samples)]
    }
}

impl<K: Kind> KeepsEnded for FollowedTimes<K> {
    fn has_ended(&self) -> bool {
        self.vms.iter().flatten().any(|follower| !follower.path.kept.is_empty())
    }
}

impl<K: Kind> Analysis for FollowedTimes<K> {
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        self.vms.iter().any(Option::is_some) && Self::follows(input)
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.concerned(input.origin, timeline).for_each(|(vm, follower)| follower.add(vm, input, timeline));
        if self.samples.is_on() {
            for (vm, flow) in self.take_ended(timeline, false) {
                K::sample(&mut self.samples, vm, &flow);
            }
        }
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        self.concerned(gap.origin, timeline).for_each(|(_, follower)| follower.gap(gap.begins));
    }
}
