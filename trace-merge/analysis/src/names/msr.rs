//! Names of the model-specific registers that guests read and write.

/// By number, in order, as `asm/msr-index.h` and `asm/kvm_para.h` of Linux have them, without what all begin with.
const NAMES: [(u32, &str); 62] = [
    (0x10, "TSC"),
    (0x11, "KVM_WALL_CLOCK"),
    (0x12, "KVM_SYSTEM_TIME"),
    (0x1b, "APIC_BASE"),
    (0x3a, "FEATURE_CONTROL"),
    (0x3b, "TSC_ADJUST"),
    (0x48, "SPEC_CTRL"),
    (0x49, "PRED_CMD"),
    (0x8b, "UCODE_REV"),
    (0xe7, "MPERF"),
    (0xe8, "APERF"),
    (0x10a, "ARCH_CAPABILITIES"),
    (0x10b, "FLUSH_CMD"),
    (0x174, "SYSENTER_CS"),
    (0x175, "SYSENTER_ESP"),
    (0x176, "SYSENTER_EIP"),
    (0x17a, "MCG_STATUS"),
    (0x198, "PERF_STATUS"),
    (0x199, "PERF_CTL"),
    (0x1a0, "MISC_ENABLE"),
    (0x1d9, "DEBUGCTL"),
    (0x277, "CR_PAT"),
    (0x2ff, "MTRR_DEF_TYPE"),
    (0x38f, "PERF_GLOBAL_CTRL"),
    (0x390, "PERF_GLOBAL_OVF_CTRL"),
    (0x6e0, "TSC_DEADLINE"),
    (0x802, "X2APIC_ID"),
    (0x803, "X2APIC_LVR"),
    (0x808, "X2APIC_TASKPRI"),
    (0x80b, "X2APIC_EOI"),
    (0x80d, "X2APIC_LDR"),
    (0x80f, "X2APIC_SPIV"),
    (0x828, "X2APIC_ESR"),
    (0x82f, "X2APIC_LVTCMCI"),
    (0x830, "X2APIC_ICR"),
    (0x832, "X2APIC_LVTT"),
    (0x833, "X2APIC_LVTTHMR"),
    (0x834, "X2APIC_LVTPC"),
    (0x835, "X2APIC_LVT0"),
    (0x836, "X2APIC_LVT1"),
    (0x837, "X2APIC_LVTERR"),
    (0x838, "X2APIC_TMICT"),
    (0x839, "X2APIC_TMCCT"),
    (0x83e, "X2APIC_TDCR"),
    (0x83f, "X2APIC_SELF_IPI"),
    (0xda0, "XSS"),
    (0x4b56_4d00, "KVM_WALL_CLOCK_NEW"),
    (0x4b56_4d01, "KVM_SYSTEM_TIME_NEW"),
    (0x4b56_4d02, "KVM_ASYNC_PF_EN"),
    (0x4b56_4d03, "KVM_STEAL_TIME"),
    (0x4b56_4d04, "KVM_PV_EOI_EN"),
    (0x4b56_4d05, "KVM_POLL_CONTROL"),
    (0x4b56_4d06, "KVM_ASYNC_PF_INT"),
    (0xc000_0080, "EFER"),
    (0xc000_0081, "STAR"),
    (0xc000_0082, "LSTAR"),
    (0xc000_0083, "CSTAR"),
    (0xc000_0084, "SYSCALL_MASK"),
    (0xc000_0100, "FS_BASE"),
    (0xc000_0101, "GS_BASE"),
    (0xc000_0102, "KERNEL_GS_BASE"),
    (0xc000_0103, "TSC_AUX"),
];

/// The name of register `number`; `None` for one that has none here.
#[must_use]
pub fn name(number: u32) -> Option<&'static str> {
    let place = NAMES.binary_search_by_key(&number, |&(known, _)| known).ok()?;
    NAMES.get(place).map(|&(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_kernels_names() {
        let names = [0x6e0, 0x830, 0xc000_0103, 0x6e1].map(name);

        assert_eq!(names, [Some("TSC_DEADLINE"), Some("X2APIC_ICR"), Some("TSC_AUX"), None]);
    }

    #[test]
    fn registers_are_in_order() {
        assert!(NAMES.is_sorted_by_key(|&(number, _)| number));
    }
}
