//! Where everything lies in the guest-physical address space, and the guest's memory map.
//!
//! Pure arithmetic: nothing here touches KVM or memory.

/// GDT of the boot processor at entry.
pub const GDT: u64 = 0x500;
/// Empty IDT of the boot processor at entry.
pub const IDT: u64 = 0x520;
/// The Linux boot protocol's `boot_params` page.
pub const ZERO_PAGE: u64 = 0x7000;
/// Initial stack pointer.
pub const BOOT_STACK: u64 = 0x8ff0;
/// Identity page tables: one PML4, one PDPT and four page directories, each 4096 bytes.
pub const PML4: u64 = 0x9000;
/// Kernel command line, NUL-terminated.
pub const CMDLINE: u64 = 0x2_0000;
/// First byte that is not conventional memory any more (the extended BIOS data area on a PC).
pub const LOW_RAM_END: u64 = 0x9_fc00;
/// ACPI tables: the RSDP lies at the start, where an operating system scans for it.
pub const ACPI_START: u64 = 0xe_0000;
/// End of the area for ACPI tables.
pub const ACPI_END: u64 = 0xf_0000;
/// Where a processor in real mode begins after a reset.
pub const RESET_VECTOR: u64 = 0xf_fff0;
/// First address above the legacy area.
pub const HIGH_RAM_START: u64 = 0x10_0000;
/// Start of the hole for devices below 4 GiB.
pub const HOLE_START: u64 = 0xc000_0000;
/// End of that hole: 4 GiB.
pub const HOLE_END: u64 = 0x1_0000_0000;
/// First virtio-mmio register window.
pub const VIRTIO_MMIO: u64 = 0xd000_0000;
/// Bytes of one virtio-mmio register window.
pub const VIRTIO_MMIO_SIZE: u64 = 0x1000;
/// I/O APIC registers (fixed by KVM).
pub const IO_APIC: u32 = 0xfec0_0000;
/// Local APIC registers (fixed by KVM).
pub const LOCAL_APIC: u32 = 0xfee0_0000;
/// One page that KVM needs on Intel processors without unrestricted guest.
pub const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;
/// Three pages that KVM needs on Intel processors for a task state segment.
pub const KVM_TSS: usize = 0xfffb_d000;

/// Global system interrupt of the doorbell: a PC's second serial port, which this machine lacks.
pub const DOORBELL_GSI: u32 = 3;
/// Global system interrupt of the serial port.
pub const SERIAL_GSI: u32 = 4;
/// Global system interrupt of the first virtio device.
pub const VIRTIO_GSI: u32 = 5;
/// Most virtio devices: what is left of the I/O APIC's 24 inputs.
pub const VIRTIO_DEVICES_MAX: usize = 19;

/// Alignment of the trace region and of memory above the hole, so that huge pages can back it.
const REGION_ALIGN: u64 = 1 << 30;

/// A range of guest-physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub size: u64,
}

impl Range {
    /// First address after the range.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.size
    }
}

/// What an e820 entry says about its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Usable by the guest.
    Ram,
    /// Not to be used as memory.
    Reserved,
}

impl MemoryKind {
    /// The type number in an e820 entry.
    #[must_use]
    pub fn e820_type(self) -> u32 {
        match self {
            Self::Ram => 1,
            Self::Reserved => 2,
        }
    }
}

/// Splits `memory` bytes of RAM around the hole below 4 GiB.
#[must_use]
pub fn ram_ranges(memory: u64) -> Vec<Range> {
    if memory <= HOLE_START {
        return vec![Range { start: 0, size: memory }];
    }
    vec![Range { start: 0, size: HOLE_START }, Range { start: HOLE_END, size: memory - HOLE_START }]
}

/// First address of the trace region of a guest with `memory` bytes of RAM: above RAM and not below 4 GiB.
#[must_use]
pub fn trace_region_start(memory: u64) -> u64 {
    let ram_end = ram_ranges(memory).iter().map(Range::end).max().unwrap_or(0);
    ram_end.max(HOLE_END).next_multiple_of(REGION_ALIGN)
}

/// The guest's memory map: RAM, the legacy area, and the trace region as reserved.
#[must_use]
pub fn e820(memory: u64, trace_region: Option<Range>) -> Vec<(Range, MemoryKind)> {
    let mut map = vec![
        (Range { start: 0, size: LOW_RAM_END }, MemoryKind::Ram),
        (Range { start: LOW_RAM_END, size: HIGH_RAM_START - LOW_RAM_END }, MemoryKind::Reserved),
    ];
    for range in ram_ranges(memory) {
        let start = range.start.max(HIGH_RAM_START);
        if start < range.end() {
            map.push((Range { start, size: range.end() - start }, MemoryKind::Ram));
        }
    }
    if let Some(region) = trace_region {
        map.push((region, MemoryKind::Reserved));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn ram_up_to_the_hole_is_one_range() {
        let ranges = ram_ranges(3 * GIB);
        assert_eq!(ranges, [Range { start: 0, size: 3 * GIB }]);
    }

    #[test]
    fn ram_beyond_the_hole_continues_at_four_gib() {
        let ranges = ram_ranges(5 * GIB);
        assert_eq!(ranges, [Range { start: 0, size: 3 * GIB }, Range { start: 4 * GIB, size: 2 * GIB }]);
    }

    #[test]
    fn trace_region_lies_above_four_gib_for_a_small_guest() {
        assert_eq!(trace_region_start(256 << 20), 4 * GIB);
    }

    #[test]
    fn trace_region_lies_above_the_ram_of_a_large_guest() {
        assert_eq!(trace_region_start(5 * GIB + 4096), 7 * GIB);
    }

    #[test]
    fn e820_names_every_byte_of_ram_outside_the_legacy_area_once() {
        let memory = 5 * GIB;
        let map = e820(memory, None);
        let ram: u64 = map.iter().filter(|(_, kind)| *kind == MemoryKind::Ram).map(|(r, _)| r.size).sum();
        assert_eq!(ram, memory - (HIGH_RAM_START - LOW_RAM_END));
    }

    #[test]
    fn e820_ranges_never_overlap_and_ascend() {
        let region = Range { start: trace_region_start(4 * GIB), size: 1 << 24 };
        let map = e820(4 * GIB, Some(region));
        assert!(map.windows(2).all(|pair| pair[0].0.end() <= pair[1].0.start));
    }

    #[test]
    fn e820_reserves_the_trace_region() {
        let region = Range { start: 4 * GIB, size: 1 << 24 };
        let map = e820(1 << 28, Some(region));
        assert!(map.contains(&(region, MemoryKind::Reserved)));
    }
}
