//! `strata run --on-reboot restart`: boot after boot of a guest, until one does not end by a reboot.

pub(super) mod on_reboot;
mod process;

use super::plan::inputs::Inputs;
use super::request::RunRequest;
use on_reboot::{BootEnd, MOST_QUICK, QUICK, QuickBoots, taken, trace_of_boot};
use process::{BootProcesses, ProcessEnd};
use std::io;
use std::path::PathBuf;
use std::time::Instant;
use strata_machine::MacAddress;
use strata_recorder::session::Notify;
use thiserror::Error;

/// Why a guest that is to be started again is not.
#[derive(Debug, Error)]
pub enum BootsError {
    /// The trace folder's name cannot be numbered.
    #[error("--on-reboot restart numbers the trace folders: give --trace a name, as in --trace trace")]
    NoName,
    /// Something lies where the recording of a later boot would go.
    #[error(
        "'{}' is where the trace of a later boot goes (--on-reboot restart): remove it, or give --trace another name",
        .0.display()
    )]
    Taken(PathBuf),
    /// A file that the next boot would open is not the one that the first boot had.
    #[error(
        "the guest is not restarted: '{}' was replaced after the VM's start; start the VM anew",
        .0.display()
    )]
    Changed(PathBuf),
    /// There can be no process for a boot.
    #[error("cannot run the guest in a process of its own")]
    Process(#[source] io::Error),
}

/// Does `boot`, which runs the guest of `request` once, in a process of its own, and again each time that the guest has
/// rebooted. The calling process opens nothing meanwhile, and must have no other thread.
///
/// Each boot has a recording of its own, and the network devices keep their addresses. `notify` gets what the user
/// should know, a line each. The end is that of the last boot; a guest that is given up has failed.
///
/// # Errors
/// Recordings of later boots cannot be made, before the guest was started; a file that the next boot needs was
/// replaced; or there can be no process.
pub fn run_boots(
    mut request: RunRequest,
    boot: impl Fn(&RunRequest) -> BootEnd,
    notify: Notify,
) -> Result<BootEnd, BootsError> {
    let first = request.recording.as_ref().map(|recording| recording.files.trace.clone());
    if let Some(first) = &first {
        first.file_name().ok_or(BootsError::NoName)?;
        taken(first).map_or(Ok(()), |path| Err(BootsError::Taken(path)))?;
    }
    for net in &mut request.nets {
        net.mac.get_or_insert_with(MacAddress::by_chance);
    }
    let inputs = Inputs::of(&request);
    let mut processes = BootProcesses::new().map_err(BootsError::Process)?;
    let mut quick = QuickBoots::default();
    let mut number = 1;
    loop {
        if let (Some(recording), Some(first)) = (&mut request.recording, &first) {
            recording.files.trace = trace_of_boot(first, number);
        }
        let begun = Instant::now();
        let end = processes.run(|| boot(&request)).map_err(BootsError::Process)?;
        match (end, processes.stopped_by()) {
            // It got the request to end before it could do so in good order: before the guest ran.
            (ProcessEnd::Killed(signal), Some(stop)) if signal == stop.as_raw() => return Ok(BootEnd::Done),
            (ProcessEnd::Killed(signal), _) => {
                notify(&format!(
                    "the VM's process was killed by signal {signal}; strata ps tells what can be recovered"
                ));
                return Ok(BootEnd::Failed);
            }
            (ProcessEnd::Reported(BootEnd::Rebooted), Some(_)) => return Ok(BootEnd::Done),
            (ProcessEnd::Reported(BootEnd::Rebooted), None) if quick.are_too_many_with(begun.elapsed()) => {
                let within = QUICK.as_secs();
                notify(&format!(
                    "the guest rebooted {MOST_QUICK} times in a row within {within} s of its start: it is given up"
                ));
                return Ok(BootEnd::Failed);
            }
            (ProcessEnd::Reported(BootEnd::Rebooted), None) => {
                inputs.changed().map_or(Ok(()), |path| Err(BootsError::Changed(path.into())))?;
                // They were raw when the VM started: what they look like now, the guest has written.
                request.disks.iter_mut().for_each(|disk| disk.is_raw = true);
                number += 1;
                notify(&format!("the guest is started again: boot {number}"));
            }
            (ProcessEnd::Reported(end), _) => return Ok(end),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Shows: A guest that reboots is started again, with a recording for each boot.

    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    const SILENT: Notify = |_| ();

    fn request(folder: &TempDir, arguments: &[&str]) -> RunRequest {
        let kernel = folder.path().join("kernel");
        fs::write(&kernel, "").unwrap();
        let usual = ["strata", "run", "--kernel", kernel.to_str().unwrap()];
        let Command::Run(args) = Cli::parse_from(usual.iter().chain(arguments)).command else {
            panic!("it is strata run");
        };
        RunRequest::from(*args)
    }

    /// What boots leave in a file, a line each, when each but the third ends by a reboot.
    fn lines_of_three_boots(arguments: &[&str], line: impl Fn(&RunRequest) -> String) -> Vec<String> {
        let folder = TempDir::new().unwrap();
        let list = folder.path().join("list");
        let boot = |request: &RunRequest| {
            let mut file = fs::File::options().create(true).append(true).open(&list).unwrap();
            writeln!(file, "{}", line(request)).unwrap();
            let boots = fs::read_to_string(&list).unwrap().lines().count();
            if boots < 3 { BootEnd::Rebooted } else { BootEnd::Done }
        };

        let end = run_boots(request(&folder, arguments), boot, SILENT).unwrap();

        assert_eq!(end, BootEnd::Done);
        fs::read_to_string(&list).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn disks_are_not_judged_by_what_an_earlier_boot_has_written() {
        let lines = lines_of_three_boots(&["--disk", "/nowhere/disk"], |request| request.disks[0].is_raw.to_string());

        assert_eq!(lines, ["false", "true", "true"]);
    }

    #[test]
    fn each_boot_has_a_recording_of_its_own() {
        let lines = lines_of_three_boots(&["--trace", "/nowhere/trace"], |request| {
            request.recording.as_ref().unwrap().files.trace.display().to_string()
        });

        assert_eq!(lines, ["/nowhere/trace", "/nowhere/trace-2", "/nowhere/trace-3"]);
    }

    #[test]
    fn network_device_keeps_its_address() {
        let lines = lines_of_three_boots(&["--net", "tap=tap0"], |request| request.nets[0].mac.unwrap().to_string());

        assert!(lines[0] == lines[1] && lines[1] == lines[2], "{lines:?}");
    }

    #[test]
    fn guest_that_cannot_be_run_is_told_from_one_that_fails() {
        let folder = TempDir::new().unwrap();
        let run = |end: BootEnd| run_boots(request(&folder, &[]), move |_: &RunRequest| end, SILENT).unwrap();

        let ends = [run(BootEnd::NotRun), run(BootEnd::Failed)];

        assert_eq!(ends, [BootEnd::NotRun, BootEnd::Failed]);
    }

    #[test]
    fn trace_folder_without_a_name_is_refused() {
        let folder = TempDir::new().unwrap();

        let refused = run_boots(request(&folder, &["--trace", ".."]), |_| BootEnd::Done, SILENT).unwrap_err();

        assert!(refused.to_string().contains("give --trace a name"), "{refused}");
    }

    #[test]
    fn guest_is_not_started_again_with_a_link_in_place_of_its_kernel() {
        let folder = TempDir::new().unwrap();
        let request = request(&folder, &[]);
        let replace = |_: &RunRequest| {
            fs::remove_file(folder.path().join("kernel")).unwrap();
            symlink("/etc/passwd", folder.path().join("kernel")).unwrap();
            BootEnd::Rebooted
        };

        let refused = run_boots(request, replace, SILENT).unwrap_err();

        assert!(refused.to_string().contains("kernel' was replaced"), "{refused}");
    }
}
