//! The boot overlay's first program: loads the agent's kernel module, then becomes the guest's own init.
//!
//! The overlay puts it in place of the initramfs' `/init`, and keeps the guest's own one beside it: this program moves that
//! back, so that whatever runs later finds the initramfs as the guest has made it. Where the overlay could not know the
//! guest's `/init`, the kernel runs this program as `rdinit=/strata-init`.
//!
//! It never stands in the way: whatever happens to the module, the guest's own init runs, with the arguments and
//! environment that the kernel gave. That init is
//!
//! 1. the program that the environment variable `strata_init` names (the kernel hands `strata_init=...` of its command
//!    line on that way), by default `/init`, in the initramfs;
//! 2. when the initramfs has no such program, that of the real root, which is then mounted as the kernel would do it
//!    (`root=`, `rootfstype=`, `rootflags=`, `ro`, `rw`, `rootwait`, `rootdelay=`), moved into, and its `init=` or one
//!    of the usual programs executed.
//!
//! This file is also compiled by itself, as a static program, so it uses the standard library only; the few system
//! calls that lack a safe wrapper there are declared below.
#![allow(unsafe_code)] // System calls: mounting, loading a module, changing the root, executing.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_long, c_ulong, c_void};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Where the overlay puts the module.
const MODULE: &str = "/strata/strata.ko";
/// Environment variable with the path of the guest's own init.
const OWN_INIT: &str = "strata_init";
const DEFAULT_INIT: &str = "/init";
/// Where the overlay keeps the guest's `/init`, if this program is in its place.
const KEPT_INIT: &str = "/strata-init.guest";
/// Environment variable with the samples per second that the module takes.
const SAMPLE_FREQUENCY: &str = "strata_sample_frequency";
/// Where the real root is mounted before it becomes the root; exists in every initramfs.
const NEW_ROOT: &str = "/root";
/// What the kernel tries when nothing names an init, after `/sbin/init`.
const USUAL_INITS: [&str; 4] = ["/sbin/init", "/etc/init", "/bin/init", "/bin/sh"];
/// How long to wait for a root device that is still being found, unless `rootwait` says forever.
const ROOT_PATIENCE: Duration = Duration::from_secs(10);

/// A node for `/dev/kmsg` (character device 1:11).
const LOG_NODE: &CStr = c"/strata/kmsg";
const LOG_DEVICE: u64 = 1 << 8 | 11;
const CHARACTER_DEVICE: u32 = 0o020_000;
const MS_RDONLY: c_ulong = 1;
const MS_MOVE: c_ulong = 8192;
const SYS_FINIT_MODULE: c_long = 313;
const EEXIST: i32 = 17;

unsafe extern "C" {
    fn mount(
        source: *const c_char,
        target: *const c_char,
        filesystem: *const c_char,
        flags: c_ulong,
        data: *const c_void,
    ) -> c_int;
    fn umount(target: *const c_char) -> c_int;
    fn mknod(path: *const c_char, mode: u32, device: u64) -> c_int;
    fn chroot(path: *const c_char) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
}

fn main() {
    let mut log = Log::open();
    match load_module(Path::new(MODULE)) {
        Ok(()) => log.line(Level::Notice, "agent loaded"),
        Err(error) => {
            log.line(Level::Warning, &format!("agent not loaded: {}; the guest goes on without it", reason(&error)))
        }
    }
    let init = match restore(Path::new(KEPT_INIT), Path::new(DEFAULT_INIT)) {
        Ok(()) => DEFAULT_INIT,
        Err(error) => {
            log.line(Level::Error, &format!("cannot restore {DEFAULT_INIT}: {error}"));
            KEPT_INIT
        }
    };
    let own = std::env::var_os(OWN_INIT).unwrap_or_else(|| init.into());
    if Path::new(&own).exists() {
        let error = execute(&own);
        log.line(Level::Error, &format!("cannot execute {}: {error}", own.display()));
    } else {
        let error = boot_real_root(&mut log);
        log.line(Level::Error, &format!("cannot boot the real root: {error}"));
    }
    // The kernel panics when its first program ends, which is what it does when there is no init to run.
    std::process::exit(1);
}

/// The kernel's log levels.
#[derive(Clone, Copy)]
enum Level {
    Error = 3,
    Warning = 4,
    Notice = 5,
}

/// Where messages go: the kernel's log, and the console if there is none.
struct Log {
    kernel: Option<File>,
}

impl Log {
    /// Opens the log through a device node of our own: an initramfs need not have any, and its /dev is its init's.
    fn open() -> Self {
        // SAFETY: a NUL-terminated string.
        unsafe { mknod(LOG_NODE.as_ptr(), CHARACTER_DEVICE | 0o600, LOG_DEVICE) };
        let path = OsStr::from_bytes(LOG_NODE.to_bytes());
        let kernel = OpenOptions::new().write(true).open(path).ok();
        let _ = fs::remove_file(path);
        Self { kernel }
    }

    /// Nothing can be done about a message that cannot be written.
    fn line(&mut self, level: Level, text: &str) {
        let _ = match &mut self.kernel {
            // One write is one message.
            Some(kernel) => kernel.write_all(format!("<{}>strata: {text}\n", level as u8).as_bytes()),
            None => writeln!(io::stderr(), "strata: {text}"),
        };
    }
}

fn c_string(text: impl AsRef<OsStr>) -> io::Result<CString> {
    CString::new(text.as_ref().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn mount_at(source: &str, target: &str, filesystem: &str, flags: c_ulong, data: &str) -> io::Result<()> {
    let (source, target) = (c_string(source)?, c_string(target)?);
    let (filesystem, data) = (c_string(filesystem)?, c_string(data)?);
    // SAFETY: four NUL-terminated strings that outlive the call.
    check(unsafe { mount(source.as_ptr(), target.as_ptr(), filesystem.as_ptr(), flags, data.as_ptr().cast()) })
}

fn load_module(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let frequency = std::env::var_os(SAMPLE_FREQUENCY);
    let parameters = frequency.map_or_else(String::new, |hertz| format!("sample_frequency={}", hertz.display()));
    let parameters = c_string(parameters)?;
    // SAFETY: an open file and a NUL-terminated string; both outlive the call.
    let result = unsafe { syscall(SYS_FINIT_MODULE, c_long::from(file.as_raw_fd()), parameters.as_ptr(), 0 as c_long) };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(EEXIST) => Ok(()),
        error => Err(error),
    }
}

/// Moves the guest's own init from `kept` back to `init`, where this program is by then, unless that has been done.
fn restore(kept: &Path, init: &Path) -> io::Result<()> {
    match fs::rename(kept, init) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// What a refusal of the kernel means, where its own text leaves that open.
fn reason(error: &io::Error) -> String {
    let meaning = match error.raw_os_error() {
        // No key, a rejected one, or a locked-down kernel.
        Some(126 | 129 | 1) => {
            "the kernel takes only modules that are signed by a key it trusts: sign it, or boot without \
             module.sig_enforce=1, lockdown or Secure Boot"
        }
        Some(8) => "the module is built for another kernel",
        Some(19) => "no trace region that it can use, for the reason given above",
        _ => return error.to_string(),
    };
    format!("{meaning} ({error})")
}

/// Becomes `program`, with this program's arguments and environment but for our own variables. Returns only on failure.
fn execute(program: &OsStr) -> io::Error {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    Command::new(program).arg0(program).args(arguments).env_remove(OWN_INIT).env_remove(SAMPLE_FREQUENCY).exec()
}

fn boot_real_root(log: &mut Log) -> io::Error {
    let words = match command_line() {
        Ok(words) => words,
        Err(error) => return error,
    };
    let root = RealRoot::from_words(&words);
    if let Err(error) = root.mount(log).and_then(|()| enter(NEW_ROOT)) {
        return error;
    }
    let named = root.init.as_deref();
    for program in named.into_iter().chain(USUAL_INITS) {
        if Path::new(program).exists() {
            let error = execute(OsStr::new(program));
            log.line(Level::Error, &format!("cannot execute {program}: {error}"));
        }
    }
    io::Error::other("it has no init that can be executed")
}

/// The kernel's command line, in words; quotes keep blanks together, as the kernel takes them.
fn command_line() -> io::Result<Vec<String>> {
    let mounted_here = !Path::new("/proc/cmdline").exists();
    if mounted_here {
        let _ = fs::create_dir("/proc");
        mount_at("proc", "/proc", "proc", 0, "")?;
    }
    let text = fs::read_to_string("/proc/cmdline");
    if mounted_here {
        // SAFETY: a NUL-terminated string. Left mounted, it would only be in nobody's way.
        unsafe { umount(c"/proc".as_ptr()) };
    }
    Ok(words(&text?))
}

fn words(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for character in text.trim().chars() {
        match character {
            '"' => quoted = !quoted,
            blank if blank.is_ascii_whitespace() && !quoted => found.extend(non_empty(&mut word)),
            other => word.push(other),
        }
    }
    found.extend(non_empty(&mut word));
    found
}

fn non_empty(word: &mut String) -> Option<String> {
    (!word.is_empty()).then(|| std::mem::take(word))
}

/// What the command line says about the real root.
#[derive(Debug, PartialEq, Eq)]
struct RealRoot {
    device: Option<String>,
    filesystem: Option<String>,
    options: String,
    read_only: bool,
    wait_forever: bool,
    delay: Duration,
    init: Option<String>,
}

impl RealRoot {
    fn from_words(words: &[String]) -> Self {
        // What comes after "--" is for init.
        let words = words.iter().take_while(|word| *word != "--");
        let mut values = BTreeMap::new();
        let mut read_only = true;
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => drop(values.insert(name, value)),
                None if word == "rw" => read_only = false,
                None if word == "ro" => read_only = true,
                None => drop(values.insert(word.as_str(), "")),
            }
        }
        let text = |name: &str| values.get(name).map(|value| (*value).to_owned());
        Self {
            device: text("root"),
            filesystem: text("rootfstype"),
            options: text("rootflags").unwrap_or_default(),
            read_only,
            wait_forever: values.contains_key("rootwait"),
            delay: Duration::from_secs(text("rootdelay").and_then(|value| value.parse().ok()).unwrap_or(0)),
            init: text("init"),
        }
    }

    fn mount(&self, log: &mut Log) -> io::Result<()> {
        let Some(device) = self.device.as_deref() else {
            return Err(io::Error::other("the initramfs has no init, and the command line names no root= device"));
        };
        thread::sleep(self.delay);
        fs::create_dir_all(NEW_ROOT)?;
        // Where devices appear by themselves; moved into the real root later.
        fs::create_dir_all("/dev")?;
        mount_at("devtmpfs", "/dev", "devtmpfs", 0, "")?;
        let path = self.wait_for(device, log)?;
        let flags = if self.read_only { MS_RDONLY } else { 0 };
        let filesystems = match &self.filesystem {
            Some(names) => names.split(',').map(str::to_owned).collect(),
            None => disk_filesystems()?,
        };
        let mut last = io::Error::other("no file system is known to the kernel");
        for filesystem in filesystems {
            match mount_at(&path, NEW_ROOT, &filesystem, flags, &self.options) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(io::Error::new(last.kind(), format!("cannot mount {device}: {last}")))
    }

    /// The device's path, once it exists.
    fn wait_for(&self, device: &str, log: &mut Log) -> io::Result<String> {
        let began = Instant::now();
        let mut reported = false;
        loop {
            if let Some(path) = find_device(device) {
                return Ok(path);
            }
            if !self.wait_forever && began.elapsed() > ROOT_PATIENCE {
                return Err(io::Error::other(format!("there is no root device {device}")));
            }
            if !reported {
                log.line(Level::Notice, &format!("waiting for the root device {device}"));
                reported = true;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The path of `root=`'s device, if it is there: a path, `PARTUUID=` or `PARTLABEL=`. (File system labels and UUIDs
/// need a user-space initramfs with the kernel itself, too.)
fn find_device(device: &str) -> Option<String> {
    let wanted = match device.split_once('=') {
        None => return Path::new(device).exists().then(|| device.to_owned()),
        Some(("PARTUUID", value)) => ("PARTUUID", value),
        Some(("PARTLABEL", value)) => ("PARTNAME", value),
        Some(_) => return None,
    };
    let mounted = Path::new("/sys/class/block").exists();
    if !mounted {
        let _ = fs::create_dir("/sys");
        mount_at("sysfs", "/sys", "sysfs", 0, "").ok()?;
    }
    let found = fs::read_dir("/sys/class/block").ok()?.flatten().find_map(|entry| {
        let uevent = fs::read_to_string(entry.path().join("uevent")).ok()?;
        device_of(&uevent, wanted)
    });
    if !mounted {
        // SAFETY: a NUL-terminated string. Left mounted, it would only be in nobody's way.
        unsafe { umount(c"/sys".as_ptr()) };
    }
    found
}

/// The device that a `uevent` file describes, if it has the value.
fn device_of(uevent: &str, (name, value): (&str, &str)) -> Option<String> {
    let field = |name: &str| uevent.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let matches = field(name).is_some_and(|found| found.eq_ignore_ascii_case(value));
    if matches { field("DEVNAME").map(|device| format!("/dev/{device}")) } else { None }
}

/// The file systems for disks that the kernel has, in its order.
fn disk_filesystems() -> io::Result<Vec<String>> {
    let mounted = Path::new("/proc/filesystems").exists();
    if !mounted {
        mount_at("proc", "/proc", "proc", 0, "")?;
    }
    let text = fs::read_to_string("/proc/filesystems");
    if !mounted {
        // SAFETY: as above.
        unsafe { umount(c"/proc".as_ptr()) };
    }
    Ok(on_disks(&text?))
}

/// Of `/proc/filesystems`, what is not marked `nodev`.
fn on_disks(filesystems: &str) -> Vec<String> {
    filesystems.lines().filter_map(|line| line.strip_prefix('\t')).map(str::to_owned).collect()
}

/// Makes the mounted folder the root, as `switch_root` does; what the initramfs holds stays, out of reach.
fn enter(root: &str) -> io::Result<()> {
    // The kernel does the same when it mounts the root itself; a root without /dev mounts its own.
    let _ = mount_at("/dev", &format!("{root}/dev"), "", MS_MOVE, "");
    std::env::set_current_dir(root)?;
    mount_at(".", "/", "", MS_MOVE, "")?;
    // SAFETY: a NUL-terminated string.
    check(unsafe { chroot(c".".as_ptr()) })?;
    std::env::set_current_dir("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root(text: &str) -> RealRoot {
        RealRoot::from_words(&words(text))
    }

    #[test]
    fn words_keep_quoted_blanks_together() {
        assert_eq!(words("a b=\"c d\"  e\n"), ["a", "b=c d", "e"]);
    }

    #[test]
    fn real_root_is_read_only_by_default() {
        let found = root("console=ttyS0 root=/dev/vda1 rootfstype=ext4 rootwait init=/bin/bash");

        assert_eq!(found.device.as_deref(), Some("/dev/vda1"));
        assert_eq!(found.filesystem.as_deref(), Some("ext4"));
        assert_eq!(found.init.as_deref(), Some("/bin/bash"));
        assert!(found.read_only && found.wait_forever);
    }

    #[test]
    fn last_of_ro_and_rw_counts() {
        assert!(!root("ro rw").read_only);
        assert!(root("rw ro").read_only);
    }

    #[test]
    fn words_for_init_say_nothing_about_the_root() {
        assert_eq!(root("root=/dev/vda -- root=/dev/vdb").device.as_deref(), Some("/dev/vda"));
    }

    #[test]
    fn partition_is_found_by_its_uuid() {
        let uevent = "MAJOR=254\nDEVNAME=vda1\nDEVTYPE=partition\nPARTUUID=abcd-01\nPARTNAME=root\n";

        assert_eq!(device_of(uevent, ("PARTUUID", "ABCD-01")).as_deref(), Some("/dev/vda1"));
        assert_eq!(device_of(uevent, ("PARTNAME", "home")), None);
    }

    #[test]
    fn file_systems_without_a_disk_are_left_out() {
        assert_eq!(on_disks("nodev\tsysfs\n\text4\nnodev\tproc\n\tvfat\n"), ["ext4", "vfat"]);
    }

    #[test]
    fn refusals_of_the_kernel_are_explained() {
        assert!(reason(&io::Error::from_raw_os_error(129)).contains("module.sig_enforce=1"));
        assert!(reason(&io::Error::from_raw_os_error(8)).contains("another kernel"));
        assert!(reason(&io::Error::from_raw_os_error(12)).starts_with("Cannot allocate memory"));
    }

    #[test]
    fn guests_init_is_restored_once() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, init) = (folder.path().join("strata-init.guest"), folder.path().join("init"));
        symlink("usr/lib/systemd/systemd", &kept).unwrap();
        symlink("strata-init", &init).unwrap();

        restore(&kept, &init).unwrap();
        restore(&kept, &init).unwrap();

        assert_eq!(fs::read_link(&init).unwrap(), Path::new("usr/lib/systemd/systemd"));
        assert!(fs::symlink_metadata(&kept).is_err());
    }

    #[test]
    fn module_that_is_not_there_is_an_error_and_no_more() {
        assert_eq!(load_module(Path::new("/nonexistent.ko")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
