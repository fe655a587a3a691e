//! `strata ps`, `strata ctl` and `strata recover`: VMs that run, and those whose process died.

use super::completion;
use super::recording::{BoundArgs, RECORDED};
use super::values;
use clap::{Args, Subcommand};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use strata_recorder::control::protocol::{Mode, Request};
use strata_recorder::layer::kernel_rings::{sub_buffer_counts, sub_buffer_sizes};
use strata_recording::clock::length::{LENGTH, parse_length};

/// Arguments of `strata ps`.
#[derive(Debug, Args)]
pub struct PsArgs {
    /// JSON in place of text, without the VMs of other monitors
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `strata top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Shares of time come from the host kernel's records, wake-ups of the guest's tasks from the guest \
    kernel's, disk requests from the VMM. JSON has the period's sums in ns; without --once, one object per line.\n\nExamples:\n  \
    strata top vm0\n  \
    strata top --all --once --json | jq '.vms[].host.ready'\n  \
    strata top vm0 --once --json | jq '.vms[] | .disks, .guest.worst'"
)]
pub struct TopArgs {
    /// Name of the VM, or process id, as `strata ps` shows it; USER/NAME or USER/PID for another user's [default: the one
    /// that runs, if it is the only one]
    #[arg(conflicts_with = "all", add = completion::running_vms())]
    pub vm: Option<String>,
    /// All running VMs
    #[arg(long)]
    pub all: bool,
    /// Print one period and end
    #[arg(long)]
    pub once: bool,
    /// Length of a period: seconds, or with a unit, as in 500ms
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = period)]
    pub interval: Duration,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

/// A length of time, as `--interval` takes it.
fn period(text: &str) -> Result<Duration, String> {
    let period = parse_length(text).ok_or_else(|| format!("write a time in {LENGTH}"))?;
    if period.is_zero() { Err("write a time longer than 0".into()) } else { Ok(period) }
}

/// Arguments of `strata metrics`.
#[derive(Debug, Args)]
#[command(after_help = "Whoever reaches the address can read names of VMs and what they do: choose one that only \
    your monitoring reaches.\n\nExamples:\n  \
    strata metrics --listen 127.0.0.1:9464\n  \
    curl http://127.0.0.1:9464/metrics")]
pub struct MetricsArgs {
    /// Address and port to serve at
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::listen_address)]
    pub listen: SocketAddr,
    /// Further name of this machine in requests, beside its addresses, localhost and its host name. May be repeated
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
}

/// Arguments of `strata ctl`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata ctl vm0 status\n  \
    strata ctl vm0 snapshot trace-snapshots/before\n  \
    strata ctl vm0 balloon 256M\n  \
    strata ctl vm0 trigger add 'wakeup>5ms task=web*' --every 1m\n  \
    strata ctl vm0 wait-trigger --freeze-others && mail -s 'web was late' me < /dev/null\n  \
    strata ctl vm0 session create io --events 'guest-kernel:block:*' --trace trace-snapshots/io\n  \
    strata ctl vm0 session start io\n  \
    strata ctl vm0 session events main 'default,guest-kernel:net:*'")]
pub struct CtlArgs {
    /// Name of the VM, or process id, as `strata ps` shows it; USER/NAME or USER/PID for another user's
    #[arg(add = completion::running_vms())]
    pub vm: String,
    /// What to do
    #[command(subcommand)]
    pub command: CtlCommand,
    /// JSON in place of text
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `strata ctl` asks a VM for.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Show the state of the VM and of its recording
    Status,
    /// Write what the flight recorder holds into a new folder, in TRACE-snapshots or in a folder of `strata run
    /// --writable`; tracing goes on
    Snapshot {
        /// The folder
        dir: PathBuf,
        /// The session [default: the one that the VM was started with]
        #[arg(long, value_name = "NAME")]
        session: Option<String>,
    },
    /// Add, list or remove triggers, which write a snapshot when something happens
    #[command(subcommand)]
    Trigger(TriggerCommand),
    /// Wait until a trigger has fired, and print which one and the snapshot's path; in discard mode, until the trace
    /// has the mark
    ///
    /// Go on in the shell: `strata ctl vm0 wait-trigger && notify-somebody`
    WaitTrigger {
        /// Wait for this long at most; then exit status 1
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        timeout: Option<Duration>,
        /// When it fires, take a snapshot of each other VM of this host that a flight recorder records
        #[arg(long)]
        freeze_others: bool,
    },
    /// Pause the guest until `resume`
    Pause,
    /// Resume a paused guest
    Resume,
    /// Ask a guest with `--balloon` for memory, and print how much it has given within 3 s
    ///
    /// The guest goes on giving after that, as far as it can
    Balloon {
        /// Size of the balloon in all, in bytes, or with K, M, G; 0 gives all memory back to the guest [default: only
        /// print the size]
        #[arg(value_parser = values::size)]
        size: Option<u64>,
    },
    /// Stop the guest, as Ctrl-C does, and complete the trace
    Stop,
    /// Write out what the rings hold at this moment
    Flush,
    /// End a recording that `strata attach` began, and complete it; the VM goes on
    Detach,
    /// Create, start, stop or destroy a tracing session of the guest's kernel
    #[command(subcommand)]
    Session(SessionCommand),
}

/// What `strata ctl VM trigger` asks for.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  \
    strata ctl vm0 trigger add 'wakeup>5ms task=web*' --every 1m\n  \
    strata ctl vm0 trigger add 'host-load>80%'\n  \
    strata ctl vm0 trigger remove 'host-load>80%'")]
pub enum TriggerCommand {
    /// Add a trigger, as `strata run --trigger` does; in discard mode it marks the trace
    Add {
        /// Condition: 'steal>1ms', 'wakeup>5ms task=web*', 'exit:mmio>2ms', 'disk>50ms', 'host-load>80%', 'oom',
        /// 'guest-panic', 'guest-hang=10s', 'event:guest-kernel:sched:sched_process_exit comm=="db"'
        #[arg(value_name = "EXPR")]
        trigger: String,
        /// Let it fire again this long after it fired last [default: it fires once]
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        every: Option<Duration>,
        /// Record for this long after it fired, before the snapshot [default: 100ms]
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        after: Option<Duration>,
    },
    /// List the triggers, how often each fired, and what followed
    List,
    /// Remove a trigger; its snapshots stay
    Remove {
        /// Number or expression of the trigger
        #[arg(value_name = "N|EXPR")]
        trigger: String,
    },
}

/// What `strata ctl VM session` asks for.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Create a session; `start` begins its recording
    Create {
        /// Its name
        name: String,
        /// What happens when a ring is full: discard (needs --trace) or flight-recorder
        #[arg(long, value_name = "MODE", default_value = "discard", value_parser = values::mode())]
        mode: Mode,
        /// Size of a sub-buffer, bytes.
        #[arg(long, help = format!("Size of a sub-buffer: {}", sub_buffer_sizes()))]
        #[arg(value_name = "SIZE", value_parser = values::sub_buffer_size)]
        sub_buffer_size: Option<u64>,
        /// Number of sub-buffers of each ring.
        #[arg(long, help = format!("Sub-buffers of each ring: {}", sub_buffer_counts()))]
        #[arg(value_name = "N", value_parser = values::sub_buffers)]
        sub_buffers: Option<u32>,
        /// Events to record [default: those that the VM was started with]
        #[arg(long, value_name = "EVENTS")]
        events: Option<String>,
        /// Record into this new folder, in TRACE-snapshots or in a folder of `strata run --writable`; a flight recorder
        /// writes it when the session ends
        #[arg(long, value_name = "DIR", group = RECORDED)]
        trace: Option<PathBuf>,
        /// How large the trace gets.
        #[command(flatten)]
        bounds: BoundArgs,
    },
    /// Start recording, or continue
    Start {
        /// Name of the session
        name: String,
    },
    /// Stop recording; the records stay
    Stop {
        /// Name of the session
        name: String,
    },
    /// Change the guest's events that the session records, at once and without a VM exit
    Events {
        /// Name of the session; 'main' is the one that the VM was started with
        name: String,
        /// Globs or presets, as for `strata run --events`; terms of other layers have no effect
        events: String,
    },
    /// Destroy a session and complete its recording
    Destroy {
        /// Name of the session
        name: String,
    },
}

impl CtlCommand {
    /// The request to send, with absolute paths: the VM's process has another working directory.
    ///
    /// # Errors
    /// When a path is empty or there is no working directory.
    pub fn request(self) -> io::Result<Request> {
        Ok(match self {
            // It is requested until it says what is waited for.
            Self::Status | Self::WaitTrigger { .. } | Self::Trigger(TriggerCommand::List) => Request::Status,
            Self::Trigger(TriggerCommand::Add { trigger, every, after }) => {
                let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                Request::TriggerAdd { trigger, every_ms: every.map(ms), after_ms: after.map(ms) }
            }
            Self::Trigger(TriggerCommand::Remove { trigger }) => Request::TriggerRemove { trigger },
            Self::Snapshot { dir, session } => Request::Snapshot { dir: std::path::absolute(dir)?, session },
            Self::Pause => Request::Pause,
            Self::Resume => Request::Resume,
            Self::Balloon { size } => Request::Balloon { bytes: size },
            Self::Stop => Request::Stop,
            Self::Flush => Request::Flush,
            Self::Detach => Request::Detach,
            Self::Session(SessionCommand::Create {
                name,
                mode,
                sub_buffer_size,
                sub_buffers,
                events,
                trace,
                bounds: BoundArgs { max_size, limits },
            }) => {
                let trace = trace.map(std::path::absolute).transpose()?;
                Request::SessionCreate { name, mode, sub_buffer_size, sub_buffers, events, trace, max_size, limits }
            }
            Self::Session(SessionCommand::Start { name }) => Request::SessionStart { name },
            Self::Session(SessionCommand::Stop { name }) => Request::SessionStop { name },
            Self::Session(SessionCommand::Events { name, events }) => Request::SessionEvents { name, events },
            Self::Session(SessionCommand::Destroy { name }) => Request::SessionDestroy { name },
        })
    }
}

/// Arguments of `strata recover`.
#[derive(Debug, Args)]
#[command(after_help = "`strata ps` names the region files of VMs whose process died.\n\nExample:\n  \
    strata recover /run/strata/vm0-4242/region -o recovered\n  \
    strata recover /run/strata/vm0-4242/region -o recovered.strata")]
pub struct RecoverArgs {
    /// File of the trace region, or the folder that it lies in
    pub region: PathBuf,
    /// New folder for the trace, or, where the name ends with .strata, one new file
    #[arg(short = 'o', long = "out", value_name = "PATH")]
    pub out: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_trigger_are_milliseconds_and_may_be_left_out() {
        let trigger = || "oom".to_owned();
        let request = |every, after| {
            CtlCommand::Trigger(TriggerCommand::Add { trigger: trigger(), every, after }).request().unwrap()
        };

        let all = request(Some(Duration::from_secs(60)), Some(Duration::from_millis(5)));

        assert_eq!(all, Request::TriggerAdd { trigger: trigger(), every_ms: Some(60_000), after_ms: Some(5) });
        assert_eq!(request(None, None), Request::TriggerAdd { trigger: trigger(), every_ms: None, after_ms: None });
    }

    #[test]
    fn period_of_no_length_is_refused() {
        let refused: Result<Duration, String> = Err("write a time longer than 0".into());

        assert_eq!(["0", "0ms", "1ms"].map(period), [refused.clone(), refused, Ok(Duration::from_millis(1))]);
    }

    #[test]
    fn paths_of_requests_are_absolute() {
        let request = CtlCommand::Snapshot { dir: "snap".into(), session: None }.request().unwrap();

        assert!(matches!(request, Request::Snapshot { dir, .. } if dir.is_absolute() && dir.ends_with("snap")));
    }
}
