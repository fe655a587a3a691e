//! `strata events`, `strata why`, `strata diff`, `strata check`, `strata cut` and `strata merge`: reading
//! recordings.

use super::part::PartArgs;
use super::symbols::SymbolArgs;
use super::terminal::TerminalArgs;
use crate::cli::completion;
use crate::cli::values::{self, DEFAULT_TRACE};
use clap::Args;
use std::path::PathBuf;
use strata_analysis::filter::Filters;
use strata_analysis::task_choice::TaskChoice;
use strata_recording::layer::LayerKind;
use trace_merge::critical_path::CriticalPathOptions;
use trace_merge::match_rule::MatchRule;
use trace_merge::moment::{Moment, MomentError, Part};
use trace_merge::report::ReportOptions;

/// Arguments of `strata events`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata events trace\n  \
    strata events trace --layer guest-kernel --layer host-kernel --from 0.2 --until 0.25\n  \
    strata events trace --json | jq 'select(.event == \"kvm:kvm_exit\")'\n  \
    strata events trace --event 'sched:*' --event irq:irq_handler_entry --cpu 1\n  \
    strata events trace --task dd --layer guest-kernel\n  \
    strata events trace --task 'kworker/*' --vm web\n  \
    strata events trace --where 'exit_reason==msr'\n  \
    strata events trace --event 'raw_syscalls:*' --where 'id==openat && ret<0'\n  \
    strata events trace --where 'ret==-ENOENT' --count\n  \
    strata events --list guest-kernel --agent strata.ko")]
pub struct EventsArgs {
    /// Trace: a folder, or a file of `strata cut`
    #[arg(default_value = DEFAULT_TRACE)]
    pub trace: PathBuf,
    /// List the events of a layer that can be recorded, in place of a trace's records; guest-kernel needs --agent
    #[arg(long, value_name = "LAYER", value_parser = values::layer(), conflicts_with_all = [
        "trace", "layers", "events", "filters", "tasks", "cpus", "vms", "from", "to", "utc", "kallsyms", "count"
    ])]
    pub list: Option<LayerKind>,
    /// Kernel module whose events are listed
    #[arg(long, value_name = "FILE", requires = "list", conflicts_with = "trace")]
    pub agent: Option<PathBuf>,
    /// Only this layer; short names are host, guest and user. May be repeated
    #[arg(long = "layer", value_name = "LAYER", value_parser = values::layer())]
    pub layers: Vec<LayerKind>,
    /// Only these events: [LAYER:]GROUP:EVENT with * and ? as wildcards, an event's or a group's own name, several with
    /// commas; '!' takes away. May be repeated
    #[arg(long = "event", value_name = "EVENTS", add = completion::events_of_trace())]
    pub events: Vec<String>,
    /// Only records of whose fields this holds, in the form that triggers have: FIELD==VALUE, or with !=, <, <=, > or >=;
    /// several with && or a blank between them. A value is a number, text, which may be a glob, or the name that a number
    /// is listed with. An event without one of the fields is left out; each has `cpu`
    #[arg(long = "where", value_name = "EXPR")]
    pub filters: Option<Filters>,
    /// Only records of these tasks, and of such guest processes: a thread id, a name, which may be a glob, or NAME/TID.
    /// May be repeated
    #[arg(long = "task", value_name = "TASK")]
    pub tasks: Vec<TaskChoice>,
    /// Only records of the vCPU, host CPU or thread of the VMM of this number. May be repeated
    #[arg(long = "cpu", value_name = "N", allow_negative_numbers = true, value_parser = values::number::<u32>)]
    pub cpus: Vec<u32>,
    /// Only records of this VM, not of the host or other VMs. May be repeated
    #[arg(long = "vm", value_name = "NAME", add = completion::vms_of_trace())]
    pub vms: Vec<String>,
    /// Which part of it.
    #[command(flatten)]
    pub part: PartArgs,
    /// Symbols of kernels.
    #[command(flatten)]
    pub symbols: SymbolArgs,
    /// Show UTC in place of seconds since the first record
    #[arg(long)]
    pub utc: bool,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Only print how many records there are
    #[arg(long, conflicts_with = "utc")]
    pub count: bool,
    /// How it is shown.
    #[command(flatten)]
    pub terminal: TerminalArgs,
}

/// Arguments of `strata why`.
#[derive(Debug, Args)]
#[command(
    after_help = "The task's time is cut into steps that add up to it exactly. Where it waited, `why` follows the \
    task that woke it, or the disk request. What the records do not show is 'not known'.\n\nWhere several tasks \
    match, `why` explains the longest waits among all of them: 3 without --worst. Without --task it looks at all \
    tasks of the VM, but for kernel threads that wait for work.\n\nExamples:\n  \
    strata why trace\n  \
    strata why trace --task web --worst 10\n  \
    strata why trace --task 'work*' --from 1.5 --until 2.5\n  \
    strata why trace --task dd/145 --from 1.5 --until 1.6\n  \
    strata why trace --task web/812 --event 'app:request_*' --worst 5\n  \
    strata why trace --task 812 --vm db --json | jq '.paths[0].shares'"
)]
pub struct WhyArgs {
    /// Trace: a folder, or a file of `strata cut`
    #[arg(default_value = DEFAULT_TRACE)]
    pub trace: PathBuf,
    /// The guest's tasks: all of a name, which may be a glob, all threads of a process by its number, or one thread by its
    /// thread id or NAME/TID
    #[arg(long, value_name = "TASK")]
    pub task: Option<TaskChoice>,
    /// Only tasks of this VM
    #[arg(long, value_name = "NAME", add = completion::vms_of_trace())]
    pub vm: Option<String>,
    /// Which part of it.
    #[command(flatten)]
    pub part: PartArgs,
    /// Explain the N longest waits of all these tasks: from giving up the CPU, or being woken from a sleep, until running
    /// again
    #[arg(long, value_name = "N", value_parser = values::number_in(1..=1000_u16))]
    pub worst: Option<u16>,
    /// Explain the longest times between two of a task's records of such events, of applications or the guest's
    /// kernel: the 3 longest without --worst
    #[arg(long, value_name = "EVENTS", add = completion::events_of_trace())]
    pub event: Option<String>,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
    /// How it is shown.
    #[command(flatten)]
    pub terminal: TerminalArgs,
}

impl WhyArgs {
    /// What they ask.
    ///
    /// # Errors
    /// When the recording cannot be read, to find its end, or has nothing at a time of UTC.
    pub fn options(&self) -> Result<CriticalPathOptions, MomentError> {
        let Part { from, to } = self.part.of(&self.trace)?;
        Ok(CriticalPathOptions {
            task: self.task.clone(),
            vm: self.vm.clone(),
            from,
            to,
            worst: self.worst.map(usize::from),
            event: self.event.clone(),
            json: self.json,
        })
    }
}

/// Arguments of `strata diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "`diff` cuts each trace into 20 parts of equal time. A difference between the traces counts as a \
    change if it exceeds how much the parts of one trace differ. Two traces show how these two runs differ; compare \
    more runs to know whether a change persists.\n\nExit status: 0; 1 if something changed; 2 if the traces cannot be \
    compared.\n\nExamples:\n  \
    strata diff yesterday today\n  \
    strata diff yesterday today --from 2 --until 12\n  \
    strata diff yesterday today --json | jq '.rows[] | select(.values | any(.changed))'"
)]
pub struct DiffArgs {
    /// Trace, a folder or a file: before
    #[arg(value_name = "A")]
    pub first: PathBuf,
    /// Trace, a folder or a file: after
    #[arg(value_name = "B")]
    pub second: PathBuf,
    /// Begin this long after each trace's first record, as in 1.5 or 500ms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<Moment>,
    /// End this long after each trace's first record
    #[arg(long = "until", alias = "to", value_name = "TIME", allow_hyphen_values = true)]
    pub to: Option<Moment>,
    /// JSON in place of text, with the rows that did not change
    #[arg(long)]
    pub json: bool,
    /// How it is shown.
    #[command(flatten)]
    pub terminal: TerminalArgs,
}

impl DiffArgs {
    /// What they mean for a report.
    ///
    /// # Errors
    /// When a moment is counted from the end, or is UTC, which is another one for each trace.
    pub fn options(&self) -> Result<ReportOptions, String> {
        let after_start = |moment: Moment| match moment {
            Moment::AfterStart(after) => Ok(after),
            Moment::BeforeEnd(_) | Moment::Utc(_) | Moment::TimeOfDay(_) => {
                Err("strata diff counts --from and --until from the beginning of each trace: give no UTC and no minus")
            }
        };
        let (from, to) = (self.from.map(after_start).transpose()?, self.to.map(after_start).transpose()?);
        Ok(ReportOptions { json: self.json, from, to })
    }
}

/// Arguments of `strata check`.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// Trace: a folder, or a file of `strata cut`
    #[arg(default_value = DEFAULT_TRACE)]
    pub trace: PathBuf,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
    /// How it is shown.
    #[command(flatten)]
    pub terminal: TerminalArgs,
}

/// Arguments of `strata merge`.
#[derive(Debug, Args)]
#[command(
    after_help = "Traces from one boot of one host share its clock: `merge` puts their VMs side by side (the second \
    VM of a name becomes NAME-2) and keeps each record of the host's kernel once.\n\nTwo traces of different hosts \
    need rules. A rule says that each such event of the first trace happened before (after) its counterpart in the \
    second. Give rules for both directions, as for messages and their answers. The result is on the clock of the \
    first trace; its session.json states the error bound and its derivation.\n\nExamples:\n  \
    strata merge web db cache -o all\n  \
    strata merge web db cache -o all.strata\n  \
    strata merge a b -o both --match 'net:send before net:receive by seq' --match 'net:receive after net:send by seq'"
)]
pub struct MergeArgs {
    /// Trace whose clock the result has
    pub first: PathBuf,
    /// The other traces
    #[arg(required = true)]
    pub others: Vec<PathBuf>,
    /// Which events belong together: 'EVENT before|after EVENT [by FIELD[=FIELD],...]'. May be repeated
    #[arg(long = "match", value_name = "RULE")]
    pub rules: Vec<MatchRule>,
    /// New folder for the result, or, where the name ends with .strata, one new file
    #[arg(short, long, value_name = "PATH", default_value = "merged")]
    pub output: PathBuf,
}

/// Arguments of `strata cut`.
#[derive(Debug, Args)]
#[command(
    after_help = "The new trace has the records of that part, with their times, and every tool reads it as it does the whole. \
    Its seconds count from its own first record.\n\nA file NAME.strata is a tar archive compressed with zstd. All commands \
    that read traces open it. Without a part it holds the whole trace, as it is; `tar --zstd -xf` unpacks it.\n\nWhat lies \
    outside is unknown in it. So a state is unknown until a record \
    tells it: begin a little before what is of interest. What the agent told at the beginning of the whole (files mapped, \
    names of functions and control groups) and what the kernel counted over all of it are not there.\n\nExamples:\n  \
    strata cut trace --from 1.5 --until 2.5 -o part\n  \
    strata cut trace --from -10s -o end\n  \
    strata cut trace --from 1.5 --until 2.5 -o bug.strata\n  \
    strata cut trace -o trace.strata\n  \
    strata cut trace --from 1.5 --until 2.5 --layer guest-kernel --layer host-kernel -o part"
)]
pub struct CutArgs {
    /// Trace: a folder, or a file of `strata cut`
    #[arg(default_value = DEFAULT_TRACE)]
    pub trace: PathBuf,
    /// Only records from this long after the first one on, as in 1.5 or 500ms. A time with a minus (-2s) counts back from
    /// the last one; one with colons (05:03:47, 2026-11-27T05:03:47Z) is UTC
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<Moment>,
    /// Only records before this long after the first one. Takes the same forms as --from
    #[arg(long = "until", alias = "to", value_name = "TIME", allow_hyphen_values = true)]
    pub to: Option<Moment>,
    /// Only this layer; host, guest and user are understood too. May be repeated
    #[arg(long = "layer", value_name = "LAYER", value_parser = values::layer())]
    pub layers: Vec<LayerKind>,
    /// Symbols of kernels, which the new trace keeps.
    #[command(flatten)]
    pub symbols: SymbolArgs,
    /// New folder for the part, or, where the name ends with .strata, one new file
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command, Moment};
    use clap::Parser;
    use std::path::Path;
    use std::time::Duration;

    #[test]
    fn end_was_called_to_and_is_counted_from_the_last_record_with_a_minus() {
        let parsed = ["--until", "--to"].map(|until| {
            let line = ["strata", "events", "trace", "--from", "-2s", until, "-500ms"];
            Cli::try_parse_from(line).unwrap().command
        });

        let before_end = |ms| Some(Moment::BeforeEnd(Duration::from_millis(ms)));
        for parsed in parsed {
            let Command::Events(events) = parsed else { unreachable!("{parsed:?}") };
            assert_eq!((events.part.from, events.part.to), (before_end(2_000), before_end(500)));
        }
    }

    #[test]
    fn trace_is_the_one_called_trace_unless_named() {
        let read = |line: &str| match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::Events(args) => args.trace,
            Command::Why(args) => args.trace,
            Command::Check(args) => args.trace,
            Command::Cut(args) => args.trace,
            Command::Export(args) => args.trace,
            Command::Open(args) => args.trace,
            other => unreachable!("{other:?}"),
        };

        for line in ["events", "why", "check", "cut -o part", "export -o trace.pftrace", "open"] {
            assert_eq!(read(&format!("strata {line}")), Path::new("trace"), "{line}");
            assert_eq!(read(&format!("strata {line} other")), Path::new("other"), "{line}");
        }
    }

    #[test]
    fn traces_that_are_compared_have_no_common_end_to_count_from() {
        let parsed = Cli::try_parse_from(["strata", "diff", "a", "b", "--from", "-2"]).unwrap().command;

        let Command::Diff(diff) = parsed else { unreachable!("{parsed:?}") };
        let refused = diff.options().map(|options| options.from).unwrap_err();
        assert!(refused.ends_with("give no UTC and no minus"), "{refused}");
    }

    #[test]
    fn match_rule_is_read_and_refused_by_the_command_line() {
        assert!(Cli::try_parse_from(["strata", "merge", "a", "b", "--match", "x before y by z"]).is_ok());
        let error = Cli::try_parse_from(["strata", "merge", "a", "b", "--match", "x y"]).unwrap_err().to_string();
        assert!(error.contains("write EVENT before EVENT"), "{error}");
        assert_eq!(error.matches("'x y'").count(), 1, "{error}");
    }
}
