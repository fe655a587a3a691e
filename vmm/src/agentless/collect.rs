//! Reads the ring, and the numbers that make sense of it, out of a guest's memory.

use super::clock::{HostReading, LocalClock};
use super::layer::{Collected, missing};
use super::plan::{ALIGNMENT, Agentless};
use super::ring::Rings;
use super::running::{RingSource, copy_running};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use strata_clock::HostTime;
use strata_clock::guest_tsc::KvmClock;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

/// Whether somebody writes the guest's memory while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// Its vCPUs may run.
    Running,
    /// They have ended.
    Stopped,
}

/// Where the ring lies in the memory of a guest that may be running.
struct Source<'a> {
    memory: &'a GuestMemoryMmap,
    start: u64,
}

impl Source<'_> {
    fn address(&self, at: usize) -> Option<GuestAddress> {
        self.start.checked_add(u64::try_from(at).ok()?).map(GuestAddress)
    }
}

impl RingSource for Source<'_> {
    fn load(&self, at: usize) -> Option<u64> {
        self.memory.load(self.address(at)?, Ordering::Acquire).ok()
    }

    fn copy(&self, at: usize, bytes: &mut [u8]) -> Option<()> {
        self.memory.read_slice(bytes, self.address(at)?).ok()
    }
}

impl Agentless {
    /// Copies what the kernel has recorded out of the memory of a guest that is in `state`. `kvm` tells what kvm-clock
    /// shows now, `begin` is the host's clocks as the run began; the trace clock counts `time`, and the host's TSC has
    /// `hz`. A guest that runs goes on. Any thread may call it.
    #[must_use]
    pub fn collect(
        &self,
        (memory, state): (&GuestMemoryMmap, Guest),
        kvm: impl FnOnce() -> Option<KvmClock>,
        begin: &HostReading,
        (time, hz): (HostTime, u64),
    ) -> Collected {
        let size = usize::try_from(self.size).unwrap_or(0);
        let source = Source { memory, start: self.start };
        let (rings, until) = match state {
            Guest::Running => {
                let until = HostReading::now().tsc();
                (copy_running(&source, size, &self.layout, self.cpus), Some(until))
            }
            Guest::Stopped => {
                let mut ring = vec![0; size];
                if source.copy(0, &mut ring).is_none() {
                    ring.clear();
                }
                (Rings::of_stopped(ring, &self.layout, self.cpus), None)
            }
        };
        let kvm = kvm();
        let mut lacks = Vec::new();
        let end = HostReading::now();
        let images = self.find_images(memory);
        let mut bytes = [0; 8];
        let clocks = images.iter().filter_map(|moved| {
            let at = GuestAddress(self.clock_offset.checked_add_signed(*moved)?);
            memory.read_slice(&mut bytes, at).ok()?;
            Some((*moved, u64::from_le_bytes(bytes))).filter(|(_, ns)| *ns != 0)
        });
        let clocks: Vec<_> = clocks.collect();
        let first = clocks.first().copied();
        // A kernel that was replaced by kexec, or one of a nested guest: the ring does not say whose it is.
        let are_several = clocks.iter().any(|(_, ns)| first.is_some_and(|(_, first)| first != *ns));
        let moved = first.map(|(moved, _)| moved).or(images.first().copied());
        let offset = first.map(|(_, ns)| ns).filter(|_| !are_several);
        // The kernel writes each once, as a word, before it records what needs it.
        let number = |linked: u64, bytes: &mut [u8]| {
            let at = GuestAddress(linked.checked_add_signed(moved?)?);
            memory.read_slice(bytes, at).ok()
        };
        let mut schemas = HashMap::new();
        let mut unnumbered = Vec::new();
        for (event, at) in &self.events {
            let mut bytes = [0; 4];
            let read = number(*at, &mut bytes).and_then(|()| u16::try_from(u32::from_le_bytes(bytes)).ok());
            match read.and_then(|number| event.schema(number)) {
                Some(schema) if !schemas.contains_key(&schema.id()) => {
                    schemas.insert(schema.id(), schema);
                }
                _ => unnumbered.push(event.name.to_string()),
            }
        }
        if moved.is_some() && !unnumbered.is_empty() {
            let reason = format!("the guest's kernel gave no number to {}", unnumbered.join(", "));
            let fix = match state {
                Guest::Running => "take a snapshot when it has booted, or leave them out of --agentless=EVENTS",
                Guest::Stopped => "leave them out of --agentless=EVENTS",
            };
            lacks.push(missing(reason, fix));
        }
        let clock = match (offset, kvm, time) {
            (Some(offset_ns), Some(kvm), HostTime::Tsc) => {
                Ok(LocalClock { offset_ns, kvm, hz, drift_ns: end.drift_ns(begin, hz) })
            }
            (None, _, HostTime::Tsc) if moved.is_none() => Err(missing(
                "the guest's kernel was not found in its memory",
                match state {
                    Guest::Running => "take a snapshot when it has booted, and give the --kernel that the guest runs",
                    Guest::Stopped => "give the --kernel that the guest runs",
                },
            )),
            (None, _, HostTime::Tsc) if are_several => Err(missing(
                "the guest's memory has several kernels of this version, whose clocks differ, so the ring's times are \
                 not known",
                "boot it neither by kexec nor in nested guests, or use --agent",
            )),
            (None, _, HostTime::Tsc) => Err(missing(
                "the guest's kernel had not begun to use kvm-clock, so its times are not known",
                match state {
                    Guest::Running => "take a snapshot when it has booted, and leave no-kvmclock out of --cmdline",
                    Guest::Stopped => "leave no-kvmclock out of --cmdline, or use --agent",
                },
            )),
            (_, _, HostTime::MonotonicRaw) | (_, None, _) => Err(missing(
                "the host cannot relate the guest's kvm-clock to its TSC, which its kernel does not trust",
                "use a host whose clock source is tsc, or --agent",
            )),
        };
        // By how much the kernel's addresses were moved at random is another number than by how much its image was. A kernel
        // that has its clock has moved them.
        let mut bytes = [0; 8];
        let pointer = offset.and_then(|_| number(self.pointer.0, &mut bytes)).map(|()| u64::from_le_bytes(bytes));
        let schedule_at = pointer.map(|at| self.schedule.wrapping_add(at.wrapping_sub(self.pointer.1)));
        let run = (begin.tsc(), end.tsc(), hz);
        Collected { rings, until, schemas, clock, schedule_at, run, missing: lacks }
    }

    /// How far from where it was linked for the kernel's image lies, bytes, and any further images of that kernel, the
    /// lowest first: it may have moved itself at random, into any part of the memory.
    fn find_images(&self, memory: &GuestMemoryMmap) -> Vec<i64> {
        let (banner, linked) = (&self.banner.0, self.banner.1);
        let mut bytes = vec![0; banner.len()];
        let places = memory.iter().flat_map(|region| {
            let start = region.start_addr().0;
            let first = start + linked.wrapping_sub(start) % ALIGNMENT;
            (0..region.len().div_ceil(ALIGNMENT)).map(move |step| first + step * ALIGNMENT)
        });
        let places = places.filter(|at| memory.read_slice(&mut bytes, GuestAddress(*at)).is_ok() && bytes == *banner);
        places.map(|at| at.wrapping_sub(linked).cast_signed()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::layer::tests::manifest;
    use super::super::plan::tests::{BANNER, MIB, agentless};
    use super::*;
    use strata_recording::manifest::Missing;

    /// What a recording lacks whose snapshot was taken of a guest with `memory`, and how many layers it has.
    fn lacks_of_snapshot(memory: &GuestMemoryMmap) -> (Vec<Missing>, usize) {
        let (folder, mut manifest) = (tempfile::TempDir::new().unwrap(), manifest());
        let kvm = || Some(KvmClock { ns: 1000, tsc: 5000 });
        let clock = (HostTime::Tsc, 1_000_000_000);
        let collected = agentless().collect((memory, Guest::Running), kvm, &HostReading::now(), clock);
        collected.write(folder.path(), "vm0", &mut manifest, None).unwrap();
        (manifest.missing, manifest.layers.len())
    }

    #[test]
    fn snapshot_before_the_kernel_has_its_clock_says_to_take_a_later_one() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
        memory.write_slice(BANNER, GuestAddress(MIB)).unwrap();

        let (missing, layers) = lacks_of_snapshot(&memory);

        let reported = &missing[0];
        assert_eq!((layers, missing.len()), (0, 1));
        assert!(reported.reason.contains("had not begun to use kvm-clock"), "{reported:?}");
        assert!(reported.fix.starts_with("take a snapshot when it has booted"), "{reported:?}");
    }

    #[test]
    fn snapshot_of_another_kernel_says_that_it_was_not_found() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();

        let (missing, layers) = lacks_of_snapshot(&memory);

        assert_eq!((layers, missing.len()), (0, 1));
        assert!(missing[0].reason.contains("was not found in its memory"), "{missing:?}");
    }

    #[test]
    fn image_is_found_wherever_in_the_memory_it_moved_itself() {
        let regions = [(GuestAddress(0), 4 << 20), (GuestAddress(4 << 30), 8 << 20)];
        let found = |at: u64| {
            let memory = GuestMemoryMmap::from_ranges(&regions).unwrap();
            memory.write_slice(BANNER, GuestAddress(at)).unwrap();
            agentless().find_images(&memory)
        };

        assert_eq!([MIB, 3 * MIB].map(found), [[0], [2 << 20]]);
        assert_eq!([(4 << 30) + MIB, (4 << 30) + 7 * MIB].map(found), [[4 << 30], [(4 << 30) + (6 << 20)]]);
        assert!(found(2 * MIB).is_empty());
    }

    /// The clock of a guest that has images of its kernel with the clocks `of_images`, one behind the other.
    fn clock_with(of_images: [u64; 2]) -> Result<u64, String> {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
        for (clock, at) in of_images.into_iter().zip([MIB, 3 * MIB]) {
            memory.write_slice(BANNER, GuestAddress(at)).unwrap();
            memory.write_obj(clock, GuestAddress(at + 64)).unwrap();
        }
        let kvm = || Some(KvmClock { ns: 1000, tsc: 5000 });
        let clock = (HostTime::Tsc, 1_000_000_000);
        let collected = agentless().collect((&memory, Guest::Stopped), kvm, &HostReading::now(), clock);
        collected.clock.map(|clock| clock.offset_ns).map_err(|lack| lack.reason)
    }

    #[test]
    fn image_counts_that_has_a_clock() {
        let clocks = [[7, 0], [0, 7], [7, 7]].map(clock_with);

        assert_eq!(clocks, [const { Ok(7) }; 3]);
    }

    #[test]
    fn images_with_other_clocks_leave_the_times_unknown() {
        let refused = clock_with([7, 8]).unwrap_err();

        assert!(refused.contains("several kernels of this version"), "{refused}");
    }
}
