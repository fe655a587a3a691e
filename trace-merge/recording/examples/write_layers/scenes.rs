//! What happens on a vCPU between two moments at which a task runs on it.

use super::event_types::*;
use super::machine::*;
use super::recorder::Value::{Number, Numbers, Text};
use std::error::Error;

const CALL_READ: i64 = 0;
const CALL_CLONE: i64 = 56;
const CALL_FUTEX: i64 = 202;
const CALL_EXIT_GROUP: i64 = 231;
/// `SIGCHLD`, with which a process is forked.
const FORK_FLAGS: u64 = 17;
/// `LCB_F_MUTEX` of `lock:contention_begin`.
const MUTEX: i64 = 0x20;
const DISK: i64 = 266_338_304;
const DISK_PAGE: i64 = 0xd000_0000;
const SECTORS: i64 = 256;
const KVM_EXIT_IO: i64 = 2;

/// Lets something happen on `vcpu`. Only one vCPU at a time `has_disk`.
pub(super) fn next(machine: &mut Machine, vcpu: u32, has_disk: bool) -> Done {
    match machine.below(20) {
        0..5 => user_events(machine, vcpu),
        5..8 => timer(machine, vcpu),
        8..13 => sleep(machine, vcpu),
        13 => futex(machine, vcpu),
        14 => port(machine, vcpu),
        15 => machine.steal(vcpu),
        16 => lock(machine, vcpu),
        17 => fork(machine, vcpu),
        18 => nested_page_fault(machine, vcpu),
        _ if has_disk => disk(machine, vcpu),
        _ => system_calls(machine, vcpu),
    }
}

pub(super) fn system_calls(machine: &mut Machine, vcpu: u32) -> Done {
    for _ in 0..3 + machine.below(4) {
        let call = [0, 1, 3, 9, 39, 257][usize::try_from(machine.below(6))?];
        machine.sys_enter(vcpu, call, 3)?;
        if machine.below(8) == 0 {
            let address = machine.address();
            machine.guest(vcpu, &PAGE_FAULT, &[0x7f00_0000_1000, address, 6].map(Number))?;
        }
        if machine.below(2) == 0 {
            set_timer(machine, vcpu)?;
        }
        let value = if machine.below(20) == 0 { -11 } else { 64 };
        machine.sys_exit(vcpu, call, value)?;
    }
    Ok(())
}

/// The guest sets its timer, which KVM emulates.
fn set_timer(machine: &mut Machine, vcpu: u32) -> Done {
    let (thread, rip, deadline) = (machine.thread(vcpu), machine.address(), machine.vcpu(vcpu).time.cast_signed());
    machine.exit(vcpu, EXIT_MSR)?;
    machine.host(vcpu, vcpu, &KVM_MSR, &[thread, 1, 0x6e0, deadline, 0].map(Number))?;
    let instruction = [Number(thread), Number(rip), Number(0), Number(2), Text("0f306690"), Number(0), Number(0)];
    machine.host(vcpu, vcpu, &KVM_EMULATE, &instruction)?;
    machine.enter(vcpu)
}

/// The timer's tick takes the CPU from one task and gives it to another.
fn timer(machine: &mut Machine, vcpu: u32) -> Done {
    machine.exit(vcpu, EXIT_INTERRUPT)?;
    machine.inject(vcpu, TIMER_VECTOR)?;
    machine.timer(vcpu, |machine| if machine.below(4) == 0 { machine.migrate_one(vcpu) } else { Ok(()) })?;
    if !machine.vcpu(vcpu).ready.is_empty() {
        machine.switch(vcpu, PREEMPTED)?;
    }
    Ok(())
}

/// The task sleeps, and where no other one is ready, the vCPU until its timer wakes one.
pub(super) fn sleep(machine: &mut Machine, vcpu: u32) -> Done {
    let task = machine.vcpu(vcpu).running;
    machine.switch(vcpu, SLEEPS)?;
    machine.vcpu(vcpu).asleep.push_back(task);
    idle(machine, vcpu)
}

/// While the vCPU is idle it halts.
fn idle(machine: &mut Machine, vcpu: u32) -> Done {
    while machine.vcpu(vcpu).running.tid() == 0 {
        machine.halt(vcpu, TIMER_VECTOR)?;
        machine.timer(vcpu, |machine| machine.wake_one(vcpu))?;
        machine.switch(vcpu, 0)?;
    }
    Ok(())
}

/// The task waits for a futex while another one runs, which wakes it.
pub(super) fn futex(machine: &mut Machine, vcpu: u32) -> Done {
    machine.wake_one(vcpu)?;
    let waiter = machine.vcpu(vcpu).running;
    let futex = 0x7f00_0000_2000 + machine.below(16) * 64;
    machine.sys_enter(vcpu, CALL_FUTEX, futex)?;
    machine.switch(vcpu, SLEEPS)?;
    machine.wait(vcpu, 20 * MICROSECOND);
    machine.wake(vcpu, waiter)?;
    while machine.vcpu(vcpu).running != waiter {
        machine.switch(vcpu, PREEMPTED)?;
    }
    machine.sys_exit(vcpu, CALL_FUTEX, 0)
}

/// The guest writes to a port, which the VMM answers.
pub(super) fn port(machine: &mut Machine, vcpu: u32) -> Done {
    let thread = machine.thread(vcpu);
    let rip = machine.address();
    machine.exit(vcpu, EXIT_IO)?;
    let instruction = [Number(thread), Number(rip), Number(0), Number(1), Text("ee89d0c3"), Number(0), Number(0)];
    machine.host(vcpu, vcpu, &KVM_EMULATE, &instruction)?;
    machine.host(vcpu, vcpu, &KVM_PIO, &[thread, 1, 0x3f8, 1, 1, 0x61].map(Number))?;
    machine.host(vcpu, vcpu, &KVM_USERSPACE_EXIT, &[thread, KVM_EXIT_IO, 0].map(Number))?;
    machine.vmm(vcpu, vcpu, &VCPU_EXIT, &[vcpu.into(), KVM_EXIT_IO].map(Number))?;
    machine.vmm(vcpu, vcpu, &PORT_ACCESS, &[vcpu.into(), 0x3f8, 1, 1, 0x61].map(Number))?;
    machine.vmm(vcpu, vcpu, &VCPU_ENTER, &[Number(vcpu.into())])?;
    machine.enter(vcpu)
}

/// The task waits for a mutex that another task holds.
pub(super) fn lock(machine: &mut Machine, vcpu: u32) -> Done {
    machine.wake_one(vcpu)?;
    let waiter = machine.vcpu(vcpu).running;
    let (lock, caller) = (machine.below(24), machine.below(4));
    let address = 0xffff_8880_0100_0000_u64 + lock * 64;
    let stack = [lock, 100 + caller, 200].map(|function| TEXT + function * FUNCTION + 0x10);
    machine.guest(vcpu, &LOCK_BEGIN, &[Number(address.cast_signed()), Number(MUTEX)])?;
    machine.guest(vcpu, &LOCK_STACK, &[Numbers(&stack)])?;
    machine.switch(vcpu, WAITS)?;
    machine.wait(vcpu, 30 * MICROSECOND);
    machine.wake(vcpu, waiter)?;
    while machine.vcpu(vcpu).running != waiter {
        machine.switch(vcpu, PREEMPTED)?;
    }
    machine.guest(vcpu, &LOCK_END, &[Number(address.cast_signed()), Number(0)])
}

/// The task forks a process, which runs for a moment and ends.
fn fork(machine: &mut Machine, vcpu: u32) -> Done {
    let parent = machine.vcpu(vcpu).running;
    let Some(child) = machine.child() else { return system_calls(machine, vcpu) };
    let (name, of_child) = (parent.comm(), child.comm());
    machine.sys_enter(vcpu, CALL_CLONE, FORK_FLAGS)?;
    let newtask = [Number(child.tid()), Text(&name), Number(0), Number(0)];
    machine.guest(vcpu, &NEWTASK, &newtask)?;
    machine.guest(vcpu, &FORK, &[Text(&name), Number(parent.tid()), Text(&of_child), Number(child.tid())])?;
    let wakeup = [Text(&of_child), Number(child.tid()), Number(120), Number(vcpu.into())];
    machine.guest(vcpu, &WAKEUP_NEW, &wakeup)?;
    machine.sys_exit(vcpu, CALL_CLONE, child.tid())?;
    machine.vcpu(vcpu).ready.push_front(child);
    machine.switch(vcpu, PREEMPTED)?;
    machine.sys_exit(vcpu, CALL_CLONE, 0)?;
    system_calls(machine, vcpu)?;
    machine.sys_enter(vcpu, CALL_EXIT_GROUP, 0)?;
    machine.guest(vcpu, &PROCESS_EXIT, &[Text(&of_child), Number(child.tid()), Number(120)])?;
    machine.switch(vcpu, DEAD)
}

/// KVM maps a page of the guest's memory.
pub(super) fn nested_page_fault(machine: &mut Machine, vcpu: u32) -> Done {
    machine.exit(vcpu, EXIT_NPF)?;
    machine.wait(vcpu, 5 * MICROSECOND);
    machine.enter(vcpu)
}

/// The task, one of a process that records events, does something.
pub(super) fn user_events(machine: &mut Machine, vcpu: u32) -> Done {
    let Some(pid) = machine.vcpu(vcpu).running.recording_process() else {
        return system_calls(machine, vcpu);
    };
    let round = machine.below(1 << 20).cast_signed();
    machine.user(vcpu, pid, &ROUND_BEGIN, &[Number(vcpu.into()), Number(round)])?;
    system_calls(machine, vcpu)?;
    machine.user(vcpu, pid, &FILE_READ, &[Text("/var/lib/data"), Number(65_536)])?;
    machine.user(vcpu, pid, &ROUND_END, &[Number(vcpu.into()), Number(round)])
}

/// The task reads from the disk and sleeps until it is answered.
fn disk(machine: &mut Machine, vcpu: u32) -> Done {
    let request = Disk::issue(machine, vcpu)?;
    request.serve(machine, 40 * MICROSECOND)?;
    machine.exit(vcpu, EXIT_INTERRUPT)?;
    request.complete(machine)?;
    request.go_on(machine)
}

/// A request to the disk.
pub(super) struct Disk {
    vcpu: u32,
    reader: Task,
    sector: i64,
}

impl Disk {
    /// The task on `vcpu` reads, and sleeps.
    pub(super) fn issue(machine: &mut Machine, vcpu: u32) -> Result<Self, Box<dyn Error>> {
        let (reader, thread) = (machine.vcpu(vcpu).running, machine.thread(vcpu));
        machine.next_sector = (machine.next_sector + SECTORS.cast_unsigned()) % (1 << 24);
        let sector = machine.next_sector.cast_signed();
        machine.sys_enter(vcpu, CALL_READ, 4)?;
        let issue = [
            Number(DISK),
            Number(sector),
            Number(SECTORS),
            Number(SECTORS * 512),
            Text("R"),
            Text(&reader.comm()),
            Text(""),
        ];
        machine.guest(vcpu, &BLOCK_ISSUE, &issue)?;
        machine.exit(vcpu, EXIT_NPF)?;
        machine.host(vcpu, vcpu, &KVM_MMIO, &[thread, 2, 4, DISK_PAGE + 0x50, 0].map(Number))?;
        machine.enter(vcpu)?;
        machine.switch(vcpu, WAITS)?;
        Ok(Self { vcpu, reader, sector })
    }

    /// The VMM's thread for devices serves it, which takes about `ticks`.
    pub(super) fn serve(&self, machine: &mut Machine, ticks: u64) -> Done {
        let vcpu = self.vcpu;
        machine.host_wake(vcpu, DEVICE_CPU, 0, DEVICE_THREAD)?;
        machine.host_switch_on(vcpu, DEVICE_CPU, (0, 0), (DEVICE_THREAD, "strata"))?;
        machine.vmm(vcpu, DEVICE_CPU, &DISK_NOTIFIED, &[Number(0)])?;
        for done in [0, 1] {
            let request = [Number(0), Text("read"), Number(self.sector), Number(SECTORS * 512), Number(done)];
            machine.vmm(vcpu, DEVICE_CPU, &BLOCK_REQUEST, &request)?;
            machine.wait(vcpu, ticks);
        }
        machine.vmm(vcpu, DEVICE_CPU, &DISK_INTERRUPT, &[Number(0)])?;
        machine.host_switch_on(vcpu, DEVICE_CPU, (DEVICE_THREAD, SLEEPS), (0, "swapper"))
    }

    /// The interrupt reaches the guest, which wakes the task.
    pub(super) fn complete(&self, machine: &mut Machine) -> Done {
        let Self { vcpu, reader, sector } = *self;
        machine.inject(vcpu, DISK_VECTOR)?;
        machine.guest(vcpu, &IRQ_ENTRY, &[Number(24), Text("virtio0")])?;
        machine.guest(vcpu, &SOFTIRQ_RAISE, &[Number(4)])?;
        machine.guest(vcpu, &IRQ_EXIT, &[24, 1].map(Number))?;
        machine.guest(vcpu, &SOFTIRQ_ENTRY, &[Number(4)])?;
        let complete = [Number(DISK), Number(sector), Number(SECTORS), Number(0), Text("R"), Text("")];
        machine.guest(vcpu, &BLOCK_COMPLETE, &complete)?;
        machine.wake(vcpu, reader)?;
        machine.guest(vcpu, &SOFTIRQ_EXIT, &[Number(4)])?;
        machine.end_of_interrupt(vcpu, DISK_VECTOR)
    }

    /// The task goes on.
    pub(super) fn go_on(&self, machine: &mut Machine) -> Done {
        let Self { vcpu, reader, .. } = *self;
        while machine.vcpu(vcpu).running != reader {
            machine.switch(vcpu, PREEMPTED)?;
        }
        machine.sys_exit(vcpu, CALL_READ, SECTORS * 512)
    }
}
