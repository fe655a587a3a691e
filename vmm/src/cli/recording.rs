//! The options of a recording, which `strata run` and `strata attach` share, and `strata ctl` in part.

use super::values;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use strata_recorder::control::protocol::{LayerLimit, Mode};
use strata_recorder::drain::cpu_list::CpuList;
use strata_recorder::drain::scheduling::{Drain, Scheduling};
use strata_recorder::selection;
use strata_recorder::session::{FilesRequest, LayersRequest, RecordingRequest};
use strata_recorder::trigger::TriggerRequest;
use strata_recorder::trigger::expression::Trigger;
use strata_recording::files::access::Readers;
use strata_recording::files::compression::Compression;

/// The heading of options that say what is recorded, and where.
pub(super) const RECORDING: &str = "Recording";
/// The group of arguments that make a command record: the options here need one of them.
pub(super) const RECORDED: &str = "recorded";

/// What keeps a recording small.
#[derive(Debug, Args)]
#[command(next_help_heading = RECORDING)]
pub struct BoundArgs {
    /// Keep the newest records that fit this size on the disk, and drop older ones; 16M or more
    ///
    /// Without it the trace grows
    #[arg(long, value_name = "SIZE", value_parser = values::max_size, requires = RECORDED)]
    pub max_size: Option<u64>,
    /// Limit the records of a layer per second; BURST is how many may come at once (default: one second's worth)
    ///
    /// Strata drops and counts what exceeds the limit. For guest-user, each process has its own limit. May be repeated,
    /// once for each layer
    #[arg(long = "limit", value_name = "LAYER=RATE[:BURST]", value_parser = values::layer_limit, requires = RECORDED)]
    pub limits: Vec<LayerLimit>,
}

/// What is recorded of a VM besides the folder that it goes to, which not every command needs.
#[derive(Debug, Args)]
#[command(next_help_heading = RECORDING)]
pub struct RecordingArgs {
    /// How large it gets.
    #[command(flatten)]
    pub bounds: BoundArgs,
    /// Compress the trace, its snapshots and those of further sessions, packet by packet
    ///
    /// `strata` reads it as it is; for babeltrace2, use `strata export --format ctf`
    #[arg(long, value_name = "FORM", value_parser = values::compression(), requires = RECORDED)]
    pub compress: Option<Compression>,
    /// Who may read the trace and its snapshots
    ///
    /// A trace holds names, paths, addresses and arguments of system calls, of the host and of the guest
    #[arg(long, value_name = "WHO", default_value = "owner", value_parser = values::readers(), requires = RECORDED)]
    pub readable_by: Readers,
    /// Events to record: [LAYER:]GROUP:EVENT with * and ? as wildcards, an event's or a group's own name; '!' takes away; or
    /// presets: minimal, default, io, net, all
    ///
    /// Layers are host-kernel, vmm, guest-kernel and guest-user, or short host, guest and user; `strata events --list
    /// LAYER` lists their events
    #[arg(long, value_name = "EVENTS", default_value = selection::DEFAULT, requires = RECORDED)]
    pub events: String,
    /// discard writes records as they come and, when a ring is full, drops new ones and counts them. flight-recorder
    /// keeps the newest and overwrites the oldest
    ///
    /// A flight recorder writes its records at the end and at each `strata ctl VM snapshot DIR`; --host-history limits
    /// the host kernel's
    #[arg(long, value_name = "MODE", default_value = "discard", value_parser = values::mode(), requires = RECORDED)]
    pub mode: Mode,
    /// How many bytes of the host kernel's records a flight recorder keeps; the oldest give way [default: 64M]
    ///
    /// A guest that exits all the time causes tens of megabytes per second
    #[arg(long, value_name = "SIZE", value_parser = values::host_history, requires = RECORDED)]
    pub host_history: Option<usize>,
    /// Write a snapshot into TRACE-snapshots when this happens; with --mode discard, mark it in the trace
    ///
    /// May be repeated: 'steal>1ms', 'wakeup>5ms task=web*', 'exit>2ms', 'disk>50ms', 'host-load>80%', 'oom',
    /// 'guest-panic', 'guest-hang=10s', 'event:guest-kernel:sched:sched_process_exit comm=="db"'
    #[arg(long = "trigger", value_name = "EXPR", value_parser = Trigger::parse, requires = RECORDED)]
    pub triggers: Vec<Trigger>,
    /// Let each trigger fire again this long after it fired last [default: each fires once]
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "triggers")]
    pub trigger_every: Option<Duration>,
    /// Record for this long after a trigger fired, before its snapshot
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = values::duration, requires = "triggers")]
    pub trigger_after: Duration,
    /// Run the recorder on these CPUs of the host, as in 0 or 0,2-3. Where no vCPU runs, it takes no time from the
    /// guest
    #[arg(long, value_name = "LIST", requires = RECORDED)]
    pub recorder_cpus: Option<CpuList>,
    /// Read the rings always, or when the host is idle or a ring is a quarter full (idle)
    ///
    /// A full ring loses records; Strata counts them
    #[arg(long, value_name = "WHEN", default_value = Drain::default().name(), value_parser = values::drain(), requires = RECORDED)]
    pub drain: Drain,
}

impl RecordingArgs {
    /// What is requested of a recording into the folder `trace`.
    #[must_use]
    pub fn into_request(self, trace: PathBuf) -> RecordingRequest {
        let Self { events, mode, host_history, readable_by: readers, compress: compression, .. } = self;
        let BoundArgs { max_size, limits } = self.bounds;
        RecordingRequest {
            layers: LayersRequest { events, mode: mode.into(), limits, host_history },
            files: FilesRequest { trace, readers, max_size, compression },
            triggers: TriggerRequest { triggers: self.triggers, every: self.trigger_every, after: self.trigger_after },
            scheduling: Scheduling { cpus: self.recorder_cpus, drain: self.drain },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::AttachRequest;
    use crate::cli::{Cli, Command};
    use crate::run::RunRequest;
    use clap::{CommandFactory, Parser};
    use strata_recorder::session::HOST_HISTORY;

    /// What the rest of a command line makes of a recording.
    fn parsed(words: &[&str]) -> Result<Option<RecordingRequest>, String> {
        match Cli::try_parse_from(["strata"].iter().chain(words)).map_err(|error| error.to_string())?.command {
            Command::Run(args) => Ok(RunRequest::from(*args).recording),
            Command::Attach(args) => Ok(AttachRequest::try_from(args).ok().map(|request| request.recording)),
            _ => Err("another command".into()),
        }
    }

    /// What `strata run` and `strata attach` make of `options`.
    fn requests(options: &[&str]) -> [RecordingRequest; 2] {
        let commands = [&["run", "--kernel", "k", "--trace", "t"][..], &["attach", "42", "--trace", "t"]];
        commands.map(|command| parsed(&[command, options].concat()).unwrap().unwrap())
    }

    /// What `strata run` makes of `options`.
    fn run(options: &[&str]) -> Result<Option<RecordingRequest>, String> {
        parsed(&[&["run", "--kernel", "k"], options].concat())
    }

    #[test]
    fn options_mean_the_same_to_each_command() {
        let options = "--events host-kernel:kvm:* --max-size 1G --limit vmm=10 --compress zstd --readable-by all \
            --host-history 2M --trigger oom --trigger-every 1m --trigger-after 5ms --recorder-cpus 0 --drain idle";

        let [run, attach] = requests(&options.split_whitespace().collect::<Vec<_>>());

        assert_eq!(format!("{run:?}"), format!("{attach:?}"));
        assert_eq!((run.files.max_size, run.triggers.after), (Some(1 << 30), Duration::from_millis(5)));
    }

    #[test]
    fn options_need_a_trace_and_values_that_exist() {
        let of_files =
            ["--max-size 2G", "--compress zstd", "--readable-by group", "--mode flight-recorder", "--limit vmm=1"];
        let wrong = ["--max-size 15M", "--compress gzip", "--readable-by world", "--mode flight", "--limit vmm"];
        let error = |options: &str| run(&options.split(' ').collect::<Vec<_>>()).err().unwrap_or_default();

        for options in of_files {
            assert!(error(options).contains("--trace [<DIR>]"), "{options}");
            assert_eq!(error(&format!("--trace t {options}")), "");
        }
        assert!(
            wrong
                .map(|options| error(&format!("--trace t {options}")))
                .iter()
                .all(|error| error.contains("invalid value"))
        );
        assert!(error("--trace t --compress gzip").contains("[possible values: zstd]"));
        assert!(run(&[]).unwrap().is_none());
        let attach = parsed(&["attach", "42", "--max-size", "2G"]).unwrap().unwrap();
        assert_eq!((attach.files.max_size, attach.files.trace), (Some(2 << 30), "trace".into()));
        assert!(parsed(&["attach", "--max-size", "2G"]).unwrap_err().contains("<PID|--libvirt <DOMAIN>>"));
    }

    #[test]
    fn help_names_the_host_history_that_a_recording_has_without_the_option() {
        let cli = Cli::command();
        let run = cli.find_subcommand("run").unwrap();
        let option = run.get_arguments().find(|argument| argument.get_id() == "host_history").unwrap();

        let help = option.get_help().unwrap().to_string();

        assert!(help.ends_with("[default: 64M]"), "{help}");
        assert_eq!(values::host_history("64M"), Ok(HOST_HISTORY));
    }

    #[test]
    fn recording_without_options_is_the_one_that_other_monitors_begin_with() {
        let expected = format!("{:?}", RecordingRequest::new("t"));

        assert_eq!(requests(&[]).map(|request| format!("{request:?}")), [expected.clone(), expected]);
    }
}
