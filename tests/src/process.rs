//! Running other programs, their output kept in a log file that every failure names. What a program starts in turn ends
//! with it when it is killed, or this process by a signal; [`capture`] is for programs that end by themselves.

use crate::process_group::Group;
use crate::progress;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How many of a log's last lines are shown.
const SHOWN_LINES: usize = 20;
/// How many of them an error has.
const LINES_IN_AN_ERROR: usize = 3;

/// Why a program did not do its job.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program could not be started.
    #[error("cannot start {program}: is it installed?")]
    Start {
        /// The program's name.
        program: String,
        #[source]
        source: io::Error,
    },
    /// The program ran and failed; its output is in a log.
    #[error("{program} failed ({status}), its last words {last:?}; see {}", log.display())]
    Logged {
        /// The program's name.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its output, on one line: what is left of a failure where only its error is kept.
        last: String,
        /// Where its output is.
        log: PathBuf,
    },
    /// The program ran and failed; this is what it wrote to its standard error.
    #[error("{program} failed ({status}): {message}")]
    Captured {
        /// The program's name.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// Its standard error, trimmed.
        message: String,
    },
    /// The program ran too long and was killed.
    #[error("{program} was killed after {seconds} s; see {}", log.display())]
    Timeout {
        /// The program's name.
        program: String,
        /// The time that it was given.
        seconds: u64,
        /// Where its output is.
        log: PathBuf,
    },
    /// The log file could not be written.
    #[error("cannot write the log {}", log.display())]
    Log {
        /// The log file.
        log: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn program_name(command: &Command) -> String {
    Path::new(command.get_program()).file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned()
}

/// Runs `command` without standard input, both its outputs going to the file `log` (created, or emptied). When it fails, the
/// log's last lines are shown.
///
/// # Errors
///
/// When the program cannot be started or does not succeed; the error names the log.
pub fn run_logged(command: &mut Command, log: &Path) -> Result<(), ProcessError> {
    let program = program_name(command);
    let output = create_log(log)?;
    let errors = output.try_clone().map_err(|source| ProcessError::Log { log: log.to_path_buf(), source })?;
    let status = status_of(command.stdout(output).stderr(errors), &program)?;
    if status.success() {
        return Ok(());
    }
    show_end(log);
    Err(failed(program, status, log))
}

/// As [`run_logged`], but each line goes to `heard`, too, as it comes, and no line is shown at the end.
///
/// # Errors
///
/// When the program cannot be started or does not succeed; the error names the log.
pub fn run_heard(command: &mut Command, log: &Path, mut heard: impl FnMut(&str)) -> Result<(), ProcessError> {
    let program = program_name(command);
    let log_error = |source| ProcessError::Log { log: log.to_path_buf(), source };
    let start_error = |source| ProcessError::Start { program: program.clone(), source };
    let mut output = create_log(log)?;
    let (reader, mut group) = spawn_with_pipe(command).map_err(start_error)?;
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).map_err(log_error)? > 0 {
        output.write_all(&line).map_err(log_error)?;
        heard(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    let status = group.wait().map_err(start_error)?;
    if status.success() { Ok(()) } else { Err(failed(program, status, log)) }
}

/// Starts `command` without standard input; both its outputs come through one pipe, which ends with them.
fn spawn_with_pipe(command: &mut Command) -> io::Result<(PipeReader, Group)> {
    let (reader, writer) = io::pipe()?;
    let group = Group::spawn(command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer))?;
    // the command keeps what it was given
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok((reader, group))
}

fn create_log(log: &Path) -> Result<File, ProcessError> {
    let created = log.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| File::create(log));
    created.map_err(|source| ProcessError::Log { log: log.to_path_buf(), source })
}

/// Shows the last lines of a log.
pub fn show_end(log: &Path) {
    last_lines(&text_of(log), SHOWN_LINES).for_each(|line| progress::note(&format!("| {line}")));
}

/// That `program`, whose output is in `log`, ended with `status`.
#[must_use]
pub fn failed(program: String, status: ExitStatus, log: &Path) -> ProcessError {
    let last = last_lines(text_of(log).trim_end(), LINES_IN_AN_ERROR).map(str::trim).collect::<Vec<_>>().join(" | ");
    ProcessError::Logged { program, status, last, log: log.to_path_buf() }
}

fn text_of(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

fn last_lines(text: &str, most: usize) -> impl Iterator<Item = &str> {
    text.lines().skip(text.lines().count().saturating_sub(most))
}

/// Runs `command` without standard input and with the caller's outputs, for steps whose output is what the user wants.
///
/// # Errors
///
/// When the program cannot be started or does not succeed.
pub fn run_visible(command: &mut Command) -> Result<(), ProcessError> {
    let program = program_name(command);
    let status = status_of(command, &program)?;
    if status.success() {
        Ok(())
    } else {
        Err(ProcessError::Captured { program, status, message: "see its output above".to_owned() })
    }
}

/// Runs `command`, which is called `program`, without standard input.
fn status_of(command: &mut Command, program: &str) -> Result<ExitStatus, ProcessError> {
    let ended = Group::spawn(command.stdin(Stdio::null())).and_then(|mut group| group.wait());
    ended.map_err(|source| ProcessError::Start { program: program.to_owned(), source })
}

/// Runs `command` without standard input and returns its standard output as text.
///
/// # Errors
///
/// When the program cannot be started or does not succeed; the error holds its standard error.
pub fn capture(command: &mut Command) -> Result<String, ProcessError> {
    let program = program_name(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| ProcessError::Start { program: program.clone(), source })?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(ProcessError::Captured {
            program,
            status: output.status,
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

/// Runs `command` without standard input and returns its standard output as text, however it ends: for programs whose
/// report is complete although they exit with another status than 0.
///
/// # Errors
///
/// When the program cannot be started.
pub fn capture_any(command: &mut Command) -> Result<String, ProcessError> {
    let program = program_name(command);
    let output = command.stdin(Stdio::null()).output().map_err(|source| ProcessError::Start { program, source })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts `command` in a process group of its own, waits for its end for at most `timeout`, and kills the whole group
/// after that. `log` is named in the error.
///
/// # Errors
///
/// When the program cannot be started or takes too long.
pub fn wait_with_timeout(command: &mut Command, timeout: Duration, log: &Path) -> Result<ExitStatus, ProcessError> {
    let deadline = Instant::now() + timeout;
    wait(command, |program, _| {
        (Instant::now() >= deadline).then(|| ProcessError::Timeout {
            program: program.to_owned(),
            seconds: timeout.as_secs(),
            log: log.to_path_buf(),
        })
    })
}

/// How long a program has not written to its heartbeat.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    /// This machine's time.
    pub elapsed: Duration,
    /// The processor time that the program has had in it.
    pub worked: Duration,
}

impl Silence {
    /// Whether a program that should have written after so much work is dead: it has done that work, or it does
    /// nothing. How much of a processor it got is not its fault.
    #[must_use]
    pub fn is_of_the_dead(&self, work: Duration) -> bool {
        self.worked >= work || (self.elapsed >= work && self.worked < self.elapsed / IDLE)
    }
}

/// A program that gets less than this part of a processor does nothing: it would get more of any machine.
const IDLE: u32 = 200;

/// Starts `command` in a process group of its own, and waits for its end. The whole group is killed when `given_up`,
/// which gets, again and again, for how long the file `heartbeat` has not grown, returns a reason.
///
/// # Errors
///
/// That reason, or when the program cannot be started.
pub fn wait_with_heartbeat<E: From<ProcessError>>(
    command: &mut Command,
    heartbeat: &Path,
    mut given_up: impl FnMut(Silence) -> Option<E>,
) -> Result<ExitStatus, E> {
    let (mut bytes, mut grown, mut worked) = (0, Instant::now(), Duration::ZERO);
    wait(command, |_, group| {
        let now = fs::metadata(heartbeat).map_or(0, |data| data.len());
        let work = group.processor_time();
        if now != bytes {
            (bytes, grown, worked) = (now, Instant::now(), work);
        }
        given_up(Silence { elapsed: grown.elapsed(), worked: work.saturating_sub(worked) })
    })
}

fn wait<E: From<ProcessError>>(
    command: &mut Command,
    mut given_up: impl FnMut(&str, &Group) -> Option<E>,
) -> Result<ExitStatus, E> {
    let program = program_name(command);
    let start_error = |source| E::from(ProcessError::Start { program: program.clone(), source });
    let mut group = Group::spawn(command).map_err(start_error)?;
    loop {
        if let Some(status) = group.try_wait().map_err(start_error)? {
            return Ok(status);
        }
        if let Some(reason) = given_up(&program, &group) {
            group.kill();
            return Err(reason);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether an executable of this name lies in a folder of `PATH` (or in `/sbin` and `/usr/sbin`, which an ordinary
/// user's `PATH` may lack).
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/sbin".into(), "/usr/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_logged_failure_names_the_log_and_keeps_the_output() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("logs/step.log");

        let error = run_logged(Command::new("sh").args(["-c", "echo said; exit 3"]), &log).unwrap_err();

        assert!(error.to_string().contains(log.to_str().unwrap()));
        assert!(matches!(&error, ProcessError::Logged { last, .. } if last == "said"), "{error:?}");
        assert_eq!(fs::read_to_string(&log).unwrap(), "said\n");
    }

    #[test]
    fn run_logged_missing_program_is_named() {
        let folder = tempfile::tempdir().unwrap();

        let error = run_logged(&mut Command::new("/nonexistent/tool"), &folder.path().join("step.log")).unwrap_err();

        assert!(error.to_string().starts_with("cannot start tool"));
    }

    #[test]
    fn run_heard_tells_both_outputs_line_by_line_and_keeps_them() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("step.log");
        let mut heard = Vec::new();

        let result = run_heard(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]), &log, |line| {
            heard.push(line.to_owned());
        });

        assert!(matches!(result, Err(ProcessError::Logged { .. })), "{result:?}");
        assert_eq!(
            (heard, fs::read_to_string(&log).unwrap().as_str()),
            (vec!["one".into(), "two".into()], "one\ntwo\n")
        );
    }

    #[test]
    fn last_lines_are_those_at_the_end() {
        let text: Vec<_> = (0..25).map(|number| number.to_string()).collect();

        assert_eq!(last_lines(&text.join("\n"), 20).collect::<Vec<_>>(), text[5..]);
        assert_eq!(last_lines("one", 20).count(), 1);
    }

    /// Waits for a shell script whose output is its heartbeat, for as long as it is not silent for `silence`.
    fn wait_while_it_speaks(script: &str, silence: Duration) -> Result<ExitStatus, ProcessError> {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("console.log");
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(File::create(&log).unwrap());
        wait_with_heartbeat(&mut command, &log, |silent| {
            let reason = || ProcessError::Timeout { program: "sh".to_owned(), seconds: 0, log: log.clone() };
            silent.is_of_the_dead(silence).then(reason)
        })
    }

    #[test]
    fn program_that_falls_silent_and_idles_is_killed() {
        let result = wait_while_it_speaks("echo once; sleep 600", Duration::from_millis(300));

        assert!(matches!(result, Err(ProcessError::Timeout { .. })), "{result:?}");
    }

    #[test]
    fn program_that_works_in_silence_is_killed_after_so_much_work() {
        let result = wait_while_it_speaks("echo once; while :; do :; done", Duration::from_millis(300));

        assert!(matches!(result, Err(ProcessError::Timeout { .. })), "{result:?}");
    }

    #[test]
    fn silence_of_a_program_that_gets_little_of_the_machine_is_not_death() {
        let silence = Silence { elapsed: Duration::from_secs(600), worked: Duration::from_secs(20) };

        assert!(!silence.is_of_the_dead(Duration::from_secs(90)));
    }

    #[test]
    fn program_whose_heartbeat_goes_on_comes_to_its_end() {
        let script = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done";

        let status = wait_while_it_speaks(script, Duration::from_secs(600));

        assert!(status.unwrap().success());
    }

    #[test]
    fn capture_failure_holds_the_standard_error() {
        let error = capture(Command::new("sh").args(["-c", "echo wrong >&2; exit 1"])).unwrap_err();

        assert!(error.to_string().ends_with("wrong"));
    }
}
