//! One ftrace event on the trace clock `x86-tsc`: what `getppid` costs with its exit tracepoint recorded beyond what it
//! costs with only its entry recorded, so that the system call itself and the slow system call path cancel out.

use crate::sampling::{Case, TickRate, chunk_of, sample};
use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const TRACEFS: &str = "/sys/kernel/tracing";

/// A private tracefs instance; removed when dropped.
pub struct Instance {
    folder: PathBuf,
}

impl Instance {
    /// Creates the instance.
    ///
    /// # Errors
    /// When tracefs is not mounted, this user may not use it, or it has no system call events.
    pub fn create() -> anyhow::Result<Rc<Self>> {
        let folder = Path::new(TRACEFS).join("instances").join(format!("strata-ring-bench-{}", std::process::id()));
        fs::create_dir(&folder)
            .with_context(|| format!("cannot create {}: tracefs and root are needed", folder.display()))?;
        let instance = Rc::new(Self { folder });
        instance.write("trace_clock", "x86-tsc")?;
        instance.write("buffer_size_kb", "1024")?;
        instance.write("options/overwrite", "1")?;
        Ok(instance)
    }

    fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {value:?} to {}", path.display()))
    }

    fn enable(&self, entry: bool, exit: bool) -> anyhow::Result<()> {
        let word = |on| if on { "1" } else { "0" };
        self.write("events/syscalls/sys_enter_getppid/enable", word(entry))?;
        self.write("events/syscalls/sys_exit_getppid/enable", word(exit))
    }

    /// The case. Its value is the difference of two samples that follow each other.
    pub fn cases(self: &Rc<Self>, rate: TickRate) -> Vec<Case> {
        let instance = Rc::clone(self);
        let sample = move || {
            instance.enable(true, false)?;
            let entry_only = sample_getppid();
            instance.enable(true, true)?;
            let both = sample_getppid();
            instance.enable(false, false)?;
            Ok(rate.nanoseconds(both - entry_only))
        };
        let label = "ftrace, overwrite, clock x86-tsc, sys_exit_getppid (24 B)".to_owned();
        vec![Case { key: "ftrace/sys-exit", label, sample: Box::new(sample) }]
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.enable(false, false);
        let _ = fs::remove_dir(&self.folder);
    }
}

fn sample_getppid() -> f64 {
    sample(|| {
        chunk_of(|_| {
            // The system call, not a value that a library remembers.
            let _ = rustix::process::getppid();
        })
    })
}
