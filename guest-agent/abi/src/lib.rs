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
/// Instead of [`PANIC_PORT_PANICKED`] by a guest whose crash kernel takes over and is to go on, as long as it likes.
pub const PANIC_PORT_CRASH_KERNEL: u8 = 2;

/// Value of `abi` in `raw_syscalls:sys_enter` and `sys_exit` of a guest's kernel: the call's number is one of x86-64's own.
pub const SYSCALL_X86_64: u8 = 0;
/// The same: one of i386's.
pub const SYSCALL_I386: u8 = 1;
/// The same: one of x32's, with that ABI's bit (30) set in the number.
pub const SYSCALL_X32: u8 = 2;

/// Id of the first tracepoint's event in a guest kernel's registry; lower ones are for events of the agent's own.
pub const FIRST_TRACEPOINT: u16 = 64;
