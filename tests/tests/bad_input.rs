//! What `strata` says to input that it cannot use: one line that names the thing, a status other than 0, nothing left
//! behind. These runs end before a guest starts, so they need no host with hardware virtualisation.
//!
//! Shows: Bad input gets one clear line, a failing status, and loses nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::binaries::{self, Purpose};
use lab::build::kmod;
use lab::paths::Paths;
use lab::process;
use lab::provision::{self, Kernels};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder for one test, with the kernel that is good.
struct Bench {
    strata: PathBuf,
    kernels: Kernels,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let paths = Paths::of_workspace();
        provision::programs(&paths).unwrap();
        let kernels = provision::kernels(&paths, false).unwrap();
        Self { strata: binaries::located(&paths, Purpose::Test).strata, kernels, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    /// A file that takes no room, however large.
    fn sparse_file(&self, name: &str, bytes: u64) -> String {
        let path = self.folder.path().join(name);
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path.display().to_string()
    }

    fn kernel(&self) -> &str {
        self.kernels.vmlinux.to_str().unwrap()
    }

    /// `strata run` of the good kernel with further arguments, and a trace that must not be begun.
    fn refused_run(&self, arguments: &[&str]) -> String {
        let trace = self.path("trace");
        let mut all = vec!["run", "--kernel", self.kernel(), "--no-agent", "--trace", &trace];
        all.extend(arguments);
        let line = self.refused(&all);
        assert!(!Path::new(&trace).exists(), "a trace was begun: {line}");
        line
    }

    /// The one line that `strata` refuses these arguments with.
    fn refused(&self, arguments: &[&str]) -> String {
        only_line(&Command::new(&self.strata).args(arguments).output().unwrap())
    }
}

/// The one line on standard error of a program that failed by itself.
fn only_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(2)), "status {}: {text}", output.status);
    assert_eq!(text.lines().count(), 1, "not one line: {text}");
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Asserts that `line` holds each of `parts`, whatever the case.
fn assert_names(line: &str, parts: &[&str]) {
    let low = line.to_lowercase();
    for part in parts {
        assert!(low.contains(&part.to_lowercase()), "{part:?} is not named in: {line}");
    }
}

#[test]
fn missing_kernel_is_named() {
    let bench = Bench::new();
    let line = bench.refused(&["run", "--kernel", "/nonexistent/vmlinuz", "--no-agent"]);

    assert_names(&line, &["/nonexistent/vmlinuz"]);
}

#[test]
fn unreadable_kernel_is_named() {
    let bench = Bench::new();
    let folder = bench.folder.path().display().to_string();
    let line = bench.refused(&["run", "--kernel", &folder, "--no-agent"]);

    assert_names(&line, &[&folder]);
}

#[test]
fn kernel_of_another_format_is_named() {
    let bench = Bench::new();
    let text = bench.file("kernel", &b"not a kernel\n".repeat(1000));
    let line = bench.refused(&["run", "--kernel", &text, "--no-agent"]);

    assert_names(&line, &[&text, "ELF", "bzImage"]);
}

#[test]
fn initrd_that_does_not_fit_is_named_with_the_memory() {
    let bench = Bench::new();
    let initrd = bench.sparse_file("initrd", 200 << 20);
    let line = bench.refused_run(&["--initrd", &initrd, "--memory", "128M"]);

    assert_names(&line, &["initrd", "memory"]);
}

#[test]
fn missing_initrd_is_named() {
    let bench = Bench::new();
    let line = bench.refused_run(&["--initrd", "/nonexistent/initrd"]);

    assert_names(&line, &["/nonexistent/initrd"]);
}

#[test]
fn image_without_a_file_system_or_a_kernel_is_named() {
    let bench = Bench::new();
    let (zeros, text) = (bench.sparse_file("zeros.img", 1 << 20), bench.file("text.img", &[b'x'; 4096]));
    let run = |image: &str| bench.refused(&["run", "--image", image, "--no-agent"]);

    assert_names(&run(&zeros), &[&zeros, "no ext4 file system", "--kernel"]);
    assert_names(&run(&text), &[&text, "no ext4 file system", "--kernel"]);
    assert_names(&run("/nonexistent/root.img"), &["/nonexistent/root.img", "check the path"]);
}

#[test]
fn memory_too_small_for_the_kernel_is_refused() {
    let bench = Bench::new();
    let line = bench.refused_run(&["--memory", "1M"]);

    assert_names(&line, &["memory"]);
}

#[test]
fn memory_larger_than_any_machine_is_refused() {
    let bench = Bench::new();
    let line = bench.refused_run(&["--memory", "1000000G"]);

    assert_names(&line, &["memory"]);
}

#[test]
fn missing_disk_is_named() {
    let bench = Bench::new();
    let line = bench.refused_run(&["--disk", "/nonexistent/disk.img"]);

    assert_names(&line, &["/nonexistent/disk.img"]);
}

#[test]
fn disk_of_a_broken_sector_is_named() {
    let bench = Bench::new();
    let disk = bench.sparse_file("disk.img", 1000);
    let line = bench.refused_run(&["--disk", &disk]);

    assert_names(&line, &[&disk, "512"]);
}

#[test]
fn no_processors_are_refused() {
    let bench = Bench::new();
    let line = bench.refused_run(&["--cpus", "0"]);

    assert_names(&line, &["cpu"]);
}

#[test]
fn too_many_processors_are_refused_with_the_limit() {
    let bench = Bench::new();
    let line = bench.refused_run(&["--cpus", "100000"]);

    assert_names(&line, &["cpu", "100000"]);
}

#[test]
fn unknown_event_lists_the_nearest_names() {
    let bench = Bench::new();
    let line = bench.refused_run(&["--events", "kvm:kvm_exitt"]);

    assert_names(&line, &["kvm:kvm_exitt", "kvm:kvm_exit"]);
}

#[test]
fn existing_trace_folder_is_named_and_left_alone() {
    let bench = Bench::new();
    let folder = bench.path("mine");
    fs::create_dir(&folder).unwrap();
    fs::write(Path::new(&folder).join("file"), "precious").unwrap();
    let line = bench.refused(&["run", "--kernel", bench.kernel(), "--no-agent", "--trace", &folder]);

    assert_names(&line, &[&folder, "exist"]);
    assert_eq!(fs::read_to_string(Path::new(&folder).join("file")).unwrap(), "precious");
}

#[test]
fn unwritable_trace_folder_is_named() {
    let bench = Bench::new();
    let line = bench.refused(&["run", "--kernel", bench.kernel(), "--no-agent", "--trace", "/proc/trace"]);

    assert_names(&line, &["/proc/trace"]);
}

#[test]
fn agent_for_another_kernel_is_refused_with_both_releases() {
    let bench = Bench::new();
    let paths = Paths::of_workspace();
    let agent = provision::agent(&paths).unwrap();
    let release = &bench.kernels.packages.release;
    let other = release.replace("6.1", "6.9");
    let mut module = fs::read(agent).unwrap();
    replace_bytes(&mut module, release.as_bytes(), other.as_bytes());
    let module = bench.file("strata.ko", &module);
    let trace = bench.path("trace");
    let line = bench.refused(&["run", "--kernel", bench.kernel(), "--agent", &module, "--trace", &trace]);

    assert_names(&line, &[&other, release]);
    assert!(!Path::new(&trace).exists());
}

#[test]
fn headers_of_another_kernel_are_refused_with_both_releases() {
    let bench = Bench::new();
    let sources = kmod::sources(&Paths::of_workspace()).unwrap();
    let headers = bench.kernels.headers.to_str().unwrap();
    let out = bench.path("strata.ko");
    let build = ["agent", "build", "--kernel-headers", headers, "--agent-sources", sources.to_str().unwrap()];
    let line = bench.refused(&[&build[..], &["--kernel", "6.12.95-cloud-amd64", "--out", &out]].concat());

    assert_names(&line, &[headers, "6.12.95-cloud-amd64", &bench.kernels.packages.release]);
    assert!(!Path::new(&out).exists());
}

#[test]
fn agent_without_sources_or_headers_says_where_they_come_from() {
    let bench = Bench::new();
    let out = bench.path("strata.ko");
    let sources = bench.refused(&["agent", "build", "--kernel-headers", "/nonexistent", "--out", &out]);
    let folder = bench.folder.path().to_str().unwrap();
    let build = ["agent", "build", "--kernel-headers", bench.kernel(), "--agent-sources", folder, "--out", &out];
    let not_sources = bench.refused(&build);

    assert_names(&sources, &["sources", "--agent-sources"]);
    assert_names(&not_sources, &[folder, "Kbuild"]);
}

#[test]
fn injecting_other_files_is_refused() {
    let bench = Bench::new();
    let out = bench.path("out.img");
    let text = bench.file("text", b"neither initrd nor module");
    let line = bench.refused(&["agent", "inject", "--module", &text, "--out", &out]);

    assert_names(&line, &[&text, "kernel module"]);
    assert!(!Path::new(&out).exists());
}

/// Replaces every occurrence of `from` by the equally long `to`.
fn replace_bytes(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let found: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, window)| *window == from).map(|(at, _)| at).collect();
    assert!(!found.is_empty());
    for at in found {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
}

#[test]
fn missing_agent_is_named() {
    let bench = Bench::new();
    let trace = bench.path("trace");
    let agent = "/nonexistent/strata.ko";
    let line = bench.refused(&["run", "--kernel", bench.kernel(), "--agent", agent, "--trace", &trace]);

    assert_names(&line, &["/nonexistent/strata.ko"]);
}

#[test]
fn machine_without_kvm_is_named_as_the_reason() {
    let bench = Bench::new();
    let trace = bench.path("trace");
    // an empty /dev in a mount namespace of its own
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", "mount -t tmpfs none /dev && exec \"$@\"", "sh"])
        .arg(&bench.strata)
        .args(["run", "--kernel", bench.kernel(), "--no-agent", "--trace", &trace])
        .output()
        .unwrap();
    let line = only_line(&output);

    assert_names(&line, &["/dev/kvm"]);
    assert!(!Path::new(&trace).exists());
}

#[test]
fn kvm_without_permission_is_named_as_the_reason() {
    let bench = Bench::new();
    let paths = Paths::of_workspace();
    // another user must be able to reach the program and the kernel
    let strata = bench.path("strata");
    let kernel = bench.path("vmlinux");
    fs::copy(binaries::located(&paths, Purpose::Test).strata, &strata).unwrap();
    fs::copy(bench.kernel(), &kernel).unwrap();
    process::capture(Command::new("chmod").args(["-R", "a+rX"]).arg(bench.folder.path())).unwrap();
    // a device that only its owner may open, whatever this machine's is like
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mount -t tmpfs -o mode=755 none /dev && mknod -m 600 /dev/kvm c 10 232 && exec setpriv --reuid=65534 --clear-groups \"$@\"")
        .args(["sh", &strata, "run", "--kernel", &kernel, "--no-agent"])
        .output()
        .unwrap();
    let line = only_line(&output);

    assert_names(&line, &["/dev/kvm", "permission"]);
}

/// This machine's KVM refuses stock guests: none is there, or it only emulates.
#[test]
fn kvm_that_cannot_run_guests_is_refused_as_the_doctor_says() {
    let bench = Bench::new();
    let doctor = Command::new(&bench.strata).args(["doctor", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    if report["runs_guests"] == true {
        eprintln!("skipped: this machine's KVM runs guests");
        return;
    }
    let line = bench.refused_run(&[]);

    assert_names(&line, &["KVM", "strata doctor"]);
    assert_ne!(doctor.status.code(), Some(0));
}

#[test]
fn trace_with_a_truncated_description_is_named() {
    let bench = Bench::new();
    let trace = bench.folder.path().join("trace");
    fs::create_dir(&trace).unwrap();
    fs::write(trace.join("session.json"), "{\"format\": 1, \"strata\"").unwrap();
    for command in ["events", "report", "check"] {
        let line = bench.refused(&[command, trace.to_str().unwrap()]);

        assert_names(&line, &["session.json"]);
    }
}

#[test]
fn folder_that_is_no_trace_is_named() {
    let bench = Bench::new();
    let folder = bench.folder.path().display().to_string();
    for command in ["events", "report", "check"] {
        let line = bench.refused(&[command, &folder]);

        assert_names(&line, &[&folder]);
    }
}

#[test]
fn report_that_does_not_exist_is_named_with_those_that_do() {
    let bench = Bench::new();
    let line = bench.refused(&["report", "taks", "/nonexistent/trace"]);

    assert_names(&line, &["'taks'", "tasks"]);
}

#[test]
fn report_on_states_names_what_is_no_trace() {
    let bench = Bench::new();
    let folder = bench.folder.path().display().to_string();
    for report in ["tasks", "vcpus", "exits", "wakeups"] {
        let line = bench.refused(&["report", report, &folder]);

        assert_names(&line, &[&folder]);
    }
}

#[test]
fn why_names_what_is_no_trace() {
    let bench = Bench::new();
    let folder = bench.folder.path().display().to_string();
    let line = bench.refused(&["why", &folder, "--task", "web"]);

    assert_names(&line, &[&folder]);
}

#[test]
fn disk_in_another_format_is_refused_with_the_way_out() {
    let bench = Bench::new();
    let images = [("a.qcow2", &b"QFI\xfb\0\0\0\x03"[..]), ("a.raw.xz", b"\xfd7zXZ\0")];
    let paths = images.map(|(name, head)| bench.file(name, &[head, &[0; 1000]].concat()));
    let [qcow2, xz] = paths.each_ref().map(|path| bench.refused_run(&["--disk", path]));
    let as_image = bench.refused(&["run", "--image", &paths[0]]);

    assert_names(&qcow2, &[&paths[0], "is a qcow2 image", "qemu-img convert -O raw", "format=raw"]);
    assert_names(&xz, &[&paths[1], "is compressed by xz", "unxz"]);
    assert_names(&as_image, &[&paths[0], "is a qcow2 image"]);
}

#[test]
fn missing_trace_is_named() {
    let bench = Bench::new();
    let line = bench.refused(&["events", "/nonexistent/trace"]);

    assert_names(&line, &["/nonexistent/trace"]);
}

#[test]
fn region_that_is_none_is_named_and_no_trace_begun() {
    let bench = Bench::new();
    let junk = bench.file("junk", &[0x5a; 1 << 16]);
    let cut = bench.file("cut", b"STRATA\0\x01");
    let out = bench.path("recovered");
    for region in [junk.as_str(), cut.as_str(), "/nonexistent/region"] {
        let line = bench.refused(&["recover", region, "-o", &out]);

        assert_names(&line, &[region]);
        assert!(!Path::new(&out).exists(), "a trace was begun: {line}");
    }
}

#[test]
fn region_on_a_file_system_that_sets_no_room_aside_is_refused() {
    let bench = Bench::new();
    let folder = bench.path("ramfs");
    fs::create_dir(&folder).unwrap();
    let mount_and = r#"mount -t ramfs none "$1" && chmod 700 "$1" && cd "$1" && shift && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", mount_and, "sh", &folder]).arg(&bench.strata);

    let line = only_line(&command.args(["region", "create", "region", "--cpus", "1"]).output().unwrap());

    assert_names(&line, &["sets no room aside", "tmpfs"]);
}

#[test]
fn vm_that_does_not_run_is_named() {
    let bench = Bench::new();
    let line = bench.refused(&["ctl", "no-such-vm", "status"]);

    assert_names(&line, &["no-such-vm", "strata ps"]);
}

#[test]
fn ring_geometry_that_is_impossible_is_named_with_the_limits() {
    let bench = Bench::new();
    let refused = |option: &str, value: &str| {
        let arguments =
            ["run", "--kernel", bench.kernel(), "--no-agent", "--trace", "/nonexistent/trace", option, value];
        let output = Command::new(&bench.strata).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };

    assert_names(&refused("--sub-buffer-size", "100K"), &["100K", "4K to 4M"]);
    assert_names(&refused("--sub-buffers", "3"), &["'3'", "2 to 256"]);
    assert_names(&refused("--mode", "flight"), &["flight-recorder", "discard"]);
}

#[test]
fn value_that_cannot_be_used_is_repeated_once() {
    let bench = Bench::new();
    let options = [
        ("--memory", "12Q", "512M"),
        ("--sub-buffer-size", "100K", "4K to 4M"),
        ("--sub-buffers", "77", "2 to 256"),
        ("--mode", "flight", "discard"),
        ("--disk", "a.img,delay=17", "delay=5ms"),
        ("--name", "a/b", "letters"),
    ];
    for (option, value, fix) in options {
        let run = ["run", "--kernel", bench.kernel(), "--trace", "/nonexistent/trace", option, value];
        let output = Command::new(&bench.strata).args(run).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);

        assert_eq!(printed.matches(&format!("'{value}'")).count(), 1, "{printed}");
        assert_names(&printed, &[option, fix]);
    }
}

#[test]
fn unknown_layer_is_answered_with_the_nearest() {
    let bench = Bench::new();
    let output = Command::new(&bench.strata).args(["events", "trace", "--layer", "guest-kernle"]).output().unwrap();
    let line = bench.refused_run(&["--events", "guest-kernle:sched:*"]);

    assert_names(&String::from_utf8_lossy(&output.stderr), &["guest-kernle", "host-kernel, vmm", "'guest-kernel'"]);
    assert_names(&line, &["guest-kernle", "host-kernel, vmm", "nearest: guest-kernel"]);
}
