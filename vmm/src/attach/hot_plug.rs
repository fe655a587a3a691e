//! A trace region that is plugged into a QEMU that runs, and taken away again: memory and a device (`ivshmem-plain`).

use super::process::Process;
use super::qmp::{Patience, Qmp, QmpError};
use super::stop::Stop;
use crate::run::{KERNEL_RINGS, PROCESS_SLOTS, foreign_region};
use rustix::fs::{Gid, Mode as AccessMode, Uid, chmod, chown, mkdir};
use rustix::io::Errno;
use serde_json::{Value, json};
use shared_ring::layout::Mode;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};
use strata_recorder::region::region_file::{self, RegionFileError};
use strata_recorder::session::Notify;
use strata_recording::text::terminal::foreign::Foreign;
use thiserror::Error;
use uuid::Uuid;

/// What the device and its memory are called in QEMU.
const DEVICE: &str = "strata-region";
const MEMORY: &str = "strata-region-memory";
/// Devices that QEMU was given names for, by name.
const DEVICES: &str = "/machine/peripheral";
/// Kinds of ports that a device of PCI Express is plugged into while the machine runs.
const PORTS: [&str; 3] = ["pcie-root-port", "ioh3420", "xio3130-downstream"];
/// Most ports that are looked at, and most other objects that QEMU may have names for.
const MAX_PORTS: usize = 64;
const MAX_OBJECTS: usize = 4096;
/// How long QEMU may take to be given a region. It may have to take an earlier one away before.
const PLUG_LIMIT: Duration = Duration::from_secs(60);
/// How long a guest may take to let go of the device. Linux lets somebody change their mind for 5 s.
const LET_GO_LIMIT: Duration = Duration::from_secs(30);
/// How long QEMU may take for its part of that.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);
/// How long QEMU may take to undo what has failed half way.
const UNDO_LIMIT: Duration = Duration::from_secs(1);
/// How long a QEMU that has closed its socket may take to end.
const END_LIMIT: Duration = Duration::from_millis(500);
/// How often it gets the request again meanwhile.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Why a region cannot be plugged in, or taken away.
#[derive(Debug, Error)]
pub enum HotPlugError {
    /// QEMU does not answer, or refuses.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// There is nothing to plug the device into.
    #[error(
        "QEMU has no free PCIe port: start it with -device \
         pcie-root-port,id=strata-port,chassis=99,pref64-reserve={reserve}M (machine q35), or with a region from the \
         beginning (strata region create)"
    )]
    NoFreePort {
        /// What the port is to reserve for its device, MiB.
        reserve: u64,
    },
    /// There is no file for the region.
    #[error(transparent)]
    File(#[from] RegionFileError),
    /// The region's folder cannot be used.
    #[error("cannot make '{}' for the trace region: make room there", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// QEMU's files are others.
    #[error(
        "process {pid} sees another /dev/shm, in a mount namespace of its own (a container): start the VM with a region \
         from the beginning (strata region create), in a folder that it shares with the host"
    )]
    OtherFiles {
        /// QEMU's process.
        pid: u32,
    },
    /// The guest does not react.
    #[error(
        "the guest has not let go of the device {DEVICE} for {} s ({reason}): QEMU keeps it until the guest does, or \
         is reset; `device_del {DEVICE}` and `object_del {MEMORY}` in QEMU's monitor, or the next strata attach --qmp, \
         take it away",
        LET_GO_LIMIT.as_secs()
    )]
    GuestHolds {
        /// What QEMU said to it at last.
        reason: Foreign<String>,
    },
}

/// Whether the server at `socket`, process `pid`, says within `limit` that it has a port for a region: what
/// [`HotPlugged::plug`] asks first.
///
/// # Errors
/// It does not say so, or not in time.
pub fn has_free_port(socket: &Path, pid: u32, limit: Duration, stop: &Stop) -> Result<bool, HotPlugError> {
    is_port_free(Qmp::connect(socket, pid, Patience::of(limit, stop))?)
}

/// The same of the server at the other end of `stream`.
///
/// # Errors
/// It does not say so, or not in time.
pub fn has_free_port_behind(stream: UnixStream, limit: Duration, stop: &Stop) -> Result<bool, HotPlugError> {
    is_port_free(Qmp::greet(stream, Path::new("-"), Patience::of(limit, stop))?)
}

fn is_port_free(mut qmp: Qmp) -> Result<bool, HotPlugError> {
    take_away_earlier(&mut qmp, |_| ())?;
    Ok(free_port(&mut qmp)?.is_some())
}

/// A region that a running QEMU was given: taken away again when this is dropped.
#[derive(Debug)]
pub struct HotPlugged {
    socket: PathBuf,
    /// QEMU's.
    process: Process,
    folder: RegionFolder,
    notify: Notify,
    stop: Stop,
    /// Whether QEMU has it, as far as is known.
    is_plugged: bool,
}

impl HotPlugged {
    /// Makes a region for `vcpus` and mode `mode`, and plugs it into QEMU's `process`, which listens on `socket`.
    ///
    /// # Errors
    /// It cannot be made or plugged in, or a signal comes, as `stop` says. What QEMU had been given by then is taken back as
    /// far as it answers, and its guest lets go; the rest goes when the next one is plugged in.
    pub fn plug(
        socket: &Path,
        process: Process,
        vcpus: u32,
        mode: Mode,
        notify: Notify,
        stop: &Stop,
    ) -> Result<Self, HotPlugError> {
        let pid = process.pid;
        let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.into());
        let mut qmp = Qmp::connect(&socket, pid, Patience::of(PLUG_LIMIT, stop))?;
        take_away_earlier(&mut qmp, notify)?;
        let folder = RegionFolder::create(Path::new("/dev/shm"), pid)?;
        let shape = foreign_region(vcpus, PROCESS_SLOTS, mode, KERNEL_RINGS);
        let size = region_file::create(&folder.file(), shape, None)?;
        let port = free_port(&mut qmp)?.ok_or(HotPlugError::NoFreePort { reserve: reserve_for(size) >> 20 })?;
        if !is_seen_by(&folder.file(), Path::new(&format!("/proc/{pid}/root"))) {
            return Err(HotPlugError::OtherFiles { pid });
        }
        folder.give_to(owner(pid))?;
        add(&mut qmp, &folder.file(), size, port.name.raw())?;
        notify(&format!("plugged a trace region of {} MiB into port {}", size >> 20, port.name));
        if port.reserve < reserve_for(size) {
            notify(&format!(
                "the port may be too small for it: if the guest does not record, start QEMU with pref64-reserve={}M on \
                 that port",
                reserve_for(size) >> 20
            ));
        }
        Ok(Self { socket, process, folder, notify, stop: stop.clone(), is_plugged: true })
    }

    /// The region's file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.file()
    }

    /// The region's folder, and the one in which that lies.
    #[must_use]
    pub fn folders(&self) -> (PathBuf, PathBuf) {
        let RegionFolder(folder) = &self.folder;
        (folder.clone(), folder.parent().unwrap_or(folder).into())
    }

    /// QEMU's process.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// What notifies its user.
    #[must_use]
    pub const fn notify(&self) -> Notify {
        self.notify
    }

    /// What ends its waits.
    #[must_use]
    pub const fn stop(&self) -> &Stop {
        &self.stop
    }

    /// From now on `stop` ends its waits.
    pub fn stop_by(&mut self, stop: Stop) {
        self.stop = stop;
    }

    /// The VM has ended, and the device with it.
    pub fn forget(mut self) {
        self.is_plugged = false;
    }

    /// Takes the region away; whether that was done. If not, it is reported.
    pub fn unplug(mut self) -> bool {
        self.take_away()
    }

    fn take_away(&mut self) -> bool {
        if !std::mem::replace(&mut self.is_plugged, false) {
            return true;
        }
        // QEMU serves others between plugging in and taking away: this is another connection.
        // A signal that ended the recording does not end this; another one does.
        let patience = Patience::of(LET_GO_LIMIT + LEAVE_LIMIT, &self.stop.beginning_now());
        let gone = Qmp::connect(&self.socket, self.process.pid, patience)
            .map_err(HotPlugError::Qmp)
            .and_then(|mut qmp| take_away(&mut qmp, LET_GO_LIMIT));
        // A QEMU that ends meanwhile takes the device with it.
        let gone = gone.or_else(|error| if self.process.ends_within(END_LIMIT) { Ok(()) } else { Err(error) });
        gone.inspect_err(|error| (self.notify)(&format!("the trace region stays plugged into QEMU: {error}"))).is_ok()
    }
}

impl Drop for HotPlugged {
    fn drop(&mut self) {
        self.take_away();
    }
}

/// A folder that only root changes, with the region's file; deleted when this is dropped.
#[derive(Debug)]
struct RegionFolder(PathBuf);

impl RegionFolder {
    /// Makes a folder for process `pid` in `parent`, in place of those that killed stratas have left. Its name is one that
    /// nobody else has guessed and made before.
    fn create(parent: &Path, pid: u32) -> Result<Self, HotPlugError> {
        let prefix = format!("strata-attach-{pid}-");
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let is_of_process = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
        // Nobody else attaches to the process meanwhile.
        let left = entries.filter(is_of_process).map(|entry| entry.path()).filter(|path| is_ours(path));
        left.for_each(|path| drop(Self(path)));
        let path = parent.join(format!("{prefix}{}", Uuid::new_v4().simple()));
        let failed = |errno: Errno| HotPlugError::Folder { path: path.clone(), source: errno.into() };
        let access = AccessMode::RWXU | AccessMode::XGRP | AccessMode::XOTH;
        mkdir(&path, access).map_err(failed)?;
        let folder = Self(path.clone());
        // Set again: the umask took its part of it, and QEMU's user is to come through.
        chmod(&folder.0, access).map_err(failed)?;
        Ok(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("region")
    }

    /// Lets the user of QEMU's process open the file.
    fn give_to(&self, owner: Option<(u32, u32)>) -> Result<(), HotPlugError> {
        let Some((user, group)) = owner else { return Ok(()) };
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        chown(self.file(), Some(user), Some(group))
            .map_err(|errno| HotPlugError::Folder { path: self.file(), source: errno.into() })
    }
}

impl Drop for RegionFolder {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.file());
        let _ = fs::remove_dir(&self.0);
    }
}

/// Whether `path` is a folder of this user's, which in a folder for everyone nobody else has made.
fn is_ours(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path)
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw())
}

/// Whether a process whose files begin at `root` finds the file `path` under the same name; also where it cannot be seen.
fn is_seen_by(path: &Path, root: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    let there = root.join(path.strip_prefix("/").unwrap_or(path));
    root.read_dir().is_err() || number(&there).ok() == number(path).ok()
}

/// User and group with which process `pid` opens files.
fn owner(pid: u32) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some((file_id(&status, "Uid:")?, file_id(&status, "Gid:")?))
}

/// The last of the four ids of the line `key` of a process's status: that of the file system.
fn file_id(status: &str, key: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().nth(3)?.parse().ok()
}

/// Name and type of what is at `path` in QEMU's tree of objects.
fn names(qmp: &mut Qmp, path: &str) -> Result<Vec<(String, String)>, QmpError> {
    let list = qmp.execute("qom-list", &json!({"path": path}))?;
    let text = |entry: &Value, key: &str| Some(entry[key].as_str()?.to_owned());
    let entries = list.as_array().into_iter().flatten();
    Ok(entries.take(MAX_OBJECTS).filter_map(|entry| Some((text(entry, "name")?, text(entry, "type")?))).collect())
}

/// A port that has no device.
#[derive(Debug, PartialEq, Eq)]
struct Port {
    name: Foreign<String>,
    /// Addresses that the machine's firmware sets aside for a device, bytes; 0 where that is left to the firmware.
    reserve: u64,
}

/// What a port has to reserve for a device of `size` bytes, a power of two: firmware places it at any address, and the
/// device needs one that is a multiple of its size.
const fn reserve_for(size: u64) -> u64 {
    2 * size
}

/// Of the ports that devices can be plugged into now and that have none, the one that reserves most.
fn free_port(qmp: &mut Qmp) -> Result<Option<Port>, QmpError> {
    let mut free: Option<Port> = None;
    let is_port = |kind: &str| PORTS.iter().any(|port| kind == format!("child<{port}>"));
    let ports = names(qmp, DEVICES)?.into_iter().filter(|(_, kind)| is_port(kind)).take(MAX_PORTS);
    for (name, _) in ports {
        let path = format!("{DEVICES}/{name}");
        // Older QEMUs do not have all of these.
        let mut property = |name: &str| match qmp.execute("qom-get", &json!({"path": path, "property": name})) {
            Err(QmpError::Refused { .. }) => Ok(Value::Null),
            answer => answer,
        };
        let is_hot = property("hotplug")? != Value::Bool(false);
        let reserve = property("pref64-reserve")?.as_u64().filter(|&reserve| reserve != u64::MAX).unwrap_or(0);
        // The port's bus has its name.
        let devices = names(qmp, &format!("{path}/{name}"))?;
        if is_hot && !devices.iter().any(|(name, _)| name.starts_with("child[")) {
            let port = Port { name: name.into(), reserve };
            free = Some(free.filter(|free| free.reserve >= reserve).unwrap_or(port));
        }
    }
    Ok(free)
}

/// Gives QEMU the `size` bytes of `file` as a device in `port`, or asks it to take back what it was given of them.
fn add(qmp: &mut Qmp, file: &Path, size: u64, port: &str) -> Result<(), QmpError> {
    let memory = json!({
        "qom-type": "memory-backend-file", "id": MEMORY, "share": true, "mem-path": file, "size": size,
    });
    let device = json!({"driver": "ivshmem-plain", "id": DEVICE, "memdev": MEMORY, "bus": port});
    let added = qmp.execute("object-add", &memory).and_then(|_| qmp.execute("device_add", &device));
    added.map(drop).inspect_err(|error| {
        // What has failed says more than what comes of this.
        qmp.begin_undoing(UNDO_LIMIT);
        if !matches!(error, QmpError::Refused { .. }) {
            // One that has not answered may have done it, or do it yet.
            let _ = qmp.execute("device_del", &json!({"id": DEVICE}));
        }
        let _ = qmp.execute("object-del", &json!({"id": MEMORY}));
    })
}

/// Takes away what an earlier strata attach has left.
fn take_away_earlier(qmp: &mut Qmp, notify: Notify) -> Result<(), HotPlugError> {
    if names(qmp, DEVICES)?.iter().any(|(name, _)| name == DEVICE) {
        notify("taking away the region that an earlier strata attach has left");
        return take_away(qmp, LET_GO_LIMIT);
    }
    // A guest that let go of the device when nobody waited for it any more has left its memory.
    match qmp.execute("object-del", &json!({"id": MEMORY})) {
        Ok(_) => notify("took away the memory of a region that an earlier strata attach has left"),
        // There is none, as a rule.
        Err(QmpError::Refused { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Has the guest let go of the device within `limit`, and takes it and its memory away.
fn take_away(qmp: &mut Qmp, limit: Duration) -> Result<(), HotPlugError> {
    let begun = Instant::now();
    let mut reason = Foreign::from("it has been asked");
    loop {
        match qmp.execute("device_del", &json!({"id": DEVICE})) {
            Ok(_) => {}
            Err(QmpError::Refused { class, .. }) if class == "DeviceNotFound" => break,
            // That it has the request already, or has not taken the device yet.
            Err(QmpError::Refused { reason: refused, .. }) => reason = refused,
            Err(error) => return Err(error.into()),
        }
        if qmp.is_deleted_within(DEVICE, ASK_AGAIN.min(limit))? {
            break;
        }
        if begun.elapsed() >= limit {
            return Err(HotPlugError::GuestHolds { reason });
        }
    }
    qmp.execute("object-del", &json!({"id": MEMORY}))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Shows: A running QEMU gets a region while recorded, and gives it back when its guest lets go; its guest outlives the region.

    use super::super::qmp::tests::{Reported, scripted};
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    fn done() -> Vec<Value> {
        vec![json!({"return": {}})]
    }

    fn refused(class: &str) -> Vec<Value> {
        vec![json!({"error": {"class": class, "desc": "no"}})]
    }

    fn entries(of: &[(&str, &str)]) -> Vec<Value> {
        let list: Vec<_> = of.iter().map(|(name, kind)| json!({"name": name, "type": kind})).collect();
        vec![json!({"return": list})]
    }

    /// Names of the commands behind the greeting's.
    fn commands(reported: Reported) -> Vec<String> {
        reported.into_iter().skip(1).map(|(command, _)| command).collect()
    }

    #[test]
    fn free_port_is_one_for_hot_plugging_that_has_no_device_and_reserves_most() {
        let ports = [
            ("type", "string"),
            ("disk", "child<virtio-blk-pci>"),
            ("full", "child<pcie-root-port>"),
            ("cold", "child<pcie-root-port>"),
            ("small", "child<pcie-root-port>"),
            ("free", "child<pcie-root-port>"),
        ];
        let (qmp, _qemu) = scripted(move |command, arguments| match (command, arguments["path"].as_str()) {
            ("qom-list", Some("/machine/peripheral")) => entries(&ports),
            ("qom-list", Some("/machine/peripheral/full/full")) => entries(&[("child[0]", "link<nvme>")]),
            ("qom-get", Some("/machine/peripheral/free")) if arguments["property"] == "pref64-reserve" => {
                vec![json!({"return": 4096})]
            }
            ("qom-get", _) if arguments["property"] == "pref64-reserve" => vec![json!({"return": u64::MAX})],
            ("qom-get", path) => vec![json!({"return": path != Some("/machine/peripheral/cold")})],
            _ => entries(&[]),
        });

        let found = free_port(&mut qmp.unwrap()).unwrap();

        assert_eq!(found, Some(Port { name: "free".into(), reserve: 4096 }));
    }

    #[test]
    fn machine_without_a_free_port_gets_the_option_as_advice() {
        let (qmp, _qemu) = scripted(|command, _| if command == "qom-list" { entries(&[]) } else { done() });

        let found = free_port(&mut qmp.unwrap()).unwrap();
        let error = HotPlugError::NoFreePort { reserve: reserve_for(64 << 20) >> 20 }.to_string();

        assert_eq!(found, None);
        assert!(error.contains("-device pcie-root-port,id=") && error.contains("pref64-reserve=128M"), "{error}");
    }

    #[test]
    fn device_that_is_refused_leaves_no_memory_behind() {
        let (qmp, qemu) = scripted(|command, _| if command == "device_add" { refused("GenericError") } else { done() });
        let mut qmp = qmp.unwrap();

        let error = add(&mut qmp, Path::new("/dev/shm/x"), 1 << 20, "port").unwrap_err().to_string();
        drop(qmp);
        let reported = qemu.join().unwrap();

        assert_eq!(error, "QEMU refuses device_add: no");
        assert_eq!((&reported[1].1["share"], &reported[1].1["mem-path"]), (&json!(true), &json!("/dev/shm/x")));
        assert_eq!((&reported[2].1["bus"], &reported[2].1["memdev"]), (&json!("port"), &reported[1].1["id"]));
        assert_eq!(commands(reported), ["object-add", "device_add", "object-del"]);
    }

    #[test]
    fn memory_goes_when_the_guest_has_let_go_of_the_device() {
        let (qmp, qemu) = scripted(|command, _| match command {
            "device_del" => {
                vec![json!({"return": {}}), json!({"event": "DEVICE_DELETED", "data": {"device": DEVICE, "path": "x"}})]
            }
            _ => done(),
        });
        let mut qmp = qmp.unwrap();

        take_away(&mut qmp, Duration::from_secs(5)).unwrap();
        drop(qmp);

        assert_eq!(commands(qemu.join().unwrap()), ["device_del", "object-del"]);
    }

    #[test]
    fn memory_of_a_device_that_its_guest_let_go_of_late_is_taken_away_before_the_next() {
        let commands_where = |deletes: fn() -> Vec<Value>| {
            let (qmp, qemu) = scripted(move |command, _| match command {
                "qom-list" => entries(&[]),
                "object-del" => deletes(),
                _ => done(),
            });
            let mut qmp = qmp.unwrap();
            take_away_earlier(&mut qmp, |_| ()).unwrap();
            drop(qmp);
            commands(qemu.join().unwrap())
        };

        let (left, none) = (commands_where(done), commands_where(|| refused("GenericError")));

        assert_eq!([left, none], [["qom-list", "object-del"]; 2]);
    }

    #[test]
    fn device_that_an_earlier_strata_has_left_goes_with_its_memory() {
        let (qmp, qemu) = scripted(|command, _| match command {
            "qom-list" => entries(&[(DEVICE, "child<ivshmem-plain>")]),
            "device_del" => refused("DeviceNotFound"),
            _ => done(),
        });
        let mut qmp = qmp.unwrap();

        take_away_earlier(&mut qmp, |_| ()).unwrap();
        drop(qmp);

        assert_eq!(commands(qemu.join().unwrap()), ["qom-list", "device_del", "object-del"]);
    }

    #[test]
    fn device_that_went_with_another_connection_is_not_waited_for() {
        let (qmp, qemu) =
            scripted(|command, _| if command == "device_del" { refused("DeviceNotFound") } else { done() });
        let mut qmp = qmp.unwrap();

        take_away(&mut qmp, Duration::from_secs(5)).unwrap();
        drop(qmp);

        assert_eq!(commands(qemu.join().unwrap()), ["device_del", "object-del"]);
    }

    /// A region that `process` has, on whose socket nobody listens.
    fn plugged(process: u32, notify: Notify) -> HotPlugged {
        let folder = tempfile::tempdir().unwrap();
        HotPlugged {
            socket: folder.path().join("nobody"),
            process: Process::open(process).unwrap(),
            folder: RegionFolder(folder.path().join("region")),
            stop: Stop::default(),
            notify,
            is_plugged: true,
        }
    }

    #[test]
    fn region_that_qemu_keeps_is_reported_to_who_takes_it_away() {
        let notify = |line: &str| assert!(line.starts_with("the trace region stays plugged into QEMU: "), "{line}");

        assert!(!plugged(std::process::id(), notify).unplug());
    }

    #[test]
    fn region_of_a_qemu_that_has_ended_is_gone() {
        let mut qemu = Command::new("sleep").arg("60").spawn().unwrap();
        let plugged = plugged(qemu.id(), |line| panic!("{line}"));

        qemu.kill().unwrap();
        qemu.wait().unwrap();

        assert!(plugged.unplug());
    }

    #[test]
    fn guest_that_does_not_let_go_is_named_and_keeps_its_memory() {
        let (qmp, qemu) = scripted(|command, _| if command == "device_del" { refused("GenericError") } else { done() });
        let mut qmp = qmp.unwrap();

        let error = take_away(&mut qmp, Duration::from_millis(50)).unwrap_err().to_string();
        drop(qmp);

        assert!(error.contains("has not let go of the device strata-region") && error.contains("(no)"), "{error}");
        assert!(!commands(qemu.join().unwrap()).contains(&"object-del".to_owned()));
    }

    #[test]
    fn file_of_another_mount_namespace_is_not_the_one_that_qemu_finds() {
        let (file, root) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());

        let seen = [Path::new("/"), root.path(), Path::new("/nonexistent")].map(|root| is_seen_by(file.path(), root));

        assert_eq!(seen, [true, false, true]);
    }

    #[test]
    fn folder_can_be_entered_and_goes_with_its_file() {
        let parent = tempfile::tempdir().unwrap();

        let folder = RegionFolder::create(parent.path(), 7).unwrap();
        fs::write(folder.file(), "x").unwrap();
        let mode = fs::metadata(&folder.0).unwrap().permissions().mode();
        let killed = folder.0.clone();
        std::mem::forget(folder);
        let again = RegionFolder::create(parent.path(), 7).unwrap();
        let (is_new, is_left) = (again.0 != killed && !again.file().exists(), killed.exists());
        drop(again);

        assert_eq!(
            (mode & 0o777, is_new, is_left, fs::read_dir(parent.path()).unwrap().count()),
            (0o711, true, false, 0)
        );
    }

    #[test]
    fn folder_can_be_entered_whatever_the_umask() {
        let test = "attach::hot_plug::tests::folder_can_be_entered_and_goes_with_its_file";
        let this = std::env::current_exe().unwrap();

        // A umask is the whole process's.
        let under_umask = ["-c", "umask 077; exec \"$0\" --exact \"$1\""];
        let ran = Command::new("sh").args(under_umask).arg(this).arg(test).output().unwrap();

        let text = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn what_else_has_the_name_of_a_folder_or_is_another_processs_is_left() {
        let parent = tempfile::tempdir().unwrap();
        let others =
            ["strata-attach-7", "strata-attach-7-x", "strata-attach-71-x"].map(|name| parent.path().join(name));
        fs::write(&others[0], "x").unwrap();
        std::os::unix::fs::symlink(&others[0], &others[1]).unwrap();
        fs::create_dir(&others[2]).unwrap();

        drop(RegionFolder::create(parent.path(), 7).unwrap());

        assert_eq!(others.map(|path| path.symlink_metadata().is_ok()), [true; 3]);
    }

    #[test]
    fn ports_that_are_looked_at_are_bounded() {
        let ports: Vec<Value> =
            (0..200).map(|port| json!({"name": format!("port{port}"), "type": "child<pcie-root-port>"})).collect();
        let (qmp, qemu) = scripted(move |command, arguments| match (command, arguments["path"].as_str()) {
            ("qom-list", Some(DEVICES)) => vec![json!({"return": ports})],
            ("qom-list", _) => entries(&[("child[0]", "link<nvme>")]),
            _ => done(),
        });
        let mut qmp = qmp.unwrap();

        let found = free_port(&mut qmp).unwrap();
        drop(qmp);

        assert_eq!((found, commands(qemu.join().unwrap()).len()), (None, 1 + 3 * MAX_PORTS));
    }

    #[test]
    fn device_whose_plugging_a_signal_ends_is_taken_away() {
        let stop = Stop::default();
        let signalled = stop.clone();
        let (qmp, qemu) = scripted(move |command, _| {
            if command == "device_add" {
                signalled.request();
                return Vec::new();
            }
            done()
        });
        let mut qmp = qmp.unwrap();
        qmp.stop_by(&stop);

        let error = add(&mut qmp, Path::new("/dev/shm/x"), 1 << 20, "port").unwrap_err();
        drop(qmp);

        assert!(matches!(error, QmpError::Signal), "{error}");
        assert_eq!(commands(qemu.join().unwrap()), ["object-add", "device_add", "device_del", "object-del"]);
    }

    #[test]
    fn files_are_opened_with_the_last_id() {
        assert_eq!(file_id("Name:\tqemu\nUid:\t0\t0\t0\t64055\nGid:\t1\t1\t1\t109\n", "Uid:"), Some(64055));
        assert_eq!(file_id("Name:\tqemu\n", "Uid:"), None);
    }
}
