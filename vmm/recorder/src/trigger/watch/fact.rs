//! Facts: what conditions on times need of records. Those of each kind wait by themselves for everything before them,
//! as they have nothing to do with each other.

use crate::live::guest_wakeups::WakeupStep;
use crate::trigger::expression::Measure;
use crate::trigger::vcpus::{Place, VcpuThreads};
use strata_analysis::event::{Event, EventReader, Tid, WakeupStage};
use strata_analysis::exit_reason::ExitReason;
use strata_recording::layer::LayerKind;
use strata_recording::reader::StreamRecord;
use strata_recording::schema::Schema;

/// Bits of a switch's `prev_state` that say what the task waits for.
const WAITS_FOR: u64 = 0xff;
/// Numbers of vCPUs are below this.
const MAX_VCPUS: u32 = 1 << 16;
/// Facts that are kept at most: a second of a busy host.
pub(super) const MAX_FACTS: usize = 1 << 18;

/// Something that the host's scheduler does with a vCPU's thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostFact {
    /// A CPU goes from one thread to another; one at least is a vCPU.
    Switch { prev: Option<Place>, is_ready: bool, next: Option<Place> },
    /// A thread is woken.
    Wake { thread: Place },
}

/// A vCPU leaves the guest, as this layer tells, or enters it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExitFact {
    pub(super) layer: LayerKind,
    pub(super) vcpu: u32,
    /// Why it leaves; `None` when it enters.
    pub(super) reason: Option<ExitReason>,
}

/// The guest wakes a task, or its CPU goes to another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestFact {
    pub(super) step: WakeupStep,
    pub(super) cpu: u32,
}

/// A request to a disk begins or ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskFact {
    pub(super) request: Request,
    pub(super) is_done: bool,
}

/// A request to a disk: the layer that tells, its device there, the first sector.
pub(super) type Request = (LayerKind, u64, u64);

/// Facts with their times, ticks.
pub(super) type Waiting<T> = Vec<(u64, T)>;

/// Facts that wait for everything before them, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) host: Waiting<HostFact>,
    pub(super) exits: Waiting<ExitFact>,
    pub(super) guest: Waiting<GuestFact>,
    pub(super) disk: Waiting<DiskFact>,
}

/// Puts `facts` into the order of their times; how many of them are older than `until`.
pub(super) fn settled<T>(facts: &mut Waiting<T>, until: u64) -> usize {
    if !facts.is_sorted_by_key(|&(time, _)| time) {
        // Stable: of one time, those of one stream stay in their order.
        facts.sort_by_key(|&(time, _)| time);
    }
    facts.partition_point(|&(time, _)| time < until)
}

impl Facts {
    /// Whether there are as many as are kept.
    #[inline]
    pub(super) fn are_full(&self) -> bool {
        self.host.len() + self.exits.len() + self.guest.len() + self.disk.len() >= MAX_FACTS
    }

    /// Forgets those of `layer`.
    pub(super) fn forget(&mut self, layer: LayerKind) {
        match layer {
            LayerKind::HostKernel => self.host.clear(),
            LayerKind::GuestKernel => self.guest.clear(),
            LayerKind::Vmm | LayerKind::GuestUser => {}
        }
        self.exits.retain(|(_, fact)| fact.layer != layer);
        self.disk.retain(|(_, fact)| fact.request.0 != layer);
    }
}

/// An event type whose records make facts, and how they are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct FactReader {
    reported: Reported,
    event: EventReader,
}

/// What an event tells.
#[derive(Clone, Copy, Debug)]
enum Reported {
    HostSwitch,
    HostWake,
    KvmExit,
    KvmEntry,
    VmmExit,
    VmmEntry,
    GuestSwitch,
    GuestWake,
    Disk,
}

impl FactReader {
    /// Reads the events of `schema`, the type of `record`, if they tell any of `measures`.
    pub(super) fn new<'m>(
        layer: LayerKind,
        schema: &Schema,
        record: &StreamRecord<'_>,
        mut measures: impl Iterator<Item = &'m Measure>,
    ) -> Option<Self> {
        let event = EventReader::new(layer, schema)?;
        let event_fields = event.read(record)?;
        let reported = match (layer, &event_fields) {
            (LayerKind::HostKernel, Event::Switch { .. }) => Reported::HostSwitch,
            (LayerKind::HostKernel, Event::Wakeup { .. }) => Reported::HostWake,
            (LayerKind::HostKernel, Event::KvmExit { .. }) => Reported::KvmExit,
            (LayerKind::HostKernel, Event::KvmEntry { .. }) => Reported::KvmEntry,
            (LayerKind::Vmm, Event::VmmExit { .. }) => Reported::VmmExit,
            (LayerKind::Vmm, Event::VmmEnter { .. }) => Reported::VmmEntry,
            (LayerKind::GuestKernel, Event::Switch { .. }) => Reported::GuestSwitch,
            (LayerKind::GuestKernel, Event::Wakeup { stage: WakeupStage::Waking | WakeupStage::New, .. }) => {
                Reported::GuestWake
            }
            (LayerKind::Vmm, Event::DiskRequest { .. })
            | (LayerKind::GuestKernel, Event::BlockIssue(_) | Event::BlockComplete(_)) => Reported::Disk,
            _ => return None,
        };
        let is_reported = |what: &Measure| match what {
            Measure::Steal => matches!(reported, Reported::HostSwitch | Reported::HostWake),
            Measure::Wakeup => matches!(reported, Reported::GuestSwitch | Reported::GuestWake),
            Measure::Exit(_) => {
                matches!(reported, Reported::KvmExit | Reported::KvmEntry | Reported::VmmExit | Reported::VmmEntry)
            }
            Measure::Disk => matches!(reported, Reported::Disk),
        };
        measures.any(is_reported).then_some(Self { reported, event })
    }

    /// Adds what `record`, of the stream `cpu` of `layer`, says of a VM with these vCPUs to `facts`.
    #[inline]
    pub(super) fn read(
        &self,
        layer: LayerKind,
        cpu: u32,
        record: &StreamRecord<'_>,
        vcpus: &VcpuThreads,
        facts: &mut Facts,
    ) {
        // What cannot be read says nothing.
        let _ = self.try_read(layer, cpu, record, vcpus, facts);
    }

    #[inline]
    fn try_read(
        &self,
        layer: LayerKind,
        cpu: u32,
        record: &StreamRecord<'_>,
        vcpus: &VcpuThreads,
        facts: &mut Facts,
    ) -> Option<()> {
        let Self { reported, event } = self;
        let time = record.time;
        match reported {
            Reported::HostSwitch => {
                let (prev, state, next) = event.switch(record)?;
                let (prev, next) = (vcpus.place(prev), vcpus.place(next));
                prev.or(next)?;
                facts.host.push((time, HostFact::Switch { prev, is_ready: state & WAITS_FOR == 0, next }));
            }
            Reported::HostWake => {
                let thread = vcpus.place(event.woken(record)?)?;
                facts.host.push((time, HostFact::Wake { thread }));
            }
            Reported::KvmExit | Reported::KvmEntry => {
                let vcpu = kvm_vcpu(event.kvm_vcpu(record)?, vcpus)?;
                facts.exits.push((time, ExitFact { layer, vcpu, reason: event.exit_reason(record) }));
            }
            Reported::VmmExit | Reported::VmmEntry => {
                let vcpu = event.vmm_vcpu(record).filter(|&vcpu| vcpu < MAX_VCPUS)?;
                facts.exits.push((time, ExitFact { layer, vcpu, reason: event.exit_reason(record) }));
            }
            Reported::GuestSwitch => {
                let (prev, _, next) = event.switch(record)?;
                let step = WakeupStep::Switch { prev, next, comm: event.next_name(record) };
                facts.guest.push((time, GuestFact { step, cpu }));
            }
            Reported::GuestWake => {
                let step = WakeupStep::Woken { tid: event.woken(record)? };
                facts.guest.push((time, GuestFact { step, cpu }));
            }
            Reported::Disk => {
                let (device, sector, is_done) = match event.read(record)? {
                    Event::DiskRequest { disk, is_done, sector, .. } => (disk.into(), sector, is_done),
                    Event::BlockIssue(of) => (of.device?, of.sector?, false),
                    Event::BlockComplete(of) => (of.device?, of.sector?, true),
                    _ => return None,
                };
                facts.disk.push((time, DiskFact { request: (layer, device, sector), is_done }));
            }
        }
        Some(())
    }
}

/// The vCPU of a thread, or the one that is given where no threads are known.
#[inline]
fn kvm_vcpu((tid, event_fields): (Tid, Option<u32>), vcpus: &VcpuThreads) -> Option<u32> {
    let vcpu = vcpus.vcpu_of(tid).or_else(|| event_fields.filter(|_| vcpus.is_empty()));
    vcpu.filter(|&vcpu| vcpu < MAX_VCPUS)
}
