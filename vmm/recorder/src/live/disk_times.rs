//! How long the VMM takes for requests to the VM's disks, counted where they are served: in every mode, and whatever
//! events are chosen.

use crate::control::protocol::{LiveDisk, Times};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use strata_observer::BlockRequestKind;

/// The times of requests so far. Memory is bounded by the number of disks.
#[derive(Debug, Default)]
pub struct DiskTimes {
    disks: Mutex<BTreeMap<(u32, &'static str), Requests>>,
}

/// Requests of a kind to a disk, served one at a time.
#[derive(Debug, Default)]
struct Requests {
    begun: Option<Instant>,
    times: Times,
}

impl DiskTimes {
    /// A request to `disk` begins, or, if it `is_done`, ends. Those for a disk's identification are not counted.
    pub fn request(&self, disk: u32, kind: BlockRequestKind, is_done: bool) {
        let now = Instant::now();
        let kind = match kind {
            BlockRequestKind::Read => "read",
            BlockRequestKind::Write => "write",
            BlockRequestKind::Flush => "flush",
            BlockRequestKind::GetId | BlockRequestKind::Other => return,
        };
        let mut disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
        let of = disks.entry((disk, kind)).or_default();
        if !is_done {
            of.begun = Some(now);
        } else if let Some(begun) = of.begun.take() {
            of.times.add(u64::try_from(now.duration_since(begun).as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// What there is so far, by disk and kind.
    #[must_use]
    pub fn all(&self) -> Vec<LiveDisk> {
        let disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
        let disk = |(&(disk, kind), of): (&(u32, &'static str), &Requests)| LiveDisk {
            disk,
            kind: kind.into(),
            times: of.times.clone(),
        };
        disks.iter().map(disk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn requests_are_timed_by_disk_and_kind() {
        let times = DiskTimes::default();
        let pause = Duration::from_millis(3);

        for (disk, kind) in [(1, BlockRequestKind::Read), (1, BlockRequestKind::Read), (0, BlockRequestKind::Flush)] {
            times.request(disk, kind, false);
            thread::sleep(pause);
            times.request(disk, kind, true);
        }
        times.request(0, BlockRequestKind::GetId, false);
        times.request(0, BlockRequestKind::GetId, true);
        times.request(0, BlockRequestKind::Write, true);

        let all = times.all();
        let counts: Vec<_> = all.iter().map(|of| (of.disk, of.kind.raw().as_str(), of.times.count)).collect();
        assert_eq!(counts, [(0, "flush", 1), (0, "write", 0), (1, "read", 2)]);
        assert!(u128::from(all[2].times.total_ns) >= 2 * pause.as_nanos(), "{all:?}");
    }
}
