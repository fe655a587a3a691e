use super::*;
use std::path::Path;
use strata_recorder::control::directory::VmDescription;
use strata_recorder::control::found_vm::Owner;
use strata_recorder::control::protocol::{LiveWakeup, Times};

/// A VM that runs, as process `pid`.
fn found(name: &str, pid: u32) -> FoundVm {
    let vm = VmDescription { pid, ..VmDescription::of_this_process(name, 1) };
    FoundVm { path: Path::new("/").into(), vm, alive: true, owner: Owner::Own }
}

#[test]
fn vm_that_runs_alone_needs_no_name() {
    let chosen = |running: &[(&str, u32)]| {
        only(running.iter().map(|(name, pid)| found(name, *pid)).collect()).map(|found| found.vm.name)
    };

    assert!(matches!(chosen(&[]), Err(TopError::NoVm)));
    assert_eq!(chosen(&[("web", 7)]).unwrap(), "web");
    let several = chosen(&[("web", 7), ("db", 8)]).unwrap_err().to_string();
    assert_eq!(several, "several VMs run: web (7), db (8); name one, or give --all");
}

fn times(all: &[u64]) -> Times {
    all.iter().fold(Times::default(), |mut times, &ns| {
        times.add(ns);
        times
    })
}

fn watched(until_ns: u64, guest_ns: u64, hog_ns: u64, hlt: &[u64]) -> Watched {
    Watched {
        since_ns: 1_000,
        until_ns,
        vcpus: vec![LiveVcpu { vcpu: 0, guest_ns, preempted_ns: hog_ns, ..LiveVcpu::default() }],
        thieves: vec![Thief { name: "hog".into(), ns: hog_ns }],
        exits: vec![LiveExits { reason: "hlt".into(), times: times(hlt) }],
        ready: times(hlt),
        late: vec![Late { vcpu: 0, at_ns: until_ns - 1, ns: hog_ns, by: "hog".into() }],
        records: guest_ns / 10,
        lost: 3,
    }
}

fn requested(host: Option<Watched>, records: u64, cpu_ns: u64) -> Requested {
    let layers = vec![LayerStatus { path: "vm0/vmm".into(), records, ..LayerStatus::default() }];
    let live = Live { name: "vm0".into(), pid: 7, host, layers, ..Live::default() };
    let thread = OwnThread { name: "strata-recorder".into(), cpu_ns };
    Requested { at: Instant::now(), live, threads: BTreeMap::from([(8, thread)]) }
}

fn answers(requested: Result<Requested, String>) -> Answers {
    BTreeMap::from([((None, 7), ("vm0".to_string(), requested))])
}

fn picture(before: Requested, now: Requested) -> Picture {
    let now = Requested { at: before.at + std::time::Duration::from_secs(1), ..now };
    Picture::between(&answers(Ok(before)), &answers(Ok(now)))
}

#[test]
fn picture_lacks_time_until_records_have_come() {
    let at = |until_ns| requested(Some(watched(until_ns, 600, 100, &[])), 40, 1_000_000);

    assert!(picture(at(2_000), at(2_000)).lacks_time());
    assert!(!picture(at(2_000), at(2_001)).lacks_time());
    assert!(!picture(requested(None, 40, 0), requested(None, 50, 0)).lacks_time());
}

#[test]
fn picture_is_of_what_happened_between_two_answers() {
    let before = requested(Some(watched(2_000, 600, 100, &[5_000])), 40, 1_000_000);
    let now = requested(Some(watched(1_002_000, 900_600, 40_100, &[5_000, 9_000, 9_000])), 100, 6_000_000);

    let picture = picture(before, now);

    let vm = &picture.vms[0];
    assert_eq!((vm.period_ns, vm.layers[0].records, vm.own_threads[0].cpu_ns), (1_000_000_000, 60, 5_000_000));
    let host = vm.host.as_ref().unwrap();
    assert_eq!((host.since_ns, host.until_ns, host.vcpus[0].guest_ns), (2_000, 1_002_000, 900_000));
    assert_eq!((host.thieves[0].ns, host.exits[0].times.count, host.ready.total_ns), (40_000, 2, 18_000));
    assert_eq!((host.late.len(), host.records, host.lost), (1, 90_000, 0));
}

/// Wake-ups up to `until_ns`, and the requests to a disk.
fn busy(until_ns: u64, times_ns: &[u64]) -> Requested {
    let requested = requested(None, 0, 0);
    let wakeup = |at_ns, ns| LiveWakeup { task: "we\x1bb".into(), tid: 42, cpu: 1, at_ns, ns };
    let worst = vec![wakeup(until_ns - 1, 9_000_000), wakeup(1_500, 7_000_000)];
    let guest = Some(LiveGuest { since_ns: 1_000, until_ns, wakeups: times(times_ns), worst });
    let disks = vec![LiveDisk { disk: 0, kind: "read".into(), times: times(times_ns) }];
    let balloon = Some(BalloonStatus { wanted: 8 << 20, given: 6 << 20, ..BalloonStatus::default() });
    Requested { live: Live { guest, disks, balloon, ..requested.live }, ..requested }
}

#[test]
fn wakeups_and_disk_requests_are_those_of_the_period() {
    let (before, now) = (busy(2_000, &[5_000]), busy(1_000_002_000, &[5_000, 70_000, 70_000, 3_000_000]));
    let mut out = Vec::new();

    let picture = picture(before, now);
    picture.write_text(&mut out).unwrap();

    let (guest, disk) = (picture.vms[0].guest.as_ref().unwrap(), &picture.vms[0].disks[0]);
    assert_eq!((guest.wakeups.count, guest.since_ns, disk.times.total_ns), (3, 2_000, 3_140_000));
    assert_eq!(guest.worst.iter().map(|wakeup| wakeup.ns).collect::<Vec<_>>(), [9_000_000]);
    let text = String::from_utf8(out).unwrap();
    for part in [
        "guest's tasks, woken until run: 3/s, p50 < 131.072 µs, p99 < 4.194 ms",
        "latest of them: we\\u{1b}b/42 9.000 ms (vCPU 1)",
        "disk 0 read: 3/s, p50 < 131.072 µs, p99 < 4.194 ms",
        "balloon 6 MiB given of 8 MiB wanted back",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn what_began_anew_meanwhile_is_shown_from_its_begin() {
    let before = requested(Some(watched(2_000, 600, 100, &[])), 0, 0);
    let now = requested(Some(Watched { since_ns: 5_000, ..watched(7_000, 1_500, 0, &[]) }), 0, 0);

    let host = picture(before, now).vms.remove(0).host.unwrap();

    assert_eq!((host.since_ns, host.until_ns, host.vcpus[0].guest_ns), (5_000, 7_000, 1_500));
}

#[test]
fn text_shows_shares_thieves_exits_and_what_tracing_costs() {
    let before = requested(Some(watched(2_000, 600, 100, &[])), 0, 0);
    let now = requested(Some(watched(1_000_002_000, 900_000_600, 40_000_100, &[70_000])), 5_000, 12_000_000);
    let mut out = Vec::new();

    picture(before, now).write_text(&mut out).unwrap();

    let text = String::from_utf8(out).unwrap();
    for part in [
        "vm0: process 7",
        "takes 1.2 %",
        "90.0 %",
        "hog 4.0 %",
        "hlt",
        "written vm0/vmm: 5000 records/s",
        "vCPU 0 waited",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn vm_that_does_not_answer_stands_beside_the_others_and_one_without_the_host_says_so() {
    let (before, now) = (requested(None, 0, 0), requested(None, 9, 0));
    let silent = |name: &str| (name.to_string(), Err("not traced".to_string()));
    let mut before = answers(Ok(before));
    let mut now = answers(Ok(now));
    before.insert((None, 9), silent("web"));
    now.insert((None, 9), silent("web"));
    let mut out = Vec::new();

    let picture = Picture::between(&before, &now);
    picture.write_text(&mut out).unwrap();

    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("web: process 9: not traced"), "{text}");
    assert!(text.contains("the host's kernel is not recorded"), "{text}");
    assert_eq!(picture.vms.len(), 2);
}

#[test]
fn own_threads_are_those_that_strata_names() {
    let (seen, wait) = std::sync::mpsc::channel();
    // A thread has its name once it runs.
    let look = move || seen.send(own_threads(std::process::id()));
    let thread = thread::Builder::new().name("strata-test".into()).spawn(look).unwrap();
    let threads = wait.recv().unwrap();
    thread.join().unwrap().unwrap();

    assert!(threads.values().any(|thread| thread.name == "strata-test"), "{threads:?}");
    assert!(threads.values().all(|thread| thread.name.raw().starts_with(OWN_THREADS)), "{threads:?}");
}

#[test]
fn vm_of_another_user_is_shown_as_that_and_nothing_in_it_acts_on_a_terminal() {
    let hostile = || {
        let mut requested = requested(Some(watched(2_000, 600, 100, &[5_000])), 40, 1_000_000);
        requested.threads.insert(8, OwnThread { name: "strata-\x1b[2J".into(), cpu_ns: 9 });
        requested.live.host.as_mut().unwrap().exits[0].reason = "hlt\x1b]0;x\x07\nforged".into();
        requested
    };
    let answers =
        |requested| BTreeMap::from([((Some("al\x1bice".into()), 7), ("vm0".to_string(), Ok::<_, String>(requested)))]);
    let mut later = hostile();
    later.live.host.as_mut().unwrap().exits[0].times.add(7_000);
    later.threads.get_mut(&8).unwrap().cpu_ns = 1_000;
    let mut out = Vec::new();

    Picture::between(&answers(hostile()), &answers(later)).write_text(&mut out).unwrap();

    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("al\\u{1b}ice/vm0: process 7"), "{text}");
    assert!(text.contains("strata-\\u{1b}[2J") && text.contains("hlt\\u{1b}]0;x\\u{7}\\nforged"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}
