//! Guests whose processors QEMU emulates on this machine, with no KVM and no other host between: for what happens inside of
//! a guest. `tests/emulated-guest` starts them, and records them through a trace region that they have as a device.
//!
//! What is to happen on the host's side is a script here, too: it finds `strata` and `emulated-guest`, whose options are those
//! of `strata run`, and beside what [`crate::machine::host`] says
//!
//! - the function `guest NAME OPTION…`, which runs a guest and leaves its console in `$LAB_OUT/NAME.log` and its exit status
//!   in `$LAB_OUT/NAME.status`;
//! - `$GUEST`, with which each guest's kernel command line has to begin: it names the port of the guest's heartbeat, too;
//! - `$STRATA_RUNTIME_DIR`, a folder in memory with what runs.
//!
//! Guests may take their time: one is killed when it no longer says that it lives.

use crate::build::guest_image::HEARTBEAT;
use crate::machine::direct::{self, DirectError};
use crate::machine::host::{HostResult, HostRun};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where regions lie: in memory, as they have to.
const MEMORY: &str = "/dev/shm";
/// For a script that waits for what does not come. It is not a measure of work: guests are watched by their heartbeats.
const SCRIPT_LIMIT: Duration = Duration::from_secs(1500);

/// `@RUNTIME@` and `@HEARTBEAT@` are filled in.
const PRELUDE: &str = r#"
export STRATA_RUNTIME_DIR='@RUNTIME@'
GUEST="$GUEST @HEARTBEAT@=ttyS1"
guest() {
    local name=$1
    shift
    echo "== $name, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    emulated-guest --name "$name" "$@" > "$LAB_OUT/$name.log" 2>&1
    echo $? > "$LAB_OUT/$name.status"
    tail -n 3 "$LAB_OUT/$name.log"
}
"#;

/// What such guests are run with.
#[derive(Clone, Debug)]
pub struct EmulatedGuests {
    /// A static busybox.
    pub busybox: PathBuf,
    /// The command `strata`.
    pub strata: PathBuf,
    /// The program that starts and records them.
    pub program: PathBuf,
}

impl EmulatedGuests {
    /// Runs the script of `run` and the guests that it starts, in a fresh folder `runs/NAME`.
    ///
    /// # Errors
    ///
    /// When a file cannot be made or the shell not be started. A script that fails is not an error here.
    pub fn run(&self, runs: &Path, run: &HostRun) -> Result<HostResult, DirectError> {
        // closed to others, as `strata` wants it
        let private = Permissions::from_mode(0o700);
        let runtime = tempfile::Builder::new()
            .permissions(private)
            .tempdir_in(MEMORY)
            .map_err(|source| DirectError::File { path: MEMORY.into(), source })?;
        let mut run = run.clone().file("strata", &self.strata).file("emulated-guest", &self.program);
        run.script = prelude(runtime.path()) + &run.script;
        run.timeout = run.timeout.max(SCRIPT_LIMIT);
        direct::run(&self.busybox, runs, &run)
    }
}

fn prelude(runtime: &Path) -> String {
    PRELUDE.replace("@RUNTIME@", &runtime.display().to_string()).replace("@HEARTBEAT@", HEARTBEAT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::host::GUEST_CMDLINE;
    use std::fs;

    #[test]
    fn script_finds_its_programs_and_leaves_what_a_guest_said_and_how_it_ended() {
        let runs = tempfile::tempdir().unwrap();
        // stands for both programs: says its arguments
        let program = runs.path().join("program");
        fs::write(&program, "#!/bin/sh\necho $*; exit 3\n").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let guests = EmulatedGuests { busybox: "/usr/bin/env".into(), strata: program.clone(), program };
        let script = "guest a --cmdline \"$GUEST x\"; [ $(stat -c %a \"$STRATA_RUNTIME_DIR\") = 700 ] && strata ps";

        let result = guests.run(&runs.path().join("runs"), &HostRun::new("one", script)).unwrap();

        let text = |name: &str| fs::read_to_string(result.output.join(name)).unwrap();
        assert_eq!(text("a.status"), "3\n");
        assert_eq!(text("a.log"), format!("--name a --cmdline {GUEST_CMDLINE} lab.heartbeat=ttyS1 x\n"));
        assert!(fs::read_to_string(result.script_log).unwrap().ends_with("\nps\n"));
    }
}
