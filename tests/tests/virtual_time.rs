//! Emulated hosts in virtual time: what they do depends on their seed alone.
//!
//! Shows: The same seed gives the same recording.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::machine::emulator;
use lab::machine::host::HostRun;
use lab::machine::nested;
use lab::paths::Paths;
use lab::{process, provision};
use std::path::Path;
use std::process::Command;

const HOST_SCRIPT: &str = r#"
strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --cpus 2 --memory 256M --agent "$LAB/strata.ko" \
    --trace "$LAB_OUT/trace" --cmdline "$GUEST lab.script=work" > "$LAB_OUT/log" 2>&1
"#;

#[test]
fn installed_emulator_is_one_whose_faults_are_known() {
    let paths = Paths::of_workspace();
    provision::kernels(&paths, true).unwrap();
    let installed = process::find_program("qemu-system-x86_64").unwrap();

    let mended = emulator::mended(&installed, &paths.emulators()).unwrap();

    let [before, after] = [&installed, &mended].map(|program| std::fs::read(program).unwrap());
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    // a store of six bytes, some perhaps those of the no-op already, and a return
    assert!(before.len() == after.len() && (2..=7).contains(&changed), "{changed} bytes changed");
    assert!(process::capture(Command::new(&mended).arg("--version")).unwrap().contains("QEMU"));
}

/// What docs/qemu.md says of the emulator `program`: how many of 100,000 injected interrupts it delivers.
fn delivered(program: &Path, kernel: &Path) -> u32 {
    let mut emulator = Command::new(program);
    emulator.args(["-accel", "tcg,thread=single", "-icount", "shift=1", "-cpu", "EPYC,+svm", "-m", "64"]);
    emulator.args(["-display", "none", "-monitor", "none", "-serial", "stdio"]);
    emulator.args(["-device", "isa-debug-exit,iobase=0xf4", "-kernel"]).arg(kernel);
    let printed = process::capture_any(&mut emulator).unwrap();
    printed.trim().strip_prefix("delivered ").and_then(|text| text.strip_suffix(" of 100000")).unwrap().parse().unwrap()
}

#[test]
fn mended_emulator_delivers_an_injected_interrupt_once() {
    let paths = Paths::of_workspace();
    provision::kernels(&paths, true).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("injected_twice");
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-m32", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none,-Ttext=0x100000", "-o"])
        .arg(&kernel);
    process::capture(compiler.arg(paths.workspace().join("docs/qemu/injected_twice.S"))).unwrap();
    let installed = process::find_program("qemu-system-x86_64").unwrap();
    let mended = emulator::mended(&installed, &paths.emulators()).unwrap();

    let [with_fault, without] = [&installed, &mended].map(|program| delivered(program, &kernel));

    assert!(with_fault > 100_000 && without == 100_000, "{with_fault} and {without}");
}

#[test]
fn same_seed_gives_the_same_recording() {
    let paths = Paths::of_workspace();
    let lab = provision::lab(&paths).unwrap();
    let image = paths.images().join("virtual-time.cpio");
    let guest = lab.kernels.guest_image().unwrap().program("workload", &lab.binaries.workload);
    guest.script("work", "workload --events 200").write_file(&image).unwrap();
    let host = lab.kernels.nested_host(&paths).unwrap();
    let recording = |name| {
        let request = HostRun::new(name, HOST_SCRIPT)
            .file("strata", &lab.binaries.strata)
            .file("vmlinux", &lab.kernels.vmlinux)
            .file("guest.cpio", &image)
            .file("strata.ko", &lab.agent);
        nested::run(&host, &paths.runs(), &request).unwrap().success(name).unwrap().output.join("trace")
    };

    let [one, again] = ["virtual-time", "virtual-time-again"].map(recording);

    let differences = Command::new("diff").arg("-rq").args([one, again]).output().unwrap();
    assert!(differences.status.success(), "{}", String::from_utf8_lossy(&differences.stdout));
}
