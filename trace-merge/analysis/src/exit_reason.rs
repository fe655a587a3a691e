//! Names of the reasons why a vCPU left the guest, as the processor and as KVM number them.

use std::borrow::Cow;

/// Who numbered an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitNumbering {
    /// Intel VT-x: Intel SDM volume 3, appendix C.
    Vmx,
    /// AMD SVM: AMD APM volume 2, appendix C.
    Svm,
    /// KVM, as it returns to user space: `KVM_EXIT_*` of `linux/kvm.h`.
    Kvm,
    /// Not known.
    Unknown,
}

impl ExitNumbering {
    /// The names of all reasons that have one.
    #[must_use]
    pub fn names(self) -> Vec<Cow<'static, str>> {
        let numbers: Vec<u32> = match self {
            Self::Vmx => VMX.iter().map(|&(number, _)| number).chain(VMX_FAILED).collect(),
            Self::Svm => (0..SVM_RANGES).chain(SVM.iter().map(|&(number, _)| number)).collect(),
            Self::Kvm => KVM.iter().map(|&(number, _)| number).collect(),
            Self::Unknown => Vec::new(),
        };
        numbers.into_iter().filter_map(|number| ExitReason { numbering: self, number }.known_name()).collect()
    }
}

/// Why a vCPU left the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExitReason {
    /// Who numbered it.
    pub numbering: ExitNumbering,
    /// The number.
    pub number: u32,
}

/// VMX exit reasons carry flags above their basic reason.
const VMX_BASIC: u32 = 0xffff;
/// VMX: the entry failed, so the guest did not run.
const VMX_FAILED_ENTRY: u32 = 1 << 31;
/// The reasons why an entry can fail: the guest's state, an MSR, or a machine check.
const VMX_FAILED: [u32; 3] = [33 | VMX_FAILED_ENTRY, 34 | VMX_FAILED_ENTRY, 41 | VMX_FAILED_ENTRY];

impl ExitReason {
    /// Field `isa` of KVM's `kvm_exit` tracepoint.
    #[must_use]
    pub const fn numbering_of_isa(isa: i64) -> ExitNumbering {
        match isa {
            1 => ExitNumbering::Vmx,
            2 => ExitNumbering::Svm,
            _ => ExitNumbering::Unknown,
        }
    }

    /// Whether the guest had nothing to do: it executed `hlt`.
    #[must_use]
    pub const fn is_halt(&self) -> bool {
        match self.numbering {
            ExitNumbering::Vmx => self.number & VMX_BASIC == 12,
            ExitNumbering::Svm => matches!(self.number, 0x78 | 0xa6),
            ExitNumbering::Kvm => self.number == 5,
            ExitNumbering::Unknown => false,
        }
    }

    /// Whether the guest entered a guest of its own.
    #[must_use]
    pub const fn is_nested_entry(&self) -> bool {
        match self.numbering {
            ExitNumbering::Vmx => matches!(self.number & VMX_BASIC, 20 | 24),
            ExitNumbering::Svm => self.number == 0x80,
            ExitNumbering::Kvm | ExitNumbering::Unknown => false,
        }
    }

    /// Whether the guest accessed a port or memory that is not there, as it does to notify a device.
    #[must_use]
    pub const fn is_device_access(&self) -> bool {
        match self.numbering {
            ExitNumbering::Vmx => matches!(self.number & VMX_BASIC, 30 | 48 | 49),
            ExitNumbering::Svm => matches!(self.number, 0x7b | 0x400),
            ExitNumbering::Kvm => matches!(self.number, 2 | 6),
            ExitNumbering::Unknown => false,
        }
    }

    /// The reason's name without its prefix, in lower case; its number in hexadecimal where it has none.
    #[must_use]
    pub fn name(&self) -> Cow<'static, str> {
        self.with_failure(self.basic_name().unwrap_or_else(|| format!("{:#x}", self.number).into()))
    }

    /// The same; `None` where it has no name.
    #[must_use]
    pub fn known_name(&self) -> Option<Cow<'static, str>> {
        self.basic_name().map(|name| self.with_failure(name))
    }

    fn basic_name(&self) -> Option<Cow<'static, str>> {
        let (table, number) = match self.numbering {
            ExitNumbering::Vmx => (VMX, self.number & VMX_BASIC),
            ExitNumbering::Svm => (SVM, self.number),
            ExitNumbering::Kvm => (KVM, self.number),
            ExitNumbering::Unknown => return None,
        };
        let known = table.iter().find(|&&(known, _)| known == number);
        known.map(|&(_, name)| name.into()).or_else(|| svm_range(self).map(Cow::Owned))
    }

    fn with_failure(&self, name: Cow<'static, str>) -> Cow<'static, str> {
        let failed = self.numbering == ExitNumbering::Vmx && self.number & VMX_FAILED_ENTRY != 0;
        if failed { format!("{name} (failed entry)").into() } else { name }
    }
}

/// SVM's ranges end before this.
const SVM_RANGES: u32 = 0x60;

/// SVM numbers whole ranges by register and vector.
fn svm_range(reason: &ExitReason) -> Option<String> {
    let number = reason.number;
    if reason.numbering != ExitNumbering::Svm {
        return None;
    }
    match number {
        0..=0x0f => Some(format!("read_cr{number}")),
        0x10..=0x1f => Some(format!("write_cr{}", number - 0x10)),
        0x20..=0x2f => Some(format!("read_dr{}", number - 0x20)),
        0x30..=0x3f => Some(format!("write_dr{}", number - 0x30)),
        0x40..=0x5f => Some(format!("exception_{}", number - 0x40)),
        _ => None,
    }
}

/// Basic exit reasons of VMX.
const VMX: &[(u32, &str)] = &[
    (0, "exception_nmi"),
    (1, "external_interrupt"),
    (2, "triple_fault"),
    (3, "init_signal"),
    (4, "sipi_signal"),
    (7, "interrupt_window"),
    (8, "nmi_window"),
    (9, "task_switch"),
    (10, "cpuid"),
    (12, "hlt"),
    (13, "invd"),
    (14, "invlpg"),
    (15, "rdpmc"),
    (16, "rdtsc"),
    (18, "vmcall"),
    (19, "vmclear"),
    (20, "vmlaunch"),
    (21, "vmptrld"),
    (22, "vmptrst"),
    (23, "vmread"),
    (24, "vmresume"),
    (25, "vmwrite"),
    (26, "vmoff"),
    (27, "vmon"),
    (28, "cr_access"),
    (29, "dr_access"),
    (30, "io_instruction"),
    (31, "msr_read"),
    (32, "msr_write"),
    (33, "invalid_state"),
    (34, "msr_load_fail"),
    (36, "mwait_instruction"),
    (37, "monitor_trap_flag"),
    (39, "monitor_instruction"),
    (40, "pause_instruction"),
    (41, "mce_during_vmentry"),
    (43, "tpr_below_threshold"),
    (44, "apic_access"),
    (45, "eoi_induced"),
    (46, "gdtr_idtr"),
    (47, "ldtr_tr"),
    (48, "ept_violation"),
    (49, "ept_misconfig"),
    (50, "invept"),
    (51, "rdtscp"),
    (52, "preemption_timer"),
    (53, "invvpid"),
    (54, "wbinvd"),
    (55, "xsetbv"),
    (56, "apic_write"),
    (57, "rdrand"),
    (58, "invpcid"),
    (59, "vmfunc"),
    (60, "encls"),
    (61, "rdseed"),
    (62, "pml_full"),
    (63, "xsaves"),
    (64, "xrstors"),
    (67, "umwait"),
    (68, "tpause"),
    (74, "bus_lock"),
    (75, "notify"),
];

/// Exit codes of SVM outside its ranges.
const SVM: &[(u32, &str)] = &[
    (0x60, "interrupt"),
    (0x61, "nmi"),
    (0x62, "smi"),
    (0x63, "init"),
    (0x64, "interrupt_window"),
    (0x65, "cr0_selective_write"),
    (0x66, "read_idtr"),
    (0x67, "read_gdtr"),
    (0x68, "read_ldtr"),
    (0x69, "read_tr"),
    (0x6a, "write_idtr"),
    (0x6b, "write_gdtr"),
    (0x6c, "write_ldtr"),
    (0x6d, "write_tr"),
    (0x6e, "rdtsc"),
    (0x6f, "rdpmc"),
    (0x70, "pushf"),
    (0x71, "popf"),
    (0x72, "cpuid"),
    (0x73, "rsm"),
    (0x74, "iret"),
    (0x75, "software_interrupt"),
    (0x76, "invd"),
    (0x77, "pause"),
    (0x78, "hlt"),
    (0x79, "invlpg"),
    (0x7a, "invlpga"),
    (0x7b, "ioio"),
    (0x7c, "msr"),
    (0x7d, "task_switch"),
    (0x7e, "ferr_freeze"),
    (0x7f, "shutdown"),
    (0x80, "vmrun"),
    (0x81, "vmmcall"),
    (0x82, "vmload"),
    (0x83, "vmsave"),
    (0x84, "stgi"),
    (0x85, "clgi"),
    (0x86, "skinit"),
    (0x87, "rdtscp"),
    (0x88, "icebp"),
    (0x89, "wbinvd"),
    (0x8a, "monitor"),
    (0x8b, "mwait"),
    (0x8c, "mwait_conditional"),
    (0x8d, "xsetbv"),
    (0x8e, "rdpru"),
    (0x8f, "efer_write_trap"),
    (0xa2, "invpcid"),
    (0xa5, "bus_lock"),
    (0xa6, "idle_hlt"),
    (0x400, "nested_page_fault"),
    (0x401, "avic_incomplete_ipi"),
    (0x402, "avic_unaccelerated_access"),
    (0x403, "vmgexit"),
    (0xffff_ffff, "invalid_guest_state"),
];

/// `KVM_EXIT_*`.
const KVM: &[(u32, &str)] = &[
    (0, "unknown"),
    (1, "exception"),
    (2, "io"),
    (3, "hypercall"),
    (4, "debug"),
    (5, "hlt"),
    (6, "mmio"),
    (7, "irq_window_open"),
    (8, "shutdown"),
    (9, "fail_entry"),
    (10, "intr"),
    (11, "set_tpr"),
    (12, "tpr_access"),
    (16, "nmi"),
    (17, "internal_error"),
    (24, "system_event"),
    (26, "ioapic_eoi"),
    (27, "hyperv"),
    (29, "x86_rdmsr"),
    (30, "x86_wrmsr"),
    (31, "dirty_ring_full"),
    (33, "x86_bus_lock"),
    (34, "xen"),
    (37, "notify"),
    (39, "memory_fault"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn name(numbering: ExitNumbering, number: u32) -> Cow<'static, str> {
        ExitReason { numbering, number }.name()
    }

    #[test]
    fn reasons_are_named_by_who_numbered_them() {
        assert_eq!(name(ExitNumbering::Vmx, 48), "ept_violation");
        assert_eq!(name(ExitNumbering::Svm, 0x400), "nested_page_fault");
        assert_eq!(name(ExitNumbering::Kvm, 6), "mmio");
        assert_eq!(name(ExitNumbering::Unknown, 48), "0x30");
    }

    #[test]
    fn device_is_accessed_by_ports_and_by_memory_that_is_not_there() {
        let names = ["io", "mmio", "ioio", "nested_page_fault", "io_instruction", "ept_violation", "ept_misconfig"];
        let is_one = |&numbering: &ExitNumbering| {
            (0..0x500)
                .map(|number| ExitReason { numbering, number })
                .all(|reason| reason.is_device_access() == names.contains(&reason.name().as_ref()))
        };

        let all = [ExitNumbering::Vmx, ExitNumbering::Svm, ExitNumbering::Kvm, ExitNumbering::Unknown];
        assert_eq!(all.iter().map(is_one).collect::<Vec<_>>(), [true; 4]);
    }

    #[test]
    fn names_of_a_numbering_are_those_of_its_table_and_ranges() {
        let has = |numbering: ExitNumbering, name: &str| numbering.names().iter().any(|known| known == name);

        assert!(has(ExitNumbering::Vmx, "msr_read") && !has(ExitNumbering::Vmx, "mmio"));
        assert!(has(ExitNumbering::Vmx, "invalid_state (failed entry)"));
        assert!(has(ExitNumbering::Svm, "exception_14") && has(ExitNumbering::Svm, "nested_page_fault"));
        assert!(has(ExitNumbering::Kvm, "mmio") && ExitNumbering::Unknown.names().is_empty());
    }

    #[test]
    fn halts_are_known_by_their_names() {
        let is_named_so = |&numbering: &ExitNumbering| {
            (0..0x500)
                .map(|number| ExitReason { numbering, number })
                .all(|reason| reason.is_halt() == reason.name().ends_with("hlt"))
        };

        assert!(
            [ExitNumbering::Vmx, ExitNumbering::Svm, ExitNumbering::Kvm, ExitNumbering::Unknown]
                .iter()
                .all(is_named_so)
        );
    }

    #[test]
    fn ranges_and_flags_are_understood() {
        assert_eq!(name(ExitNumbering::Svm, 0x4e), "exception_14");
        assert_eq!(name(ExitNumbering::Svm, 0x10), "write_cr0");
        assert_eq!(name(ExitNumbering::Vmx, 33 | VMX_FAILED_ENTRY), "invalid_state (failed entry)");
        assert_eq!(name(ExitNumbering::Vmx, 0x1234), "0x1234");
    }

    #[test]
    fn tables_are_sorted_so_that_no_number_appears_twice() {
        let ascending = |table: &[(u32, &str)]| table.is_sorted_by(|left, right| left.0 < right.0);

        assert!(ascending(VMX) && ascending(SVM) && ascending(KVM));
    }
}
