//! Virtual machines that other processes run (QEMU, for example), as KVM's debugfs shows them: their vCPUs, the host
//! threads of these, and how KVM makes their TSCs of the host's.
//!
//! KVM keeps a folder `TID-FD` per virtual machine in `/sys/kernel/debug/kvm`, named after the thread that made it and
//! the descriptor that it got, with a folder `vcpuN` per vCPU. Reading it needs root and debugfs to be mounted.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where KVM's debugfs is mounted usually.
pub const KVM_DEBUGFS: &str = "/sys/kernel/debug/kvm";

/// Why KVM's debugfs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DebugfsError {
    /// There is nothing to read.
    #[error("cannot read {}: mount debugfs (mount -t debugfs debugfs /sys/kernel/debug) and run as root", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A file does not hold a number.
    #[error("{} holds '{text}', which is not a number", path.display())]
    NotANumber {
        /// The file.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
}

/// How often a vCPU's own TSC is looked for while it runs guests of its own.
const TSC_TRIES: u32 = 3;

/// How KVM makes a vCPU's TSC of the host's: `guest = (host * ratio >> fraction_bits) + offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuTsc {
    /// Ticks, modulo 2^64.
    pub offset: i64,
    /// Ratio, times 2^`fraction_bits`; 0 where the processor does not scale.
    pub ratio: u64,
    /// See `ratio`.
    pub fraction_bits: u32,
}

impl VcpuTsc {
    /// Whether the guest's TSC runs at another rate than the host's.
    #[must_use]
    pub fn is_scaled(&self) -> bool {
        self.ratio != 0 && 1_u64.checked_shl(self.fraction_bits) != Some(self.ratio)
    }
}

impl fmt::Display for VcpuTsc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_scaled() {
            write!(
                formatter,
                "the host's TSC times {} / 2^{}, plus {} ticks",
                self.ratio, self.fraction_bits, self.offset
            )
        } else {
            write!(formatter, "the host's TSC plus {} ticks", self.offset)
        }
    }
}

/// A vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugfsVcpu {
    /// Its index, as in KVM's events.
    pub vcpu: u32,
    /// The host's thread that ran it last; `None` where it has not run yet or this kernel does not tell (before 5.19).
    pub thread: Option<u32>,
    /// Its TSC; `None` while it runs a guest of its own: KVM shows that guest's then. Also while KVM makes or removes its
    /// files.
    pub tsc: Option<VcpuTsc>,
}

/// A virtual machine's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugfsVm {
    folder: PathBuf,
    /// The thread that made it.
    creator: u32,
    /// The descriptor that it got.
    pub descriptor: u32,
}

impl DebugfsVm {
    /// The virtual machines that a process with the threads `threads` runs, by their descriptors: those that one of the
    /// threads made or has run a vCPU of. `root` is KVM's debugfs, [`KVM_DEBUGFS`].
    ///
    /// # Errors
    /// Debugfs cannot be read.
    pub fn of_process(root: &Path, threads: &BTreeSet<u32>) -> Result<Vec<Self>, DebugfsError> {
        let mut machines = Vec::new();
        for (name, folder) in entries(root)? {
            let Some((creator, descriptor)) = parse_name(&name) else { continue };
            let machine = Self { folder, creator, descriptor };
            // The thread that made it may have ended. A machine that ends meanwhile is nobody's.
            let vcpus = || machine.vcpus().unwrap_or_default();
            if threads.contains(&creator)
                || vcpus().iter().filter_map(|vcpu| vcpu.thread).any(|tid| threads.contains(&tid))
            {
                machines.push(machine);
            }
        }
        machines.sort_unstable_by_key(|machine| (machine.descriptor, machine.creator));
        Ok(machines)
    }

    /// Whether KVM still has it.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.folder.is_dir()
    }

    /// Its vCPUs, in the order of their indices.
    ///
    /// # Errors
    /// The machine has ended, or debugfs cannot be read.
    pub fn vcpus(&self) -> Result<Vec<DebugfsVcpu>, DebugfsError> {
        let mut vcpus = Vec::new();
        for (name, folder) in entries(&self.folder)? {
            let Some(vcpu) = name.strip_prefix("vcpu").and_then(|number| number.parse().ok()) else { continue };
            vcpus.push(DebugfsVcpu {
                vcpu,
                thread: number(&folder.join("pid"))?.filter(|&thread| thread != 0),
                tsc: own_tsc(&folder)?,
            });
        }
        vcpus.sort_unstable_by_key(|vcpu| vcpu.vcpu);
        Ok(vcpus)
    }
}

/// The TSC of the vCPU with the folder `folder`, if it runs no guest of its own before and after that was read; older
/// kernels do not tell.
fn own_tsc(folder: &Path) -> Result<Option<VcpuTsc>, DebugfsError> {
    let is_nested = || Ok(number::<u64>(&folder.join("guest_mode"))?.unwrap_or(0) != 0);
    for _ in 0..TSC_TRIES {
        let was_nested = is_nested()?;
        // All kernels have this one.
        let Some(offset) = number(&folder.join("tsc-offset"))? else { return Ok(None) };
        let tsc = VcpuTsc {
            offset,
            ratio: number(&folder.join("tsc-scaling-ratio"))?.unwrap_or(0),
            fraction_bits: number(&folder.join("tsc-scaling-ratio-frac-bits"))?.unwrap_or(0),
        };
        if !was_nested && !is_nested()? {
            return Ok(Some(tsc));
        }
    }
    Ok(None)
}

/// Thread and descriptor in the name of a machine's folder, `TID-FD`.
fn parse_name(name: &str) -> Option<(u32, u32)> {
    let (creator, descriptor) = name.split_once('-')?;
    Some((creator.parse().ok()?, descriptor.parse().ok()?))
}

fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, DebugfsError> {
    let failed = |source| DebugfsError::Read { path: folder.into(), source };
    let entries = fs::read_dir(folder).map_err(failed)?;
    entries
        .map(|entry| {
            entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).map_err(failed)
        })
        .collect()
}

/// The number in a file; `None` where this kernel has no such file.
fn number<T: std::str::FromStr>(path: &Path) -> Result<Option<T>, DebugfsError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DebugfsError::Read { path: path.into(), source }),
    };
    let text = text.trim();
    text.parse().map(Some).map_err(|_| DebugfsError::NotANumber { path: path.into(), text: text.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn debugfs(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn descriptors(root: &tempfile::TempDir, threads: &[u32]) -> Vec<u32> {
        let found = DebugfsVm::of_process(root.path(), &threads.iter().copied().collect()).unwrap();
        found.iter().map(|machine| machine.descriptor).collect()
    }

    #[test]
    fn vcpus_are_read_with_their_threads_offsets_and_scaling() {
        let root = debugfs(&[
            ("77-12/vcpu1/tsc-offset", "-5000\n"),
            ("77-12/vcpu1/pid", "0\n"),
            ("77-12/vcpu0/tsc-offset", "-4000\n"),
            ("77-12/vcpu0/pid", "79\n"),
            ("77-12/vcpu0/tsc-scaling-ratio", "8589934592\n"),
            ("77-12/vcpu0/tsc-scaling-ratio-frac-bits", "32\n"),
            ("77-12/exits", "5\n"),
        ]);
        let machine = DebugfsVm::of_process(root.path(), &BTreeSet::from([77])).unwrap().remove(0);

        let vcpus = machine.vcpus().unwrap();

        let scaled = VcpuTsc { offset: -4000, ratio: 2 << 32, fraction_bits: 32 };
        let plain = VcpuTsc { offset: -5000, ratio: 0, fraction_bits: 0 };
        assert_eq!(vcpus[0], DebugfsVcpu { vcpu: 0, thread: Some(79), tsc: Some(scaled) });
        assert_eq!(vcpus[1], DebugfsVcpu { vcpu: 1, thread: None, tsc: Some(plain) });
        assert_eq!(scaled.to_string(), "the host's TSC times 8589934592 / 2^32, plus -4000 ticks");
        assert_eq!(plain.to_string(), "the host's TSC plus -5000 ticks");
    }

    #[test]
    fn offset_of_a_guest_in_the_guest_is_not_taken_for_the_vcpus() {
        let root = debugfs(&[
            ("77-12/vcpu0/tsc-offset", "-5000\n"),
            ("77-12/vcpu0/guest_mode", "1\n"),
            ("77-12/vcpu1/tsc-offset", "-4000\n"),
            ("77-12/vcpu1/guest_mode", "0\n"),
        ]);
        let machine = DebugfsVm::of_process(root.path(), &BTreeSet::from([77])).unwrap().remove(0);

        let offsets = machine.vcpus().unwrap().into_iter().map(|vcpu| vcpu.tsc.map(|tsc| tsc.offset));

        assert_eq!(offsets.collect::<Vec<_>>(), [None, Some(-4000)]);
    }

    #[test]
    fn vcpu_whose_files_come_or_go_has_no_offset() {
        let root = debugfs(&[("77-12/vcpu0/pid", "79\n"), ("77-12/vcpu0/guest_mode", "0\n")]);
        let machine = DebugfsVm::of_process(root.path(), &BTreeSet::from([77])).unwrap().remove(0);

        let vcpus = machine.vcpus().unwrap();

        assert_eq!(vcpus, [DebugfsVcpu { vcpu: 0, thread: Some(79), tsc: None }]);
    }

    #[test]
    fn ratio_of_one_is_no_scaling() {
        let tsc = VcpuTsc { offset: 0, ratio: 1 << 48, fraction_bits: 48 };

        assert!(!tsc.is_scaled() && VcpuTsc { ratio: 3 << 47, ..tsc }.is_scaled());
        assert!(VcpuTsc { fraction_bits: 99, ..tsc }.is_scaled());
    }

    #[test]
    fn machines_are_those_that_a_thread_made_or_runs() {
        let root = debugfs(&[
            ("77-12/vcpu0/pid", "80"),
            ("78-5/vcpu0/pid", "0"),
            ("770-3/vcpu0/pid", "771"),
            ("exits", "1"),
            ("a-b/vcpu0/pid", "77"),
        ]);

        assert_eq!(descriptors(&root, &[77, 78]), [5, 12]);
        // The thread that made it has ended.
        assert_eq!(descriptors(&root, &[80]), [12]);
        assert!(descriptors(&root, &[7]).is_empty());
    }

    #[test]
    fn machine_that_ended_is_known_to_have() {
        let root = debugfs(&[("77-12/vcpu0/pid", "80")]);
        let machine = DebugfsVm::of_process(root.path(), &BTreeSet::from([77])).unwrap().remove(0);

        let before = machine.exists();
        fs::remove_dir_all(root.path().join("77-12")).unwrap();

        assert!(before && !machine.exists() && machine.vcpus().is_err());
    }

    #[test]
    fn absent_debugfs_and_damaged_files_are_named() {
        let root = debugfs(&[("77-12/vcpu0/tsc-offset", "soon")]);
        let machine = DebugfsVm::of_process(root.path(), &BTreeSet::from([77])).unwrap().remove(0);

        let absent = DebugfsVm::of_process(&root.path().join("kvm"), &BTreeSet::new()).unwrap_err();

        assert!(absent.to_string().contains("mount -t debugfs"), "{absent}");
        assert!(machine.vcpus().unwrap_err().to_string().contains("holds 'soon', which is not a number"));
    }
}
