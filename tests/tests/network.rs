//! A real guest with a network: what it and its host exchange over a tap, and what the recording says of each packet.
//!
//! Shows: Every packet over a tap is traced from the guest's driver to the tap (pings, TCP).
//! Shows: A guest behind passt gets its address by DHCP; its packets are followed through all layers.
//! Shows: The host gets a guest's shell by ssh over a tap.
//! Shows: The socket device works both ways at once; every connection and byte is traced.
//! Shows: The guest gives memory back on request and regains it; every request is traced.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::process;
use lab::scenarios::network::{self, GIVEN_BACK, PIECES, PINGS, RANDOM, SENT, WANTED};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use strata_recording::reader::Trace;
use trace_merge::check;
use trace_merge::report::Window;
use trace_merge::report::devices::net_flows;
use trace_merge::report::devices::net_flows::{Milestone, PacketFlow, PacketFlows};

/// A file of the results, which the first test to ask makes.
fn result(name: &str) -> PathBuf {
    network::once_per_test_run(&Paths::of_workspace()).unwrap().output.join(name)
}

fn text(name: &str) -> String {
    // a console's bytes need not be text
    String::from_utf8_lossy(&fs::read(result(name)).unwrap_or_default()).into_owned()
}

/// The number behind `label` on a line of the guest's console.
fn counted(label: &str) -> u64 {
    let log = text("network.log");
    let line = log.lines().find_map(|line| line.trim().strip_prefix(label)?.trim().parse().ok());
    line.unwrap_or_else(|| panic!("no {label} in\n{log}"))
}

/// One event of `strata events --json`.
#[derive(Clone, Debug, serde::Deserialize)]
struct Event {
    /// The trace clock.
    ticks: u64,
    layer: String,
    event: String,
    fields: serde_json::Value,
}

fn events(of: &str) -> Vec<Event> {
    let mut strata = Command::new(binaries::located(&Paths::of_workspace(), Purpose::Test).strata);
    let text = process::capture(strata.arg("events").arg(result("network.trace")).args(["--json", "--event", of]));
    text.unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// When each packet of `vmm:net_send` or `vmm:net_receive` was taken and when it was done with, its bytes, and how it
/// ended, by id.
fn packets(of: &str) -> BTreeMap<u64, (u64, u64, u64, u64)> {
    let events = events(of);
    let number = |event: &Event, field: &str| event.fields[field].as_u64().unwrap();
    let (begins, ends): (Vec<_>, Vec<_>) = events.iter().partition(|event| number(event, "done") == 0);
    let ends: BTreeMap<_, _> = ends.into_iter().map(|event| (number(event, "id"), event)).collect();
    let packet = |begin: &Event| {
        let end = ends.get(&number(begin, "id"))?;
        Some((number(begin, "id"), (begin.ticks, end.ticks, number(begin, "bytes"), number(end, "done"))))
    };
    begins.into_iter().filter_map(packet).collect()
}

#[test]
fn guest_and_host_reach_each_other() {
    let log = text("network.log");

    assert_eq!(text("network.status").trim(), "0", "{log}");
    assert!(log.contains("52:54:00:12:34:56"), "{log}");
    assert!(log.contains(&format!("{PINGS} packets received")) && log.contains("sent with status 0"), "{log}");
    let received = fs::read(result("received")).unwrap();
    assert_eq!(received.len(), SENT);
    assert!(received.iter().eq(b"strata\n".iter().cycle().take(SENT)));
}

#[test]
fn host_gets_into_the_guest_by_ssh() {
    let printed = text("by-ssh");

    assert!(printed.starts_with("root\n") && printed.contains("lab.script=network"), "{printed}\n{}", text("ssh.log"));
}

#[test]
fn every_packet_is_in_the_trace_from_one_side_to_the_other() {
    let (sends, receives) = (packets("vmm:net_send"), packets("vmm:net_receive"));
    println!("{} packets sent, {} received", sends.len(), receives.len());

    // No id is missing, and none was lost on its way.
    for packets in [&sends, &receives] {
        assert!(packets.keys().copied().eq(1..=packets.len() as u64), "{packets:?}");
        assert!(packets.values().all(|(begin, end, _, done)| begin < end && *done == 1), "{packets:?}");
    }
    assert_eq!(sends.len() as u64, counted("packets sent:"));
    assert!(receives.len() as u64 >= counted("packets received:"));
}

#[test]
fn packets_of_the_guests_driver_are_the_vmms_in_their_order() {
    let guest: Vec<_> = events("net:net_dev_start_xmit")
        .into_iter()
        .filter(|event| event.layer == "guest-kernel" && event.fields["name"] == "eth0")
        .collect();
    let sends = packets("vmm:net_send");

    let of_guest: Vec<_> = guest.iter().map(|event| event.fields["len"].as_u64().unwrap()).collect();
    let of_vmm: Vec<_> = sends.values().map(|packet| packet.2).collect();
    assert_eq!(of_guest, of_vmm);
    // On one clock: the VMM takes a packet after the guest's driver has got it.
    assert!(guest.iter().zip(sends.values()).all(|(event, packet)| event.ticks < packet.0));
}

#[test]
fn packet_that_the_vmm_hands_over_appears_on_the_hosts_tap_meanwhile() {
    let tap = |event: &Event| event.layer == "host-kernel" && event.fields["name"] == "strata7";
    let came: Vec<_> =
        events("net:*").into_iter().filter(tap).filter(|event| event.event.contains("netif_r")).collect();
    let inside =
        |packet: &(u64, u64, u64, u64)| came.iter().any(|event| packet.0 < event.ticks && event.ticks < packet.1);

    let sends = packets("vmm:net_send");
    let seen = sends.values().filter(|packet| inside(packet)).count();

    println!("{seen} of {} packets seen on the tap", sends.len());
    assert!(seen * 10 >= sends.len() * 9, "{seen} of {}", sends.len());
}

/// Checks that each packet's steps add up, and returns the milestones that any of them met.
fn met(flows: &PacketFlows) -> Vec<Milestone> {
    let whole = |flow: &PacketFlow| flow.steps.iter().map(|step| step.ticks).sum::<u64>() == flow.ticks;
    assert!(flows.slowest.iter().all(whole), "{:#?}", flows.slowest);
    Milestone::ALL.into_iter().filter(|milestone| flows.steps.iter().any(|step| step.to == *milestone)).collect()
}

#[test]
fn every_packet_is_followed_through_all_layers() {
    let (sends, receives) = (packets("vmm:net_send"), packets("vmm:net_receive"));

    let report = net_flows::report(&Trace::open(&result("network.trace")).unwrap(), Window::ALL).unwrap();

    let vm = &report.vms[0];
    println!("{:#?}\n{:#?}", vm.sent.steps, vm.received.steps);
    let counts = |flows: &PacketFlows| (flows.total.count, flows.unmatched, flows.unfinished, flows.dropped);
    assert_eq!(counts(&vm.sent), (sends.len() as u64, 0, 0, 0));
    assert_eq!(counts(&vm.received), (receives.len() as u64, 0, 0, 0));
    assert_eq!((vm.across_lost_records, vm.sent.never_met.len(), vm.received.never_met.len()), (0, 0, 0), "{vm:#?}");
    assert!(met(&vm.sent).contains(&Milestone::ToHost) && met(&vm.received).contains(&Milestone::Running));
    let senders: Vec<_> = vm.sent.slowest.iter().filter_map(|flow| flow.task.as_ref()).collect();
    assert!(senders.iter().any(|task| ["ping", "nc"].contains(&task.comm.as_str())), "{senders:?}");
}

#[test]
fn programs_of_guest_and_host_reach_each_other_by_the_socket_device() {
    let log = text("network.log");

    let given_back = fs::read(result("given-back")).unwrap();

    assert!(log.contains("sockets: sent 21 bytes") && log.contains(&format!("gave {GIVEN_BACK} bytes back")), "{log}");
    assert_eq!(text("served"), "hello from the guest\n");
    assert_eq!(given_back.len(), GIVEN_BACK);
    assert!(given_back.iter().eq(b"vsock\n".iter().cycle().take(GIVEN_BACK)));
    // Nobody listens at port 79.
    assert!(log.contains("cannot connect"), "{log}");
    // The VM's socket is gone; the program's stays.
    assert_eq!(text("sockets").trim(), "vsock_78");
}

#[test]
fn random_bytes_of_the_host_reach_the_guest_and_each_request_is_in_the_trace() {
    let requests = events("vmm:entropy_request");

    let given: u64 = requests.iter().map(|event| event.fields["bytes"].as_u64().unwrap()).sum();

    assert_eq!(counted("random bytes:"), RANDOM);
    assert!(given >= RANDOM, "{requests:?}");
}

/// What `strata ctl VM balloon --json` said, by the name of its file.
fn balloon(name: &str) -> serde_json::Value {
    serde_json::from_str(&text(name)).unwrap()
}

#[test]
fn guest_gives_memory_back_that_the_host_wants_and_gets_it_again() {
    let (inflated, deflated) = (balloon("inflated.json"), balloon("deflated.json"));
    let [before, with, after] = ["before", "with", "after"].map(|when| counted(&format!("free {when} the balloon:")));
    println!("{inflated}\n{deflated}\nKiB free in the guest: {before}, {with}, {after}");

    let figures =
        |answer: &serde_json::Value| ["wanted", "given", "refused"].map(|name| answer[name].as_u64().unwrap());
    assert_eq!((figures(&inflated), figures(&deflated)), ([WANTED << 20, WANTED << 20, 0], [0; 3]));
    assert!(inflated["driven"].as_bool().unwrap() && inflated["answer"] == "balloon", "{inflated}");
    // Nearly all of it is missing in the guest meanwhile, and nearly none later.
    assert!(before > with + 40_000 && after > before - 10_000, "{before}, {with}, {after}");
}

#[test]
fn host_has_the_memory_that_the_guest_gives_back_or_reports_as_free() {
    let resident = text("resident");
    println!("{resident}");

    let kib: Vec<i64> = resident.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();

    let [before, inflated, reported] = kib[..] else { panic!("{resident}") };
    let mib = |count: u64| i64::try_from(count << 10).unwrap();
    // Some of what the guest gave it may never have used.
    assert!(before - inflated > mib(WANTED / 2), "{resident}");
    // All pieces are free in the end, but the guest has used some of it again meanwhile.
    assert!(before - reported > mib(PIECES / 2), "{resident}");
}

#[test]
fn requests_to_the_balloon_are_in_the_trace() {
    let number = |event: &Event, field: &str| event.fields[field].as_u64().unwrap();
    let (wanted, requests) = (events("vmm:balloon_wanted"), events("vmm:balloon_request"));
    let sum = |kind: &str| -> u64 {
        let of_kind = requests.iter().filter(|event| event.fields["kind"] == kind);
        of_kind.map(|event| number(event, "bytes")).sum()
    };

    println!("{} requests, {} bytes reported", requests.len(), sum("report"));
    let mut wanted: Vec<_> = wanted.iter().map(|event| number(event, "bytes")).collect();
    wanted.dedup();
    assert_eq!(wanted, [WANTED << 20, 0]);
    assert_eq!((sum("inflate"), sum("deflate")), (WANTED << 20, WANTED << 20));
    assert!(sum("report") >= PIECES << 20 >> 1, "{requests:?}");
    assert!(requests.iter().all(|event| number(event, "refused") == 0 && number(event, "ns") > 0), "{requests:?}");
}

#[test]
fn connections_of_the_socket_device_and_their_packets_are_in_the_trace() {
    let number = |event: &Event, field: &str| event.fields[field].as_u64().unwrap();
    let (begun, ended) = (events("vmm:vsock_begin"), events("vmm:vsock_end"));
    let packets = |of: &str| events(of).into_iter().filter(|event| number(event, "done") == 1).collect::<Vec<_>>();
    let bytes = |packets: &[Event], connection: u64| -> u64 {
        let of_connection = packets.iter().filter(|event| number(event, "connection") == connection);
        of_connection.filter(|event| number(event, "op") == 5).map(|event| number(event, "bytes")).sum()
    };
    let (sent, received) = (packets("vmm:vsock_send"), packets("vmm:vsock_receive"));

    let ends: Vec<_> = begun.iter().map(|event| (number(event, "connection"), number(event, "by"))).collect();
    assert_eq!(ends, [(1, 1), (2, 0)], "{begun:?}");
    assert_eq!((number(&begun[0], "host_port"), number(&begun[1], "guest_port")), (78, 22));
    let ended: Vec<_> = ended.iter().map(|event| (number(event, "connection"), number(event, "how"))).collect();
    assert_eq!(ended, [(1, 0), (2, 0)]);
    assert_eq!((bytes(&sent, 1), bytes(&received, 1)), (21, 0));
    assert_eq!((bytes(&sent, 2), bytes(&received, 2)), (GIVEN_BACK as u64, GIVEN_BACK as u64));
    println!("{} packets sent, {} received", sent.len(), received.len());
}

#[test]
fn trace_with_a_network_passes_the_check_and_babeltrace2_reads_it() {
    let trace = result("network.trace");
    let checked = check::check(&Trace::open(&trace).unwrap(), 10).unwrap();
    let babeltrace = Command::new("babeltrace2").args(["--names=none"]).arg(&trace).output();
    let babeltrace = babeltrace.unwrap();

    assert!(checked.passed(), "{:?}", checked.violations);
    assert_eq!(String::from_utf8_lossy(&babeltrace.stderr), "");
    assert!(String::from_utf8_lossy(&babeltrace.stdout).contains("vmm:net_send"));
}

#[test]
fn guest_behind_passt_gets_its_address_from_it_and_reaches_the_host() {
    let (log, received) = (text("passt.log"), fs::read(result("received-by-passt")).unwrap());
    let trace = result("passt.trace");
    let checked = check::check(&Trace::open(&trace).unwrap(), 10).unwrap();
    let report = net_flows::report(&Trace::open(&trace).unwrap(), Window::ALL).unwrap();

    let (sent, came) = (&report.vms[0].sent, &report.vms[0].received);
    println!("{} packets sent, {} received", sent.total.count, came.total.count);
    assert_eq!(text("passt.status").trim(), "0", "{log}");
    assert!(log.contains("leased 192.168.77.1/") && log.contains("sent with status 0"), "{log}");
    assert_eq!(received.len(), SENT);
    assert!(received.iter().eq(b"strata\n".iter().cycle().take(SENT)));
    assert!(checked.passed(), "{:?}", checked.violations);
    assert!(sent.total.count * 1500 > SENT as u64 && came.total.count > 0, "{report:#?}");
    assert_eq!((sent.unmatched, came.unmatched), (0, 0));
}

#[test]
fn taps_that_cannot_be_had_are_reported_in_a_line() {
    let (missing, busy) = (text("missing.log"), text("busy.log"));

    assert!(missing.contains("there is no tap 'strata-none': make it with `ip tuntap add"), "{missing}");
    assert!(busy.contains("the tap 'strata7' is in use"), "{busy}");
    assert!([&missing, &busy].iter().all(|log| log.trim().lines().count() == 1), "{missing}\n{busy}");
    assert!(!text("links").contains("strata-none"));
}
