//! What the VMM of these tests does beside its guest: it maps a region, or speaks as much of QEMU's machine protocol as
//! strata uses, and keeps a log of its requests.

use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use vm_memory::FileOffset;
use vm_memory::mmap::MmapRegionBuilder;

/// The file of a region that the VMM maps.
pub const REGION_VARIABLE: &str = "STRATA_TEST_VMM_REGION";
/// The socket on which the VMM speaks QEMU's machine protocol.
pub const QMP_VARIABLE: &str = "STRATA_TEST_VMM_QMP";
/// The guest lets go of no device.
pub const HOLDS_VARIABLE: &str = "STRATA_TEST_VMM_HOLDS";

/// Does what the variables ask for, until this process ends.
pub fn begin() {
    if let Ok(path) = std::env::var(REGION_VARIABLE) {
        map(Path::new(&path));
    }
    if let Ok(socket) = std::env::var(QMP_VARIABLE) {
        let listener = UnixListener::bind(&socket).unwrap();
        let log = File::create(format!("{socket}.log")).unwrap();
        std::thread::spawn(move || {
            let mut qemu = Qemu { log, is_plugged: false, has_memory: false };
            // One client at a time.
            listener.incoming().for_each(|client| qemu.serve(client.unwrap()));
        });
    }
}

fn map(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let size = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let region = MmapRegionBuilder::<()>::new(size)
        .with_file_offset(FileOffset::new(file, 0))
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_SHARED)
        .build();
    std::mem::forget(region.unwrap());
}

struct Qemu {
    log: File,
    is_plugged: bool,
    has_memory: bool,
}

impl Qemu {
    fn serve(&mut self, client: UnixStream) {
        let mut writer = client.try_clone().unwrap();
        let _ = writeln!(writer, "{}", json!({"QMP": {"version": {}, "capabilities": []}}));
        for line in BufReader::new(client).lines().map_while(Result::ok) {
            let request: Value = serde_json::from_str(&line).unwrap();
            let command = request["execute"].as_str().unwrap();
            writeln!(self.log, "{command}").unwrap();
            let (mut answer, event) = self.answer(command, &request["arguments"]);
            answer["id"] = request["id"].clone();
            let lines = [Some(answer), event].into_iter().flatten();
            lines.for_each(|line| drop(writeln!(writer, "{line}")));
        }
    }

    /// The answer, and an event behind it.
    fn answer(&mut self, command: &str, arguments: &Value) -> (Value, Option<Value>) {
        let done = json!({"return": {}});
        let refused = |class: &str| json!({"error": {"class": class, "desc": "no"}});
        let port = json!({"name": "port", "type": "child<pcie-root-port>"});
        let device = json!({"name": "strata-region", "type": "child<ivshmem-plain>"});
        match (command, arguments["path"].as_str(), arguments["property"].as_str()) {
            ("qom-list", Some("/machine/peripheral"), _) => {
                let listed: Vec<_> = [port].into_iter().chain(self.is_plugged.then_some(device)).collect();
                (json!({"return": listed}), None)
            }
            ("qom-list", ..) => (json!({"return": []}), None),
            ("qom-get", _, Some("hotplug")) => (json!({"return": true}), None),
            ("qom-get", ..) => (json!({"return": 1_u64 << 30}), None),
            ("object-add", ..) => {
                map(Path::new(arguments["mem-path"].as_str().unwrap()));
                self.has_memory = true;
                (done, None)
            }
            ("object-del", ..) if !std::mem::take(&mut self.has_memory) => (refused("GenericError"), None),
            ("device_add", ..) => {
                self.is_plugged = true;
                (done, None)
            }
            ("device_del", ..) if std::env::var(HOLDS_VARIABLE).is_ok() => (done, None),
            ("device_del", ..) => match std::mem::take(&mut self.is_plugged) {
                true => (done, Some(json!({"event": "DEVICE_DELETED", "data": {"device": "strata-region"}}))),
                false => (refused("DeviceNotFound"), None),
            },
            _ => (done, None),
        }
    }
}

/// The requests that the VMM got that listens on `socket`.
pub fn reported(socket: &Path) -> Vec<String> {
    let log = fs::read_to_string(socket.with_extension("log")).unwrap();
    log.lines().map(str::to_owned).collect()
}
