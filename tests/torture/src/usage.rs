//! What a process takes of the machine.

use std::fs;
use std::path::Path;

/// What a process has taken at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Memory that is not shared, KiB.
    pub memory_kib: u64,
    /// Open files.
    pub descriptors: u64,
    /// Time on processors, clock ticks: hundredths of a second.
    pub processor: u64,
}

impl Usage {
    /// Looks at process `pid`, as long as there is one.
    pub fn look(&mut self, pid: u32) {
        let proc = format!("/proc/{pid}");
        let status = fs::read_to_string(format!("{proc}/status")).unwrap_or_default();
        let memory =
            status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
        self.memory_kib = self.memory_kib.max(memory.unwrap_or(0));
        let descriptors = fs::read_dir(format!("{proc}/fd")).map_or(0, |entries| entries.count() as u64);
        self.descriptors = self.descriptors.max(descriptors);
        let stat = fs::read_to_string(format!("{proc}/stat")).unwrap_or_default();
        // Behind the name, which may hold anything: the fields from the third on.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let times = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
        self.processor = self.processor.max(times.sum());
    }
}

/// Bytes that the files below `path` take on the disk.
#[must_use]
pub fn on_disk(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.blocks() * 512;
    }
    fs::read_dir(path).map_or(0, |entries| entries.flatten().map(|entry| on_disk(&entry.path())).sum())
}
