//! Another user of the host: runtime folders, control sockets and servers of QMP that lie, drip, and never end. All of it
//! is made by a process of that user's own, as the kernel tells those who ask.

use crate::attack::Attack;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Who it is: somebody who owns nothing.
pub const STRANGER: u32 = 65534;
/// What a VM of this user's is called.
pub const OWN_NAME: &str = "honest";
/// Folders at a time.
const FOLDERS: usize = 48;
/// Of them, those with a socket that somebody serves.
const SOCKETS: usize = 10;
/// Servers of QMP, `qmp-N`.
pub const QMP_SERVERS: usize = 8;
/// Pause of who drips.
const DRIP: Duration = Duration::from_millis(20);
/// A text that acts on a terminal and, copied, on a shell.
pub const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;x\u{7}\nstrata: all is well\u{202e}\u{9b}1m'; touch pwned; '";

/// Runs it in `folder`, its runtime folder, until it is killed. Its chance begins at `seed`; what it does is in `attacks`.
///
/// # Errors
/// It cannot become that user.
pub fn run(folder: &Path, seed: u64, attacks: &[Attack]) -> anyhow::Result<()> {
    // The folders above are closed to it: from here on all paths begin here.
    std::env::set_current_dir(folder)?;
    set_thread_groups(&[])?;
    set_thread_res_gid(None, Gid::from_raw(STRANGER), None)?;
    set_thread_res_gid(Gid::from_raw(STRANGER), Gid::from_raw(STRANGER), Gid::from_raw(STRANGER))?;
    set_thread_res_uid(Uid::from_raw(STRANGER), Uid::from_raw(STRANGER), Uid::from_raw(STRANGER))?;
    let mut chance = fastrand::Rng::with_seed(seed);
    if attacks.contains(&Attack::QmpReplies) {
        for number in 0..QMP_SERVERS {
            let (listener, mut chance) = (UnixListener::bind(format!("qmp-{number}"))?, chance.fork());
            std::thread::spawn(move || {
                // QEMU serves one at a time, too; one that is slow to another is slow to all.
                listener.incoming().flatten().for_each(|client| drop(speak_qmp(client, &mut chance)));
            });
        }
    }
    let mut folders = Folders { chance, made: Vec::new(), number: 0, sockets: 0 };
    println!("ready");
    loop {
        let serves = attacks.contains(&Attack::ControlAnswers);
        if attacks.contains(&Attack::RuntimeFolders) || serves && folders.sockets < SOCKETS {
            // What another process looks at meanwhile is half there.
            let _ = folders.make(serves);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The folders of its VMs.
struct Folders {
    chance: fastrand::Rng,
    made: Vec<(String, Option<File>)>,
    number: u64,
    sockets: usize,
}

impl Folders {
    /// Makes another folder; the oldest without a socket goes if there are many.
    fn make(&mut self, with_socket: bool) -> std::io::Result<()> {
        self.number += 1;
        let pid = std::process::id();
        let name = match self.chance.u8(..5) {
            0 => format!("{OWN_NAME}-{pid}-{}", self.number),
            1 => format!("{}-{pid}", HOSTILE.replace('/', "_")),
            _ => format!("vm{}-{pid}", self.number),
        };
        if self.made.len() > FOLDERS {
            let (old, _) = self.made.remove(SOCKETS.min(FOLDERS));
            let _ = fs::remove_dir_all(old);
        }
        if self.chance.u8(..12) == 0 {
            return symlink(if self.chance.bool() { "/etc" } else { ".." }, &name);
        }
        fs::DirBuilder::new().mode(0o700).create(&name)?;
        let serves = with_socket && self.sockets < SOCKETS;
        let lock = File::create_new(format!("{name}/lock"))?;
        let is_alive = serves || self.chance.bool();
        if is_alive {
            flock(&lock, FlockOperation::LockExclusive)?;
        }
        let file = format!("{name}/vm.json");
        let kind = if serves { 9 } else { self.chance.u8(..10) };
        match kind {
            0 => mknodat(CWD, &file, FileType::Fifo, Mode::RWXU, 0)?,
            1 => symlink("/etc/shadow", &file)?,
            2 => fs::write(&file, vec![b' '; 1 << 20])?,
            3 => fs::write(&file, "[".repeat(60_000))?,
            4 => fs::create_dir(&file)?,
            _ => {
                let mut text = self.description(kind == 9).to_string().into_bytes();
                if kind < 8 {
                    damage(&mut text, &mut self.chance);
                }
                fs::write(&file, text)?;
            }
        }
        if self.chance.bool() {
            File::create(format!("{name}/region"))?.set_len(1 << 40)?;
        }
        if serves {
            self.sockets += 1;
            let (listener, mut chance) = (UnixListener::bind(format!("{name}/control"))?, self.chance.fork());
            std::thread::spawn(move || {
                // One that is silent lets nobody in.
                if chance.u8(..6) > 0 {
                    listener.incoming().flatten().for_each(|client| drop(answer(client, &mut chance)));
                }
                std::thread::park();
            });
        }
        let place = if serves { 0 } else { self.made.len() };
        self.made.insert(place, (name, is_alive.then_some(lock)));
        Ok(())
    }

    /// What `vm.json` says: `whole` where it may be believed.
    fn description(&mut self, whole: bool) -> Value {
        let (own, mut pid) = (self.chance.bool(), std::process::id());
        if !whole && self.chance.bool() {
            // Another's process.
            pid = self.chance.u32(..pid);
        }
        json!({
            "name": if own { OWN_NAME.to_owned() } else { format!("vm{}", self.number) },
            "pid": pid,
            "started": {"utc_ns": self.chance.u64(..), "utc": "2026-01-01T00:00:00Z"},
            "vcpus": self.chance.u32(..),
            "memory": self.chance.u64(..),
            "trace": HOSTILE,
            "monitor": null,
            "attached": {"pid": self.chance.u32(..40_000), "comm": HOSTILE},
        })
    }
}

/// Changes some bytes of `text`.
pub fn damage(text: &mut Vec<u8>, chance: &mut fastrand::Rng) {
    for _ in 0..chance.usize(1..6) {
        let at = chance.usize(..=text.len());
        match chance.u8(..4) {
            0 => text.truncate(at),
            1 => text.splice(at..at, [b'"', b'[', b'{', b'9', 0x1b, b'\n'].repeat(chance.usize(1..200))).for_each(drop),
            _ => text.iter_mut().skip(at).take(chance.usize(1..4)).for_each(|byte| *byte = chance.u8(..)),
        }
    }
}

/// Writes `bytes` again and again, `pause` between them, until nobody reads.
fn write_for_ever(mut client: &UnixStream, bytes: &[u8], pause: Duration) -> std::io::Result<()> {
    loop {
        client.write_all(bytes)?;
        std::thread::sleep(pause);
    }
}

/// Answers a client of a control socket.
fn answer(client: UnixStream, chance: &mut fastrand::Rng) -> std::io::Result<()> {
    let mut request = String::new();
    BufReader::new((&client).take(1 << 16)).read_line(&mut request)?;
    let name = |chance: &mut fastrand::Rng| if chance.bool() { HOSTILE } else { OWN_NAME };
    let number = chance.u64(..);
    let list = |chance: &mut fastrand::Rng, value: Value| Value::from(vec![value; chance.usize(..3000)]);
    let live = json!({
        "answer": "live", "name": name(chance), "pid": 1,
        "host": {
            "since_ns": chance.u64(..), "until_ns": chance.u64(..),
            "vcpus": [], "thieves": list(chance, json!({"name": HOSTILE, "ns": number})),
            "exits": list(chance, json!({"reason": HOSTILE, "count": number, "total_ns": 1, "classes": [1, 2]})),
            "ready": {"count": 1, "total_ns": chance.u64(..), "classes": vec![u64::MAX; 40]},
            "late": [], "records": chance.u64(..), "lost": 0,
        },
        "layers": list(chance, json!({"path": HOSTILE, "records": number, "lost": 1, "overwritten": 0})),
        "missing": list(chance, HOSTILE.into()),
    });
    let status = json!({
        "answer": "status", "name": name(chance), "pid": 1, "uptime_s": 1, "vcpus": 1, "memory": 0, "jail": HOSTILE,
        "trace": {
            "dir": HOSTILE, "region": HOSTILE, "region_size": chance.u64(..), "guest_kernel": HOSTILE, "sessions": [],
            "layers": [], "missing": list(chance, HOSTILE.into()),
            "triggers": list(chance, json!({"trigger": HOSTILE, "fired": 1, "last": HOSTILE, "snapshots": [HOSTILE]})),
        },
    });
    let whole = match chance.u8(..4) {
        0 => live,
        1 => status,
        2 => json!({"answer": "refused", "message": HOSTILE}),
        _ => json!({"answer": HOSTILE}),
    };
    match chance.u8(..8) {
        0 => Ok(()),
        1 => write_for_ever(&client, b" ", DRIP),
        2 => write_for_ever(&client, &[b' '; 4096], Duration::ZERO),
        3 => write_for_ever(&client, "[".repeat(4096).as_bytes(), Duration::ZERO),
        4 => {
            std::thread::sleep(Duration::from_millis(chance.u64(..3000)));
            (&client).write_all(format!("{whole}\n").as_bytes())
        }
        5 => {
            let mut text = whole.to_string().into_bytes();
            damage(&mut text, chance);
            text.push(b'\n');
            (&client).write_all(&text)
        }
        _ => (&client).write_all(format!("{whole}\n").as_bytes()),
    }
}

/// Serves a client that takes this for QEMU.
fn speak_qmp(client: UnixStream, chance: &mut fastrand::Rng) -> std::io::Result<()> {
    client.set_write_timeout(Some(Duration::from_secs(2)))?;
    client.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut writer = &client;
    match chance.u8(..10) {
        0 => return write_for_ever(&client, b" ", DRIP),
        1 => return write_for_ever(&client, &[b'x'; 4096], Duration::ZERO),
        2 => return write_for_ever(&client, "[".repeat(4096).as_bytes(), Duration::ZERO),
        _ => writeln!(writer, r#"{{"QMP":{{"version":{{}},"capabilities":[]}}}}"#)?,
    }
    let kind = chance.u8(..8);
    let mut rest = BufReader::new(&client);
    let mut line = String::new();
    while rest.read_line(&mut line)? > 0 {
        let request: Value = serde_json::from_str(&line).unwrap_or_default();
        line.clear();
        let id = &request["id"];
        let is_list = request["execute"] == "qom-list";
        let ports = |count: usize| -> Vec<Value> {
            (0..count)
                .map(|port| json!({"name": format!("{HOSTILE}{port}"), "type": "child<pcie-root-port>"}))
                .collect()
        };
        let whole = match (kind, is_list) {
            (0, true) => json!({"return": ports(10_000), "id": id}),
            (1, true) => json!({"return": ports(3), "id": id}),
            (_, true) => json!({"return": [{"name": "strata-region", "type": HOSTILE}], "id": id}),
            (2, false) => json!({"error": {"class": HOSTILE, "desc": HOSTILE}, "id": id}),
            _ => json!({"return": chance.u64(..), "id": id}),
        };
        match (kind, chance.u8(..4)) {
            (3, _) => return write_for_ever(&client, b"{\"event\":\"STOP\"}\n", Duration::ZERO),
            (4, 0) => return write_for_ever(&client, b"{\"event\":\"", DRIP),
            (5, 0) => std::thread::sleep(Duration::from_millis(chance.u64(..3000))),
            (6, 0) => {
                let mut text = whole.to_string().into_bytes();
                damage(&mut text, chance);
                writer.write_all(&text)?;
            }
            (7, 0) => writeln!(writer, "{}{}", "{\"a\":".repeat(50_000), "}".repeat(50_000))?,
            _ => {}
        }
        writeln!(writer, "{whole}")?;
    }
    Ok(())
}
