//! TSC offsets and scaling of virtual machines that another process runs (QEMU, for example), from KVM's debugfs.
//!
//! KVM keeps a folder `PID-FD` per virtual machine in `/sys/kernel/debug/kvm`, with a folder `vcpuN` per vCPU. Reading
//! it needs root and debugfs to be mounted.

use clock_sync::relation::Relation;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where KVM's debugfs is mounted usually.
pub const KVM_DEBUGFS: &str = "/sys/kernel/debug/kvm";

/// Why a VM's TSC offsets cannot be read.
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
    /// No VM of that process.
    #[error("process {pid} has no virtual machine: give the process id of its VMM")]
    NoMachine {
        /// The process.
        pid: u32,
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

/// How KVM makes a vCPU's TSC of the host's: `guest = (host * ratio >> fraction_bits) + offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuTsc {
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Ticks, modulo 2^64.
    pub offset: i64,
    /// Ratio, times 2^`fraction_bits`; 0 where the processor does not scale.
    pub ratio: u64,
    /// See `ratio`.
    pub fraction_bits: u32,
}

impl VcpuTsc {
    /// The relation of the vCPU's TSC to the host's, anchored at `near_host` (host TSC ticks). Undoing a scaling is
    /// exact but for the rounding of its inverse, which adds less than a tick in 2^31.
    #[must_use]
    pub fn relation(&self, near_host: u64) -> Relation {
        let one = 1_u128 << self.fraction_bits.min(63);
        if self.ratio == 0 || u128::from(self.ratio) == one {
            return Relation::from_tsc_offset(self.offset, near_host);
        }
        let scaled = (u128::from(near_host) * u128::from(self.ratio)) >> self.fraction_bits.min(63);
        let guest = u64::try_from(scaled & u128::from(u64::MAX)).unwrap_or(0).wrapping_add_signed(self.offset);
        // Host ticks per guest tick, with as many fraction bits as leave room for ratios down to 1/2^32.
        let mult = ((one << 32) + u128::from(self.ratio) / 2) / u128::from(self.ratio);
        let mult = u64::try_from(mult).unwrap_or(u64::MAX);
        Relation { hw_base: guest, trace_base: near_host, mult, shift: 32, hw_bits: 64 }
    }
}

/// The TSCs of the vCPUs of process `pid`'s virtual machine, in the order of their indices. `root` is KVM's debugfs,
/// [`KVM_DEBUGFS`].
///
/// # Errors
/// The process has no VM, or debugfs cannot be read.
pub fn read_vcpu_tscs(root: &Path, pid: u32) -> Result<Vec<VcpuTsc>, DebugfsError> {
    let prefix = format!("{pid}-");
    let machine = entries(root)?.into_iter().find(|(name, _)| name.starts_with(&prefix));
    let (_, machine) = machine.ok_or(DebugfsError::NoMachine { pid })?;
    let mut vcpus = Vec::new();
    for (name, folder) in entries(&machine)? {
        let Some(vcpu) = name.strip_prefix("vcpu").and_then(|number| number.parse().ok()) else { continue };
        vcpus.push(VcpuTsc {
            vcpu,
            offset: number(&folder.join("tsc-offset"))?.unwrap_or(0),
            ratio: number(&folder.join("tsc-scaling-ratio"))?.unwrap_or(0),
            fraction_bits: number(&folder.join("tsc-scaling-ratio-frac-bits"))?.unwrap_or(0),
        });
    }
    vcpus.sort_unstable_by_key(|vcpu| vcpu.vcpu);
    Ok(vcpus)
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

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn offsets_and_scaling_are_read_per_vcpu() {
        let root = machine(&[
            ("77-12/vcpu1/tsc-offset", "-5000\n"),
            ("77-12/vcpu0/tsc-offset", "-4000\n"),
            ("77-12/vcpu0/tsc-scaling-ratio", "8589934592\n"),
            ("77-12/vcpu0/tsc-scaling-ratio-frac-bits", "32\n"),
            ("770-3/vcpu0/tsc-offset", "1\n"),
        ]);

        let read = read_vcpu_tscs(root.path(), 77).unwrap();

        let scaled = VcpuTsc { vcpu: 0, offset: -4000, ratio: 2 << 32, fraction_bits: 32 };
        assert_eq!(read, [scaled, VcpuTsc { vcpu: 1, offset: -5000, ratio: 0, fraction_bits: 0 }]);
        // The guest's counter runs twice as fast.
        let relation = scaled.relation(1_000_000);
        assert_eq!((relation.trace_time(1_996_000), relation.trace_time(1_996_200)), (1_000_000, 1_000_100));
    }

    #[test]
    fn offset_without_scaling_is_exact() {
        let tsc = VcpuTsc { vcpu: 0, offset: -4000, ratio: 1 << 48, fraction_bits: 48 };

        assert_eq!(tsc.relation(1_000_000), Relation::from_tsc_offset(-4000, 1_000_000));
    }

    #[test]
    fn process_without_a_machine_and_damaged_files_are_named() {
        let root = machine(&[("77-12/vcpu0/tsc-offset", "soon")]);

        assert!(read_vcpu_tscs(root.path(), 7).unwrap_err().to_string().contains("process 7 has no virtual machine"));
        assert!(
            read_vcpu_tscs(root.path(), 77).unwrap_err().to_string().contains("holds 'soon', which is not a number")
        );
    }
}
