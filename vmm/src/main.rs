//! `strata`: runs virtual machines and traces every layer of them on one clock.

use anyhow::Context;
use clap::FromArgMatches;
use serde::Serialize;
use shared_ring::consumer::Lost;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fmt};
use strata_analysis::symbol_file;
use strata_jail::inherited::Inherited;
use strata_recorder::control::protocol::Answer;
use strata_recorder::control::wait_trigger::WaitError;
use strata_recorder::control::{answer_text, balloon, client, found_vm, list, wait_trigger};
use strata_recorder::recover;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Manifest;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::{harmless, harmless_json, shell_path};
use trace_merge::check::{self, CheckOptions};
use trace_merge::cut::{self, Cut, CutOptions};
use trace_merge::events::{self, EventsOptions};
use trace_merge::moment::Part;
use trace_merge::report::rows::choice::Choice;
use trace_merge::{critical_path, diff, join, progress, ready_questions, report};
use vmm::attach::{self, AttachRequest, Ending, machines};
use vmm::cli::{
    self, AttachArgs, Cli, Command, CompletionsArgs, CtlArgs, CtlCommand, CutArgs, DiffArgs, DoctorArgs, EventsArgs,
    ManualArgs, MergeArgs, PsArgs, QueryArgs, ReadArgs, RecoverArgs, ReportArgs, ReportCommand, ReportRequest, RunArgs,
    SymbolArgs, TriggerCommand, WhyArgs, advice, completion, config_file,
};
use vmm::output::Output;
use vmm::run::{self, BootEnd, OnReboot, RunRequest};
use vmm::{agent_command, doctor, event_list, export, metrics, open_trace, query_program, region_command, top};

/// The exit status of a command that could not do what was requested, as clap's of wrong options. That of one that did,
/// and whose answer is bad, is [`ExitCode::FAILURE`].
const TROUBLE: u8 = 2;

fn main() -> ExitCode {
    match run_command_line() {
        Ok(code) => code,
        Err(error) => {
            notify(format_args!("{error:#}"));
            ExitCode::from(TROUBLE)
        }
    }
}

fn run_command_line() -> anyhow::Result<ExitCode> {
    completion::answer(cli::program);
    let program = cli::program();
    let words = config_file::with_config(&program, env::args_os().collect())?;
    let matches =
        program.clone().try_get_matches_from(&words).unwrap_or_else(|error| advice::advised(error, &words).exit());
    if let Some(file) = config_file::printed(&program, &matches)? {
        print(&file)?;
        return Ok(ExitCode::SUCCESS);
    }
    dispatch(Cli::from_arg_matches(&matches)?.command)
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run_guest(*args),
        Command::Attach(args) => attach_to_vm(args),
        Command::Events(args) => list_events(args),
        Command::Report(args) => print_report(args),
        Command::Why(args) => explain(&args),
        Command::Diff(args) => compare_traces(&args),
        Command::Check(args) => check_trace(&args),
        Command::Export(args) => {
            export::run(&args, |line| notify(line))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Open(args) => {
            open_trace::run(&args, |line| notify(line))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Query(args) if args.list => list_questions(&args),
        Command::Query(args) => Err(query_program::query(&args).into()),
        Command::Cut(args) => cut_trace(args),
        Command::Merge(args) => merge_traces(&args),
        Command::Ps(args) => list_vms(&args),
        Command::Metrics(args) => {
            metrics::run(&args, |line| notify(line))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Top(args) => {
            top::run(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Ctl(args) => control_vm(args),
        Command::Recover(args) => recover_trace(&args),
        Command::Agent(args) => {
            print(&agent_command::run(&args.command)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Region(args) => {
            print(&region_command::run(&args.command)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Doctor(args) => print_diagnosis(&args),
        Command::Completions(args) => print_completions(&args),
        Command::Manual(args) => write_manual(&args),
    }
}

fn run_guest(args: RunArgs) -> anyhow::Result<ExitCode> {
    let on_reboot = args.on_reboot;
    let mut request = RunRequest::from(args);
    request.jail.inherited = Inherited::note();
    let end = match on_reboot {
        OnReboot::Stop => boot_guest(&request)?,
        OnReboot::Restart => {
            let boot = |request: &RunRequest| {
                boot_guest(request).unwrap_or_else(|error| {
                    notify(format_args!("{error:#}"));
                    BootEnd::NotRun
                })
            };
            run::run_boots(request, boot, |line| notify(line))?
        }
    };
    Ok(match end {
        BootEnd::Done | BootEnd::Rebooted => ExitCode::SUCCESS,
        BootEnd::Failed => ExitCode::FAILURE,
        BootEnd::NotRun => ExitCode::from(TROUBLE),
    })
}

/// Runs the guest once, and says what came of it.
fn boot_guest(request: &RunRequest) -> anyhow::Result<BootEnd> {
    let report = run::run(request, |line| notify(line))?;
    if report.console_dropped > 0 {
        notify(format_args!(
            "{} bytes of the guest's console were dropped: nobody read standard output",
            report.console_dropped
        ));
    }
    notify(&report.outcome);
    if report.trace_failed {
        notify("the VM was stopped because its trace failed, as --on-trace-failure stop asks for; see what is missing");
    }
    if let (Some(manifest), Some(recording)) = (&report.manifest, &request.recording) {
        summarise(manifest, &recording.files.trace);
    }
    Ok(BootEnd::from(&report))
}

fn attach_to_vm(args: AttachArgs) -> anyhow::Result<ExitCode> {
    if args.lists_machines() {
        let known = found_vm::runtime_folders().and_then(|folders| found_vm::list_all(&folders)).unwrap_or_default();
        let machines = machines::running(&known);
        print(&if machines.is_empty() {
            "no process that this user may inspect runs a VM of another VMM\n".into()
        } else {
            machines::text(&machines)
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let inherited = Inherited::note();
    let mut request = AttachRequest::try_from(args)?;
    request.jail.inherited = inherited;
    let report = attach::attach(&request, |line| notify(line))?;
    notify(report.ending);
    summarise(&report.manifest, &request.recording.files.trace);
    let is_as_requested = !matches!(report.ending, Ending::TraceFailed | Ending::RegionCut) && !report.stays_plugged;
    Ok(if is_as_requested { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was recorded, in a few lines on standard error.
fn summarise(manifest: &Manifest, trace: &Path) {
    // From outside of a VM's process there is only one layer to record, or the guest's beside it.
    let is_attached = manifest.vms.iter().any(|vm| vm.attached.is_some());
    let has_layer = |kind| manifest.layers.iter().any(|layer| layer.kind == kind);
    for kind in LayerKind::ALL.into_iter().filter(|kind| !is_attached || has_layer(*kind)) {
        let streams = || manifest.layers.iter().filter(|layer| layer.kind == kind).flat_map(|layer| &layer.streams);
        let records: u64 = streams().map(|stream| stream.records).sum();
        let lost = streams().map(|stream| stream.lost).sum::<Lost>().total();
        notify(format_args!("{kind:<12} {records:>10} records, {lost} lost"));
    }
    let (bound, trace) = (manifest.clock.error_bound_ns, shell_path(trace));
    notify(format_args!("times of different layers agree within {bound} ns"));
    let others = match manifest.compression {
        None => format!("babeltrace2 {trace}"),
        Some(_) => format!("for babeltrace2 strata export {trace} --format ctf -o DIR"),
    };
    notify(format_args!("trace in {trace}; next: strata report {trace}, strata events {trace}, {others}"));
}

fn list_events(args: EventsArgs) -> anyhow::Result<ExitCode> {
    if let Some(layer) = args.list {
        let list = event_list::list(layer, args.agent.as_deref())?;
        print_text_or_json(args.json, &list, event_list::text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Part { from, to } = args.part.of(&args.trace)?;
    let options = EventsOptions {
        layers: args.layers,
        vms: args.vms,
        cpus: args.cpus,
        events: args.events,
        filters: args.filters.unwrap_or_default(),
        tasks: args.tasks,
        from,
        to,
        utc: args.utc,
        json: args.json,
        count: args.count,
    };
    let trace = open(&args.trace, &args.symbols)?;
    let listed = events::list(&trace, &options, &mut Output::new(&args.terminal, false))?;
    if listed.damage.any() {
        notify(listed.damage);
    }
    if let Some(reason) = listed.nothing {
        notify(reason);
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the recording at `trace`, with the symbols of kernels that are given.
fn open(trace: &Path, symbols: &SymbolArgs) -> anyhow::Result<Trace> {
    let (trace, notices) = symbol_file::open(trace, &symbols.kallsyms)?;
    notices.iter().for_each(notify);
    Ok(trace)
}

fn print_report(args: ReportArgs) -> anyhow::Result<ExitCode> {
    match args.into_request().map_err(anyhow::Error::msg)? {
        ReportRequest::Page(args) => export::write_page(&args, |line| notify(line))?,
        ReportRequest::Report(ReportCommand { report, window, symbols, choice }) => {
            let (options, choice) = (window.options()?, Choice::from(*choice));
            let trace = open(&window.trace, &window.kernels)?;
            let mut out = Output::new(&window.terminal, !options.json && !choice.csv);
            let notices = report::chosen::run(report, &trace, &options, symbols.as_deref(), &choice, &mut out)?;
            // Not over the pager.
            drop(out);
            notices.iter().for_each(notify);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn explain(args: &WhyArgs) -> anyhow::Result<ExitCode> {
    critical_path::run(&args.trace, &args.options()?, &mut Output::new(&args.terminal, !args.json))?;
    Ok(ExitCode::SUCCESS)
}

fn compare_traces(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let options = args.options().map_err(anyhow::Error::msg)?;
    let diff = progress::shown("comparing", &|line: &str| notify(line), |progress| {
        diff::diff(&args.first, &args.second, &options, progress)
    })?;
    diff::write(&diff, args.json, &mut Output::new(&args.terminal, !args.json))?;
    Ok(if diff.changed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_trace(args: &ReadArgs) -> anyhow::Result<ExitCode> {
    let verdict = check::run(
        &args.trace,
        &CheckOptions { json: args.json, ..CheckOptions::default() },
        &mut Output::new(&args.terminal, !args.json),
    )?;
    Ok(if verdict.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list_questions(args: &QueryArgs) -> anyhow::Result<ExitCode> {
    // A trace in front of it has no questions of its own.
    let name = args.words.last().filter(|word| !Path::new(word).exists()).map(|name| name.to_string_lossy());
    let mut listed = Vec::new();
    ready_questions::list(name.as_deref(), &mut listed)?;
    print(&String::from_utf8_lossy(&listed))?;
    Ok(ExitCode::SUCCESS)
}

fn cut_trace(args: CutArgs) -> anyhow::Result<ExitCode> {
    let Part { from, to } = Part::of(&args.trace, args.from, args.to)?;
    let trace = open(&args.trace, &args.symbols)?;
    let written = cut::cut_trace(&trace, &CutOptions { layers: args.layers, from, to }, &args.output)?;
    if written.damage.any() {
        notify(format_args!("not taken over: {}", written.damage));
    }
    let Cut { records, bytes, begin_ns, .. } = written;
    let (begin, output) = (report::seconds(begin_ns), shell_path(&args.output));
    let records = counted(records, "record", "records");
    notify(format_args!("{records}, {bytes} bytes; its 0 is at {begin} of {}", shell_path(&args.trace)));
    notify(format_args!("trace in {output}; next: strata check {output}, strata report {output}"));
    Ok(ExitCode::SUCCESS)
}

fn merge_traces(args: &MergeArgs) -> anyhow::Result<ExitCode> {
    let joined = join::join(&args.first, &args.others, &args.rules, &args.output)?;
    if joined.damage.any() {
        notify(format_args!("not taken over: {}", joined.damage));
    }
    if let Some(relation) = &joined.relation {
        notify(format_args!("clocks related by {} pairs, within {} ns", relation.pairs(), joined.relation_bound_ns));
    }
    if joined.shared_host_events > 0 {
        notify(format_args!(
            "{} events of the shared host were in several traces and are kept once",
            joined.shared_host_events
        ));
    }
    let (bound, output) = (joined.manifest.clock.error_bound_ns, shell_path(&args.output));
    notify(format_args!("times of different layers agree within {bound} ns"));
    notify(format_args!("trace in {output}; next: strata check {output}, strata events {output}"));
    Ok(ExitCode::SUCCESS)
}

fn list_vms(args: &PsArgs) -> anyhow::Result<ExitCode> {
    let found = found_vm::list_all(&found_vm::runtime_folders()?)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // JSON has what strata runs or records, and nothing of what it could.
    let machines = if args.json { Vec::new() } else { machines::running(&found) };
    let vms = list::listed(found, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
    print_text_or_json(args.json, &vms, |vms| match machines.as_slice() {
        [] => list::text(vms),
        machines => format!("{}\nof other monitors:\n{}", list::text(vms), machines::text(machines)),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn control_vm(args: CtlArgs) -> anyhow::Result<ExitCode> {
    let runtimes = found_vm::runtime_folders()?;
    let found = client::find(&runtimes, &args.vm)?;
    if let CtlCommand::WaitTrigger { timeout, freeze_others } = args.command {
        let others = if freeze_others { found_vm::list_all(&runtimes)? } else { Vec::new() };
        let others: Vec<_> = others.into_iter().filter(|other| other.alive && other.vm.pid != found.vm.pid).collect();
        let happened = match wait_trigger::wait(&found, timeout, &others) {
            Err(error @ WaitError::TimeOver { .. }) => {
                notify(error);
                return Ok(ExitCode::FAILURE);
            }
            happened => happened?,
        };
        print_text_or_json(args.json, &happened, wait_trigger::text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if matches!(args.command, CtlCommand::Trigger(TriggerCommand::List)) {
        let triggers = wait_trigger::triggers(&found.socket())?;
        print_text_or_json(args.json, &triggers, |triggers| match triggers.as_slice() {
            [] => "no trigger is armed\n".into(),
            triggers => answer_text::triggers_text(triggers),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if let CtlCommand::Balloon { size } = args.command {
        let answer = Answer::Balloon(balloon::request(&found.socket(), size)?);
        print_text_or_json(args.json, &answer, answer_text::text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let request = args.command.request().context("cannot make the path absolute")?;
    let answer = client::call(&found.socket(), &request)?;
    print_text_or_json(args.json, &answer, answer_text::text)?;
    Ok(ExitCode::SUCCESS)
}

fn recover_trace(args: &RecoverArgs) -> anyhow::Result<ExitCode> {
    let recovered = recover::recover(&args.region, &args.out)?;
    recover::text(&recovered).lines().for_each(|line| {
        let _ = writeln!(io::stderr(), "{}", harmless(line));
    });
    notify(format_args!("trace in {0}; next: strata report {0}, strata check {0}", shell_path(&args.out)));
    Ok(ExitCode::SUCCESS)
}

/// Prints `text`. A reader that has closed standard output has seen enough: that is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Prints `value` as JSON, or else as the text that `text` makes of it.
fn print_text_or_json<T: Serialize>(json: bool, value: &T, text: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    print(&if json { format!("{}\n", harmless_json(&serde_json::to_string_pretty(value)?)) } else { text(value) })
}

/// Prints a line on standard error; nothing in it acts on a terminal: it may quote a guest, QEMU or another user's VM.
/// What cannot be printed there has no other place to go.
fn notify(line: impl fmt::Display) {
    // Further lines are set in, so that nothing that is quoted passes for a line of strata's.
    let lines: Vec<String> = line.to_string().lines().map(harmless).collect();
    let _ = writeln!(io::stderr(), "strata: {}", lines.join("\n  "));
}

fn print_diagnosis(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let diagnosis = doctor::diagnose();
    print_text_or_json(args.json, &diagnosis, ToString::to_string)?;
    Ok(if diagnosis.runs_guests { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    print(&completion::script(args.shell)?)?;
    Ok(ExitCode::SUCCESS)
}

fn write_manual(args: &ManualArgs) -> anyhow::Result<ExitCode> {
    let written = clap_mangen::generate_to(cli::program(), &args.dir);
    written.with_context(|| format!("cannot write manual pages into {}", args.dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
