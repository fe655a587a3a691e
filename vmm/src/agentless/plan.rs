//! What is needed to read a guest's ring, out of its kernel's image before it runs, and where that ring lies.

use super::btf::Btf;
use super::events::{self, EventsError, KernelEvent, Symbols};
use super::ring::RingLayout;
use crate::kernel_image::{ImageError, KernelImage};
use std::path::{Path, PathBuf};
use strata_machine::CMDLINE_MAX;

/// What is recorded by default.
pub const DEFAULT_EVENTS: &str = "sched:*,irq:*,task:task_rename";
/// Memory of all CPUs' rings: the smallest and the largest, bytes.
pub const SIZES: [u64; 2] = [1 << 20, 1 << 30];
/// Least memory of a CPU's ring, bytes.
const MIN_BYTES_PER_CPU: u64 = 64 << 10;
/// What places in the guest's memory are multiples of: the kernel's image lies at one, and the ring.
pub(super) const ALIGNMENT: u64 = 2 << 20;
/// Where the devices begin: the ring lies below.
const LOW_MEMORY: u64 = 0xc000_0000;
/// What the initrd of a bzImage ends below. That of an ELF kernel may end anywhere in the low part.
const INITRD_END: u64 = 0x8000_0000;
/// Least that is left below the ring, for the kernel.
const MIN_BELOW: u64 = 128 << 20;

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
    pub(super) size: u64,
    /// What the kernel's command line takes for the events.
    pub(super) names: String,
    /// Where the ring lies, guest-physical.
    pub(super) start: u64,
    pub(super) cpus: u32,
    pub(super) layout: RingLayout,
    /// The kernel's name and version, and where it lies if the image lies where it was linked for.
    pub(super) banner: (Vec<u8>, u64),
    /// As it, where the scheduler's clock keeps its offset.
    pub(super) clock_offset: u64,
    /// The function `schedule`, as linked.
    pub(super) schedule: u64,
    /// As it, where a pointer is that never changes, and what it is if the image was not moved at random.
    pub(super) pointer: (u64, u64),
    /// The events, and as it, where the kernel keeps the number of each.
    pub(super) events: Vec<(KernelEvent, u64)>,
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

#[cfg(test)]
pub(super) mod tests {
    use super::super::ring::sample;
    use super::*;

    pub(in super::super) const MIB: u64 = 1 << 20;
    pub(in super::super) const BANNER: &[u8] = b"Linux version 6.12";

    /// What is known of a kernel that was linked for the place of 1 MiB, and whose ring lies behind 2 MiB.
    pub(in super::super) fn agentless() -> Agentless {
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
}
