//! A host whose kernel runs without landlock: that is said, once, and the rest of the jail holds. The VM runs in namespaces
//! of mounts, network, names and IPC, where everything is recorded; a second one in a PID namespace besides, where the
//! host's kernel is not, and that is said.
//!
//! Shows: Run, doctor and status report a host without landlock; the rest of the jail holds.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::machine::host::HostRun;
use lab::machine::nested;
use lab::paths::Paths;
use lab::scenarios::results::Results;
use lab::{process, provision};
use std::fs;
use std::process::Command;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Manifest;

/// Without landlock among the security modules that the kernel begins with.
const KERNEL_ARGUMENTS: &str = "tsc=reliable lsm=yama";

const HOST_SCRIPT: &str = r#"
mount -t securityfs securityfs /sys/kernel/security
cat /sys/kernel/security/lsm > $LAB_OUT/lsm
strata doctor > $LAB_OUT/doctor.log 2>&1
unshare -m -n -u -i strata run --kernel $LAB/vmlinux --initrd $LAB/guest.cpio --memory 512M --cpus 1 --agent $LAB/strata.ko \
    --cmdline "$GUEST lab.script=work" --trace $LAB_OUT/bare.trace < /dev/null > $LAB_OUT/run.log 2>&1 &
strata=$!
(sleep 200; kill -KILL $strata) &
limit=$!
waited=0
until grep -q 'guest is up' $LAB_OUT/run.log 2> /dev/null || [ $waited -ge 120 ]; do
    sleep 1
    waited=$((waited + 1))
done
strata ctl vm0 status > $LAB_OUT/control.log 2>&1
cat /proc/$strata/task/*/status > $LAB_OUT/threads.log
wait $strata
echo $? > $LAB_OUT/status
kill $limit
tail -n 8 $LAB_OUT/run.log
contained='unshare -m -n -u -i -p -f --mount-proc'
$contained strata doctor > $LAB_OUT/contained-doctor.log 2>&1
timeout -s KILL 200 $contained strata run --kernel $LAB/vmlinux --initrd $LAB/guest.cpio --memory 512M --cpus 1 \
    --agent $LAB/strata.ko --cmdline "$GUEST lab.script=short" --trace $LAB_OUT/contained.trace \
    < /dev/null > $LAB_OUT/contained.log 2>&1
echo $? > $LAB_OUT/contained.status
tail -n 8 $LAB_OUT/contained.log
exit 0
"#;

const GUEST_SCRIPT: &str = "echo guest is up\nsleep 3\nworkload --events 500 && echo 'workload done'\n";

const SHORT_SCRIPT: &str = "echo guest is up\n";

/// The values that the lines `field` of `/proc/PID/status` have, of all threads together.
fn values<'s>(threads: &'s str, field: &str) -> Vec<&'s str> {
    let lines = threads.lines().filter_map(|line| line.strip_prefix(field)?.split_whitespace().next());
    let mut values: Vec<_> = lines.collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[test]
fn jail_without_landlock_and_namespaces_are_reported_and_the_rest_holds() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let image = paths.images().join("bare-host.cpio");
    let guest = lab.kernels.guest_image().unwrap().program("workload", &lab.binaries.workload);
    guest.script("work", GUEST_SCRIPT).script("short", SHORT_SCRIPT).write_file(&image).unwrap();
    let mut request = HostRun::new("bare-host", HOST_SCRIPT)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    request.kernel_arguments = KERNEL_ARGUMENTS.to_owned();
    let host = lab.kernels.nested_host(&paths).unwrap();

    let result = nested::run(&host, &paths.runs(), &request).unwrap().success("bare-host").unwrap();

    println!("{}", fs::read_to_string(&result.script_log).unwrap());
    let results = Results(result.output);
    let text = |name: &str| String::from_utf8_lossy(&fs::read(results.0.join(name)).unwrap()).into_owned();
    let (printed, threads) = (text("run.log"), text("threads.log"));
    assert!(!text("lsm").contains("landlock"), "{}", text("lsm"));
    assert_eq!(text("status").trim(), "0", "{printed}");
    assert!(printed.contains("workload done"), "{printed}");
    // Said by the run, by the doctor beforehand, and by status.
    let line = "this kernel has no landlock: files are limited by their permissions alone";
    assert_eq!(printed.matches(line).count(), 1, "{printed}");
    let doctor = text("doctor.log");
    assert!(doctor.contains("there is no landlock") && doctor.contains("lsm=landlock"), "{doctor}");
    let control = text("control.log");
    assert!(control.contains("jail    user 0, no capabilities, seccomp\n"), "{control}");

    // The rest holds, in every thread.
    assert!(values(&threads, "Name:").len() >= 5, "{threads}");
    assert_eq!(values(&threads, "CapEff:"), ["0000000000000000"]);
    assert_eq!((values(&threads, "NoNewPrivs:"), values(&threads, "Seccomp:")), (vec!["1"], vec!["2"]));

    // Everything is recorded, and read without a complaint.
    let trace = results.trace("bare");
    for kind in [LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestKernel, LayerKind::GuestUser] {
        assert!(results.records("bare", kind).unwrap() > 0, "nothing of {kind}");
    }
    process::capture(Command::new(&lab.binaries.strata).arg("check").arg(&trace)).unwrap();
    let mut events = Command::new(&lab.binaries.strata);
    let count: usize =
        process::capture(events.args(["events", "--count"]).arg(&trace)).unwrap().trim().parse().unwrap();
    assert_eq!(process::capture(Command::new("babeltrace2").arg(&trace)).unwrap().lines().count(), count);

    // In a PID namespace the host's kernel is not recorded under numbers of other threads: it is missing, with the fix.
    let printed = text("contained.log");
    assert_eq!(text("contained.status").trim(), "0", "{printed}");
    assert_eq!(printed.matches("host-kernel is missing: strata runs in a PID namespace").count(), 1, "{printed}");
    let doctor = text("contained-doctor.log");
    assert_eq!(
        (printed.matches("--pid=host").count(), doctor.matches("--pid=host").count()),
        (1, 2),
        "{printed}{doctor}"
    );
    let trace = results.trace("contained");
    let manifest = Manifest::load(&trace).unwrap();
    assert!(manifest.missing.iter().any(|missing| missing.layer == LayerKind::HostKernel), "{:?}", manifest.missing);
    assert!(matches!(manifest.vms[0].vcpu_threads[..], [..-1]), "{:?}", manifest.vms[0]);
    assert!(results.records("contained", LayerKind::GuestKernel).unwrap() > 0);
    process::capture(Command::new(&lab.binaries.strata).arg("check").arg(&trace)).unwrap();
}
