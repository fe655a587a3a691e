//! `strata`: runs virtual machines and traces every layer of them on one clock.

use anyhow::Context;
use clap::{CommandFactory, Parser};
use shared_ring::consumer::Lost;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use trace_merge::check::CheckOptions;
use trace_merge::events::EventsOptions;
use trace_merge::reader::Trace;
use trace_merge::report::{Report, ReportError, ReportOptions, Window};
use trace_merge::session::{LayerKind, Session};
use trace_merge::{check, events, join, report};
use vmm::cli::{
    Cli, Command, CompletionsArgs, CtlArgs, DoctorArgs, EventsArgs, ManualArgs, MergeArgs, PsArgs, ReadArgs,
    RecoverArgs, ReportArgs, ReportCommand, RunArgs,
};
use vmm::control::{client, directory, list};
use vmm::machine::Outcome;
use vmm::run::{self, RunRequest};
use vmm::{agent_command, doctor, event_list, recover};

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("strata: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run_guest(args),
        Command::Events(args) => list_events(args),
        Command::Report(args) => print_report(args),
        Command::Check(args) => check_trace(&args),
        Command::Merge(args) => merge_traces(&args),
        Command::Ps(args) => list_vms(&args),
        Command::Ctl(args) => control_vm(args),
        Command::Recover(args) => recover_trace(&args),
        Command::Agent(args) => print(&agent_command::run(&args.command)?),
        Command::Doctor(args) => print_diagnosis(&args),
        Command::Completions(args) => print_completions(&args),
        Command::Manual(args) => write_manual(&args),
    }
}

fn run_guest(args: RunArgs) -> anyhow::Result<ExitCode> {
    let request = RunRequest::from(args);
    let report = run::run(&request, &mut |line| eprintln!("strata: {line}"))?;
    eprintln!("strata: {}", report.outcome);
    if let (Some(session), Some(trace)) = (&report.session, &request.trace) {
        summarise(session, trace);
    }
    let is_well = matches!(report.outcome, Outcome::PowerOff | Outcome::Reboot | Outcome::Stopped);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was recorded, in a few lines on standard error.
fn summarise(session: &Session, trace: &Path) {
    for kind in LayerKind::ALL {
        let streams = || session.layers.iter().filter(|layer| layer.kind == kind).flat_map(|layer| &layer.streams);
        let records: u64 = streams().map(|stream| stream.records).sum();
        let lost = streams().map(|stream| stream.lost).sum::<Lost>().total();
        eprintln!("strata: {kind:<12} {records:>10} records, {lost} lost");
    }
    let (bound, trace) = (session.clock.error_bound_ns, trace.display());
    eprintln!("strata: times of different layers agree within {bound} ns");
    eprintln!("strata: trace in {trace}; next: strata report {trace}, strata events {trace}, babeltrace2 {trace}");
}

fn list_events(args: EventsArgs) -> anyhow::Result<ExitCode> {
    if let Some(layer) = args.list {
        let list = event_list::list(layer, args.agent.as_deref())?;
        return print(&if args.json {
            format!("{}\n", serde_json::to_string_pretty(&list)?)
        } else {
            event_list::text(&list)
        });
    }
    let Some(trace) = args.trace else { anyhow::bail!("no trace was given; see strata events --help") };
    let options = EventsOptions {
        layers: args.layers,
        from: args.from,
        to: args.to,
        utc: args.utc,
        json: args.json,
        count: args.count,
    };
    let listed = events::run(&trace, &options, &mut io::stdout().lock())?;
    if listed.damage.any() {
        eprintln!("strata: {}", listed.damage);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_report(args: ReportArgs) -> anyhow::Result<ExitCode> {
    match args.into_command().map_err(anyhow::Error::msg)? {
        ReportCommand::Summary(args) => print_summary(&args)?,
        ReportCommand::Tasks(args) => make_report(&args.trace, &args.options(), report::tasks::report)?,
        ReportCommand::Vcpus(args) => make_report(&args.trace, &args.options(), report::vcpus::report)?,
        ReportCommand::Exits(args) => make_report(&args.trace, &args.options(), report::exits::report)?,
        ReportCommand::Wakeups(args) => make_report(&args.trace, &args.options(), report::wakeups::report)?,
        ReportCommand::Flows(args) => make_report(&args.trace, &args.options(), report::flows::report)?,
        ReportCommand::Functions(args) => {
            make_report(&args.window.trace, &args.window.options(), |trace, window| {
                report::functions::report(trace, window, args.symbols.as_deref())
            })?;
        }
        ReportCommand::Locks(args) => make_report(&args.trace, &args.options(), report::locks::report)?,
        ReportCommand::Syscalls(args) => make_report(&args.trace, &args.options(), report::syscalls::report)?,
        ReportCommand::Irqs(args) => make_report(&args.trace, &args.options(), report::irqs::report)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_summary(args: &ReadArgs) -> Result<(), ReportError> {
    let options = ReportOptions { json: args.json, ..ReportOptions::default() };
    make_report(&args.trace, &options, |trace, _| Ok(report::summary::report(trace)))
}

/// Makes a report and prints it.
fn make_report<R: Report>(
    trace: &Path,
    options: &ReportOptions,
    make: impl FnOnce(&Trace, Window) -> Result<R, ReportError>,
) -> Result<(), ReportError> {
    report::run(trace, options, &mut BufWriter::new(io::stdout().lock()), make).map(drop)
}

fn check_trace(args: &ReadArgs) -> anyhow::Result<ExitCode> {
    let verdict = check::run(
        &args.trace,
        &CheckOptions { json: args.json, ..CheckOptions::default() },
        &mut BufWriter::new(io::stdout().lock()),
    )?;
    Ok(if verdict.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn merge_traces(args: &MergeArgs) -> anyhow::Result<ExitCode> {
    let joined = join::join(&args.first, &args.others, &args.rules, &args.output)?;
    if joined.damage.any() {
        eprintln!("strata: not taken over: {}", joined.damage);
    }
    if let Some(relation) = &joined.relation {
        eprintln!("strata: clocks related by {} pairs, within {} ns", relation.pairs(), joined.relation_bound_ns);
    }
    if joined.shared_host_events > 0 {
        eprintln!(
            "strata: {} events of the shared host were in several traces and are kept once",
            joined.shared_host_events
        );
    }
    let (bound, output) = (joined.session.clock.error_bound_ns, args.output.display());
    eprintln!("strata: times of different layers agree within {bound} ns");
    eprintln!("strata: trace in {output}; next: strata check {output}, strata events {output}");
    Ok(ExitCode::SUCCESS)
}

fn list_vms(args: &PsArgs) -> anyhow::Result<ExitCode> {
    let found = directory::list(&directory::runtime_folder()?)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let vms = list::listed(found, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
    print(&if args.json { format!("{}\n", serde_json::to_string_pretty(&vms)?) } else { list::text(&vms) })
}

fn control_vm(args: CtlArgs) -> anyhow::Result<ExitCode> {
    let request = args.command.request().context("cannot make the path absolute")?;
    let found = client::find(&directory::runtime_folder()?, &args.vm)?;
    let answer = client::call(&found.socket(), &request)?;
    print(&if args.json { format!("{}\n", serde_json::to_string_pretty(&answer)?) } else { client::text(&answer) })
}

fn recover_trace(args: &RecoverArgs) -> anyhow::Result<ExitCode> {
    let recovered = recover::recover(&args.region, &args.out)?;
    eprint!("{}", recover::text(&recovered));
    eprintln!("strata: trace in {0}; next: strata report {0}, strata check {0}", args.out.display());
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn print_diagnosis(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let diagnosis = doctor::diagnose();
    let text =
        if args.json { format!("{}\n", serde_json::to_string_pretty(&diagnosis)?) } else { diagnosis.to_string() };
    print(&text)?;
    Ok(if diagnosis.runs_guests { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "strata", &mut text);
    print(&String::from_utf8_lossy(&text))
}

fn write_manual(args: &ManualArgs) -> anyhow::Result<ExitCode> {
    let written = clap_mangen::generate_to(Cli::command(), &args.dir);
    written.with_context(|| format!("cannot write manual pages into {}", args.dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
