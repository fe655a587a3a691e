//! Major classes of the events that Strata itself defines: numbers below 64, each a bit of a session's class mask.

/// Context switches and wake-ups.
pub const SCHED: u8 = 0;
/// Life of tasks: fork, exec, exit.
pub const TASK: u8 = 1;
/// Interrupt handlers.
pub const IRQ: u8 = 2;
/// Soft interrupts.
pub const SOFTIRQ: u8 = 3;
/// System calls.
pub const SYSCALL: u8 = 4;
/// Exceptions, page faults among them.
pub const EXCEPTION: u8 = 5;
/// Timers.
pub const TIMER: u8 = 6;
/// Signals.
pub const SIGNAL: u8 = 7;
/// Interrupt vectors of the CPU.
pub const IRQ_VECTOR: u8 = 8;
/// Work queues.
pub const WORKQUEUE: u8 = 9;
/// RCU.
pub const RCU: u8 = 10;
/// Power management, clocks, thermal control.
pub const POWER: u8 = 11;
/// Block devices.
pub const BLOCK: u8 = 12;
/// File systems and writeback.
pub const FILE_SYSTEM: u8 = 13;
/// Network.
pub const NETWORK: u8 = 14;
/// The kernel's memory allocators.
pub const ALLOCATION: u8 = 15;
/// Memory management besides allocation: reclaim, migration, mappings.
pub const MEMORY: u8 = 16;
/// Locks.
pub const LOCK: u8 = 17;
/// Guests of this kernel.
pub const GUEST: u8 = 18;
/// Samples of what CPUs execute, and what it takes to name it.
pub const SAMPLE: u8 = 19;
/// Kernel events that no other class fits.
pub const OTHER: u8 = 31;
/// The classes of a guest kernel's events, by name.
pub const GUEST_KERNEL: [(&str, u8); 21] = [
    ("SCHED", SCHED),
    ("TASK", TASK),
    ("IRQ", IRQ),
    ("SOFTIRQ", SOFTIRQ),
    ("SYSCALL", SYSCALL),
    ("EXCEPTION", EXCEPTION),
    ("TIMER", TIMER),
    ("SIGNAL", SIGNAL),
    ("IRQ_VECTOR", IRQ_VECTOR),
    ("WORKQUEUE", WORKQUEUE),
    ("RCU", RCU),
    ("POWER", POWER),
    ("BLOCK", BLOCK),
    ("FILE_SYSTEM", FILE_SYSTEM),
    ("NETWORK", NETWORK),
    ("ALLOCATION", ALLOCATION),
    ("MEMORY", MEMORY),
    ("LOCK", LOCK),
    ("GUEST", GUEST),
    ("SAMPLE", SAMPLE),
    ("OTHER", OTHER),
];
/// Applications.
pub const USER: u8 = 32;
/// The VMM's vCPU threads.
pub const VMM_VCPU: u8 = 40;
/// The VMM's devices.
pub const VMM_DEVICE: u8 = 41;
/// Control of the VMM: start, stop, reset.
pub const VMM_CONTROL: u8 = 42;
/// The host kernel's events.
pub const HOST_KERNEL: u8 = 48;
