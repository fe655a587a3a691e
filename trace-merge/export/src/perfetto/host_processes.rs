//! The processes of a host that run VMs or record them, with their threads.

use super::packets::PacketWriter;
use super::proto::{self, ProcessTree};
use super::tracks;
use std::collections::BTreeSet;
use std::io::Write;
use strata_analysis::timeline::Timeline;
use strata_recording::manifest::Vm;
use strata_recording::text::terminal::harmless;

/// A process, and its threads with their names as far as those are known.
struct Process {
    pid: i32,
    name: String,
    threads: Vec<(i32, Option<String>)>,
}

/// Describes the processes of `vms`, which the manifest has in the order of the timeline's.
pub(super) fn introduce<W: Write>(out: &mut PacketWriter<W>, vms: &[Vm], timeline: &Timeline, time: u64) {
    let mut described = BTreeSet::new();
    for (vm, known) in vms.iter().zip(&timeline.vms) {
        for process in processes(vm) {
            // One process may record several VMs.
            if described.insert((known.host, process.pid)) {
                describe(out, known.host, &process, time);
            }
        }
    }
}

/// The process of strata, and that of the VM where it is another one. Numbers below 0 are those of another PID namespace.
fn processes(vm: &Vm) -> impl Iterator<Item = Process> {
    // The kernel lists the first thread, whose number is the process's, before the others.
    let strata = vm.strata_threads.first().map(|first| Process {
        pid: first.tid,
        name: harmless(&first.name),
        threads: vm.strata_threads.iter().map(|thread| (thread.tid, Some(harmless(&thread.name)))).collect(),
    });
    let attached = vm.attached.as_ref().map(|attached| Process {
        pid: i32::try_from(attached.pid).unwrap_or(-1),
        name: attached.comm.to_string(),
        threads: vm.all_vcpu_threads().map(|(_, tid)| (tid, None)).collect(),
    });
    strata.into_iter().chain(attached).filter(|process| process.pid > 0)
}

fn describe<W: Write>(out: &mut PacketWriter<W>, host: usize, process: &Process, time: u64) {
    let named = |(tid, name): &(i32, Option<String>)| proto::Thread {
        tid: Some(*tid),
        name: name.clone(),
        tgid: Some(process.pid),
    };
    let described = proto::Process { pid: Some(process.pid), cmdline: vec![process.name.clone()] };
    let threads = process.threads.iter().filter(|(tid, _)| *tid > 0).map(named).collect();
    out.processes(tracks::host(host), time, ProcessTree { processes: vec![described], threads });
}
