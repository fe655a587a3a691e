//! What a guest begins with: its kernel in memory, the state of its first processor, what CPUID says, and ACPI's tables.

pub(crate) mod acpi;
pub(crate) mod boot_state;
pub(crate) mod cpuid;
pub(crate) mod loader;
