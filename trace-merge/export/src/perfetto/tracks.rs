//! Machines and tracks: which there are, and their numbers.

use super::packets::Machine;
use super::proto::{CounterDescriptor, TrackDescriptor};
use strata_analysis::timeline::{Origin, Timeline};

/// Hosts beyond the first one, as far as they are distinguished by their numbers.
const FIRST_OTHER_HOST: u32 = 1 << 16;

/// What a track shows: the lowest bits of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The tracks of a VM's vCPUs, together.
    Vcpus = 1,
    /// What a vCPU does.
    Vcpu,
    /// Exits a second of a vCPU.
    ExitRate,
    /// A thread of a machine.
    Thread,
    /// What a guest's task really does.
    Task,
    /// A process of a guest.
    Process,
    /// The requests of a VM's disks, together.
    Requests,
    /// Requests under way.
    Request,
    /// Their steps, of one side each.
    RequestGuest,
    RequestHost,
    RequestVmm,
    /// What is missing, of all streams together.
    Missing,
    /// What is missing of a stream.
    Gaps,
    /// Records of a stream that were lost.
    Lost,
    /// What holds for all of the recording.
    Notes,
    /// Why a task of a VM took so long.
    Why,
    /// The packets of a VM's networks, together.
    Packets,
    /// Packets under way.
    Packet,
    /// Their steps, of one side each.
    PacketGuest,
    PacketHost,
    PacketVmm,
    /// The records of a VMM, together.
    Vmm,
    /// Those of a thread of it.
    VmmThread,
}

/// Number of the track of `kind`, of the VM or machine `of`, with the number `index` among its likes. It stands in each
/// event of the track, with 7 bits in a byte: what is small has few.
pub(super) const fn uuid(kind: Kind, of: usize, index: usize) -> u64 {
    // There are fewer kinds than 2^5. A recording has fewer VMs than 2^24, and a VM fewer tasks than 2^32.
    let (of, index) = (of as u64 & 0xff_ffff, index as u64 & 0xffff_ffff);
    kind as u64 | (of & 0x7) << 5 | index << 8 | (of >> 3) << 40
}

/// The machine of the host at `index`.
pub(super) fn host(index: usize) -> Machine {
    match u32::try_from(index).unwrap_or(0) {
        0 => Machine::HOST,
        other => Machine(FIRST_OTHER_HOST.saturating_add(other)),
    }
}

/// The host that `machine` is; `None` for a guest.
pub(super) fn host_of(machine: Machine) -> Option<usize> {
    match machine {
        Machine::HOST => Some(0),
        Machine(other) => usize::try_from(other.checked_sub(FIRST_OTHER_HOST)?).ok(),
    }
}

/// The machine of the guest of the VM at `index`.
pub(super) fn guest(index: usize) -> Machine {
    Machine(u32::try_from(index + 1).unwrap_or(u32::MAX))
}

/// The machine of what `origin` records, and the CPU or thread.
pub(super) fn place(origin: Origin, timeline: &Timeline) -> Option<(Machine, u32)> {
    Some(match origin {
        Origin::Host { host: index, cpu, .. } => (host(index), cpu),
        Origin::Vmm { vm, thread } => (host(timeline.vm(vm)?.host), thread),
        Origin::Guest { vm, cpu } | Origin::User { vm, cpu } => (guest(vm), cpu),
    })
}

/// A track called `name`, below `parent`.
pub(super) fn named(uuid: u64, parent: Option<u64>, name: impl Into<String>) -> TrackDescriptor {
    TrackDescriptor { uuid: Some(uuid), parent_uuid: parent, name: Some(name.into()), ..TrackDescriptor::default() }
}

/// A counter called `name`, of `unit`, below `parent`.
pub(super) fn counter(uuid: u64, parent: Option<u64>, name: impl Into<String>, unit: &str) -> TrackDescriptor {
    let counter = CounterDescriptor { unit_name: Some(unit.into()) };
    TrackDescriptor { counter: Some(counter), ..named(uuid, parent, name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn tracks_have_numbers_of_their_own_which_are_small_where_there_are_few() {
        let (vms, indexes) = ([0, 1, 7, 8, 9, 0xff_ffff], [0, 1, 63, 0xffff_ffff]);
        let kinds =
            [Kind::Vcpus, Kind::Vcpu, Kind::Thread, Kind::Process, Kind::PacketHost, Kind::PacketVmm, Kind::VmmThread];

        let numbers: BTreeSet<u64> = kinds
            .into_iter()
            .flat_map(|kind| vms.into_iter().flat_map(move |vm| indexes.map(|index| uuid(kind, vm, index))))
            .collect();

        assert_eq!(numbers.len(), kinds.len() * vms.len() * indexes.len());
        assert!(!numbers.contains(&0));
        assert!(uuid(Kind::PacketVmm, 7, 63) < 1 << 14);
    }
}
