//! Two VMs on one host at the same time, their vCPUs on one CPU: the two traces become one, with both VMs beside a host
//! that is there once.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::machine::host::HostRun;
use lab::machine::nested;
use lab::paths::Paths;
use lab::{process, provision};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use trace_merge::check;
use trace_merge::join::join;
use trace_merge::layer::LayerKind;
use trace_merge::merge::Merge;
use trace_merge::reader::Trace;
use trace_merge::vcpu::{SwitchSource, Switches};

/// Both are called vm0. Two seconds of computing in both at once make the host switch between them.
const HOST_SCRIPT: &str = r#"
start() {
    taskset 2 timeout -s KILL 240 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M \
        --cmdline 'console=ttyS0 quiet panic=-1 lab.script=work' \
        --agent "$LAB/strata.ko" --trace "$LAB_OUT/$1" < /dev/null > "$LAB_OUT/$1.log" 2>&1
    echo "$1: status $?"
    tail -n 8 "$LAB_OUT/$1.log"
}
start one &
start two &
wait
"#;

const GUEST_SCRIPT: &str = "workload --events 500\ntimeout 2 sh -c 'while :; do :; done'\nworkload --events 500\n";

/// Records of the host's kernel in `trace`.
fn host_records(trace: &Trace) -> u64 {
    trace.layers_of(LayerKind::HostKernel).map(|layer| Merge::new([layer], 0).count() as u64).sum()
}

fn strata(program: &Path, arguments: &[&str], trace: &Path) -> String {
    process::capture(Command::new(program).args(arguments).arg(trace)).unwrap()
}

#[test]
fn vms_of_one_host_are_merged_side_by_side() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let image = paths.images().join("several-vms.cpio");
    let guest = lab.kernels.guest_image().unwrap().program("workload", &lab.binaries.workload);
    guest.script("work", GUEST_SCRIPT).write_file(&image).unwrap();
    let mut request = HostRun::new("several-vms", HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    request.timeout = Duration::from_secs(480);
    let host = lab.kernels.nested_host().unwrap();
    let result = nested::run(&host, &paths.runs(), &request).unwrap().success("several-vms").unwrap();
    println!("{}", std::fs::read_to_string(&result.script_log).unwrap());
    let [one, two, merged] = ["one", "two", "merged"].map(|name| result.output.join(name));

    let joined = join(&one, std::slice::from_ref(&two), &[], &merged).unwrap();

    let trace = Trace::open(&merged).unwrap();
    let names: Vec<_> = trace.manifest().vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!((names, joined.relation.is_none()), (vec!["vm0", "vm0-2"], true));
    let apart = host_records(&Trace::open(&one).unwrap()) + host_records(&Trace::open(&two).unwrap());
    println!("{apart} host records, {} of them twice", joined.shared_host_events);
    assert!(joined.shared_host_events > 0);
    assert_eq!(host_records(&trace), apart - joined.shared_host_events);
    for vm in &trace.manifest().vms {
        let switches = Switches::new(&trace, vm, SwitchSource::HostKernel).count();
        assert!(switches > 1000, "{}: {switches}", vm.name);
    }
    let checked = check::check(&trace, 10).unwrap();
    assert!(checked.passed(), "{:?}", checked.violations);
    assert_eq!(checked.periods.iter().map(|periods| periods.vm.as_str()).collect::<Vec<_>>(), ["vm0", "vm0-2"]);
    let program = &lab.binaries.strata;
    let count: usize = strata(program, &["events", "--count"], &merged).trim().parse().unwrap();
    assert_eq!(strata(Path::new("babeltrace2"), &[], &merged).lines().count(), count);
    assert!(strata(program, &["report"], &merged).contains("vm0-2"));
}
