//! Guests without our module: the kernel's own ring, in memory that the host reads when the guest has ended, and at
//! snapshots of a flight recorder while it runs.
//!
//! Linux 6.12 and later put the ring of a tracing instance where the command line says (`trace_instance=NAME@ADDRESS`)
//! and never free it. [`Agentless::plan`] looks into the kernel's image before the guest runs, [`Agentless::collect`]
//! copies the ring and a few numbers out of the guest's memory, and [`Collected::write`] makes them the layer of the
//! guest's kernel.
//!
//! - `btf`: the types of the kernel's image; `events`: its events.
//! - `ring`: which pages of the ring count; `running`: which do of one that is being written; `records`: what is in
//!   them; `rejected`: what of that is not understood; `clock`: their times.

mod btf;
mod clock;
mod events;
mod records;
mod rejected;
mod ring;
mod running;

pub use clock::{HostReading, LocalClock};
pub use events::EventsError;
pub use records::{RingItem, decode};
#[doc(hidden)]
pub use ring::sample;
pub use ring::{CpuRing, RingError, RingLayout, Rings};
pub use running::{RingSource, copy_running};

use crate::kernel_image::{ImageError, KernelImage};
use btf::Btf;
use events::{KernelEvent, Symbols};
use rejected::Rejected;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use strata_clock::HostTime;
use strata_clock::guest_tsc::KvmClock;
use strata_host_kernel::EventSchema;
use strata_machine::CMDLINE_MAX;
use strata_recorder::layer::host::{fields_left_out, flag_names};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Manifest, Missing};
use strata_recording::writer::{LayerWriter, NewLayer, Rotation, WriteError};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

/// What is recorded by default.
pub const DEFAULT_EVENTS: &str = "sched:*,irq:*,task:task_rename";
/// Why a recording has no layer of the guest's kernel until the guest has ended.
pub const READ_AT_END: &str =
    "the guest's kernel is traced without an agent: its ring is read at snapshots and when the guest has ended";

/// Memory of all CPUs' rings: the smallest and the largest, bytes.
pub const SIZES: [u64; 2] = [1 << 20, 1 << 30];
/// Least memory of a CPU's ring, bytes.
const MIN_BYTES_PER_CPU: u64 = 64 << 10;
/// What places in the guest's memory are multiples of: the kernel's image lies at one, and the ring.
const ALIGNMENT: u64 = 2 << 20;
/// Where the devices begin: the ring lies below.
const LOW_MEMORY: u64 = 0xc000_0000;
/// What the initrd of a bzImage ends below. That of an ELF kernel may end anywhere in the low part.
const INITRD_END: u64 = 0x8000_0000;
/// Least that is left below the ring, for the kernel.
const MIN_BELOW: u64 = 128 << 20;
/// Bytes of a packet.
const PACKET_SIZE: u64 = 64 << 10;
/// Records that are a second outside of the run are none of it.
const SLACK_SECONDS: u64 = 1;

/// What is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentlessRequest {
    /// Globs `GROUP:EVENT` with commas between them.
    pub events: String,
    /// Memory of all CPUs' rings, bytes.
    pub size: u64,
}

/// Why a guest cannot be traced without an agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentlessError {
    /// The kernel's file cannot be read into an image.
    #[error("--agentless: the kernel {} cannot be looked into", path.display())]
    Image {
        path: PathBuf,
        #[source]
        source: ImageError,
    },
    /// The kernel cannot be traced so.
    #[error("--agentless: the kernel {} cannot be traced from outside", path.display())]
    Kernel {
        path: PathBuf,
        #[source]
        source: EventsError,
    },
    /// There is no room for the ring.
    #[error(
        "--agentless: no room for a ring of {} MiB: give the guest {} MiB of --memory, or more",
        size >> 20,
        needed >> 20
    )]
    NoRoom {
        /// The ring, bytes.
        size: u64,
        /// Memory with which there would be, bytes.
        needed: u64,
    },
    /// The events have too many names.
    #[error(
        "--agentless: with the names of its events, the kernel's command line has {bytes} bytes, of at most \
         {CMDLINE_MAX}: name whole groups, as in sched:*, or fewer events"
    )]
    TooLong {
        /// Bytes of the command line.
        bytes: usize,
    },
    /// Every CPU needs a ring of some size.
    #[error("--agentless-size: {cpus} vCPUs need {} MiB or more", needed.div_ceil(1 << 20))]
    TooSmall {
        /// vCPUs.
        cpus: u32,
        /// Bytes.
        needed: u64,
    },
}

/// A guest that is to be traced so: what is needed of its kernel's image.
#[derive(Debug)]
pub struct Agentless {
    /// Memory of all CPUs' rings, bytes.
    size: u64,
    /// What the kernel's command line takes for the events.
    names: String,
    /// Where the ring lies, guest-physical.
    start: u64,
    cpus: u32,
    layout: RingLayout,
    /// The kernel's name and version, and where it lies if the image lies where it was linked for.
    banner: (Vec<u8>, u64),
    /// As it, where the scheduler's clock keeps its offset.
    clock_offset: u64,
    /// The function `schedule`, as linked.
    schedule: u64,
    /// As it, where a pointer is that never changes, and what it is if the image was not moved at random.
    pointer: (u64, u64),
    /// The events, and as it, where the kernel keeps the number of each.
    events: Vec<(KernelEvent, u64)>,
}

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

/// What the guest's kernel has recorded.
#[derive(Debug)]
pub struct Collected {
    rings: Rings,
    /// Until when there is all of every ring, in ticks of the host's TSC; of a guest that ran, whose rings were copied
    /// one after the other.
    until: Option<u64>,
    schemas: HashMap<u16, EventSchema>,
    clock: Result<LocalClock, Missing>,
    /// Where the kernel's function `schedule` is, if that could be read.
    schedule_at: Option<u64>,
    /// The host's TSC at the ends of the run, and its rate.
    run: (u64, u64, u64),
    /// What it lacks.
    missing: Vec<Missing>,
}

fn missing(reason: impl Into<String>, fix: impl Into<String>) -> Missing {
    Missing { layer: LayerKind::GuestKernel, reason: reason.into(), fix: fix.into() }
}

impl Agentless {
    /// Looks into the kernel `file`, read from `path`, for a guest with `cpus` vCPUs and `memory` bytes, of which
    /// `initrd` bytes at the end of the low part are the initrd's.
    ///
    /// # Errors
    /// The kernel cannot be traced so, has none of the events, or the guest has no room for the ring.
    pub fn plan(
        request: &AgentlessRequest,
        (path, file): (&Path, &[u8]),
        cpus: u32,
        (memory, initrd): (u64, u64),
    ) -> Result<Self, AgentlessError> {
        let initrd_end = if file.starts_with(b"\x7fELF") { LOW_MEMORY } else { INITRD_END };
        let start = place(request.size, cpus, memory, (initrd, initrd_end))?;
        let image = KernelImage::read(file).map_err(|source| AgentlessError::Image { path: path.into(), source })?;
        let error = |source| AgentlessError::Kernel { path: path.into(), source };
        let section = image.btf().ok_or(EventsError::NoBtf).map_err(error)?;
        let btf = Btf::parse(section).map_err(|source| error(source.into()))?;
        let layout = RingLayout::new(&btf).ok_or(EventsError::TooOld).map_err(error)?;
        let (all, Symbols { banner, clock_offset, schedule, pointer }) = events::events(&image, &btf).map_err(error)?;
        let chosen = events::choose(&all, &request.events).map_err(error)?;
        let physical = |address| image.physical(address).ok_or(EventsError::Layout("parts")).map_err(error);
        let text = image.text_at(banner).filter(|text| text.starts_with("Linux version "));
        let text = text.ok_or(EventsError::Layout("name and version")).map_err(error)?;
        let names = events::for_command_line(&chosen, &request.events);
        let events = chosen.into_iter().map(|event| Ok((physical(event.number_at)?, event)));
        let events = events.map(|found| found.map(|(at, event)| (event, at))).collect::<Result<_, _>>()?;
        Ok(Self {
            size: request.size,
            names,
            start,
            cpus,
            layout,
            banner: (text.as_bytes().to_vec(), physical(banner)?),
            clock_offset: physical(clock_offset)?,
            schedule,
            pointer: (physical(pointer.0)?, pointer.1),
            events,
        })
    }

    /// The command line by which the kernel uses the ring, and `cmdline` behind it.
    ///
    /// # Errors
    /// It is longer than a kernel takes.
    pub fn cmdline(&self, cmdline: &str) -> Result<String, AgentlessError> {
        let Self { size, start, names, .. } = self;
        let whole = format!("memmap={size:#x}${start:#x} trace_instance=strata@{start:#x}:{size:#x},{names} {cmdline}");
        if whole.len() > CMDLINE_MAX { Err(AgentlessError::TooLong { bytes: whole.len() }) } else { Ok(whole) }
    }

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

/// Where a ring of `size` bytes lies in a guest of so much `memory`, whose `initrd` ends at most at `initrd_end`: in
/// the middle of the low part, far from the kernel at the begin and the initrd; a large one lower or behind the initrd.
fn place(size: u64, cpus: u32, memory: u64, (initrd, initrd_end): (u64, u64)) -> Result<u64, AgentlessError> {
    let needed = u64::from(cpus) * MIN_BYTES_PER_CPU;
    if size < needed {
        return Err(AgentlessError::TooSmall { cpus, needed });
    }
    let low = memory.min(LOW_MEMORY);
    let end = low.min(initrd_end);
    let beside_initrd = size.saturating_add(initrd).saturating_add(ALIGNMENT);
    let start = (low / 2).min(end.saturating_sub(beside_initrd)) & !(ALIGNMENT - 1);
    if start >= MIN_BELOW {
        return Ok(start);
    }
    if low - end >= size {
        return Ok(end);
    }
    let needed = (2 * MIN_BELOW).max(MIN_BELOW.saturating_add(beside_initrd));
    let needed = if needed > initrd_end { initrd_end + size } else { needed.next_multiple_of(ALIGNMENT) };
    Err(AgentlessError::NoRoom { size, needed })
}

impl Collected {
    /// Where the kernel's function `schedule` is, as far as the guest's memory is right about it.
    #[must_use]
    pub const fn schedule_at(&self) -> Option<u64> {
        self.schedule_at
    }

    /// Writes the layer of the guest's kernel of `vm` into the recording `dir`, and what there is to say of it into
    /// `manifest`, which is complete but for it and then to be saved. The recording keeps within the size of `rotation`,
    /// if there is one.
    ///
    /// # Errors
    /// The layer cannot be written. The manifest then says so.
    pub fn write(
        mut self,
        dir: &Path,
        vm: &str,
        manifest: &mut Manifest,
        rotation: Option<&Rotation>,
    ) -> Result<(), WriteError> {
        manifest.missing.retain(|missing| missing.reason != READ_AT_END);
        let clock = match &self.clock {
            Ok(clock) => *clock,
            Err(lack) => {
                manifest.missing.push(lack.clone());
                return Ok(());
            }
        };
        let of_guest = |layer: &Layer| layer.kind == LayerKind::GuestKernel && layer.vm.as_deref() == Some(vm);
        let known = manifest.layers.iter().position(of_guest);
        let place = known.unwrap_or(manifest.layers.len());
        if known.is_some_and(|known| !manifest.layers[known].events.is_empty()) {
            let reason =
                "the guest has brought an agent of its own, whose records are kept in place of the kernel's ring";
            manifest.missing.push(missing(reason, "leave out --agentless"));
            return Ok(());
        }
        if known.is_some() {
            // The layer of an agent that never came. Should it stay, the new one cannot be made, and that is reported.
            let _ = fs::remove_dir_all(dir.join(manifest.layers.remove(place).path));
        }
        state_bound(manifest, vm, &clock);
        let new =
            NewLayer { kind: LayerKind::GuestKernel, vm: Some(vm.into()), process: None, packet_size: PACKET_SIZE };
        let created = match rotation {
            // Only such a layer keeps within a size.
            Some(_) => LayerWriter::create_in_progress(rotation, dir, manifest, new),
            None => LayerWriter::create(dir, manifest, new),
        };
        let written = created.and_then(|writer| self.write_layer(writer, &clock));
        manifest.missing.append(&mut self.missing);
        match written {
            Ok(layer) => manifest.layers.insert(place, layer),
            Err(error) => {
                let reason = format!("the layer could not be written: {error}");
                manifest.missing.push(missing(reason, "make room where the trace lies"));
                return Err(error);
            }
        }
        Ok(())
    }

    fn write_layer(&mut self, mut writer: LayerWriter, clock: &LocalClock) -> Result<Layer, WriteError> {
        let mut schemas: Vec<_> = self.schemas.values().collect();
        schemas.sort_unstable_by_key(|schema| schema.id());
        let descriptions: Vec<_> = schemas.iter().map(|schema| schema.description.clone()).collect();
        writer.add_events(&descriptions)?;
        let fix = "leave the events out of --agentless=EVENTS";
        self.missing.extend(fields_left_out(schemas.iter().copied(), LayerKind::GuestKernel, fix));
        let (begin, end, hz) = self.run;
        let slack = hz.saturating_mul(SLACK_SECONDS);
        let during = begin.saturating_sub(slack)..=end.saturating_add(slack);
        let (mut buffer, mut result, mut wrapped) = (Vec::new(), Ok(()), Vec::new());
        let (mut unknown, mut rejected) = (BTreeMap::<u16, u64>::new(), BTreeMap::<u32, Rejected>::new());
        decode(&self.rings, |item| match item {
            _ if result.is_err() => {}
            RingItem::Record { cpu, time, event_id, data } => {
                let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
                let of_cpu = rejected.entry(cpu).or_default();
                let Some(schema) = self.schemas.get(&event_id) else {
                    *unknown.entry(event_id).or_default() += 1;
                    result = of_cpu.add(&mut writer, cpu, bytes);
                    return;
                };
                let time = clock.ticks(time);
                // Of what comes later another CPU's ring may lack the cause.
                if time.zip(self.until).is_some_and(|(time, until)| time > until) {
                    return;
                }
                let time = time.filter(|time| during.contains(time));
                match (time, schema.encoded(data, &mut buffer)) {
                    (Some(time), Ok(payload)) => {
                        of_cpu.end_place();
                        result = writer.record(cpu, time, event_id, payload);
                    }
                    _ => result = of_cpu.add(&mut writer, cpu, bytes),
                }
            }
            // At least one.
            RingItem::Lost { cpu, count } => writer.add_lost(cpu, count.unwrap_or(1)),
            RingItem::Malformed { cpu, bytes } => {
                result = rejected.entry(cpu).or_default().add(&mut writer, cpu, bytes);
            }
            RingItem::Wrapped { cpu } => {
                // Nobody has counted how much it was.
                writer.set_overwritten(cpu, 1);
                wrapped.push(cpu.to_string());
            }
        });
        result?;
        for (cpu, of_cpu) in rejected {
            of_cpu.finish(&mut writer, cpu)?;
        }
        writer.flush()?;
        if let Some(problem) = self.rings.problem {
            self.missing.push(missing(problem.to_string(), "see the guest's console for 'trace' and 'memmap'"));
            writer.set_corrupt();
        }
        if !wrapped.is_empty() {
            let reason =
                format!("the rings of the vCPUs {} are full: older records were overwritten", wrapped.join(", "));
            self.missing.push(missing(reason, "give a larger --agentless-size, or fewer events"));
        }
        if !unknown.is_empty() {
            let count: u64 = unknown.values().sum();
            let ids: Vec<_> = unknown.keys().take(8).map(ToString::to_string).collect();
            let reason = format!("{count} records of events that are not known (numbers {})", ids.join(", "));
            self.missing.push(missing(reason, "name the events that the guest records in --agentless=EVENTS"));
        }
        Ok(Layer { flag_names: flag_names(schemas.into_iter()), ..writer.layer() })
    }
}

/// Widens the bounds of the clock in `manifest` by that of the ring's.
fn state_bound(manifest: &mut Manifest, vm: &str, clock: &LocalClock) {
    let extra = clock.bound_ns();
    let derivation = format!(
        "; the guest's kernel is traced without an agent, in kvm-clock's time: {extra} ns more, by which the host's \
         TSC and its monotonic clock drifted apart during the run, and rounding"
    );
    manifest.clock.error_bound_ns = manifest.clock.error_bound_ns.saturating_add(extra);
    manifest.clock.bound_derivation.push_str(&derivation);
    for epoch in manifest.clock.epochs.iter_mut().filter(|epoch| epoch.vm == vm) {
        epoch.bound_ns = epoch.bound_ns.saturating_add(extra);
        epoch.derivation.push_str(&derivation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::files::reserve::Reserve;
    use strata_recording::manifest::{Host, Started, Vm};
    use strata_recording::writer::MIN_ROTATED_SIZE;

    const MIB: u64 = 1 << 20;

    #[test]
    fn ring_lies_in_the_middle_of_low_memory() {
        assert_eq!(place(16 * MIB, 2, 512 * MIB, (8 * MIB, INITRD_END)).unwrap(), 256 * MIB);
        assert_eq!(place(16 * MIB, 2, 8192 * MIB, (8 * MIB, INITRD_END)).unwrap(), 1536 * MIB);
    }

    #[test]
    fn large_ring_lies_lower_or_behind_the_initrd() {
        let placed = |size, memory, end| place(size * MIB, 2, memory * MIB, (8 * MIB, end)).unwrap() / MIB;

        assert_eq!([placed(256, 512, INITRD_END), placed(512, 8192, INITRD_END)], [246, 1526]);
        assert_eq!([placed(1024, 1200, INITRD_END), placed(1024, 3072, INITRD_END)], [166, 1014]);
        assert_eq!(place(1024 * MIB, 2, 3072 * MIB, (900 * MIB, INITRD_END)).unwrap(), INITRD_END);
        assert_eq!(placed(1024, 3072, LOW_MEMORY), 1536);
    }

    #[test]
    fn guest_without_room_for_the_ring_is_refused_with_how_much_it_needs() {
        let refused = |size, cpus, memory, initrd| {
            place(size * MIB, cpus, memory * MIB, (initrd * MIB, INITRD_END)).unwrap_err().to_string()
        };

        assert!(refused(16, 1, 128, 0).contains("give the guest 256 MiB"));
        assert!(refused(512, 1, 512, 1).contains("644 MiB"));
        assert!(refused(1024, 1, 2560, 1000).contains("3072 MiB"));
        assert!(refused(1, 64, 512, 0).contains("64 vCPUs need 4 MiB"));
        assert!(place(512 * MIB, 1, 644 * MIB, (MIB, INITRD_END)).is_ok());
    }

    /// A recording in which the layer of the guest's kernel is yet to come.
    fn manifest() -> Manifest {
        serde_json::from_value(serde_json::json!({
            "format": strata_recording::manifest::FORMAT_VERSION, "strata": "test", "started": Started::at(0),
            "clock": {
                "uuid": uuid::Uuid::from_u128(1), "frequency_hz": 1_000_000_000, "source": "x86-tsc",
                "utc": {"ticks": 0, "utc_ns": 0, "uncertainty_ns": 0}, "error_bound_ns": 10, "bound_derivation": "none"
            },
            "host": Host::default(), "vms": [Vm { name: "vm0".into(), vcpus: 1, ..Vm::default() }], "layers": [],
            "missing": [missing(READ_AT_END, "")]
        }))
        .unwrap()
    }

    /// A ring whose pages go from `head` on, with one record at 5000 ticks.
    fn collected(head: u64) -> Collected {
        let event = events::tests::kernel_event("sched:sched_switch").schema(77).unwrap();
        let mut memory = sample::memory(&sample::LINUX_6_12, &[0, 1, 2, 3], head, 1);
        memory[8192..8200].copy_from_slice(&1000_u64.to_le_bytes());
        memory[8200..8208].copy_from_slice(&28_u64.to_le_bytes());
        memory[8208..8212].copy_from_slice(&6_u32.to_le_bytes());
        memory[8212..8214].copy_from_slice(&77_u16.to_le_bytes());
        let kvm = KvmClock { ns: 1000, tsc: 5000 };
        Collected {
            rings: Rings::of_stopped(memory, &sample::LINUX_6_12, 1),
            until: None,
            schemas: HashMap::from([(77, event)]),
            clock: Ok(LocalClock { offset_ns: 0, kvm, hz: 1_000_000_000, drift_ns: 7 }),
            schedule_at: None,
            run: (4000, 6000, 1_000_000_000),
            missing: Vec::new(),
        }
    }

    /// The guest kernel's streams of the recording to which `collected` was added.
    fn streams(collected: Collected) -> Vec<strata_recording::manifest::StreamDescription> {
        let (folder, mut manifest) = (tempfile::TempDir::new().unwrap(), manifest());
        collected.write(folder.path(), "vm0", &mut manifest, None).unwrap();
        manifest.layers.into_iter().flat_map(|layer| layer.streams).collect()
    }

    #[test]
    fn ring_takes_the_place_of_the_layer_of_an_agent_that_never_came() {
        let folder = tempfile::TempDir::new().unwrap();
        let mut manifest = manifest();
        let new =
            NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size: PACKET_SIZE };
        let empty = LayerWriter::create(folder.path(), &manifest, new).unwrap();
        manifest.layers.push(empty.layer());

        collected(1).write(folder.path(), "vm0", &mut manifest, None).unwrap();

        manifest.save(folder.path()).unwrap();
        let trace = strata_recording::reader::Trace::open(folder.path()).unwrap();
        let records: u64 = trace.manifest().layers.iter().flat_map(|layer| &layer.streams).map(|s| s.records).sum();
        assert_eq!((manifest.layers.len(), records, manifest.clock.error_bound_ns), (1, 1, 20));
        assert_eq!(manifest.missing, []);
    }

    const BANNER: &[u8] = b"Linux version 6.12";

    /// What is known of a kernel that was linked for the place of 1 MiB, and whose ring lies behind 2 MiB.
    fn agentless() -> Agentless {
        Agentless {
            size: MIB,
            names: DEFAULT_EVENTS.into(),
            start: 2 * MIB,
            cpus: 1,
            layout: sample::LINUX_6_12,
            banner: (BANNER.to_vec(), MIB),
            clock_offset: MIB + 64,
            schedule: 0xffff_ffff_81a0_0000,
            pointer: (MIB + 128, 0xffff_ffff_8240_0000),
            events: Vec::new(),
        }
    }

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
    fn command_line_longer_than_a_kernel_takes_is_refused() {
        let agentless = agentless();
        let begin = agentless.cmdline("").unwrap();

        let room = CMDLINE_MAX - begin.len();
        assert!(begin.starts_with("memmap=0x100000$0x200000 trace_instance=strata@0x200000:0x100000,sched:*,irq:*,"));
        assert_eq!(agentless.cmdline(&"x".repeat(room)).unwrap().len(), CMDLINE_MAX);
        let refused = agentless.cmdline(&"x".repeat(room + 1)).unwrap_err().to_string();
        assert!(refused.contains("has 2048 bytes, of at most 2047"), "{refused}");
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

    #[test]
    fn layer_has_the_names_of_flags_and_says_which_fields_are_left_out() {
        let fields = "\tfield:u64 flags;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:char names[2][4];\toffset:16;\tsize:8;\tsigned:0;\n";
        let print = r#"print fmt: "%s", __print_flags(REC->flags, "|", { 1, "ONE" })"#;
        let event = events::tests::kernel_event_of("kmem:alloc", &format!("{fields}\n{print}\n")).schema(77).unwrap();
        let (folder, mut manifest) = (tempfile::TempDir::new().unwrap(), manifest());

        let collected = Collected { schemas: HashMap::from([(77, event)]), ..collected(1) };
        collected.write(folder.path(), "vm0", &mut manifest, None).unwrap();

        assert_eq!(manifest.layers[0].flag_names[0].text(1).as_deref(), Some("ONE"));
        let reasons: Vec<_> = manifest.missing.iter().map(|missing| missing.reason.as_str()).collect();
        assert_eq!(reasons, ["fields that have no form in a trace are left out: kmem:alloc (char names[2][4])"]);
    }

    #[test]
    fn layer_counts_to_the_size_that_its_recording_keeps_within() {
        let (folder, mut manifest) = (tempfile::TempDir::new().unwrap(), manifest());
        let rotation = Rotation::new(MIN_ROTATED_SIZE);

        collected(1).write(folder.path(), "vm0", &mut manifest, Some(&rotation)).unwrap();
        rotation.save(folder.path(), &mut manifest, &mut Reserve::default()).unwrap();

        let trace = strata_recording::reader::Trace::open(folder.path()).unwrap();
        let stream = &trace.manifest().layers[0].streams[0];
        assert_eq!((stream.records, stream.dropped.map(|dropped| dropped.records)), (1, Some(0)));
    }

    #[test]
    fn record_from_after_the_copying_began_is_left_out_and_not_rejected() {
        let streams = [4999, 5000].map(|until| streams(Collected { until: Some(until), ..collected(1) }));

        let reported = streams.map(|streams| streams.iter().map(|it| it.records + it.rejected_bytes).sum::<u64>());
        assert_eq!(reported, [0, 1]);
    }

    #[test]
    fn records_among_as_many_rejected_ones_take_few_packets() {
        let known = [&6_u32.to_le_bytes()[..], &77_u16.to_le_bytes(), &[0; 22]].concat();
        let rejected = [&1_u32.to_le_bytes()[..], &78_u32.to_le_bytes()].concat();
        let records = [known, rejected].concat().repeat(100);
        let mut memory = sample::memory(&sample::LINUX_6_12, &[0, 1, 2, 3, 4], 1, 4);
        for page in memory.chunks_mut(4096).skip(2) {
            page[..8].copy_from_slice(&1000_u64.to_le_bytes());
            page[8..16].copy_from_slice(&(records.len() as u64).to_le_bytes());
            page[16..16 + records.len()].copy_from_slice(&records);
        }

        let streams = streams(Collected { rings: Rings::of_stopped(memory, &sample::LINUX_6_12, 1), ..collected(1) });

        assert_eq!((streams[0].records, streams[0].rejected_bytes), (400, 1600));
        assert!(streams[0].packets < 270, "{} packets", streams[0].packets);
    }

    #[test]
    fn stream_of_a_ring_that_has_gone_round_begins_late() {
        let begins_late = |head| streams(collected(head)).iter().any(|stream| stream.overwritten > 0);

        assert!(begins_late(2) && !begins_late(1));
    }
}
