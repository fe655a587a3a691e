//! What applications can record in a guest, and what they cannot reach.
//!
//! Shows: A process reaches no kernel ring, other process, fifth slot or writable clock.
//! Shows: Applications record across fork, exec, `kill -9`, migration, late CPUs and lack of slots.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::paths::Paths;
use lab::scenarios::applications::{self, CROWD, USERS_CROWD};
use lab::{process, provision};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Process slots of a region.
const SLOTS: u32 = 16;

/// One event of `strata events --json`.
#[derive(Clone, Debug, serde::Deserialize)]
struct Event {
    cpu: u32,
    pid: Option<u32>,
    event: String,
    fields: Value,
}

struct Results {
    folder: PathBuf,
    strata: PathBuf,
    console: String,
}

impl Results {
    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join(name)).unwrap_or_default()).replace('\r', "")
    }

    fn strata(&self, command: &[&str]) -> String {
        let trace = self.folder.join("applications.trace");
        process::capture(Command::new(&self.strata).args(command).arg(trace)).unwrap()
    }

    fn events(&self) -> Vec<Event> {
        let text = self.strata(&["events", "--json", "--layer", "guest-user"]);
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn session(&self) -> Value {
        serde_json::from_str(&self.text("applications.trace/session.json")).unwrap()
    }

    /// Asserts that the guest's console shows `text`.
    fn assert_printed(&self, text: &str) {
        assert!(self.console.contains(text), "{text:?} is not in:\n{}", self.console);
    }

    /// What the console shows of the `number`th status in JSON.
    fn status(&self, number: usize) -> Value {
        let after = self.console.split("== status --json\n").nth(number + 1).unwrap();
        serde_json::from_str(after.split("== status ended").next().unwrap()).unwrap()
    }
}

fn named<'e>(events: &'e [Event], name: &str) -> Vec<&'e Event> {
    events.iter().filter(|event| event.event == name).collect()
}

#[test]
fn applications_record_whatever_becomes_of_them_and_reach_nothing_else() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let folder = applications::run(&lab, "applications").unwrap().output;
    let mut results =
        Results { folder, strata: binaries::located(&paths, Purpose::Test).strata, console: String::new() };
    results.console = results.text("applications.log");
    println!("{}", results.console);
    let events = results.events();
    assert!(results.strata(&["check"]).contains("0 violations"));

    // what they may not reach
    results.assert_printed("isolation: 0 of the attempts were allowed");
    assert_eq!(results.console.matches(": refused\n").count(), 20, "{}", results.console);

    // a CPU that came online when the process had its rings
    let late = named(&events, "processes:late_cpu");
    assert_eq!(late.iter().map(|event| event.cpu).collect::<Vec<_>>(), [1]);
    results.assert_printed("on CPU 1, recorded true, 0 lost");

    // forks and programs executed: each process's own records
    let life = named(&events, "processes:life");
    assert!(life.iter().all(|event| event.fields["pid"] == event.pid.unwrap()), "{life:?}");
    let pid = |what: &str| life.iter().find(|event| event.fields["what"] == what).and_then(|event| event.pid).unwrap();
    let family = ["parent before", "child", "grandchild", "bare child"].map(pid);
    assert_eq!(family.iter().collect::<BTreeSet<_>>().len(), 4, "{life:?}");
    assert_eq!((pid("parent after"), pid("executed")), (family[0], pid("before exec")));

    // killed in the middle of a record, and moved from CPU to CPU
    results.assert_printed("processes: killed");
    assert!(named(&events, "processes:endless").len() >= 100);
    let moved = results.console.matches("processes: moved, 4000 recorded, 0 lost, restartable true").count();
    assert_eq!((moved, named(&events, "processes:moved").len()), (2, 8000), "{}", results.console);

    // C and C++
    results.assert_printed("shop: 1002 recorded, 3 of 6 careless ones, 0 lost, errno 0, connected");
    let sold = named(&events, "shop:sold");
    let last =
        serde_json::json!({"what": "bread", "pieces": 999, "change": -5, "flags": "0xff00", "kilograms": 124.875});
    assert_eq!((sold.len(), &sold[999].fields), (1000, &last));
    let printed: Vec<_> = named(&events, "shop:said").iter().map(|event| event.fields["words"].clone()).collect();
    assert_eq!(printed, [Value::from("(null)"), Value::from("x".repeat(2048))]);
    assert_eq!(named(&events, "unnamed").len(), 1);
    assert_eq!(named(&events, "baker:baked").len(), 400);

    // a program that uses `tracing`
    let sold = named(&events, "orders:sold");
    assert_eq!((sold.len(), named(&events, "orders:price-exit").len()), (100, 100));
    let orders: BTreeSet<_> =
        named(&events, "orders:order-new").iter().map(|new| new.fields["span"].as_u64()).collect();
    assert!(sold.iter().all(|sold| orders.contains(&sold.fields["span"].as_u64())), "{orders:?}");
    assert_eq!((&sold[0].fields["gift"], &sold[0].fields["price"]), (&Value::from(1), &Value::from(0.0)));

    // handlers that fork in the midst of records: every child ends well, and the parent's records are all there, once
    results.assert_printed("forks in handlers, 0 failed");
    let printed = results.console.lines().find(|line| line.contains("forks in handlers")).unwrap();
    let recorded: u64 = printed.rsplit(", ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
    let interrupted = named(&events, "processes:interrupted");
    let own = interrupted.iter().filter(|event| event.fields["pid"] == event.pid.unwrap());
    let numbers: Vec<u64> = own.map(|event| event.fields["number"].as_u64().unwrap()).collect();
    assert!(recorded > 1000 && numbers.iter().copied().eq(0..recorded), "{recorded}, not {}", numbers.len());
    let forked = named(&events, "processes:forked_in_handler");
    assert!(!forked.is_empty() && forked.iter().all(|event| event.fields["pid"] == event.pid.unwrap()), "{forked:?}");

    // more processes than slots: counted, and none of them fails
    let guest = &results.session()["vms"][0]["guest"];
    let refused = &results.status(1)["slots"]["processes_refused"];
    assert_eq!(*refused, CROWD - SLOTS);
    // half of the slots for a user alone; of two the second has half of what the first one leaves
    let of_two = SLOTS / 2 + SLOTS / 4;
    let over_quota = (USERS_CROWD - SLOTS / 2) + (USERS_CROWD - of_two);
    assert_eq!(guest["processes_over_quota"], over_quota);
    let crowd: BTreeSet<_> = named(&events, "processes:crowd").iter().map(|event| event.pid.unwrap()).collect();
    assert_eq!(crowd.len(), (SLOTS + SLOTS / 2 + of_two) as usize);
    assert_eq!(named(&events, "processes:late").len(), 3, "{}", results.console);
    let report = results.strata(&["report"]);
    // children of handlers, too
    let refused = &guest["processes_refused"];
    assert!(report.contains(&format!("{refused} processes found no free process slot")), "{report}");

    // what the agent says
    let status = results.status(0);
    assert_eq!((&status["module_loaded"], &status["problem"]), (&Value::Bool(true), &Value::Null));
    assert_eq!(status["trace"]["sessions"][0]["name"], "main");
    assert_eq!((&status["slots"]["total"], &status["slots"]["user_limit"]), (&SLOTS.into(), &SLOTS.into()));
    assert_eq!(results.status(1)["slots"]["processes_over_quota"], over_quota);
    results.assert_printed("strata-agent: the kernel module strata is not loaded: `modprobe strata`");
    let elsewhere = results.text("host-status.log");
    assert!(
        elsewhere.contains("this machine offers no trace region") && elsewhere.contains("ended with 1"),
        "{elsewhere}"
    );

    let trouble = ["BUG:", "WARNING: CPU", "Oops"];
    let failed: Vec<_> =
        results.console.lines().filter(|line| trouble.iter().any(|trouble| line.contains(trouble))).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
