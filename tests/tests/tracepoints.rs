//! Every tracepoint of the guest's kernel: the module's events against the kernel's own description of them, all of
//! them recorded at once, the module unloaded under load, and the choice of events changed while the guest runs.
//!
//! Shows: Every event of a newer kernel is recorded as it describes it; samples are named.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::fetch::kernel_packages::{KernelChoice, Suite};
use lab::paths::Paths;
use lab::provision::{Kernels, Lab};
use lab::scenarios::format_file::{self, FormatFile};
use lab::scenarios::tracepoints;
use lab::{process, provision};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_kmod::catalog::{DYNAMIC, OPAQUE};
use strata_kmod::module_file::{FieldDeclaration, ModuleEvents};

/// Of the kernel's events, besides those of single system calls, at least these many in a hundred are recorded.
const COVERAGE: usize = 92;

/// A vCPU that is stopped in the midst of a record leaves that one, and those of what interrupted it, unfinished: at
/// most these many bytes.
const UNFINISHED_BYTES: u64 = 1024;

struct Results {
    folder: PathBuf,
    strata: PathBuf,
    module: ModuleEvents,
    formats: Vec<FormatFile>,
}

impl Results {
    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join(name)).unwrap_or_default()).into_owned()
    }

    fn strata(&self, command: &str, trace: &str) -> String {
        self.strata_with(command, &[], trace)
    }

    fn strata_with(&self, command: &str, arguments: &[&str], trace: &str) -> String {
        let mut strata = Command::new(&self.strata);
        process::capture(strata.arg(command).args(arguments).arg(self.folder.join(trace))).unwrap()
    }
}

/// Guests of the lab's own kernel.
fn results() -> Results {
    let lab = provision::lab(&Paths::of_workspace()).unwrap();
    results_of(&lab, &lab.kernels, &lab.agent, "tracepoints")
}

/// Guests of the kernel of another of Debian's suites.
fn results_with(suite: Suite) -> Results {
    let paths = Paths::of_workspace();
    let kernels = provision::kernel(&paths, KernelChoice::cloud(suite)).unwrap();
    let agent = provision::agent_for(&paths, &kernels).unwrap();
    let lab = provision::lab(&paths).unwrap();
    results_of(&lab, &kernels, &agent, &format!("tracepoints-{}", suite.name()))
}

fn results_of(lab: &Lab, kernels: &Kernels, agent: &Path, name: &str) -> Results {
    let result = tracepoints::run(lab, kernels, agent, name).unwrap();
    let folder = result.output;
    process::capture(Command::new("tar").arg("xf").arg(folder.join("guest.tar")).arg("-C").arg(&folder)).unwrap();
    let formats = format_file::parse(&fs::read_to_string(folder.join("formats")).unwrap());
    let module = ModuleEvents::read(&fs::read(agent).unwrap()).unwrap();
    Results { folder, strata: lab.binaries.strata.clone(), module, formats }
}

/// Events in which the kernel's field `id`, a number of 32 bits, has the field `abi` of the module's own in its upper half.
const WITH_ABI: [&str; 2] = ["sys_enter", "sys_exit"];

/// Where the module's description of an event contradicts the kernel's; fields that the module leaves out are added to
/// `left_out`.
fn contradictions(
    name: &str,
    own: &[FieldDeclaration],
    kernel: &FormatFile,
    left_out: &mut BTreeSet<String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut theirs = kernel.fields.iter();
    let has_abi = WITH_ABI.contains(&name);
    for field in own.iter().filter(|field| !(has_abi && field.name == "abi")) {
        let counterpart = theirs.by_ref().find(|theirs| {
            let same = theirs.name == field.name;
            if !same {
                left_out.insert(format!("{name}.{}", theirs.name));
            }
            same
        });
        let Some(theirs) = counterpart else {
            wrong.push(format!("{name}.{}: the kernel has no such field there", field.name));
            continue;
        };
        let dynamic = field.kind == DYNAMIC;
        let size = match field.kind {
            DYNAMIC => theirs.size,
            _ if has_abi && field.name == "id" => field.element_size * 2,
            _ => field.element_size * field.count.max(1),
        };
        // the kernel says of a structure that it is unsigned, and means nothing by the sign of text
        let signed = field.kind == OPAQUE || dynamic || field.c_type == "char" || field.signed == theirs.signed;
        if theirs.dynamic != dynamic || theirs.size != size || !signed {
            wrong.push(format!("{name}: {field:?} against {theirs:?}"));
        }
    }
    left_out.extend(theirs.map(|field| format!("{name}.{}", field.name)));
    wrong
}

#[test]
#[ignore = "tier all: the lab's own kernel, as the newer one below"]
fn every_event_of_the_kernel_is_recorded_as_the_kernel_describes_it() {
    judge(&results());
}

#[test]
fn every_event_of_a_newer_kernel_is_recorded_as_the_kernel_describes_it() {
    judge(&results_with(Suite::BookwormBackports));
}

fn judge(results: &Results) {
    let log = results.text("all.log");
    let formats: BTreeMap<&str, &FormatFile> =
        results.formats.iter().map(|format| (format.name.as_str(), format)).collect();
    let mut left_out = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (event, own) in results.module.events.iter().zip(&results.module.declarations) {
        let name = event.name.split(':').nth(1).unwrap();
        // events of modules that are not loaded are not there
        if let Some(kernel) = formats.get(name) {
            compared += 1;
            wrong.extend(contradictions(name, own, kernel, &mut left_out));
        }
    }
    println!("{compared} of {} events; fields left out: {left_out:?}", formats.len());
    assert_eq!(wrong, Vec::<String>::new());
    assert!(compared * 100 >= formats.len() * COVERAGE, "{compared} of {} events\n{log}", formats.len());
    assert!(left_out.len() <= 40, "{left_out:?}");

    // all of them at once
    assert_eq!(results.text("all.status").trim(), "0", "{log}");
    println!("{}", results.strata("check", "all.trace"));
    let kinds = recorded_kinds(results, &results.folder.join("all.trace"));
    println!("{} kinds of events recorded", kinds.len());
    assert!(kinds.len() >= 100, "{kinds:?}");

    // the samples among them, named by what the module recorded of the kernel's functions
    let report = results.strata_with("report", &["functions", "--json"], "all.trace");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let kernel = &report["kernels"][0];
    println!("{} samples, {} idle, {} unnamed", kernel["samples"], kernel["idle"], kernel["unnamed"]);
    let busy = kernel["samples"].as_u64().unwrap() - kernel["idle"].as_u64().unwrap();
    assert!(busy >= 100 && kernel["unnamed"].as_u64().unwrap() < busy / 2, "{kernel}");
    let functions = kernel["functions"].as_array().unwrap();
    assert!(functions.iter().any(|function| function["function"] == "do_syscall_64"), "{kernel}");

    // unloaded under load, and nothing to complain about
    assert!(log.contains("rmmod ended with 0"), "{log}");
    let messages = results.text("dmesg");
    let complaints = ["WARNING: CPU", "BUG:", "Call Trace", "suspicious RCU", "refcount", "cannot probe"];
    assert!(messages.contains("strata: unloaded"), "{messages}");
    let found: Vec<_> = messages.lines().filter(|line| complaints.iter().any(|word| line.contains(word))).collect();
    assert_eq!(found, Vec::<&str>::new());

    // another choice while the guest ran
    let control = results.text("control.log");
    assert!(control.contains("session main records guest:raw_syscalls:*"), "{control}");
    assert!(control.contains("no event matches 'guest:nosuch:*'"), "{control}");
    let events = guest_events(results, &results.folder.join("chosen.trace"), UNFINISHED_BYTES);
    let reported = || format!("of {} events; {control}\n{}", events.len(), results.text("chosen.log"));
    let last_switch = events.iter().rposition(|name| name == "sched:sched_switch");
    let last_switch = last_switch.unwrap_or_else(|| panic!("no switch {}", reported()));
    let first_call = events.iter().position(|name| name == "raw_syscalls:sys_enter");
    let first_call = first_call.unwrap_or_else(|| panic!("no system call {}", reported()));
    assert!(last_switch < first_call, "switches were recorded after they had been taken away: {}", reported());
    assert!(events.len() > first_call + 100, "{}", reported());
}

/// Names of the guest kernel's records, in their order. At most `rejected` bytes of a vCPU's may have been rejected.
fn guest_events(results: &Results, trace: &Path, rejected: u64) -> Vec<String> {
    let session: serde_json::Value = serde_json::from_slice(&fs::read(trace.join("session.json")).unwrap()).unwrap();
    let layers = session["layers"].as_array().unwrap();
    let layer = layers.iter().find(|layer| layer["kind"] == "guest-kernel").unwrap();
    for stream in layer["streams"].as_array().unwrap() {
        assert!(stream["rejected_bytes"].as_u64().unwrap_or(0) <= rejected, "{stream}");
    }
    let mut strata = Command::new(&results.strata);
    let text = process::capture(strata.arg("events").arg(trace).args(["--layer", "guest-kernel", "--json"])).unwrap();
    let name = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["event"].as_str().unwrap().to_owned()
    };
    text.lines().map(name).collect()
}

fn recorded_kinds(results: &Results, trace: &Path) -> BTreeSet<String> {
    let events = guest_events(results, trace, 0);
    println!("{} records of the guest's kernel", events.len());
    events.into_iter().collect()
}
