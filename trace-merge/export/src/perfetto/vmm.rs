//! Records of VMMs, with their fields: those of each vCPU's thread on a track, and those of all other threads on one more.

use super::packets::{Machine, Name, PacketWriter};
use super::tracks::{self, Kind, uuid};
use foldhash::HashSet;
use std::io::Write;
use strata_analysis::timeline::{Input, Timeline};

/// Draws records of VMMs.
#[derive(Debug, Default)]
pub(super) struct VmmRecords {
    /// VM and thread of the tracks that are described.
    described: HashSet<(usize, u32)>,
}

impl VmmRecords {
    /// Draws a record that `thread` of the VMM of `vm` made; its event is called `event`.
    pub(super) fn record<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        (machine, vm, thread): (Machine, usize, u32),
        (time, event): (u64, &str),
        input: &Input<'_>,
        timeline: &Timeline,
    ) {
        let Some(known) = timeline.vm(vm).filter(|_| !out.muted) else { return };
        let (group, track) = (uuid(Kind::Vmm, vm, 0), uuid(Kind::VmmThread, vm, thread as usize));
        if self.described.insert((vm, thread)) {
            let name = match known.vcpus.get(thread).is_some() {
                true => format!("VMM: vCPU {thread}"),
                false => "VMM: other threads".into(),
            };
            out.track(machine, time, tracks::named(group, None, format!("{}: events of the VMM", known.name)));
            out.track(machine, time, tracks::named(track, Some(group), name));
        }
        out.record(machine, track, time, Name::Few(event), &input.record);
    }
}
