//! The trace region in the guest's kernel: why it cannot be used, and the module's events in its registry.
#![allow(unsafe_code)] // The region is memory of the host: raw pointers.

use crate::catalog::Descriptors;
use shared_ring::guest::Region;
use shared_ring::layout::REGISTRY_HEADER_SIZE;
use shared_ring::registry::MAX_ENTRY;
use shared_ring::view::ViewError;

/// Why a region cannot be used. The C shim says so in words; formatting code has no place in the kernel object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// It is not a region that this module understands.
    View(ViewError),
    /// An agent with other events has used the region's registry.
    OtherAgent,
    /// The event registry is too small for the catalogue.
    RegistryFull,
    /// The region has no ring for this vCPU.
    NoSuchVcpu,
}

impl From<ViewError> for RegionError {
    fn from(error: ViewError) -> Self {
        Self::View(error)
    }
}

impl RegionError {
    /// The negative Linux error number that stands for it.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::View(ViewError::NotARegion) => -19,          // ENODEV
            Self::View(ViewError::OtherVersion { .. }) => -93, // EPROTONOSUPPORT
            Self::View(_) => -22,                              // EINVAL
            Self::OtherAgent => -17,                           // EEXIST
            Self::RegistryFull => -28,                         // ENOSPC
            Self::NoSuchVcpu => -34,                           // ERANGE
        }
    }
}

/// Writes the events of `catalogue` to the kernel's event registry, or finds that an agent with the same ones has done
/// so, or had begun to when the machine was reset: then it writes the rest. What another agent has written gives way
/// while no host reads it: the region may be older than this boot of the machine. One caller at a time.
///
/// # Errors
/// When a host reads another catalogue, or this one does not fit.
pub fn publish_catalogue(region: &Region, catalogue: Descriptors<'_>) -> Result<(), RegionError> {
    let mut entry = [0_u8; MAX_ENTRY];
    // SAFETY: one agent is loaded at a time, and this is its only caller.
    let registry = unsafe { region.registry() };
    let published = match count_published(region, registry.used(), catalogue, &mut entry) {
        Err(RegionError::OtherAgent) if !region.area().is_host_alive() => {
            registry.clear();
            0
        }
        counted => counted?,
    };
    for index in published..catalogue.len() {
        let appended = catalogue
            .encode(index, &mut entry)
            .and_then(|size| entry.get(..size))
            .is_some_and(|bytes| registry.append_encoded(bytes));
        if !appended {
            return Err(RegionError::RegistryFull);
        }
    }
    Ok(())
}

/// How many events of `catalogue` the registry, of which `used` bytes are published, has.
fn count_published(
    region: &Region,
    used: u64,
    catalogue: Descriptors<'_>,
    entry: &mut [u8; MAX_ENTRY],
) -> Result<usize, RegionError> {
    let (registry, size) = region.view().registry();
    let mut at = registry + REGISTRY_HEADER_SIZE;
    let end = (registry + size).min(at.saturating_add(usize::try_from(used).unwrap_or(usize::MAX)));
    for index in 0..catalogue.len() {
        if at >= end {
            return Ok(index);
        }
        let bytes = catalogue.encode(index, entry).and_then(|size| entry.get(..size));
        let bytes = bytes.ok_or(RegionError::OtherAgent)?;
        if at + bytes.len() > end {
            return Err(RegionError::OtherAgent);
        }
        for &byte in bytes {
            // SAFETY: inside the registry (checked just above), hence inside the region.
            if unsafe { region.pointer(at).read_volatile() } != byte {
                return Err(RegionError::OtherAgent);
            }
            at += 1;
        }
    }
    Ok(catalogue.len())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::catalog::tests::descriptors;
    use clock_sync::entry::Writer;
    use clock_sync::relation::Relation;
    use shared_ring::host;
    use shared_ring::host::memory::HostMemory;
    use shared_ring::layout::{Geometry, Mode};
    use shared_ring::region::{RegionConfig, RegionLayout, Rings};
    use shared_ring::registry::parse;
    use std::vec::Vec;

    /// A region of a host, for two vCPUs and two process slots, with a session in slot 0 and room for one in slot 2.
    pub(crate) fn host_region() -> (HostMemory, host::Region) {
        let rings = |sub_buffers, mode| Rings { geometry: Geometry::new(4096, sub_buffers).unwrap(), mode };
        let layout = RegionLayout::new(RegionConfig {
            vcpus: 2,
            sessions: [Some(rings(4, Mode::Discard)), None, Some(rings(4, Mode::FlightRecorder)), None],
            process_rings: rings(2, Mode::FlightRecorder),
            process_slots: 2,
            registry_size: 16384,
            process_registry_size: 4096,
        })
        .unwrap();
        let memory = HostMemory::private(layout.size);
        let mut host = host::Region::create(memory.clone(), layout, [1; 16], 1_000_000_000).unwrap();
        host.open_session(0, "main", rings(4, Mode::Discard), |_, _| ()).unwrap();
        for vcpu in 0..2 {
            let entry = memory.part(layout.clock_entry(vcpu), 256);
            // SAFETY: the entry lies inside the memory, which lives; nobody else writes it.
            unsafe { Writer::new(entry.base()) }.publish(&Relation::IDENTITY);
        }
        (memory, host)
    }

    pub(crate) fn open(memory: &HostMemory) -> Region {
        // SAFETY: the memory is aligned, live, and as large as it says.
        unsafe { Region::open(memory.base(), memory.size() as u64) }.unwrap()
    }

    #[test]
    fn errors_of_a_region_have_the_numbers_that_the_shim_knows() {
        let errors = [
            ViewError::NotARegion,
            ViewError::OtherVersion { found: 0 },
            ViewError::Outside { part: "agent state" },
            ViewError::TooSmall { size: 0 },
        ];

        assert_eq!(errors.map(|error| RegionError::from(error).errno()), [-19, -93, -22, -22]);
    }

    #[test]
    fn catalogue_is_published_once_and_found_again() {
        let (memory, host) = host_region();
        let (region, registry) = (open(&memory), host.layout().registry);

        let first = publish_catalogue(&region, descriptors());
        let used = usize::try_from(memory.load(registry)).unwrap();
        let second = publish_catalogue(&region, descriptors());
        let mut bytes = std::vec![0; used];
        memory.read(registry + REGISTRY_HEADER_SIZE, &mut bytes);
        let mut events = Vec::new();
        parse(&bytes, &mut events).unwrap();

        assert_eq!((first, second), (Ok(()), Ok(())));
        assert_eq!(memory.load(registry), used as u64);
        assert_eq!(events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>(), ["test:first", "test:second"]);
    }

    #[test]
    fn catalogue_that_a_reset_cut_off_is_completed_for_a_host_that_reads_it() {
        let (memory, mut host) = host_region();
        let (region, registry) = (open(&memory), host.layout().registry);
        publish_catalogue(&region, descriptors()).unwrap();
        host.set_alive(true);
        let used = memory.load(registry);
        let first = memory.load(registry + REGISTRY_HEADER_SIZE) & u64::from(u32::MAX);
        let second = registry + REGISTRY_HEADER_SIZE + usize::try_from(first).unwrap();
        let entry = memory.load(second);
        memory.store(registry, first);
        memory.store(second, 0);

        let published = publish_catalogue(&region, descriptors());

        assert_eq!((published, memory.load(registry), memory.load(second)), (Ok(()), used, entry));
    }

    #[test]
    fn registry_of_another_agent_is_left_alone() {
        let (memory, mut host) = host_region();
        let region = open(&memory);
        publish_catalogue(&region, descriptors()).unwrap();
        host.set_alive(true);
        let first = host.layout().registry + REGISTRY_HEADER_SIZE;
        memory.store(first, memory.load(first) ^ 1 << 40);

        assert_eq!(publish_catalogue(&region, descriptors()), Err(RegionError::OtherAgent));
    }

    #[test]
    fn registry_that_no_host_reads_is_written_anew() {
        let (memory, host) = host_region();
        let region = open(&memory);
        publish_catalogue(&region, descriptors()).unwrap();
        let first = host.layout().registry + REGISTRY_HEADER_SIZE;
        let (entry, used) = (memory.load(first), memory.load(host.layout().registry));
        memory.store(first, entry ^ 1 << 40);

        let published = publish_catalogue(&region, descriptors());

        assert_eq!((published, memory.load(first), memory.load(host.layout().registry)), (Ok(()), entry, used));
    }
}
