//! What Strata's guest software and its VMM agree on beside the trace region: how a guest finds the region, how it says
//! that its kernel panicked, and which major classes events have. Another VMM with trace regions of its own chooses others.
#![no_std]

#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "std")]
pub mod c_header;
pub mod class;

/// Signature that the CPUID discovery leaf returns in `ebx`, `ecx`, `edx`.
pub const CPUID_SIGNATURE: [u8; 12] = *b"STRATATRACE\0";

/// I/O port by which a guest says that its kernel panicked, as QEMU's pvpanic device: writing [`PANIC_PORT_PANICKED`].
pub const PANIC_PORT: u16 = 0x505;

/// Bit of [`PANIC_PORT`] that says so.
pub const PANIC_PORT_PANICKED: u8 = 1;

/// Id of the first tracepoint's event in a guest kernel's registry; lower ones are for events of the agent's own.
pub const FIRST_TRACEPOINT: u16 = 64;
