//! A guest whose rings are much too small for what it records: every report shows the loss, and nothing else is wrong.
//!
//! Shows: Every report tells what rings that are too small lost; nothing else is wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::machine::host::HostRun;
use lab::paths::Paths;
use lab::{process, provision};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use trace_merge::check;

/// Two guests at the same time, whose rings have two and four sub-buffers of 4 KiB.
const HOST_SCRIPT: &str = r#"
start() {
    timeout -s KILL 240 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M \
        --cmdline "$GUEST lab.script=work" --sub-buffer-size 4K --sub-buffers "$1" \
        --agent "$LAB/strata.ko" --trace "$LAB_OUT/rings-of-$1" < /dev/null > "$LAB_OUT/rings-of-$1.log" 2>&1
    echo "$1: status $?"
    tail -n 8 "$LAB_OUT/rings-of-$1.log"
}
start 2 &
start 4 &
wait
"#;

/// Each read and each write is two records of the kernel: a ring of 16 KiB holds some two hundred.
const GUEST_SCRIPT: &str = "workload --events 2000\ndd if=/dev/zero of=/dev/null bs=1 count=20000\n";

fn strata(program: &Path, arguments: &[&str], trace: &Path) -> String {
    process::capture(Command::new(program).args(arguments).arg(trace)).unwrap()
}

#[test]
fn loss_in_rings_that_are_too_small_is_reported_and_harms_nothing_else() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let image = paths.images().join("lossy.cpio");
    let guest = lab.kernels.guest_image().unwrap().program("workload", &lab.binaries.workload);
    guest.script("work", GUEST_SCRIPT).write_file(&image).unwrap();
    let mut request = HostRun::new("lossy", HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    request.timeout = Duration::from_secs(400);

    let result = lab.host.run(&paths.runs(), &request).unwrap().success("lossy").unwrap();

    println!("{}", std::fs::read_to_string(&result.script_log).unwrap());
    let program = &lab.binaries.strata;
    for folder in ["rings-of-2", "rings-of-4"].map(|name| result.output.join(name)) {
        let trace = Trace::open(&folder).unwrap();
        let kernel = trace.layers_of(LayerKind::GuestKernel).flat_map(|layer| &layer.streams);
        let lost: u64 = kernel.map(|stream| stream.description.lost.total()).sum();
        assert!(lost > 1000, "{}: {lost} records lost", folder.display());

        let checked = check::check(&trace, 10).unwrap();
        assert!(checked.passed(), "{}: {:?}", folder.display(), checked.violations);
        let report = strata(program, &["report", "all", "--json"], &folder);
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let completeness = &report["completeness"];
        let layers = completeness["layers"].as_array().unwrap();
        let kernel = layers.iter().find(|layer| layer["layer"] == "guest-kernel").unwrap();
        println!("{}: {kernel}", folder.display());
        let reported = kernel["lost"].as_object().unwrap().values().filter_map(serde_json::Value::as_u64).sum::<u64>();
        assert_eq!((&completeness["complete"], reported), (&false.into(), lost));
        assert!(kernel["gaps"].as_u64().unwrap() > 2, "{kernel}");
        let text = strata(program, &["report", "all"], &folder);
        assert!(text.contains(&format!("{lost} records lost")), "{text}");
        let count: usize = strata(program, &["events", "--count"], &folder).trim().parse().unwrap();
        assert_eq!(strata(Path::new("babeltrace2"), &[], &folder).lines().count(), count);
    }
}
