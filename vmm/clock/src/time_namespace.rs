//! What a time namespace adds to the kernel's clocks for its processes (`time_namespaces(7)`). The kernel's own records
//! carry the clocks as they are.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// This process, as `/proc` shows it.
const THIS_PROCESS: &str = "/proc/self";

static OFFSETS: LazyLock<Offsets> = LazyLock::new(|| Offsets::of(Path::new(THIS_PROCESS)));

/// What is added for this process to `CLOCK_MONOTONIC` and its variants, ns. Looked up once: a process with threads
/// cannot change its namespace.
#[must_use]
pub fn monotonic_offset_ns() -> i64 {
    OFFSETS.monotonic
}

/// What is added for this process to `CLOCK_BOOTTIME`, and so to times since the boot in `/proc`, ns.
#[must_use]
pub fn boottime_offset_ns() -> i64 {
    OFFSETS.boottime
}

/// Offsets of a time namespace, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offsets {
    monotonic: i64,
    boottime: i64,
}

impl Offsets {
    /// Those of the process with this folder in `/proc`; none where the kernel has no time namespaces.
    fn of(process: &Path) -> Self {
        let namespace = |name| fs::read_link(process.join("ns").join(name)).ok();
        // The file is about the children's namespace, which is another one between unshare(2) and execve(2).
        let is_childrens = namespace("time") == namespace("time_for_children");
        let text = fs::read_to_string(process.join("timens_offsets")).unwrap_or_default();
        if is_childrens { Self::parse(&text) } else { Self::default() }
    }

    /// Those in the contents of `/proc/PID/timens_offsets`: a line for each clock, with seconds and nanoseconds.
    fn parse(text: &str) -> Self {
        let of = |clock: &str| {
            let mut words = text.lines().find_map(|line| line.strip_prefix(clock))?.split_whitespace();
            let (seconds, ns): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            seconds.checked_mul(1_000_000_000)?.checked_add(ns)
        };
        Self { monotonic: of("monotonic").unwrap_or(0), boottime: of("boottime").unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    const TEXT: &str = "monotonic         864000         5\nboottime          -7        250000000\n";

    fn process(children: &str) -> TempDir {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("ns")).unwrap();
        symlink("time:[1]", folder.path().join("ns/time")).unwrap();
        symlink(children, folder.path().join("ns/time_for_children")).unwrap();
        fs::write(folder.path().join("timens_offsets"), TEXT).unwrap();
        folder
    }

    #[test]
    fn offsets_are_read_in_nanoseconds() {
        let offsets = Offsets { monotonic: 864_000_000_000_005, boottime: -6_750_000_000 };

        assert_eq!(Offsets::of(process("time:[1]").path()), offsets);
    }

    #[test]
    fn offsets_of_the_childrens_namespace_are_not_ours() {
        assert_eq!(Offsets::of(process("time:[2]").path()), Offsets::default());
    }

    #[test]
    fn kernel_without_time_namespaces_adds_nothing() {
        assert_eq!(Offsets::of(Path::new("/nonexistent")), Offsets::default());
    }
}
