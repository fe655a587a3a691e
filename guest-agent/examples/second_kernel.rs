//! Boots another kernel in the machine, without its firmware.
//!
//! - `second_kernel load KERNEL CMDLINE [INITRD]`: loads one, a bzImage, for `start`.
//! - `second_kernel load-crash KERNEL CMDLINE [INITRD]`: the same, for when this kernel panics (`crashkernel=`).
//! - `second_kernel start`: boots what was loaded, without asking anybody.
#![allow(unsafe_code)] // The system calls have no safe wrapper.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::ExitCode;

// Flags of `kexec_file_load`.
const ON_CRASH: libc::c_ulong = 2;
const NO_INITRD: libc::c_ulong = 4;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["load", kernel, cmdline, initrd @ ..] if initrd.len() < 2 => load(kernel, cmdline, initrd, 0),
        ["load-crash", kernel, cmdline, initrd @ ..] if initrd.len() < 2 => load(kernel, cmdline, initrd, ON_CRASH),
        ["start"] => start(),
        _ => Err(anyhow::anyhow!("usage: second_kernel load|load-crash KERNEL CMDLINE [INITRD], or start")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("second_kernel: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn load(kernel: &str, cmdline: &str, initrd: &[&str], flags: libc::c_ulong) -> Result<()> {
    let open = |path| File::open(path).with_context(|| format!("cannot open {path}"));
    let (kernel, cmdline) = (open(kernel)?, CString::new(cmdline)?);
    let initrd = initrd.first().map(|path| open(path)).transpose()?;
    let flags = if initrd.is_some() { flags } else { flags | NO_INITRD };
    let length = cmdline.as_bytes_with_nul().len();
    // SAFETY: open files, or none, and a string of that length, its NUL byte included.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initrd.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            length,
            cmdline.as_ptr(),
            flags,
        )
    };
    ensure!(result == 0, "cannot load the kernel: {}", std::io::Error::last_os_error());
    println!("second_kernel: loaded");
    Ok(())
}

fn start() -> Result<()> {
    // SAFETY: no memory is passed; all that is lost was to be lost.
    unsafe { libc::reboot(libc::LINUX_REBOOT_CMD_KEXEC) };
    bail!("cannot start the kernel: {}", std::io::Error::last_os_error())
}
