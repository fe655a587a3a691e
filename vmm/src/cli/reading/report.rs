//! `strata report`: its commands are made from the list of the reports.

use super::export::DrawnWhyArgs;
use super::part::PartArgs;
use super::symbols::SymbolArgs;
use super::terminal::TerminalArgs;
use crate::cli::completion;
use crate::cli::values::{self, DEFAULT_TRACE};
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Subcommand, value_parser};
use std::path::{Path, PathBuf};
use strata_analysis::task_choice::TaskChoice;
use strata_recording::text::nearest::nearest;
use strata_recording::text::terminal::{shell_path, shell_word};
use trace_merge::moment::{MomentError, Part};
use trace_merge::report::ReportOptions;
use trace_merge::report::description::{Description, Requested};
use trace_merge::report::registry::REPORTS;
use trace_merge::report::rows::choice::{Choice, Sort};

/// Arguments of `strata report`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "strata report [--json | --html FILE] [OPTIONS] [TRACE]\n       strata report COMMAND [OPTIONS] [TRACE]",
    after_help = "Without a command, it prints the overview. Write ./NAME for a trace whose folder has a command's \
    name.\n\n\
    Examples:\n  \
    strata report trace\n  \
    strata report tasks trace --from 1.5 --until 2.5\n  \
    strata report tasks trace --by cgroup\n  \
    strata report exits trace --json\n  \
    strata report wakeups trace --csv --sort p99_ns:desc --limit 10\n  \
    strata report tasks trace --vm web --task 'nginx*' --sort stolen:desc\n  \
    strata report flows trace\n  \
    strata report trace --html trace.html\n  \
    strata report trace --html part.html --from 1.5 --until 2.5\n  \
    strata report trace --html late.html --why web --worst 10"
)]
pub struct ReportArgs {
    /// What is reported
    #[command(subcommand)]
    pub command: Option<ReportCommand>,
    /// Trace: a folder, or a file of `strata cut`
    // Takes two, so that a command that does not exist is distinguished from a trace.
    #[arg(value_name = "TRACE", default_value = DEFAULT_TRACE, num_args = 1..=2)]
    pub trace: Vec<PathBuf>,
    /// Which part of it.
    #[command(flatten)]
    pub part: PartArgs,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
    /// Write one page for a browser in place of text: the timeline, the records and all reports; it needs no network.
    /// `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub html: Option<PathBuf>,
    /// Folder that holds the guest's root folder: its programs and libraries give their functions' names
    #[arg(long, value_name = "DIR", requires = "html")]
    pub symbols: Option<PathBuf>,
    /// Symbols of kernels.
    #[command(flatten)]
    pub kernels: SymbolArgs,
    /// For a page: why tasks took so long.
    #[command(flatten)]
    pub why: DrawnWhyArgs,
    /// Replace a page that is there
    #[arg(long, requires = "html")]
    pub force: bool,
    /// How it is shown.
    #[command(flatten)]
    pub terminal: TerminalArgs,
}

/// What `strata report --html` writes.
#[derive(Debug)]
pub struct PageArgs {
    /// Trace: a folder or a file.
    pub trace: PathBuf,
    pub output: PathBuf,
    /// Which part of it.
    pub part: PartArgs,
    /// Folder that holds the guest's root folder.
    pub symbols: Option<PathBuf>,
    /// Symbols of kernels.
    pub kernels: SymbolArgs,
    /// The question about tasks, if there is one.
    pub why: DrawnWhyArgs,
    /// Whether a page that is there is replaced.
    pub force: bool,
}

/// A request to `strata report`.
#[derive(Debug)]
pub enum ReportRequest {
    /// A report, as text or JSON.
    Report(ReportCommand),
    /// All of it as a page.
    Page(Box<PageArgs>),
}

impl ReportArgs {
    /// What is requested; without a command what stands out, and the summary.
    ///
    /// # Errors
    /// What is wrong, in words, when the first word is neither a command nor all there is.
    pub fn into_request(self) -> Result<ReportRequest, String> {
        let Self { command, trace, part, json, html, symbols, kernels, why, force, terminal } = self;
        let mut words = trace.into_iter();
        match (command, words.next(), words.next()) {
            (Some(command), ..) => Ok(ReportRequest::Report(command)),
            // Behind an option, the parser takes no word for a command.
            (None, Some(name), trace) if has_command(&name) && (trace.is_some() || !name.exists()) => {
                let trace = trace.map_or_else(String::new, |trace| format!(" {}", shell_path(trace)));
                Err(format!("the report comes before options: strata report {} [OPTIONS]{trace}", shell_word(&name)))
            }
            (None, Some(trace), None) => Ok(match html {
                Some(output) => {
                    ReportRequest::Page(Box::new(PageArgs { trace, output, part, symbols, kernels, why, force }))
                }
                None if why.is_requested() => {
                    return Err("--why and --worst draw on a page: give --html FILE, too, or see `strata why`".into());
                }
                None => {
                    let [report, ..] = REPORTS;
                    let window = WindowArgs { trace, part, kernels, json, terminal };
                    ReportRequest::Report(ReportCommand { report, window, symbols: None, choice: Box::default() })
                }
            }),
            (None, Some(trace), Some(name)) if with_command(&REPORTS).any(|report| name == Path::new(report.name)) => {
                Err(format!("the report comes first: strata report {} {}", shell_word(&name), shell_path(&trace)))
            }
            (None, Some(first), Some(second)) if first.exists() && second.exists() => Err(format!(
                "one trace at a time; to compare: strata diff {} {}",
                shell_path(&first),
                shell_path(&second)
            )),
            (None, first, _) => Err(unknown(&first.unwrap_or_default().to_string_lossy(), &REPORTS)),
        }
    }
}

/// What other tools call what a report shows, and the report.
const CALLED_ELSEWHERE: [(&str, &str); 8] = [
    ("sched", "wakeups"),
    ("latency", "wakeups"),
    ("kvm", "exits"),
    ("disks", "flows"),
    ("io", "flows"),
    ("net", "flows --net"),
    ("network", "flows --net"),
    ("interrupts", "irqs"),
];

/// The words behind `strata report` for a report of this `name`, or for what other tools call so.
pub(in crate::cli) fn report_called(name: &str) -> Option<&'static str> {
    let report = with_command(&REPORTS).map(|report| report.name).find(|known| *known == name);
    report.or_else(|| CALLED_ELSEWHERE.iter().find(|(known, _)| *known == name).map(|(_, report)| *report))
}

/// The refusal of a `name` that none of `reports` has.
fn unknown(name: &str, reports: &[&'static Description]) -> String {
    let names: Vec<&str> = with_command(reports).map(|report| report.name).collect();
    let elsewhere = CALLED_ELSEWHERE.iter().filter(|(known, _)| *known == name).map(|(_, report)| (*report).to_owned());
    let nearest: Vec<String> = elsewhere.chain(nearest(name, names.iter().copied())).collect();
    let suggestion = if nearest.is_empty() { String::new() } else { format!("nearest: {}; ", nearest.join(", ")) };
    format!("no report is called '{name}'; {suggestion}there are {}", names.join(", "))
}

/// Whether `name` is that of a report which has a command.
fn has_command(name: &Path) -> bool {
    with_command(&REPORTS).any(|report| name.as_os_str() == report.name)
}

fn with_command<'r>(reports: &'r [&'static Description]) -> impl Iterator<Item = &'static Description> + 'r {
    reports.iter().copied().filter(|report| report.requested == Requested::Command)
}

/// A report that is requested by its command.
#[derive(Debug)]
pub struct ReportCommand {
    pub report: &'static Description,
    /// What every report on a part of a trace takes.
    pub window: WindowArgs,
    /// Folder that holds the guest's root folder.
    pub symbols: Option<PathBuf>,
    /// Which of its rows.
    pub choice: Box<ChoiceArgs>,
}

/// The option of a report's command that gives the folder with the guest's files.
const SYMBOLS: &str = "symbols";

/// The commands that ask for `reports`.
fn commands(reports: &[&'static Description]) -> Vec<Command> {
    let command = |report: &'static Description| {
        let examples = match report.examples {
            [] => None,
            [example] => Some(format!("Example:\n  {example}")),
            examples => Some(format!("Examples:\n  {}", examples.join("\n  "))),
        };
        let mut command = WindowArgs::augment_args(Command::new(report.name));
        if !report.rows.is_empty() {
            command = ChoiceArgs::augment_args(command);
        }
        command = command.about(report.about);
        command = examples.into_iter().fold(command, Command::after_help);
        if report.takes_symbols {
            let help =
                "Folder that holds the guest's root folder: its programs and libraries give their functions' names";
            let symbols = Arg::new(SYMBOLS).long(SYMBOLS).value_name("DIR").help(help);
            command = command.arg(symbols.value_parser(value_parser!(PathBuf)));
        }
        command.args(options_of(report, reports))
    };
    with_command(reports).map(command).collect()
}

/// The options of the command of `report` that ask for others of `reports`: of several values of one option, the help
/// is that of the first.
fn options_of(report: &Description, reports: &[&'static Description]) -> Vec<Arg> {
    let mut options: Vec<(Arg, Vec<&'static str>)> = Vec::new();
    for other in reports {
        let Requested::Option { of, option, value } = other.requested else { continue };
        if of != report.name {
            continue;
        }
        if let Some((_, values)) = options.iter_mut().find(|(arg, _)| arg.get_id() == option) {
            values.extend(value);
        } else {
            options.push((Arg::new(option).long(option).help(other.about), value.into_iter().collect()));
        }
    }
    let finished = |(arg, values): (Arg, Vec<&'static str>)| match values.is_empty() {
        true => arg.action(ArgAction::SetTrue),
        false => arg.value_name("WHAT").value_parser(PossibleValuesParser::new(values)),
    };
    options.into_iter().map(finished).collect()
}

/// The one of `reports` that `matches` of the command called `name` ask for.
fn requested_for(name: &str, matches: &ArgMatches, reports: &[&'static Description]) -> Option<&'static Description> {
    let is_requested = |report: &&Description| match report.requested {
        Requested::Option { of, option, value: None } => of == name && matches.get_flag(option),
        Requested::Option { of, option, value: Some(value) } => {
            of == name && matches.get_one::<String>(option).is_some_and(|given| given == value)
        }
        Requested::Command => false,
    };
    let by_option = reports.iter().copied().find(is_requested);
    by_option.or_else(|| with_command(reports).find(|report| report.name == name))
}

impl FromArgMatches for ReportCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let requested =
            matches.subcommand().and_then(|(name, matches)| Some((requested_for(name, matches, &REPORTS)?, matches)));
        let (report, matches) = requested.ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))?;
        // Only commands that take it know of it.
        let symbols = matches.try_get_one(SYMBOLS).ok().flatten().cloned();
        let choice =
            if report.rows.is_empty() { ChoiceArgs::default() } else { ChoiceArgs::from_arg_matches(matches)? };
        Ok(Self { report, window: WindowArgs::from_arg_matches(matches)?, symbols, choice: Box::new(choice) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for ReportCommand {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(commands(&REPORTS))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        with_command(&REPORTS).any(|report| report.name == name)
    }
}

/// Arguments of a report on a part of a trace.
#[derive(Debug, Args)]
pub struct WindowArgs {
    /// Trace: a folder, or a file of `strata cut`
    #[arg(default_value = DEFAULT_TRACE)]
    pub trace: PathBuf,
    /// Which part of it.
    #[command(flatten)]
    pub part: PartArgs,
    /// Symbols of kernels.
    #[command(flatten)]
    pub kernels: SymbolArgs,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
    /// How it is shown.
    #[command(flatten)]
    pub terminal: TerminalArgs,
}

impl WindowArgs {
    /// What they mean for a report.
    ///
    /// # Errors
    /// When the recording cannot be read, to find its end, or has nothing at a time of UTC.
    pub fn options(&self) -> Result<ReportOptions, MomentError> {
        let Part { from, to } = self.part.of(&self.trace)?;
        Ok(ReportOptions { json: self.json, from, to })
    }
}

/// Arguments of a report that has rows: with any of them it is one table.
#[derive(Debug, Default, Args)]
pub struct ChoiceArgs {
    /// CSV in place of text: one table, with the keys of JSON
    #[arg(help_heading = "Rows", long, conflicts_with = "json")]
    pub csv: bool,
    /// Order by this column, a key of JSON or a heading: numbers from the largest on, texts from A on, or as :asc or :desc
    /// behind it says
    #[arg(help_heading = "Rows", long, value_name = "COLUMN[:asc|:desc]", add = completion::columns_of_report())]
    pub sort: Option<Sort>,
    /// So many rows at most
    #[arg(help_heading = "Rows", long, value_name = "N", value_parser = values::rows)]
    pub limit: Option<usize>,
    /// Only rows of this VM
    #[arg(help_heading = "Rows", long, value_name = "NAME", add = completion::vms_of_trace())]
    pub vm: Option<String>,
    /// Only rows of these tasks or processes: a number, a name, which may be a glob, or NAME/NUMBER
    #[arg(help_heading = "Rows", long, value_name = "TASK")]
    pub task: Option<TaskChoice>,
    /// Only rows of this CPU or vCPU
    #[arg(help_heading = "Rows", long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = values::number::<u32>)]
    pub cpu: Option<u32>,
    /// Which table, where there are several: the last key of its path in JSON, as in parts. Without it, the first with
    /// the columns asked for
    #[arg(help_heading = "Rows", long, value_name = "NAME", add = completion::tables_of_report())]
    pub table: Option<String>,
}

impl From<ChoiceArgs> for Choice {
    fn from(args: ChoiceArgs) -> Self {
        let ChoiceArgs { csv, sort, limit, vm, task, cpu, table } = args;
        Self { csv, table, vm, task, cpu, sort, limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;
    use std::time::Duration;
    use trace_merge::report::description::Begin;

    fn requested(args: &[&str]) -> Option<Result<ReportRequest, String>> {
        let parsed = Cli::try_parse_from(["strata", "report"].iter().chain(args)).ok()?;
        if let crate::cli::Command::Report(report) = parsed.command { Some(report.into_request()) } else { None }
    }

    /// What `args` request: its name, trace, symbols, and whether it is wanted as JSON.
    fn report(args: &[&str]) -> Option<(&'static str, PathBuf, Option<PathBuf>, bool)> {
        match requested(args)?.ok()? {
            ReportRequest::Report(requested) => {
                Some((requested.report.name, requested.window.trace, requested.symbols, requested.window.json))
            }
            ReportRequest::Page(_) => None,
        }
    }

    #[test]
    fn report_without_a_command_is_the_overview() {
        assert_eq!(report(&[]), Some(("overview", "trace".into(), None, false)));
        assert_eq!(report(&["tasks"]), Some(("tasks", "trace".into(), None, false)));
        assert_eq!(report(&["trace", "--json"]), Some(("overview", "trace".into(), None, true)));
        assert_eq!(report(&["summary", "trace"]), Some(("summary", "trace".into(), None, false)));
    }

    #[test]
    fn option_asks_for_another_report_in_place_of_the_commands_own() {
        let name = |args: &[&str]| report(args).map(|(name, ..)| name);

        assert_eq!((name(&["flows", "trace"]), name(&["flows", "trace", "--net"])), (Some("flows"), Some("net_flows")));
        assert_eq!(name(&["tasks", "trace", "--by", "cgroup"]), Some("cgroups"));
        assert_eq!((name(&["tasks", "trace", "--by", "name"]), name(&["exits", "trace", "--net"])), (None, None));
    }

    #[test]
    fn folder_with_symbols_is_taken_where_the_report_has_a_use_for_it() {
        let symbols = |name| report(&[name, "trace", "--symbols", "root"]).map(|(.., symbols, _)| symbols);

        assert_eq!((symbols("functions"), symbols("tasks")), (Some(Some("root".into())), None));
    }

    #[test]
    fn each_report_is_requested_by_the_words_that_its_description_has() {
        for description in REPORTS {
            let words = description.words();
            let words: Vec<&str> = words.split(' ').chain(["trace"]).collect();

            assert_eq!(report(&words).map(|(name, ..)| name), Some(description.name));
        }
    }

    #[test]
    fn report_that_is_added_to_the_list_has_its_command_help_and_refusal() {
        const BEGIN: Begin = |_, _, _| unreachable!();
        static MADE: Description = Description {
            name: "made",
            about: "Something else",
            requested: Requested::Command,
            examples: &["strata report made trace"],
            takes_symbols: false,
            is_in_all: false,
            rows: &[],
            begin: BEGIN,
        };

        let mut commands = Command::new("report").subcommands(commands(&[&MADE]));

        let matches = commands.try_get_matches_from_mut(["report", "made", "trace"]).unwrap();
        let (name, matches) = matches.subcommand().unwrap();
        assert_eq!(requested_for(name, matches, &[&MADE]).map(|report| report.name), Some("made"));
        let help = commands.find_subcommand_mut("made").unwrap().render_long_help().to_string();
        assert!(help.contains("Something else") && help.contains("strata report made trace"), "{help}");
        assert_eq!(unknown("mad", &[&MADE]), "no report is called 'mad'; nearest: made; there are made");
    }

    #[test]
    fn page_is_of_a_trace_and_not_of_one_report() {
        let page = requested(&["trace", "--html", "out.html", "--from", "1.5", "--force"]).unwrap().unwrap();

        let ReportRequest::Page(page) = page else { panic!("another request") };
        assert_eq!((page.part.from, page.part.to, page.force), (Some(Duration::from_millis(1500).into()), None, true));
        assert_eq!((page.trace, page.output), ("trace".into(), "out.html".into()));
        assert!(requested(&["trace", "--html", "out.html", "--json"]).is_none());
        assert!(
            requested(&["trace", "--force"]).is_none()
                && requested(&["tasks", "trace", "--html", "out.html"]).is_none()
        );
    }

    #[test]
    fn report_that_does_not_exist_is_refused_with_those_that_do() {
        let error = requested(&["taks", "trace"]).unwrap().unwrap_err();

        assert!(error.starts_with("no report is called 'taks'; nearest: tasks"), "{error}");
        assert!(error.contains("there are overview, all, summary, tasks, vcpus, exits"), "{error}");
        let turned = requested(&["trace", "tasks"]).unwrap().unwrap_err();
        assert_eq!(turned, "the report comes first: strata report tasks trace");
        let odd = requested(&["my trace;", "tasks"]).unwrap().unwrap_err();
        assert_eq!(odd, "the report comes first: strata report tasks 'my trace;'");
        let two = requested(&["/dev", "/tmp"]).unwrap().unwrap_err();
        assert_eq!(two, "one trace at a time; to compare: strata diff /dev /tmp");
        assert!(requested(&["latency", "trace"]).unwrap().unwrap_err().contains("nearest: wakeups"));
    }

    #[test]
    fn report_behind_an_option_is_refused_with_the_order() {
        let refused = |args: &[&str]| requested(args).unwrap().unwrap_err();

        let first = "the report comes before options: strata report tasks [OPTIONS]";
        assert_eq!(refused(&["--json", "tasks"]), first);
        assert_eq!(refused(&["--json", "tasks", "my trace"]), format!("{first} 'my trace'"));
    }
}
