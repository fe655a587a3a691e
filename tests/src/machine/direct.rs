//! Running a lab script on this machine.

use crate::machine::host::{GUEST_CMDLINE, HostResult, HostRun, fresh_run_folder};
use crate::process::{self, ProcessError};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why a script could not be run here.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// A file of the run could not be made.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The script could not be started or did not end in time.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Runs the script with `busybox sh` in the folder `runs/NAME`.
///
/// # Errors
///
/// When a file cannot be made, the shell not be started, or the script takes too long.
pub fn run(busybox: &Path, runs: &Path, run: &HostRun) -> Result<HostResult, DirectError> {
    let file_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| DirectError::File { path, source }
    };
    let folder = fresh_run_folder(runs, &run.name).map_err(file_error(runs))?;
    let files = folder.join("files");
    let output = folder.join("out");
    let script_log = folder.join("script.log");
    let script = folder.join("script");
    fs::create_dir_all(&files).map_err(file_error(&files))?;
    for (name, path) in &run.files {
        let link = files.join(name);
        symlink(path, &link).map_err(file_error(&link))?;
    }
    fs::write(&script, &run.script).map_err(file_error(&script))?;
    let log = fs::File::create(&script_log).map_err(file_error(&script_log))?;
    let errors = log.try_clone().map_err(file_error(&script_log))?;
    let search = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(busybox);
    command
        .arg("sh")
        .arg(&script)
        .current_dir(&files)
        .env("LAB", &files)
        .env("LAB_OUT", &output)
        .env("GUEST", GUEST_CMDLINE)
        .env("PATH", format!("{}:{search}:/sbin:/usr/sbin", files.display()))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors);
    let status = process::wait_with_timeout(&mut command, run.timeout, &script_log)?;
    Ok(HostResult { status: status.code().unwrap_or(-1), output, script_log, console_log: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Any shell will do for the test; `env` turns "sh script" into a program and its argument as busybox does.
    const ENV: &str = "/usr/bin/env";

    #[test]
    fn run_gives_the_script_its_files_and_keeps_its_results() {
        let runs = tempfile::tempdir().unwrap();
        let source = runs.path().join("source");
        fs::write(&source, "content").unwrap();
        let script = "cat $LAB/input > $LAB_OUT/result; echo said; exit 4";
        let request = HostRun::new("one", script).file("input", &source);

        let result = run(Path::new(ENV), runs.path(), &request).unwrap();

        assert_eq!(result.status, 4);
        assert_eq!(fs::read_to_string(result.output.join("result")).unwrap(), "content");
        assert_eq!(fs::read_to_string(result.script_log).unwrap(), "said\n");
    }

    #[test]
    fn run_past_its_time_is_killed_and_names_the_log() {
        let runs = tempfile::tempdir().unwrap();
        let mut request = HostRun::new("slow", "sleep 60");
        request.timeout = Duration::from_millis(200);

        let error = run(Path::new(ENV), runs.path(), &request).unwrap_err();

        assert!(error.to_string().contains("script.log"));
    }
}
