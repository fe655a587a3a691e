use super::*;
use crate::recorder::tests::manifest;
use shared_ring::event::{FieldDescription, FieldType};
use strata_recording::manifest::Manifest;
use strata_recording::reader::Trace;
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;
use trace_merge::report::{self, Window};

const ENTRY: u16 = 1;
const EXIT: u16 = 2;
const RETURN: u16 = 3;
const SWITCH: u16 = 4;
const WAKING: u16 = 5;
/// Of no interest.
const OTHER: u16 = 6;
const IOIO: u32 = 0x7b;
const HLT: u32 = 0x78;
/// Time between two polls, ticks.
const POLL: u64 = 20_000;
const HOG: (i32, &str) = (200, "hog");
const IDLE: (i32, &str) = (0, "swapper");

fn events() -> Vec<EventDescription> {
    let event = |id, name: &str, fields: &[(&str, FieldType)]| {
        let field = |&(name, ty): &(&str, FieldType)| FieldDescription { name: name.into(), ty, hex: false };
        EventDescription { id, class: 0, name: name.into(), fields: fields.iter().map(field).collect() }
    };
    let (pid, comm) = (("common_pid", FieldType::I32), FieldType::CharArray(16));
    let vcpu = ("vcpu_id", FieldType::U32);
    vec![
        event(ENTRY, "kvm:kvm_entry", &[pid, vcpu]),
        event(EXIT, "kvm:kvm_exit", &[pid, ("exit_reason", FieldType::U32), ("isa", FieldType::U32), vcpu]),
        event(RETURN, "kvm:kvm_userspace_exit", &[pid, ("reason", FieldType::U32)]),
        event(
            SWITCH,
            "sched:sched_switch",
            &[
                pid,
                ("prev_comm", comm),
                ("prev_pid", FieldType::I32),
                ("prev_state", FieldType::I64),
                ("next_comm", comm),
                ("next_pid", FieldType::I32),
            ],
        ),
        event(
            WAKING,
            "sched:sched_waking",
            &[pid, ("comm", comm), ("pid", FieldType::I32), ("target_cpu", FieldType::I32)],
        ),
        event(OTHER, "irq:irq_handler_entry", &[pid]),
    ]
}

#[derive(Clone, Debug)]
struct Record {
    cpu: u32,
    time: u64,
    id: u16,
    payload: Vec<u8>,
}

fn record(cpu: u32, time: u64, id: u16, pid: i32, rest: &[&[u8]]) -> Record {
    let payload = [&[&pid.to_le_bytes()[..]], rest].concat().concat();
    Record { cpu, time, id, payload }
}

fn comm(name: &str) -> [u8; 16] {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name.as_bytes());
    comm
}

fn entry(cpu: u32, time: u64, vcpu: u32) -> Record {
    record(cpu, time, ENTRY, thread(vcpu).0, &[&vcpu.to_le_bytes()])
}

fn exit(cpu: u32, time: u64, vcpu: u32, reason: u32) -> Record {
    record(cpu, time, EXIT, thread(vcpu).0, &[&reason.to_le_bytes(), &2_u32.to_le_bytes(), &vcpu.to_le_bytes()])
}

fn switch(cpu: u32, time: u64, prev: (i32, &str), prev_state: i64, next: (i32, &str)) -> Record {
    let (prev_comm, next_comm) = (comm(prev.1), comm(next.1));
    let (prev_pid, next_pid) = (prev.0.to_le_bytes(), next.0.to_le_bytes());
    record(cpu, time, SWITCH, prev.0, &[&prev_comm, &prev_pid, &prev_state.to_le_bytes(), &next_comm, &next_pid])
}

fn waking(cpu: u32, time: u64, vcpu: u32) -> Record {
    let (tid, name) = thread(vcpu);
    record(cpu, time, WAKING, 0, &[&comm(name), &tid.to_le_bytes(), &vcpu.to_le_bytes()])
}

fn thread(vcpu: u32) -> (i32, &'static str) {
    if vcpu == 0 { (100, "vcpu0") } else { (101, "vcpu1") }
}

/// What CPU `vcpu` records of that vCPU: it leaves the guest again and again, is handled by KVM, then by the VMM, loses
/// its CPU to another thread, or is halted and woken by the other CPU. Times are even: a tick is half a nanosecond.
fn life(vcpu: u32, rounds: u64) -> Vec<Record> {
    let (mut records, mut time) = (vec![switch(vcpu, 1_000, IDLE, 0, thread(vcpu)), entry(vcpu, 1_010, vcpu)], 1_010);
    let mut pass = |ticks: u64| {
        time += ticks * 2;
        time
    };
    for round in 0..rounds {
        let long = (round * 7 + u64::from(vcpu) * 3) % 11;
        let reason = if round % 4 == 3 { HLT } else { IOIO };
        records.push(exit(vcpu, pass(1_000 + 40 * long), vcpu, reason));
        match round % 4 {
            1 => records.push(record(vcpu, pass(200), RETURN, thread(vcpu).0, &[&2_u32.to_le_bytes()])),
            2 => {
                records.push(switch(vcpu, pass(100), thread(vcpu), 0, HOG));
                records.push(switch(vcpu, pass(500 + 100 * long), HOG, 1, thread(vcpu)));
            }
            3 => {
                records.push(switch(vcpu, pass(100), thread(vcpu), 1, IDLE));
                records.push(waking(1 - vcpu, pass(2_000), vcpu));
                records.push(switch(vcpu, pass(30 + 10 * long), IDLE, 0, thread(vcpu)));
            }
            _ => records.push(record(vcpu, pass(10), OTHER, thread(vcpu).0, &[])),
        }
        records.push(entry(vcpu, pass(100), vcpu));
    }
    records
}

/// Records of both CPUs, in order.
fn both(rounds: u64) -> Vec<Record> {
    let mut all = [life(0, rounds), life(1, rounds)].concat();
    all.sort_by_key(|record| (record.time, record.cpu));
    all
}

fn manifest_of_two() -> Manifest {
    let mut manifest = manifest();
    (manifest.vms[0].vcpus, manifest.vms[0].vcpu_threads) = (2, vec![100, 101]);
    manifest
}

fn watch(since: u64) -> HostWatch {
    let manifest = manifest_of_two();
    let watch = HostWatch::new(&manifest.vms[0], &manifest.clock, HostTime::MonotonicRaw, events().iter());
    HostWatch { since, until: since, polled: since, ..watch }
}

/// Hands over what CPU after CPU has recorded since the last poll, poll after poll, as it comes from the kernel.
fn poll_all(watch: &mut HostWatch, records: &[Record]) {
    let last = records.last().unwrap().time;
    for poll in 0..=last / POLL {
        let period = poll * POLL..(poll + 1) * POLL;
        for cpu in 0..2 {
            let of_cpu = records.iter().filter(|record| record.cpu == cpu && period.contains(&record.time));
            of_cpu.for_each(|record| watch.add(cpu, record.time, record.id, &record.payload));
        }
        watch.end_poll(period.end);
    }
    watch.release(last);
}

#[test]
fn live_summary_says_what_the_reports_say_of_the_same_records() {
    let records = both(400);
    let dir = TempDir::new().unwrap();
    let mut manifest = manifest_of_two();
    let layer = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size: 64 << 10 };
    let mut writer = LayerWriter::create(dir.path(), &manifest, layer).unwrap();
    writer.add_events(&events()).unwrap();
    records.iter().for_each(|record| writer.record(record.cpu, record.time, record.id, &record.payload).unwrap());
    writer.flush().unwrap();
    manifest.layers.push(writer.layer());
    manifest.outcome = Some("done".into());
    manifest.save(dir.path()).unwrap();
    let trace = Trace::open(dir.path()).unwrap();
    let mut live = watch(records[0].time);

    poll_all(&mut live, &records);
    let live = live.request();
    let vcpus = report::scheduling::vcpus::report(&trace, Window::ALL).unwrap();
    let exits = report::kernels::exits::report(&trace, Window::ALL).unwrap();

    for (report, live) in vcpus.vms[0].vcpus.iter().zip(&live.vcpus) {
        let ns = |state: &str| report.parts.iter().filter(|part| part.state == state).map(|part| part.ns).sum::<u64>();
        let of_report = ["guest", "kvm", "vmm", "preempted", "woken", "halted", "unknown"].map(ns);
        let LiveVcpu { guest_ns, kvm_ns, vmm_ns, preempted_ns, woken_ns, halted_ns, unknown_ns, .. } = *live;
        assert_eq!([guest_ns, kvm_ns, vmm_ns, preempted_ns, woken_ns, halted_ns, unknown_ns], of_report);
        assert!(of_report[..6].iter().all(|&ns| ns > 0), "{of_report:?}");
    }
    for reason in &exits.vms[0].reasons {
        let live = live.exits.iter().find(|exits| exits.reason == *reason.reason).unwrap();
        assert_eq!((live.times.count, live.times.total_ns), (reason.time.count, reason.time.total_ns), "{live:?}");
    }
    let hog = live.thieves.iter().find(|thief| thief.name == "hog").unwrap();
    assert_eq!(hog.ns, live.vcpus.iter().map(|vcpu| vcpu.preempted_ns).sum::<u64>());
    assert_eq!((live.records, live.lost), (records.len() as u64, 0));
    assert_eq!(live.ready.total_ns, live.vcpus.iter().map(|vcpu| vcpu.preempted_ns + vcpu.woken_ns).sum::<u64>());
}

#[test]
fn sums_only_grow_and_are_as_long_as_the_time_that_passed() {
    let records = both(100);
    let mut watch = watch(records[0].time);

    poll_all(&mut watch, &records[..300]);
    let early = watch.request();
    poll_all(&mut watch, &records[300..]);
    let late = watch.request();

    for (early, late) in early.vcpus.iter().zip(&late.vcpus) {
        let parts = |vcpu: &LiveVcpu| -> Vec<u64> {
            let all = serde_json::to_value(vcpu).unwrap();
            all.as_object()
                .unwrap()
                .iter()
                .filter(|(name, _)| *name != "vcpu")
                .map(|(_, ns)| ns.as_u64().unwrap())
                .collect()
        };
        assert!(parts(early).iter().zip(parts(late)).all(|(early, late)| *early <= late));
    }
    let of = |watched: &Watched| watched.until_ns - watched.since_ns;
    let sum = |vcpu: &LiveVcpu| {
        let LiveVcpu { guest_ns, kvm_ns, vmm_ns, preempted_ns, woken_ns, halted_ns, blocked_ns, unknown_ns, .. } =
            *vcpu;
        guest_ns + kvm_ns + vmm_ns + preempted_ns + woken_ns + halted_ns + blocked_ns + unknown_ns
    };
    assert!(late.vcpus.iter().all(|vcpu| sum(vcpu) == of(&late)), "{late:?}");
    assert!(late.vcpus.iter().all(|vcpu| vcpu.unknown_ns < 100), "{late:?}");
}

#[test]
fn after_lost_records_a_vcpu_is_unknown_until_the_next_one_that_tells() {
    let mut watch = watch(1_000);
    for record in [switch(0, 1_000, IDLE, 0, thread(0)), entry(0, 1_010, 0)] {
        watch.add(0, record.time, record.id, &record.payload);
    }
    watch.release(5_000);

    watch.add_lost(0, 7);
    let exit = exit(0, 9_000, 0, IOIO);
    watch.add(0, exit.time, exit.id, &exit.payload);
    watch.release(10_000);

    let watched = watch.request();
    let vcpu = watched.vcpus[0];
    assert_eq!((watched.lost, vcpu.guest_ns, vcpu.unknown_ns, vcpu.kvm_ns), (7, 1_995, 2_005, 500));
    assert!(watched.exits.is_empty());
}

#[test]
fn latest_turns_are_kept_with_who_ran_meanwhile() {
    let records = both(50);
    let mut watch = watch(records[0].time);

    poll_all(&mut watch, &records);

    let late = watch.request().late;
    // All in one second: the longest is kept, 500 + 100 · 10 times two ticks.
    assert_eq!((late.len(), late[0].ns, late[0].by.raw().as_str()), (1, 1_500, "hog"));
}

#[test]
fn names_of_thieves_beyond_the_limit_are_summed_up() {
    let mut watch = watch(0);
    let names: Vec<String> = (0..MAX_THIEVES + 9).map(|number| format!("thief{number}")).collect();

    for (number, name) in (0_u16..).zip(&names) {
        let (begin, thief) = (1_000 + u64::from(number) * 100, (1_000 + i32::from(number), name.as_str()));
        for record in [switch(0, begin, thread(0), 0, thief), switch(0, begin + 50, thief, 1, thread(0))] {
            watch.add(0, record.time, record.id, &record.payload);
        }
    }
    watch.release(1 << 20);

    let thieves = watch.request().thieves;
    assert_eq!((thieves.len(), thieves[0].name.raw().as_str(), thieves[0].ns), (MAX_THIEVES + 1, OTHERS, 9 * 25));
}

#[test]
fn records_that_wait_for_their_turn_are_bounded() {
    let mut watch = watch(0);
    let record = entry(0, 1_000, 0);

    (0..3 * MAX_HELD as u64).for_each(|number| watch.add(0, 1_000 + number, record.id, &record.payload));

    assert!(watch.held.len() < MAX_HELD && watch.payloads.len() <= MAX_HELD * record.payload.len());
}

#[test]
fn times_are_merged_by_adding_and_taken_apart_by_what_was_before() {
    let mut times = Times::default();
    [0, 1_023, 1_024, 5_000, u64::MAX].into_iter().for_each(|ns| times.add(ns));
    let before = times.clone();
    [3_000, 3_000, 3_000].into_iter().for_each(|ns| times.add(ns));

    let since = times.since(&before);

    assert_eq!((before.count, before.classes[0], before.classes[1], before.classes.len()), (5, 2, 1, 26));
    assert_eq!((since.count, since.total_ns, since.below_ns(50)), (3, 0, 4_096));
}

/// What a record costs; says it, and holds nothing against it: `docs/performance.md` has the figure.
#[test]
#[ignore = "by hand: cargo test --release -p vmm --lib live::tests::cost -- --ignored --nocapture"]
fn cost_of_a_record() {
    let records = both(100_000);
    let unrelated: Vec<Record> = (0..1_000_000).map(|time| record(0, time, OTHER, 1, &[])).collect();
    for (name, records) in [("of vCPUs", &records), ("of no interest", &unrelated)] {
        let mut watch = watch(0);
        let begun = Instant::now();
        for records in records.chunks(1_000) {
            records.iter().for_each(|record| watch.add(record.cpu, record.time, record.id, &record.payload));
            watch.end_poll(records[records.len() - 1].time);
        }
        println!("{name}: {:.1} ns a record", begun.elapsed().as_secs_f64() * 1e9 / records.len() as f64);
    }
}
