//! Removes a tracing instance when this process ends in any way, abort and SIGKILL included.
//!
//! An instance left behind keeps its buffers and keeps tracing. Code of ours that runs at the end cannot be relied
//! on, so a child process waits for the end of a pipe that only we hold open.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Waits for the end of its input, then stops tracing and removes the folder `$1` as soon as nothing holds it open, for
/// at most ten seconds. Signals that are meant for us, such as that of Ctrl-C, are ignored.
const SCRIPT: &str = r#"trap '' INT TERM HUP QUIT
read -r line
[ -d "$1" ] || exit 0
echo 0 > "$1/tracing_on"
tries=100
until rmdir "$1" || [ ! -d "$1" ] || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.1
done"#;

/// The child process. When dropped it is told to finish. If the instance is gone by then, as it should, that is at
/// once, and it is waited for; else it is left alone with its work.
#[derive(Debug)]
pub(super) struct RemovalGuard {
    instance: PathBuf,
    child: Child,
    /// `None` only inside of `drop`.
    pipe: Option<ChildStdin>,
}

impl RemovalGuard {
    /// Starts guarding the folder `instance`.
    pub(super) fn spawn(instance: &Path) -> io::Result<Self> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "strata-removal-guard"])
            .arg(instance)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { instance: instance.to_owned(), child, pipe })
    }
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        self.pipe = None;
        if !self.instance.exists() {
            // Only an interrupted wait can fail: nothing is lost by it.
            let _ = self.child.wait();
        }
    }
}
