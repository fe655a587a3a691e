//! Whole runs of a hand-written guest out of a disk image, in a closed jail. They need `/dev/kvm`, of any kind, root,
//! and the programs `mke2fs` and `timeout`.

use super::vm_process::ARGUMENTS_VARIABLE;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use strata_machine::test_guest;
use strata_recorder::control::directory;
use tempfile::TempDir;

/// Bytes of the command line that the guest shows.
const SHOWN: u8 = 64;

/// Writes the beginning of its command line to the console, and powers off.
fn guest() -> Vec<u8> {
    let mut code = vec![0xba, 0xf8, 0x03, 0x00, 0x00]; // mov edx, 0x3f8
    code.extend([0xbe, 0x00, 0x00, 0x02, 0x00]); // mov esi, 0x2_0000
    code.extend([0xb9, SHOWN, 0x00, 0x00, 0x00]); // mov ecx, SHOWN
    code.extend([0xf3, 0x6e]); // rep outsb
    code.extend([0xba, 0x00, 0x06, 0x00, 0x00]); // mov edx, 0x600
    code.extend([0xb0, 0x34, 0xee, 0xf4]); // mov al, 0x34; out dx, al; hlt
    code
}

/// Runs the guest out of its image, with what `options` say of that.
fn run(options: &str) -> Output {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir_all(path("root/boot")).unwrap();
    fs::write(path("root/boot/vmlinuz-1.0"), test_guest::elf(&guest())).unwrap();
    fs::write(path("root/boot/initrd.img-1.0"), [b'x'; 100_000]).unwrap();
    let mut make = Command::new("mke2fs");
    make.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(["-q", "-t", "ext4", "-d", &path("root")]);
    assert!(make.args([&path("image"), "8M"]).output().unwrap().status.success());
    fs::create_dir(path("runtime")).unwrap();
    fs::set_permissions(path("runtime"), fs::Permissions::from_mode(0o700)).unwrap();
    let image = format!("{}{options}", path("image"));
    let mut command = Command::new("timeout");
    command.arg("60").arg(std::env::current_exe().unwrap());
    command.args(["--exact", "run::tests::vm_process::child_that_runs_a_guest", "--nocapture"]);
    command.env(ARGUMENTS_VARIABLE, ["--image", &image, "--memory", "64M"].join("\n"));
    command.env(directory::RUNTIME_VARIABLE, path("runtime")).env_remove("SUDO_UID").output().unwrap()
}

#[test]
fn guest_boots_from_its_image_with_the_root_on_its_command_line() {
    let [writable, read_only] = ["", ",ro"].map(run);

    for (output, root) in [(writable, "root=/dev/vda rw\0"), (read_only, "root=/dev/vda ro\0")] {
        let (printed, console) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert!(printed.contains("OUTCOME the guest powered off"), "{printed}\n{console}");
        assert!(console.contains(&format!("console=ttyS0 panic=-1 {root}")), "{console}");
    }
}
