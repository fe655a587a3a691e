//! A recording with a story, for those who have none to look at: `dd` reads a disk on one vCPU, threads of a web server run on
//! the other one, and now and then a backup of the host takes the CPU of the vCPU that `dd` waits on.

use super::machine::*;
use super::scenes::{self, Disk};

/// Requests of `dd`.
const READS: u32 = 120;
/// The vCPU of `dd`; threads of the server run on the other one.
const DD_VCPU: u32 = 1;
const WEB_VCPU: u32 = 0;
/// For how long the server's vCPU is idle at a time.
const IDLE: u64 = 700 * MICROSECOND;
/// What `dd` does between two requests takes so long.
const BETWEEN: u64 = 900 * MICROSECOND;
/// For how long the disk works at a request, and the VMM behind that.
const DISK: u64 = 90 * MICROSECOND;
/// When the backup runs: the number of a request, and for about how many microseconds it keeps the halted vCPU from the
/// request's interrupt, takes the CPU before `dd` goes on, and takes it while `dd` runs.
const BACKUPS: [(u32, [u64; 3]); 9] = [
    (31, [4_400, 2_100, 3_300]),
    (32, [7_300, 2_900, 1_900]),
    (33, [3_800, 1_700, 2_700]),
    (34, [5_200, 2_500, 4_100]),
    (86, [6_200, 2_900, 3_600]),
    (87, [11_300, 3_000, 2_400]),
    (88, [12_900, 5_200, 3_900]),
    (89, [8_900, 3_200, 4_800]),
    (90, [4_100, 1_900, 3_100]),
];

/// Who runs on `vcpu`.
pub(super) fn tasks(vcpu: u32) -> Vec<Task> {
    if vcpu == DD_VCPU { vec![Task::DD] } else { Task::WEB.to_vec() }
}

/// Lets all of it happen.
pub(super) fn write_story(machine: &mut Machine) -> Done {
    machine.idle = IDLE;
    for number in 0..READS {
        let backup = BACKUPS.into_iter().find(|(read, _)| *read == number);
        let backup = backup.map(|(_, lengths)| lengths.map(|length| length * MICROSECOND));
        read(machine, backup)?;
        scenes::system_calls(machine, DD_VCPU)?;
        if let Some([.., running]) = backup {
            machine.steal_by(DD_VCPU, BACKUP_THREAD, running)?;
        }
        machine.wait(DD_VCPU, BETWEEN);
        while machine.vcpu(WEB_VCPU).time < machine.vcpu(DD_VCPU).time {
            serve_web(machine)?;
        }
        machine.meet();
    }
    Ok(())
}

/// A thread of the server does something.
fn serve_web(machine: &mut Machine) -> Done {
    match machine.below(12) {
        0..3 => scenes::user_events(machine, WEB_VCPU),
        3..5 => scenes::system_calls(machine, WEB_VCPU),
        5 => scenes::futex(machine, WEB_VCPU),
        6 => scenes::lock(machine, WEB_VCPU),
        7 => scenes::nested_page_fault(machine, WEB_VCPU),
        8 => scenes::port(machine, WEB_VCPU),
        _ => scenes::sleep(machine, WEB_VCPU),
    }
}

/// `dd` reads, and nothing else runs on its vCPU, which halts meanwhile. A backup takes the vCPU's CPU for so many ticks
/// while it halts, and again before `dd` goes on.
fn read(machine: &mut Machine, backup: Option<[u64; 3]>) -> Done {
    let (vcpu, thread) = (DD_VCPU, machine.thread(DD_VCPU));
    let request = Disk::issue(machine, vcpu)?;
    machine.exit(vcpu, EXIT_HLT)?;
    match backup {
        None => {
            machine.host_switch(vcpu, (thread, SLEEPS), (0, "swapper"))?;
            request.serve(machine, DISK)?;
            machine.host_wake(vcpu, vcpu, 0, thread)?;
            machine.host_switch(vcpu, (0, 0), (thread, "vcpu"))?;
        }
        Some([late, ..]) => {
            machine.host_wake(vcpu, vcpu, thread, BACKUP_THREAD)?;
            machine.host_switch(vcpu, (thread, SLEEPS), (BACKUP_THREAD, "backup"))?;
            request.serve(machine, DISK)?;
            machine.host_wake(vcpu, vcpu, BACKUP_THREAD, thread)?;
            machine.run_on(vcpu, BACKUP_THREAD, late)?;
            machine.host_switch(vcpu, (BACKUP_THREAD, SLEEPS), (thread, "vcpu"))?;
        }
    }
    request.complete(machine)?;
    if let Some([_, ready, _]) = backup {
        machine.steal_by(vcpu, BACKUP_THREAD, ready)?;
    }
    request.go_on(machine)
}
