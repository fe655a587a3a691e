//! A tracing instance of the kernel.

use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};
use strata_host_kernel::Tracefs;

/// A tracing instance that is removed at the end.
pub struct Instance(PathBuf);

impl Instance {
    /// One of this name, which need not be there yet.
    pub fn called(name: &str) -> anyhow::Result<Self> {
        Ok(Self(Tracefs::find()?.root().join("instances").join(name)))
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = self.0.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write to {}", path.display()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // What is left of it can be removed by hand.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Records of an instance that were read or are there to be, and records that were lost, of all CPUs.
pub fn counts(instance: &Path) -> anyhow::Result<(u64, u64)> {
    let (mut records, mut lost) = (0, 0);
    for cpu in fs::read_dir(instance.join("per_cpu"))? {
        let stats = fs::read_to_string(cpu?.path().join("stats"))?;
        let count = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let number = line.with_context(|| format!("the kernel does not count \"{name}\""))?;
            anyhow::Ok(number.trim().parse::<u64>()?)
        };
        records += count("read events")? + count("entries")?;
        lost += count("overrun")? + count("dropped events")?;
    }
    Ok((records, lost))
}
