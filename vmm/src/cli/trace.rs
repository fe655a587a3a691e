//! `strata events`, `strata report`, `strata why`, `strata diff`, `strata check` and `strata merge`: reading
//! recordings.

use super::export::DrawnWhyArgs;
use super::values;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use strata_analysis::task_choice::TaskChoice;
use strata_recording::layer::LayerKind;
use strata_recording::nearest::nearest;
use trace_merge::critical_path::CriticalPathOptions;
use trace_merge::events::parse_seconds;
use trace_merge::match_rule::MatchRule;
use trace_merge::report::ReportOptions;

/// Arguments of `strata events`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata events trace | less\n  \
    strata events trace --layer guest-kernel --layer host-kernel --from 0.2 --to 0.25\n  \
    strata events trace --json | jq 'select(.event == \"kvm:kvm_exit\")'\n  \
    strata events trace --event 'sched:*' --event irq:irq_handler_entry --cpu 1\n  \
    strata events trace --task dd --layer guest-kernel\n  \
    strata events trace --task 'kworker/*' --vm web\n  \
    strata events trace --layer guest-kernel --count\n  \
    strata events --list guest-kernel --agent strata.ko")]
pub struct EventsArgs {
    /// Trace folder
    #[arg(required_unless_present = "list")]
    pub trace: Option<PathBuf>,
    /// List the events of a layer that can be recorded, in place of a trace's records; guest-kernel needs --agent
    #[arg(long, value_name = "LAYER", value_parser = values::layer(), conflicts_with_all = [
        "trace", "layers", "events", "tasks", "cpus", "vms", "from", "to", "utc"
    ])]
    pub list: Option<LayerKind>,
    /// Kernel module whose events are listed
    #[arg(long, value_name = "FILE", requires = "list")]
    pub agent: Option<PathBuf>,
    /// Only this layer; host, guest and user are understood too. May be repeated
    #[arg(long = "layer", value_name = "LAYER", value_parser = values::layer())]
    pub layers: Vec<LayerKind>,
    /// Only events whose names match, as 'sched:*' does. May be repeated
    #[arg(long = "event", value_name = "GLOB")]
    pub events: Vec<String>,
    /// Only records of these tasks, and of such guest processes: a thread id, a name, which may be a glob, or NAME/TID.
    /// May be repeated
    #[arg(long = "task", value_name = "TASK")]
    pub tasks: Vec<TaskChoice>,
    /// Only records of the vCPU, host CPU or thread of the VMM of this number. May be repeated
    #[arg(long = "cpu", value_name = "N")]
    pub cpus: Vec<u32>,
    /// Only records of this VM, in place of those of all VMs and the host. May be repeated
    #[arg(long = "vm", value_name = "NAME")]
    pub vms: Vec<String>,
    /// Only records from this many seconds after the first one on
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub from: Option<Duration>,
    /// Only records up to this many seconds after the first one
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub to: Option<Duration>,
    /// Show UTC in place of seconds since the first record
    #[arg(long)]
    pub utc: bool,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Only say how many records there are
    #[arg(long, conflicts_with = "utc")]
    pub count: bool,
}

/// Arguments of `strata report`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "strata report [--json | --html FILE] [OPTIONS] TRACE\n       strata report COMMAND [OPTIONS] TRACE",
    after_help = "Without a command it is the overview. A trace whose folder is named like a command is written ./NAME.\n\n\
    Examples:\n  \
    strata report trace\n  \
    strata report tasks trace --from 1.5 --to 2.5\n  \
    strata report tasks trace --by cgroup\n  \
    strata report exits trace --json\n  \
    strata report flows trace\n  \
    strata report trace --html trace.html\n  \
    strata report trace --html part.html --from 1.5 --to 2.5\n  \
    strata report trace --html late.html --why web --worst 10"
)]
pub struct ReportArgs {
    /// What is reported
    #[command(subcommand)]
    pub command: Option<ReportCommand>,
    /// Trace folder
    // Takes two, so that a command that does not exist is told apart from a trace.
    #[arg(value_name = "TRACE", required = true, num_args = 1..=2)]
    pub trace: Vec<PathBuf>,
    /// Only what is this many seconds after the first record, or later
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub from: Option<Duration>,
    /// Only what is this many seconds after the first record, or earlier
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub to: Option<Duration>,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
    /// Write one page for a browser in place of text: the timeline, the records and all reports; it needs no network
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub html: Option<PathBuf>,
    /// Folder that holds the guest's root folder: its programs and libraries give their functions' names
    #[arg(long, value_name = "DIR", requires = "html")]
    pub symbols: Option<PathBuf>,
    /// For a page: why a task took so long.
    #[command(flatten)]
    pub why: DrawnWhyArgs,
    /// Replace a page that is there
    #[arg(long, requires = "html")]
    pub force: bool,
}

/// What `strata report --html` writes.
#[derive(Debug)]
pub struct PageArgs {
    /// Trace folder.
    pub trace: PathBuf,
    /// The file.
    pub output: PathBuf,
    /// Only what is this long after the first record, or later.
    pub from: Option<Duration>,
    /// Only what is this long after the first record, or earlier.
    pub to: Option<Duration>,
    /// Folder that holds the guest's root folder.
    pub symbols: Option<PathBuf>,
    /// What is asked about a task, if anything is.
    pub why: Option<CriticalPathOptions>,
    /// Whether a page that is there is replaced.
    pub force: bool,
}

impl ReportArgs {
    /// What is asked for; without a command what stands out, and the summary.
    ///
    /// # Errors
    /// What is wrong, in words, when the first word is neither a command nor all there is.
    pub fn into_command(self) -> Result<ReportCommand, String> {
        let Self { command, trace, from, to, json, html, symbols, why, force } = self;
        let why = why.options(from, to);
        let mut words = trace.into_iter();
        match (command, words.next(), words.next()) {
            (Some(command), ..) => Ok(command),
            (None, Some(trace), None) => Ok(match html {
                Some(output) => {
                    ReportCommand::Page(Box::new(PageArgs { trace, output, from, to, symbols, why, force }))
                }
                None if why.is_some() => {
                    return Err("--why draws on a page: give --html FILE, too, or see `strata why`".into());
                }
                None => ReportCommand::Overview(WindowArgs { trace, from, to, json }),
            }),
            (None, first, _) => {
                let known = <ReportCommand as Subcommand>::augment_subcommands(clap::Command::new("report"));
                let names: Vec<_> = known.get_subcommands().map(|command| command.get_name().to_owned()).collect();
                let first = first.unwrap_or_default();
                let nearest = nearest(&first.to_string_lossy(), names.iter().map(String::as_str));
                let suggestion =
                    if nearest.is_empty() { String::new() } else { format!("nearest: {}; ", nearest.join(", ")) };
                Err(format!("no report is called '{}'; {suggestion}there are {}", first.display(), names.join(", ")))
            }
        }
    }
}

/// What `strata report` reports.
#[derive(Debug, Subcommand)]
pub enum ReportCommand {
    /// What cost most and is unusual, with the next command for each, and the summary
    Overview(WindowArgs),
    /// Layers, losses, exits by reason, the clock and its error bound
    Summary(WindowArgs),
    /// All reports, in one pass over the trace
    #[command(after_help = "Example:\n  strata report all trace --json --from 1.5 --to 2.5")]
    All(FunctionsArgs),
    /// Where the time of each guest task went: running for real, stolen by the host and by whom, in exits, waiting
    #[command(after_help = "Example:\n  strata report tasks trace --by cgroup")]
    Tasks(TasksArgs),
    /// Where the time of each vCPU went: in the guest, in KVM, in the VMM, preempted and by whom, halted
    Vcpus(WindowArgs),
    /// Why vCPUs left the guest, how long each reason took, in KVM and in the VMM
    Exits(WindowArgs),
    /// How long guest tasks took from being woken until they ran, and what happened meanwhile in the ten worst cases
    Wakeups(WindowArgs),
    /// System calls of each guest process: count, time, errors, page faults inside
    Syscalls(WindowArgs),
    /// Requests of virtio disks, or packets of virtio networks, through every layer, and the time of each step
    #[command(after_help = "Examples:\n  strata report flows trace\n  strata report flows trace --net")]
    Flows(FlowsArgs),
    /// Where processor time went, by function, from samples
    Functions(FunctionsArgs),
    /// Interrupts handled, by CPU, and the delivery of those that KVM injects
    Irqs(WindowArgs),
    /// Requests to block devices, as the kernels of host and guests see them: count, bytes and time by operation
    Blocks(WindowArgs),
    /// Waiting for locks of the guest's kernel, by lock and call site, and for futexes
    Locks(WindowArgs),
    /// How it ended: what each CPU of guest and host did when the guest's kernel recorded for the last time, its
    /// console, and the last exits, samples and records; with --to, the same of any moment
    #[command(after_help = "Examples:\n  strata report death trace\n  strata report death trace --to 12.5")]
    Death(WindowArgs),
    /// All of it as a page: `--html` without a command.
    #[command(skip)]
    Page(Box<PageArgs>),
}

/// What the times of tasks are summed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TaskSum {
    /// The cgroup that they are in
    Cgroup,
}

/// Arguments of `strata report tasks`.
#[derive(Debug, Args)]
pub struct TasksArgs {
    /// What every report on a part of a trace takes.
    #[command(flatten)]
    pub window: WindowArgs,
    /// Sums of the tasks in place of each task
    #[arg(long, value_name = "WHAT")]
    pub by: Option<TaskSum>,
}

/// Arguments of `strata report flows`.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// What every report on a part of a trace takes.
    #[command(flatten)]
    pub window: WindowArgs,
    /// Packets of networks, sent and received, in place of requests of disks
    #[arg(long)]
    pub net: bool,
}

/// Arguments of `strata report functions` and `strata report all`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strata report functions trace --symbols /srv/guest-root")]
pub struct FunctionsArgs {
    /// What every report on a part of a trace takes.
    #[command(flatten)]
    pub window: WindowArgs,
    /// Folder that holds the guest's root folder: its programs and libraries give their functions' names
    #[arg(long, value_name = "DIR")]
    pub symbols: Option<PathBuf>,
}

/// Arguments of a report on a part of a trace.
#[derive(Debug, Args)]
pub struct WindowArgs {
    /// Trace folder
    pub trace: PathBuf,
    /// Only what is this many seconds after the first record, or later
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub from: Option<Duration>,
    /// Only what is this many seconds after the first record, or earlier
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub to: Option<Duration>,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

impl WindowArgs {
    /// What they mean for a report.
    #[must_use]
    pub const fn options(&self) -> ReportOptions {
        ReportOptions { json: self.json, from: self.from, to: self.to }
    }
}

/// Arguments of `strata why`.
#[derive(Debug, Args)]
#[command(
    after_help = "The task's time is cut into steps that add up to it exactly. Where it waited, the task that woke it is \
    followed, or the disk request. What the records do not tell is 'not known'.\n\nExamples:\n  \
    strata why trace --task web --worst 3\n  \
    strata why trace --task dd --from 1.5 --to 1.6\n  \
    strata why trace --task web/812 --event 'app:request_*' --worst 5\n  \
    strata why trace --task 812 --vm db --json | jq '.paths[0].shares'"
)]
pub struct WhyArgs {
    /// Trace folder
    pub trace: PathBuf,
    /// The guest's task: its name, which may be a glob, its thread id, or NAME/TID
    #[arg(long, value_name = "TASK")]
    pub task: TaskChoice,
    /// Only tasks of this VM
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,
    /// Only what is this many seconds after the first record, or later
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub from: Option<Duration>,
    /// Only what is this many seconds after the first record, or earlier
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub to: Option<Duration>,
    /// Explain the N longest waits: from giving up the CPU, or being woken from a sleep, until running again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub worst: Option<u16>,
    /// Explain the longest times between two of the task's records of such events, of applications or the guest's
    /// kernel: the 3 longest without --worst
    #[arg(long, value_name = "GLOB")]
    pub event: Option<String>,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

impl WhyArgs {
    /// What they ask.
    #[must_use]
    pub fn options(&self) -> CriticalPathOptions {
        CriticalPathOptions {
            task: self.task.clone(),
            vm: self.vm.clone(),
            from: self.from,
            to: self.to,
            worst: self.worst.map(usize::from),
            event: self.event.clone(),
            json: self.json,
        }
    }
}

/// Arguments of `strata diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "The time of each trace is cut into 20 parts. What those of one have that those of the other have not is a \
    change; what varies from part to part is none. Two traces tell about these two runs: whether a change is there \
    in other runs, too, other traces tell.\n\nExamples:\n  \
    strata diff yesterday today\n  \
    strata diff yesterday today --from 2 --to 12\n  \
    strata diff yesterday today --json | jq '.rows[] | select(.values | any(.changed))'"
)]
pub struct DiffArgs {
    /// Trace folder: before
    #[arg(value_name = "A")]
    pub first: PathBuf,
    /// Trace folder: after
    #[arg(value_name = "B")]
    pub second: PathBuf,
    /// Of each only what is this many seconds after its first record, or later
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub from: Option<Duration>,
    /// Of each only what is this many seconds after its first record, or earlier
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub to: Option<Duration>,
    /// JSON in place of text: all rows, those that did not change too
    #[arg(long)]
    pub json: bool,
}

impl DiffArgs {
    /// What they mean for a report.
    #[must_use]
    pub const fn options(&self) -> ReportOptions {
        ReportOptions { json: self.json, from: self.from, to: self.to }
    }
}

/// Arguments of `strata check`.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// Trace folder
    pub trace: PathBuf,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `strata merge`.
#[derive(Debug, Args)]
#[command(
    after_help = "Traces of VMs that ran on one host since one boot are on one clock: their VMs are put side by side \
    (of two with one name the later is called NAME-2), and what their host-kernel layers both have is kept once.\n\n\
    Two traces of different hosts need rules. A rule says that each such event of the first trace happened before \
    (after) its counterpart in the second. There have to be rules for both directions, as for messages and their \
    answers. The result is on the clock of the first trace; its error bound and how it was found are in its \
    session.json.\n\nExamples:\n  \
    strata merge web db cache -o all\n  \
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
    /// New folder for the result
    #[arg(short, long, value_name = "DIR", default_value = "merged")]
    pub output: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn report_without_a_command_is_the_overview() {
        let report = |args: &[&str]| {
            let parsed = Cli::try_parse_from(["strata", "report"].iter().chain(args)).ok()?;
            if let Command::Report(report) = parsed.command { Some(report.into_command()) } else { None }
        };

        let plain = report(&["trace", "--json"]).unwrap().unwrap();
        let named = report(&["summary", "trace"]).unwrap().unwrap();

        assert!(matches!(plain, ReportCommand::Overview(args) if args.json && args.trace == *"trace"));
        assert!(matches!(named, ReportCommand::Summary(args) if args.trace == *"trace"));
        assert!(report(&[]).is_none() && report(&["overview"]).is_none());
    }

    #[test]
    fn page_is_of_a_trace_and_not_of_one_report() {
        let report = |args: &[&str]| {
            let parsed = Cli::try_parse_from(["strata", "report"].iter().chain(args)).ok()?;
            if let Command::Report(report) = parsed.command { report.into_command().ok() } else { None }
        };

        let page = report(&["trace", "--html", "out.html", "--from", "1.5", "--force"]).unwrap();

        let ReportCommand::Page(page) = page else { panic!("another command") };
        assert_eq!((page.from, page.to, page.force), (Some(Duration::from_millis(1500)), None, true));
        assert_eq!((page.trace, page.output), ("trace".into(), "out.html".into()));
        assert!(report(&["trace", "--html", "out.html", "--json"]).is_none());
        assert!(report(&["trace", "--force"]).is_none() && report(&["tasks", "trace", "--html", "out.html"]).is_none());
    }

    #[test]
    fn report_that_does_not_exist_is_refused_with_those_that_do() {
        let parsed = Cli::try_parse_from(["strata", "report", "taks", "trace"]).unwrap();
        let Command::Report(report) = parsed.command else { panic!("another command") };

        let error = report.into_command().unwrap_err();

        assert!(error.starts_with("no report is called 'taks'; nearest: tasks"), "{error}");
        assert!(error.contains("there are overview, summary, ") && error.contains("tasks, vcpus, exits"), "{error}");
    }

    #[test]
    fn match_rule_is_read_and_refused_by_the_command_line() {
        assert!(Cli::try_parse_from(["strata", "merge", "a", "b", "--match", "x before y by z"]).is_ok());
        let error = Cli::try_parse_from(["strata", "merge", "a", "b", "--match", "x y"]).unwrap_err().to_string();
        assert!(error.contains("write EVENT before EVENT"), "{error}");
        assert_eq!(error.matches("'x y'").count(), 1, "{error}");
    }
}
