//! The C view of the region and of what this crate defines, for the guest's kernel module.

use crate::{
    CPUID_SIGNATURE, FIRST_TRACEPOINT, PANIC_PORT, PANIC_PORT_CRASH_KERNEL, PANIC_PORT_PANICKED, SYSCALL_I386,
    SYSCALL_X32, SYSCALL_X86_64, class,
};
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// A C header with the region's layout, this crate's constants and the major classes of a guest kernel's events.
#[must_use]
pub fn c_header() -> String {
    let signature = CPUID_SIGNATURE.chunks_exact(4).enumerate().map(|(index, register)| {
        let value = u32::from_le_bytes([register[0], register[1], register[2], register[3]]);
        (format!("CPUID_SIGNATURE_{index}"), value.into())
    });
    let own = [
        ("PANIC_PORT", u64::from(PANIC_PORT)),
        ("PANIC_PORT_PANICKED", u64::from(PANIC_PORT_PANICKED)),
        ("PANIC_PORT_CRASH_KERNEL", u64::from(PANIC_PORT_CRASH_KERNEL)),
        ("FIRST_TRACEPOINT", u64::from(FIRST_TRACEPOINT)),
        ("SYSCALL_X86_64", u64::from(SYSCALL_X86_64)),
        ("SYSCALL_I386", u64::from(SYSCALL_I386)),
        ("SYSCALL_X32", u64::from(SYSCALL_X32)),
    ];
    let own = own.map(|(name, value)| (name.to_string(), value));
    let classes = class::GUEST_KERNEL.map(|(name, number)| (format!("CLASS_{name}"), number.into()));
    let all: Vec<(String, u64)> = own.into_iter().chain(signature).chain(classes).collect();
    let all: Vec<(&str, u64)> = all.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    shared_ring::layout::c_header::c_header(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_layout_signature_and_classes() {
        let header = c_header();

        assert!(header.contains("#define STRATA_SUPERBLOCK_REGION_SIZE 24\n"));
        assert!(header.contains("#define STRATA_CPUID_SIGNATURE_0 1095914579\n"), "{header}");
        assert!(header.contains("#define STRATA_CLASS_BLOCK 12\n"));
    }
}
