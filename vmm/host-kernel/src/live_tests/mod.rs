//! Tests against the real kernel. They need root and tracefs, and say so loudly where there is neither.
// Reading the time stamp counter, to compare it with the trace clock, and giving memory to a guest.
#![allow(unsafe_code)]

use super::item::HostItem;
use super::namespace::check_thread_ids;
use super::reader::{Reader, Rest};
use super::schema::{EventName, EventSchema};
use super::stats::ReaderStats;
use super::switches::{self, Switches};
use super::tracefs::{self, Instance, ThreadFilter, Tracefs, TracefsError};
use super::tracer::{HostTraceConfig, HostTraceSummary, HostTracer};
use crate::switches::filter::SwitchFields;
use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit};
use shared_ring::event::FieldDescription;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use strata_clock::HostTime;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use wildmatch::WildMatch;

mod life;
mod trace_cmd;

/// Set for the child process that aborts while it traces.
const ABORT_VARIABLE: &str = "STRATA_TEST_ABORT_WHILE_TRACING";

/// Tracefs, or `None` with the reason on standard error.
fn live_tracefs(test: &str) -> Option<Tracefs> {
    let tracefs = check_thread_ids().map_err(TracefsError::from).and_then(|()| Tracefs::find()).and_then(|tracefs| {
        Instance::create(&tracefs, "x86-tsc", 8, &[thread_id()])?;
        Ok(tracefs)
    });
    tracefs.inspect_err(|error| eprintln!("SKIPPED {test}: no usable tracefs here: {error} ({})", error.fix())).ok()
}

fn thread_id() -> u32 {
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap()
}

fn config(events: &[&str], buffer_kib: u32) -> HostTraceConfig {
    let wanted: Vec<WildMatch> = events.iter().map(|glob| WildMatch::new(glob)).collect();
    let mut available = Tracefs::find().unwrap().available_events().unwrap();
    available.retain(|event| wanted.iter().any(|glob| glob.matches(&event.to_string())));
    HostTraceConfig {
        events: available,
        process: std::process::id(),
        threads: vec![thread_id()],
        takes_more: true,
        time: HostTime::Tsc,
        buffer_kib,
    }
}

fn instance_path(tracer: &HostTracer) -> PathBuf {
    tracer.reader.instance().path("")
}

/// Stops recording; returns what the kernel itself makes of the instances: its text for each.
fn stop_and_read_text(tracer: &HostTracer) -> Vec<String> {
    let readers = [Some(&tracer.reader), tracer.switches.as_ref().map(Switches::reader)];
    let readers: Vec<&Reader> = readers.into_iter().flatten().collect();
    readers.iter().for_each(|reader| reader.stop().unwrap());
    readers.iter().map(|reader| fs::read_to_string(reader.instance().path("trace")).unwrap()).collect()
}

/// Makes this thread wait for another one and back, `times` times. Through pipes: a channel's receiver spins before it
/// sleeps, and may see the answer without a switch.
fn switch_to_and_fro(times: usize) {
    let (mut ping_in, mut ping) = io::pipe().unwrap();
    let (mut pong_in, mut pong) = io::pipe().unwrap();
    let mut byte = [0];
    let other = thread::spawn(move || {
        let mut byte = [0];
        while ping_in.read(&mut byte).unwrap() > 0 {
            pong.write_all(&byte).unwrap();
        }
    });
    for _ in 0..times {
        ping.write_all(&byte).unwrap();
        pong_in.read_exact(&mut byte).unwrap();
    }
    drop(ping);
    other.join().unwrap();
}

/// Makes this many system calls. A number of them, not a time: in a time, a busy machine makes none.
fn make_system_calls(calls: u32) {
    for _ in 0..calls {
        let _ = rustix::process::getppid();
    }
}

/// An event as both the raw pages and the kernel's text show it: time and `name pid`.
type Seen = (u64, String);

/// The lines of the kernel's own text output: CPU, time, `name pid`, and the fields' text.
fn lines_of_text(text: &str) -> impl Iterator<Item = (u32, u64, String, &str)> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        // "           comm-123     [001] d..2. 123456789: sched_switch: prev_comm=…"
        let (task, rest) = line.split_once(" [").unwrap();
        let (cpu, rest) = rest.split_once("] ").unwrap();
        let (time, rest) = rest.split_once(": ").unwrap();
        let time = time.split_whitespace().next_back().unwrap();
        // System calls are shown in forms of their own: "sys_enter: NR 39 (…)" or "sys_getppid(…)".
        let name = rest.split([':', '(']).next().unwrap();
        let pid = task.rsplit_once('-').unwrap().1.trim();
        (cpu.parse().unwrap(), time.parse().unwrap(), format!("{name} {pid}"), rest)
    })
}

/// The events of the kernel's own text output, by CPU, in its order.
fn events_of_text(text: &str) -> BTreeMap<u32, Vec<Seen>> {
    let mut events: BTreeMap<u32, Vec<Seen>> = BTreeMap::new();
    for (cpu, time, seen, _) in lines_of_text(text) {
        events.entry(cpu).or_default().push((time, seen));
    }
    events
}

/// The first pair of events that are not of the same time, with their CPU and index: both lists are too long to show.
fn first_difference(
    a: &BTreeMap<u32, Vec<Seen>>,
    b: &BTreeMap<u32, Vec<Seen>>,
) -> Option<(u32, usize, Option<Seen>, Option<Seen>)> {
    let none = Vec::new();
    a.keys().chain(b.keys()).find_map(|cpu| {
        let (a, b) = (a.get(cpu).unwrap_or(&none), b.get(cpu).unwrap_or(&none));
        (0..a.len().max(b.len()))
            .map(|index| (*cpu, index, a.get(index).cloned(), b.get(index).cloned()))
            .find(|(_, _, a, b)| a.as_ref().map(|a| a.0) != b.as_ref().map(|b| b.0))
    })
}

/// Stops and drains the tracer: its events by CPU, in the order of the records, and the summary.
fn drain(tracer: &mut HostTracer) -> (BTreeMap<u32, Vec<Seen>>, HostTraceSummary) {
    let schemas = tracer.schemas().clone();
    let mut events: BTreeMap<u32, Vec<Seen>> = BTreeMap::new();
    let summary = tracer
        .finish(&mut |item: HostItem<'_>| {
            if let HostItem::Record(record) = item {
                let name = &schemas.get(record.event_id).unwrap().name.name;
                events.entry(record.cpu).or_default().push((record.time, format!("{name} {}", record.common_pid)));
            }
        })
        .unwrap();
    (events, summary)
}

/// The value of an integer field in a packed record.
fn packed_integer(schema: &EventSchema, packed: &[u8], name: &str) -> u64 {
    let fields = &schema.description.fields;
    let index = fields.iter().position(|field| field.name == name).unwrap();
    let size = |field: &FieldDescription| field.ty.fixed_size().unwrap();
    let offset: usize = fields[..index].iter().map(size).sum();
    let mut value = [0; 8];
    value[..size(&fields[index])].copy_from_slice(&packed[offset..offset + size(&fields[index])]);
    u64::from_le_bytes(value)
}

fn wait_until_gone(path: &Path) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while path.exists() && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    !path.exists()
}

#[test]
fn switches_have_the_times_and_fields_of_the_kernels_own_text() {
    let Some(_tracefs) = live_tracefs("switches") else {
        return;
    };
    let mut tracer = HostTracer::start(&config(&["sched:sched_switch"], 16384)).unwrap();
    let before = clock();
    switch_to_and_fro(2000);
    let after = clock();
    let text = stop_and_read_text(&tracer).concat();

    let schema = tracer.schemas().iter().next().unwrap().clone();
    let ours = u64::from(thread_id());
    let mut from_pages: BTreeMap<u32, Vec<(u64, u64, u64)>> = BTreeMap::new();
    let mut packed = Vec::new();
    let summary = tracer
        .finish(&mut |item: HostItem<'_>| {
            let HostItem::Record(record) = item else { panic!("{item:?}") };
            packed.clear();
            schema.encode(record.payload, &mut packed).unwrap();
            from_pages.entry(record.cpu).or_default().push((
                record.time,
                packed_integer(&schema, &packed, "prev_pid"),
                packed_integer(&schema, &packed, "next_pid"),
            ));
        })
        .unwrap();

    let mut from_text: BTreeMap<u32, Vec<(u64, u64, u64)>> = BTreeMap::new();
    for (cpu, time, _, fields) in lines_of_text(&text) {
        let number = |key: &str| -> u64 {
            let value = fields.split_once(key).unwrap().1;
            value.split_whitespace().next().unwrap().parse().unwrap()
        };
        from_text.entry(cpu).or_default().push((time, number(" prev_pid="), number(" next_pid=")));
    }
    let is_ours = |switch: &(u64, u64, u64)| switch.1 == ours || switch.2 == ours;
    let flat = |switches: &BTreeMap<u32, Vec<(u64, u64, u64)>>| -> BTreeSet<(u32, (u64, u64, u64))> {
        switches.iter().flat_map(|(cpu, switches)| switches.iter().map(|switch| (*cpu, *switch))).collect()
    };
    let (pages, text) = (flat(&from_pages), flat(&from_text));
    let count = pages.iter().filter(|(_, switch)| is_ours(switch)).count();
    let times = pages.iter().map(|(_, switch)| switch.0);
    assert!(count >= 2000, "only {count} switches");
    assert!(times.clone().min().unwrap() < after && times.max().unwrap() > before);
    assert_eq!(pages.difference(&text).next(), None);
    assert_eq!(text.difference(&pages).find(|(_, switch)| is_ours(switch)), None);
    assert_eq!(pages.len() as u64 + summary.unrelated_switches, text.len() as u64);
    assert_eq!(summary.lost(), 0);
    assert_eq!(summary.read.times_raised, 0);
}

/// The trace clock, read by us.
fn clock() -> u64 {
    // SAFETY: RDTSC has no operands and is there on every x86-64 processor; strata runs on no other.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[test]
fn nested_events_have_the_times_of_the_kernels_own_text() {
    let Some(_tracefs) = live_tracefs("nested events") else {
        return;
    };
    let events = ["raw_syscalls:*", "irq:*", "irq_vectors:*", "timer:*", "sched:sched_w*", "rcu:*"];
    let mut tracer = HostTracer::start(&config(&events, 65536)).unwrap();
    make_system_calls(100_000);
    let text = stop_and_read_text(&tracer).concat();

    let (from_pages, summary) = drain(&mut tracer);

    let from_text = events_of_text(&text);
    assert!(summary.read.records >= 200_000, "{summary:?}");
    assert_eq!(summary.lost(), 0, "{summary:?}");
    assert_eq!(first_difference(&from_pages, &from_text), None);
    assert_eq!(summary.read.times_raised, 0);
    assert_eq!(summary.read.malformed_pages, 0);
}

#[test]
fn every_overwritten_event_is_reported_as_lost() {
    let Some(_tracefs) = live_tracefs("losses") else {
        return;
    };
    let mut tracer = HostTracer::start(&config(&["raw_syscalls:*"], 16)).unwrap();
    make_system_calls(20_000);

    let (_, summary) = drain(&mut tracer);

    let overrun: u64 = summary.cpus.iter().map(|cpu| cpu.stats.overrun).sum();
    assert!(overrun > 0, "{summary:?}");
    assert_eq!(summary.read.lost, overrun);
    assert_eq!(summary.read.lost_unknown, 0);
    assert_eq!(summary.lost(), overrun);
    assert_eq!(summary.read.records + overrun, summary.recorded());
}

#[test]
fn buffers_have_room_until_one_is_a_quarter_full() {
    let Some(_tracefs) = live_tracefs("room") else {
        return;
    };
    let mut tracer = HostTracer::start(&config(&["raw_syscalls:*"], 1024)).unwrap();

    make_system_calls(100);
    let with_few = tracer.has_room();
    make_system_calls(20_000);
    let with_many = tracer.has_room();
    while tracer.poll(&mut |_: HostItem<'_>| ()).unwrap() != Rest::Nothing {}

    assert_eq!([with_few, with_many, tracer.has_room()], [true, false, true]);
}

#[test]
fn polling_while_events_arrive_loses_and_repeats_none() {
    let Some(_tracefs) = live_tracefs("polling") else {
        return;
    };
    let mut tracer = HostTracer::start(&config(&["sched:sched_switch"], 4096)).unwrap();
    let mut times: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut sink = |item: HostItem<'_>| {
        let HostItem::Record(record) = item else { panic!("{item:?}") };
        times.entry(record.cpu).or_default().push(record.time);
    };

    for _ in 0..50 {
        switch_to_and_fro(20);
        tracer.poll(&mut sink).unwrap();
    }
    let summary = tracer.finish(&mut sink).unwrap();

    let in_order = times.values().all(|times| times.windows(2).all(|pair| pair[0] < pair[1]));
    let read: u64 = summary.cpus.iter().map(|cpu| cpu.stats.read).sum();
    assert!(in_order);
    let handed_on: usize = times.values().map(Vec::len).sum();
    assert!(handed_on >= 1000, "{summary:?}");
    assert_eq!(summary.read.records, read);
    assert_eq!(handed_on as u64 + summary.unrelated_switches, read);
}

/// A record as it came: the event's number and the whole payload.
type Raw = (u16, Vec<u8>);

/// What pages of `page_kib` KiB hold of this thread's system calls, and how many pages there were. `None` where the
/// kernel has no pages of that size.
fn system_calls_in_pages(tracefs: &Tracefs, page_kib: u32) -> Option<(Vec<Raw>, u64)> {
    let instance = Instance::create(tracefs, "x86-tsc", 4096, &[thread_id()]).unwrap();
    fs::write(instance.path("buffer_subbuf_size_kb"), page_kib.to_string()).ok()?;
    let events = ["sys_enter", "sys_exit"].map(|name| EventName { group: "raw_syscalls".into(), name: name.into() });
    events.iter().for_each(|event| instance.enable(event).unwrap());
    let mut reader = Reader::open(Arc::new(instance)).unwrap();
    reader.instance().start().unwrap();
    make_system_calls(5000);
    let mut records = Vec::new();
    let mut sink = |item: HostItem<'_>| {
        let HostItem::Record(record) = item else { panic!("{item:?}") };
        records.push((record.time, record.event_id, record.payload.to_vec()));
    };
    // The page that is being written is read in part, and then the rest of it.
    reader.poll(&mut sink).unwrap();
    reader.finish(&mut sink).unwrap();
    let getppid = libc::SYS_getppid.to_le_bytes();
    records.retain(|(_, _, payload)| payload.get(8..16) == Some(&getppid));
    records.sort_by_key(|(time, ..)| *time);
    let records = records.into_iter().map(|(_, event_id, payload)| (event_id, payload)).collect();
    Some((records, reader.stats().pages))
}

#[test]
fn pages_of_any_size_deliver_the_same_records() {
    let Some(tracefs) = live_tracefs("page sizes") else {
        return;
    };

    let small = system_calls_in_pages(&tracefs, 4);
    let large = system_calls_in_pages(&tracefs, 16);

    let Some(((small, small_pages), (large, large_pages))) = small.zip(large) else {
        eprintln!("SKIPPED page sizes: the kernel has pages of one size only");
        return;
    };
    assert_eq!(small.len(), 10_000);
    assert!(small_pages > 2 * large_pages, "{small_pages} and {large_pages} pages");
    let calls = |records: &[Raw]| -> Vec<Raw> {
        // The thread and the number; arguments that are not used hold what was in the registers.
        records.iter().map(|(event_id, payload)| (*event_id, payload[4..16].to_vec())).collect()
    };
    assert!(calls(&small) == calls(&large));
}

#[test]
fn every_event_of_this_kernel_has_a_schema() {
    let Some(tracefs) = live_tracefs("schemas") else {
        return;
    };
    let instance = Instance::create(&tracefs, "x86-tsc", 8, &[thread_id()]).unwrap();
    let events = tracefs.available_events().unwrap();

    let schemas: Vec<EventSchema> = events.iter().map(|event| instance.schema(event).unwrap()).collect();

    let fields: usize = schemas.iter().map(|schema| schema.description.fields.len()).sum();
    let skipped: Vec<String> = schemas
        .iter()
        .flat_map(|schema| schema.skipped.iter().map(|field| format!("{} {}", schema.name, field.declaration)))
        .collect();
    eprintln!("{} events, {fields} fields, skipped: {skipped:#?}", schemas.len());
    assert!(schemas.len() > 100);
    assert!(skipped.len() * 100 < fields);
    let kvm_skipped = skipped.iter().filter(|field| field.starts_with("kvm:")).count();
    assert_eq!(kvm_skipped, 0);
}

/// Runs a guest that writes to port 0x10 this many times, in this thread, and halts.
fn run_guest_with_port_writes(kvm: &Kvm, writes: u16) {
    const START: u64 = 0x1000;
    let [low, high] = writes.to_le_bytes();
    // mov cx, writes; again: out 0x10, al; loop again; hlt
    let code = [0xb9, low, high, 0xe6, 0x10, 0xe2, 0xfc, 0xf4];
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x2000)]).unwrap();
    memory.write_slice(&code, GuestAddress(START)).unwrap();
    let vm = kvm.create_vm().unwrap();
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: 0x2000,
        userspace_addr: u64::try_from(memory.get_host_address(GuestAddress(0)).unwrap().addr()).unwrap(),
    };
    // SAFETY: the memory is mapped for as long as the virtual machine lives: it is dropped after it.
    unsafe { vm.set_user_memory_region(region) }.unwrap();
    let mut vcpu = vm.create_vcpu(0).unwrap();
    let mut sregs = vcpu.get_sregs().unwrap();
    sregs.cs.base = 0;
    sregs.cs.selector = 0;
    vcpu.set_sregs(&sregs).unwrap();
    vcpu.set_regs(&kvm_regs { rip: START, rflags: 2, ..Default::default() }).unwrap();
    let mut seen = 0;
    while matches!(vcpu.run().unwrap(), VcpuExit::IoOut(0x10, _)) {
        seen += 1;
    }
    assert_eq!(seen, writes);
}

#[test]
fn port_writes_of_a_guest_are_seen_by_the_hosts_kernel() {
    let Some(_tracefs) = live_tracefs("guest") else {
        return;
    };
    let Ok(kvm) = Kvm::new().inspect_err(|error| eprintln!("SKIPPED guest: no /dev/kvm here: {error}")) else {
        return;
    };
    let mut tracer = HostTracer::start(&config(&["kvm:*"], 4096)).unwrap();
    run_guest_with_port_writes(&kvm, 500);

    let schemas = tracer.schemas().clone();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut ports = Vec::new();
    let mut packed = Vec::new();
    tracer
        .finish(&mut |item: HostItem<'_>| {
            let HostItem::Record(record) = item else { panic!("{item:?}") };
            let schema = schemas.get(record.event_id).unwrap();
            packed.clear();
            schema.encode(record.payload, &mut packed).unwrap();
            assert!(schema.description.accepts(&packed));
            *counts.entry(schema.name.name.clone()).or_default() += 1;
            if schema.name.name == "kvm_pio" {
                ports.push(packed_integer(schema, &packed, "port"));
            }
        })
        .unwrap();

    eprintln!("{counts:?}");
    assert_eq!(ports, vec![0x10; 500]);
    assert!(counts["kvm_userspace_exit"] >= 500, "{counts:?}");
}
