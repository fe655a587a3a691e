//! What pandas reads in an export: partitions as columns, and the figures of the reports. `cargo xtask query` runs this
//! test; it needs a Python that has pandas and pyarrow, in `STRATA_DUCKDB_PYTHON`.

use crate::made_recording;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::Command;
use trace_merge::report::Window;
use trace_merge::report::kernels::exits;
use trace_merge::report::scheduling::{tasks, vcpus, wakeups};

/// Reads tables of the folder by their partitions, and adds up what reports add up.
const SCRIPT: &str = r#"
import json, pandas, pyarrow, pyarrow.dataset, sys
folder, vm = sys.argv[1], sys.argv[2]
columns = pyarrow.schema([(name, pyarrow.string()) for name in ("host", "boot", "vm", "hour")])
places = pyarrow.dataset.partitioning(columns, flavor = "hive")
def read(table, of = vm):
    return pandas.read_parquet(f"{folder}/{table}", partitioning = places, filters = [("vm", "=", of)])
states, exits, wakeups = read("vcpu_states"), read("exits"), read("wakeups")
print(json.dumps({
    "ns_by_state": {k: int(v) for k, v in states.groupby("state")["duration_ns"].sum().items()},
    "exits_by_reason": {k: int(v) for k, v in exits.groupby("reason").size().items()},
    "exit_ns": int(exits["duration_ns"].sum()),
    "wakeups": len(wakeups),
    "task_ns": int(read("task_states")["duration_ns"].sum()),
    "hours": sorted(map(str, states["hour"].unique())),
    "of_another_vm": len(read("exits", "nobody")),
}))
"#;

/// What pandas says.
#[derive(Debug, Deserialize)]
struct Reported {
    ns_by_state: BTreeMap<String, u64>,
    exits_by_reason: BTreeMap<String, u64>,
    exit_ns: u64,
    wakeups: u64,
    task_ns: u64,
    hours: Vec<String>,
    of_another_vm: u64,
}

#[test]
#[ignore = "tier all: needs pandas: cargo xtask query"]
fn tables_are_read_by_partition_with_the_figures_of_the_reports() {
    let folder = tempfile::tempdir().unwrap();
    let (_dir, trace) = made_recording::export(folder.path());
    let python = std::env::var_os("STRATA_DUCKDB_PYTHON").expect("cargo xtask query sets STRATA_DUCKDB_PYTHON");

    let output = Command::new(python).args(["-c", SCRIPT]).arg(folder.path()).arg("vm0").output().unwrap();

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reported: Reported = serde_json::from_slice(&output.stdout).unwrap();
    let mut ns: BTreeMap<String, u64> = BTreeMap::new();
    let vcpus = vcpus::report(&trace, Window::ALL).unwrap();
    for part in vcpus.vms.iter().flat_map(|vm| &vm.vcpus).flat_map(|vcpu| &vcpu.parts).filter(|part| part.ticks > 0) {
        *ns.entry(part.state.to_string()).or_default() += trace.clock().ticks_to_ns(part.ticks);
    }
    assert_eq!(reported.ns_by_state, ns);
    let exits = exits::report(&trace, Window::ALL).unwrap();
    let reasons = &exits.vms[0].reasons;
    let counts = reasons.iter().map(|reason| (reason.reason.clone(), reason.count)).collect();
    assert_eq!(reported.exits_by_reason, counts);
    assert_eq!(reported.exit_ns, reasons.iter().map(|reason| reason.time.total_ns).sum::<u64>());
    let wakeups = wakeups::report(&trace, Window::ALL).unwrap();
    assert_eq!(reported.wakeups, wakeups.vms.iter().map(|vm| vm.latency.count).sum::<u64>());
    let tasks = tasks::report(&trace, Window::ALL).unwrap();
    let wall = tasks.vms[0].tasks.iter().map(|task| trace.clock().ticks_to_ns(task.wall_ticks));
    assert_eq!(reported.task_ns, wall.sum::<u64>());
    assert_eq!((reported.hours, reported.of_another_vm), (vec!["2023-11-14T22".to_string()], 0));
}
