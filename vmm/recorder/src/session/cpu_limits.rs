//! How much of the CPU the host's control groups kept from a VM's threads, by the kernel's own account (`cpu.stat`), so
//! that a recording can say how much of their waiting a limit explains at most. Linux has no tracepoint for it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use strata_recording::manifest::{CpuLimit, Throttled};

/// Control groups that are kept count of at most: a VM's threads are in one or two, each with a few above it.
const MAX_GROUPS: usize = 256;
/// The controller of a hierarchy of cgroup v1 whose groups have a CPU limit.
const V1_CONTROLLER: &str = "cpu";

/// Where control groups with CPU limits are: the hierarchy's mount point, and how a process's line of it begins in
/// `/proc/PID/cgroup`.
struct Hierarchy {
    root: PathBuf,
    is_v1: bool,
}

/// Updates `known` with the control groups that `process`, or this one, and its `threads` are in, and those above. One that
/// is new begins with what it counts now; one that is gone, or that they left, keeps what was read of it last.
pub fn update(known: &mut Vec<CpuLimit>, process: Option<u32>, threads: impl Iterator<Item = u32>) {
    let process = process.map_or_else(|| "self".into(), |process| process.to_string());
    let threads = threads.map(|thread| thread.to_string());
    update_from(known, Path::new("/proc"), std::iter::once(process).chain(threads));
}

fn update_from(known: &mut Vec<CpuLimit>, proc: &Path, members: impl Iterator<Item = String>) {
    let mounts = fs::read_to_string(proc.join("self/mounts")).unwrap_or_default();
    let Some(hierarchy) = Hierarchy::find(&mounts) else { return };
    let groups: BTreeSet<String> = members.filter_map(|member| hierarchy.group(&proc.join(member))).collect();
    let with_those_above = groups.iter().flat_map(|group| Path::new(group).ancestors());
    let paths: BTreeSet<&Path> = with_those_above.collect();
    for path in paths {
        let Some((quota_us, period_us, now)) = hierarchy.read(path) else { continue };
        let group = path.to_string_lossy();
        let has_room = known.len() < MAX_GROUPS;
        match known.iter_mut().find(|limit| limit.cgroup == group) {
            Some(limit) => (limit.quota_us, limit.period_us, limit.end) = (quota_us, period_us, now),
            None if has_room => {
                known.push(CpuLimit { cgroup: group.into(), quota_us, period_us, begin: now, end: now });
            }
            None => {}
        }
    }
}

impl Hierarchy {
    /// That of `mounts`, the contents of `/proc/self/mounts`: cgroup v1's where it has the controller.
    fn find(mounts: &str) -> Option<Self> {
        let mounted = |is_wanted: &dyn Fn(&str, &str) -> bool| {
            mounts.lines().find_map(|line| {
                let mut fields = line.split(' ').skip(1);
                let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
                is_wanted(kind, options).then(|| PathBuf::from(point))
            })
        };
        let has_controller =
            |kind: &str, options: &str| kind == "cgroup" && options.split(',').any(|option| option == V1_CONTROLLER);
        let v1 = mounted(&has_controller).map(|root| Self { root, is_v1: true });
        v1.or_else(|| mounted(&|kind, _| kind == "cgroup2").map(|root| Self { root, is_v1: false }))
    }

    /// The group of the process or thread with this folder in `/proc`.
    fn group(&self, member: &Path) -> Option<String> {
        let text = fs::read_to_string(member.join("cgroup")).ok()?;
        let group = text.lines().find_map(|line| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            let is_its = match self.is_v1 {
                true => controllers.split(',').any(|controller| controller == V1_CONTROLLER),
                false => controllers.is_empty(),
            };
            is_its.then(|| group.to_owned())
        })?;
        // One outside of this process's cgroup namespace cannot be seen.
        (!group.starts_with("/..")).then_some(group)
    }

    /// Quota and period, µs, and what `group` has counted so far; `None` where it has no such limits.
    fn read(&self, group: &Path) -> Option<(Option<u64>, u64, Throttled)> {
        let folder = self.root.join(group.strip_prefix("/").unwrap_or(group));
        let text = |name| fs::read_to_string(folder.join(name)).ok();
        let throttled = Throttled::parse(&text("cpu.stat")?)?;
        let number = |name| text(name)?.trim().parse::<i64>().ok();
        let (quota, period) = match self.is_v1 {
            true => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
            // The topmost group of v2 has none, and no limit.
            false => {
                let limit = text("cpu.max")?;
                let mut words = limit.split_whitespace().map(|word| word.parse().unwrap_or(-1));
                (words.next()?, words.next()?)
            }
        };
        Some((u64::try_from(quota).ok(), u64::try_from(period).ok()?, throttled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn members() -> impl Iterator<Item = String> {
        ["self".into(), "7".into()].into_iter()
    }

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A `/proc` whose process and thread 7 are in these groups, and the hierarchy that is mounted there.
    fn host(kind: &str, own: &str, of_thread: &str) -> TempDir {
        let host = TempDir::new().unwrap();
        let root = host.path().join("cgroup").display().to_string();
        write(host.path().join("self/mounts"), &format!("none {root} {kind} rw,relatime,cpu 0 0\n"));
        write(host.path().join("self/cgroup"), own);
        write(host.path().join("7/cgroup"), of_thread);
        host
    }

    #[test]
    fn limits_of_cgroup_v2_are_counted_from_when_they_are_seen_and_kept_when_the_group_is_gone() {
        let host = host("cgroup2", "0::/\n", "0::/pod/vm\n");
        let group = host.path().join("cgroup/pod/vm");
        let stat =
            |throttled| format!("usage_usec 5\nnr_periods 9\nnr_throttled {throttled}\nthrottled_usec 70{throttled}\n");
        write(group.join("cpu.max"), "50000 100000\n");
        let mut limits = Vec::new();

        for throttled in [1, 3] {
            write(group.join("cpu.stat"), &stat(throttled));
            update_from(&mut limits, host.path(), members());
        }
        fs::remove_dir_all(&group).unwrap();
        update_from(&mut limits, host.path(), members());

        let count =
            |throttled: u64, throttled_us: u64| Throttled { periods: 9, throttled, throttled_ns: throttled_us * 1_000 };
        let (begin, end) = (count(1, 701), count(3, 703));
        let limit = CpuLimit { cgroup: "/pod/vm".into(), quota_us: Some(50_000), period_us: 100_000, begin, end };
        assert_eq!(limits, [limit]);
    }

    #[test]
    fn limits_of_cgroup_v1_are_those_of_its_hierarchy_of_the_controller() {
        let host = host("cgroup", "3:memory:/elsewhere\n2:cpu,cpuacct:/vm\n0::/\n", "2:cpu,cpuacct:/vm\n");
        let group = host.path().join("cgroup/vm");
        write(group.join("cpu.cfs_quota_us"), "-1\n");
        write(group.join("cpu.cfs_period_us"), "100000\n");
        write(group.join("cpu.stat"), "nr_periods 4\nnr_throttled 2\nthrottled_time 9000\n");
        let mut limits = Vec::new();

        update_from(&mut limits, host.path(), members());

        let end = Throttled { periods: 4, throttled: 2, throttled_ns: 9_000 };
        let limit = CpuLimit { cgroup: "/vm".into(), quota_us: None, period_us: 100_000, begin: end, end };
        assert_eq!(limits, [limit]);
    }

    #[test]
    fn nothing_is_known_without_control_groups() {
        let mut limits = Vec::new();

        update_from(&mut limits, Path::new("/nonexistent"), members());

        assert_eq!(limits, []);
    }
}
