//! The state in which the boot processor enters a 64-bit kernel: long mode, identity-mapped, interrupts off.

use crate::memory::layout;
use kvm_bindings::{Msrs, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};
use vmm_sys_util::errno;

/// The whole firmware: a guest that jumps to the reset vector wants a reset. (Linux does so on machines with
/// hardware-reduced ACPI and no UEFI, instead of using the reset register.)
const RESET_CODE: [u8; 7] = [
    0xb0, 0xfe, // mov $0xfe,%al: pulse the reset line
    0xe6, 0x64, // out %al,$0x64
    0xf4, // hlt
    0xeb, 0xfd, // jmp to the hlt
];
/// Selectors of the boot protocol: `__BOOT_CS` and `__BOOT_DS`.
const CODE_SELECTOR: u16 = 0x10;
const DATA_SELECTOR: u16 = 0x18;
const TASK_SELECTOR: u16 = 0x20;
/// The GDT: two unused entries, 64-bit code, flat data, and a task state segment.
const GDT: [u64; 5] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x008f_8b00_0000_ffff];

const CR0_PROTECTED: u64 = 1;
const CR0_EXTENSION_TYPE: u64 = 1 << 4;
const CR0_PAGING: u64 = 1 << 31;
const CR4_PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
const EFER_LONG_MODE_ENABLE: u64 = 1 << 8;
const EFER_LONG_MODE_ACTIVE: u64 = 1 << 10;
const RFLAGS_RESERVED: u64 = 2;

const PAGE_PRESENT_WRITABLE: u64 = 3;
const PAGE_LARGE: u64 = 1 << 7;
const TABLE_SIZE: u64 = 4096;
const LARGE_PAGE_SIZE: u64 = 2 << 20;
const ENTRIES: u64 = 512;
/// Page directories: one per GiB below 4 GiB.
const DIRECTORIES: u64 = 4;

const IA32_MISC_ENABLE: u32 = 0x1a0;
const MISC_ENABLE_FAST_STRING: u64 = 1;
const IA32_MTRR_DEF_TYPE: u32 = 0x2ff;
/// MTRRs enabled, write-back where no range says otherwise: with MTRRs disabled Linux maps reserved memory,
/// hence the trace region, uncached.
const MTRR_ENABLED_WRITE_BACK: u64 = 0x806;

/// Why a vCPU's state could not be set.
#[derive(Debug, thiserror::Error)]
pub enum BootStateError {
    /// Descriptor tables, page tables or the reset vector lie outside guest memory.
    #[error("cannot write the boot tables into guest memory")]
    Memory(#[source] GuestMemoryError),
    /// The processor's registers for 64-bit mode were refused.
    #[error("KVM does not accept the boot processor's registers")]
    Registers(#[source] errno::Error),
    /// One model-specific register was refused.
    #[error("KVM does not accept model-specific register {index:#x}")]
    Msr {
        /// Number of the register.
        index: u32,
    },
    /// The model-specific registers were refused as a whole.
    #[error("KVM does not accept model-specific registers")]
    Msrs(#[source] errno::Error),
}

/// Puts code behind the reset vector.
///
/// # Errors
/// Guest memory is smaller than 1 MiB.
pub fn write_reset_vector(memory: &GuestMemoryMmap) -> Result<(), BootStateError> {
    memory.write_slice(&RESET_CODE, GuestAddress(layout::RESET_VECTOR)).map_err(BootStateError::Memory)
}

/// Writes the GDT, an empty IDT and page tables that map the first 4 GiB to themselves.
///
/// # Errors
/// Guest memory is smaller than [`layout::CMDLINE`].
pub fn write_tables(memory: &GuestMemoryMmap) -> Result<(), BootStateError> {
    let store =
        |address: u64, value: u64| memory.write_obj(value, GuestAddress(address)).map_err(BootStateError::Memory);
    for (index, entry) in (0u64..).zip(GDT) {
        store(layout::GDT + index * 8, entry)?;
    }
    store(layout::IDT, 0)?;
    let pointers = layout::PML4 + TABLE_SIZE;
    let directories = pointers + TABLE_SIZE;
    store(layout::PML4, pointers | PAGE_PRESENT_WRITABLE)?;
    for index in 0..DIRECTORIES {
        let directory = directories + index * TABLE_SIZE;
        store(pointers + index * 8, directory | PAGE_PRESENT_WRITABLE)?;
    }
    for index in 0..DIRECTORIES * ENTRIES {
        let page = index * LARGE_PAGE_SIZE;
        store(directories + index * 8, page | PAGE_LARGE | PAGE_PRESENT_WRITABLE)?;
    }
    Ok(())
}

/// A segment register as its GDT entry describes it.
#[allow(clippy::cast_possible_truncation, reason = "bit fields of a descriptor")]
fn segment(selector: u16) -> kvm_segment {
    let entry = GDT[usize::from(selector / 8)];
    let bit = |at: u32| (entry >> at & 1) as u8;
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_: (entry >> 40 & 0xf) as u8,
        present: bit(47),
        dpl: (entry >> 45 & 3) as u8,
        db: bit(54),
        s: bit(44),
        l: bit(53),
        g: bit(55),
        avl: bit(52),
        ..Default::default()
    }
}

/// Turns what KVM sets at reset into long mode on the identity page tables.
#[allow(clippy::cast_possible_truncation, reason = "the size of the GDT is a constant")]
pub fn long_mode(sregs: &mut kvm_sregs) {
    sregs.gdt.base = layout::GDT;
    sregs.gdt.limit = size_of_val(&GDT) as u16 - 1;
    sregs.idt.base = layout::IDT;
    sregs.idt.limit = 7;
    sregs.cs = segment(CODE_SELECTOR);
    let data = segment(DATA_SELECTOR);
    sregs.ds = data;
    sregs.es = data;
    sregs.fs = data;
    sregs.gs = data;
    sregs.ss = data;
    sregs.tr = segment(TASK_SELECTOR);
    sregs.cr3 = layout::PML4;
    sregs.cr4 |= CR4_PHYSICAL_ADDRESS_EXTENSION;
    sregs.cr0 = CR0_PROTECTED | CR0_EXTENSION_TYPE | CR0_PAGING;
    sregs.efer |= EFER_LONG_MODE_ENABLE | EFER_LONG_MODE_ACTIVE;
}

/// Sets the registers of the boot processor: it enters the kernel at `entry`, RSI at the zero page.
///
/// # Errors
/// KVM refuses.
pub fn set_boot_registers(vcpu: &VcpuFd, entry: u64) -> Result<(), BootStateError> {
    let mut sregs = vcpu.get_sregs().map_err(BootStateError::Registers)?;
    long_mode(&mut sregs);
    vcpu.set_sregs(&sregs).map_err(BootStateError::Registers)?;
    let regs = kvm_regs {
        rip: entry,
        rsp: layout::BOOT_STACK,
        rbp: layout::BOOT_STACK,
        rsi: layout::ZERO_PAGE,
        rflags: RFLAGS_RESERVED,
        ..Default::default()
    };
    vcpu.set_regs(&regs).map_err(BootStateError::Registers)
}

/// Sets the model-specific registers that firmware would have set, on every vCPU.
///
/// # Errors
/// KVM refuses one of them.
pub fn set_msrs(vcpu: &VcpuFd) -> Result<(), BootStateError> {
    let entries = [(IA32_MISC_ENABLE, MISC_ENABLE_FAST_STRING), (IA32_MTRR_DEF_TYPE, MTRR_ENABLED_WRITE_BACK)]
        .map(|(index, data)| kvm_msr_entry { index, data, ..Default::default() });
    let msrs = Msrs::from_entries(&entries).map_err(|_| BootStateError::Msrs(errno::Error::new(libc::E2BIG)))?;
    let set = vcpu.set_msrs(&msrs).map_err(BootStateError::Msrs)?;
    match entries.get(set) {
        None => Ok(()),
        Some(refused) => Err(BootStateError::Msr { index: refused.index }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> GuestMemoryMmap {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_tables(&memory).unwrap();
        memory
    }

    /// Walks the page tables as the processor does, for a large page.
    fn translate(memory: &GuestMemoryMmap, address: u64) -> u64 {
        let entry = |table: u64, shift: u32| -> u64 {
            let index = address >> shift & 0x1ff;
            memory.read_obj::<u64>(GuestAddress((table & !0xfff) + index * 8)).unwrap()
        };
        let directory_entry = entry(entry(entry(layout::PML4, 39), 30), 21);
        (directory_entry & !0x1f_ffff) + (address & 0x1f_ffff)
    }

    #[test]
    fn first_four_gib_map_to_themselves() {
        let memory = tables();
        let addresses = [0, 0x10_0000, 0x3fff_ffff, 0x4000_0000, 0xffff_fff0];
        assert_eq!(addresses.map(|address| translate(&memory, address)), addresses);
    }

    #[test]
    fn page_tables_end_below_the_command_line() {
        let end = layout::PML4 + (2 + DIRECTORIES) * TABLE_SIZE;
        assert!((layout::PML4..=layout::CMDLINE).contains(&end));
    }

    #[test]
    fn reset_vector_pulses_the_reset_line() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_reset_vector(&memory).unwrap();
        let code: [u8; 4] = memory.read_obj(GuestAddress(0xf_fff0)).unwrap();
        assert_eq!(code, [0xb0, 0xfe, 0xe6, 0x64]);
    }

    #[test]
    fn code_segment_is_64_bit_code() {
        let code = segment(CODE_SELECTOR);
        assert_eq!((code.l, code.db, code.s, code.type_, code.present), (1, 0, 1, 0xb, 1));
    }

    #[test]
    fn task_segment_is_a_busy_tss() {
        let task = segment(TASK_SELECTOR);
        assert_eq!((task.s, task.type_, task.present), (0, 0xb, 1));
    }

    #[test]
    fn long_mode_keeps_what_kvm_set() {
        let mut sregs = kvm_sregs { apic_base: 0xfee0_0900, ..Default::default() };
        long_mode(&mut sregs);
        assert_eq!((sregs.apic_base, sregs.cr3, sregs.efer), (0xfee0_0900, layout::PML4, 0x500));
    }
}
