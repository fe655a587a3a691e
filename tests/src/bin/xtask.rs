//! `cargo xtask`: the lab's command line.

use clap::{Parser, Subcommand};
use lab::build::binaries::{self, Purpose};
use lab::build::{debug_kernel as debug_kernel_build, kmod};
use lab::fetch::kernel_packages::{KernelChoice, Suite};
use lab::machine::{emulator, host, nested};
use lab::packaging::{self, Form, Selection};
use lab::paths::Paths;
use lab::scenarios::{claims, debug_kernel, flight_check, flight_recorder, guests, hotplug};
use lab::tasks::suite::{Lengths, Tier};
use lab::tasks::{
    bench, demo, dependencies, documents, fuzz, kmod_matrix, library_crates, pictures, query, scripts, sources, suite,
    torture,
};
use lab::{progress, provision};
use std::path::PathBuf;
use std::process::ExitCode;

/// Builds, demonstrates and tests Strata.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Boot a stock Debian kernel with tracing on and show the merged trace.
    Demo {
        /// The folder to put the trace in; it must not exist.
        #[arg(long, default_value = "strata-demo")]
        out: PathBuf,
        /// Keep the working files of the run.
        #[arg(long)]
        keep: bool,
    },
    /// Test Strata: format, documents, lints, unit, integration, doc and end-to-end tests, a round of torture. CI runs this.
    Test {
        /// Only format, documents, and of crates that have changed since the main branch, committed or not, lints and unit
        /// tests; the latter of crates that depend on them, too.
        #[arg(long, conflicts_with = "all")]
        quick: bool,
        /// Also every kernel, every form of package, kernels that check themselves, `cargo xtask query`, fuzzing and torture:
        /// many hours. docs/verification.md says when that was done last.
        #[arg(long)]
        all: bool,
        /// With --all: how long the torture takes, minutes.
        #[arg(long, value_name = "N", default_value_t = 120, requires = "all", value_parser = clap::value_parser!(u64).range(1..=10_080))]
        torture_minutes: u64,
        /// With --all: how long each target is fuzzed, minutes.
        #[arg(long, value_name = "N", default_value_t = 15, requires = "all", value_parser = clap::value_parser!(u64).range(1..=10_080))]
        fuzz_minutes: u64,
        /// With --all: how long each kernel that checks itself is tried, minutes.
        #[arg(long, value_name = "N", default_value_t = 10, requires = "all", value_parser = clap::value_parser!(u64).range(1..=1440))]
        debug_kernel_minutes: u64,
        /// The seed of emulated hosts: what they do in virtual time follows from it.
        #[arg(long, value_name = "N", default_value_t = emulator::SEED, conflicts_with = "quick")]
        lab_seed: u32,
        /// Write steps and tests, their times and outcomes to FILE as JSON too; to the standard output without one.
        #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
        json: Option<PathBuf>,
    },
    /// Check the documents: width of lines, links, paths of the source tree.
    Documents,
    /// Take the documents' pictures anew, of the shipped recording: of the page and of Perfetto's viewer.
    Pictures,
    /// Check the sources for what no lint finds: imports in one block, derives in one order, shell programs.
    Sources,
    /// Check the crates that the workspace is built from: reasons in docs/dependencies.md, registry, licences,
    /// versions.
    Dependencies,
    /// Package the crates that other projects can use, and check them with the oldest Rust that they promise.
    Crates,
    /// Build and test strata-query, a workspace of its own, with DuckDB as a judge. The first build takes a quarter of
    /// an hour.
    Query {
        /// Compare what DuckDB reads of this recording with its reports, too; with --spark, copy it.
        #[arg(long, value_name = "DIR")]
        trace: Option<PathBuf>,
        /// Test the job on Spark instead: 60 recordings, three workers; one worker is killed.
        #[arg(long)]
        spark: bool,
    },
    /// Fuzz the readers of guest bytes and of recordings.
    Fuzz {
        /// Only this target: the name of a file in fuzz/fuzz_targets.
        target: Option<String>,
        /// Seconds for each target.
        #[arg(long, value_name = "N", default_value_t = fuzz::SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
        /// Where the inputs start from: the same ones from the same number, others each time from 0.
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u32,
    },
    /// Attack the recorder of VMs, let things fail beside it, and check what is promised; needs no KVM.
    Torture {
        /// How long, minutes; every fault has its turn in any case. Without it, under a minute.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_080))]
        minutes: Option<u64>,
        /// Where chance begins; another number each time unless given.
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// The first round.
        #[arg(long, value_name = "N", default_value_t = 0)]
        first_round: u64,
        /// This many rounds, however long they take.
        #[arg(long, value_name = "N")]
        rounds: Option<u64>,
        /// Short rounds, until each fault has had so many ends by SIGTERM, or recorders that were killed.
        #[arg(long, value_name = "N", conflicts_with = "rounds")]
        ends: Option<u64>,
        /// Put the tables into docs/results/torture.md too.
        #[arg(long)]
        update_document: bool,
    },
    /// Build the guest kernel module for one kernel and check its object code; or, with --matrix, for every kernel that
    /// Debian's suites hold.
    Kmod {
        /// The kernel's header tree: what `make -C` takes, such as /lib/modules/VERSION/build.
        #[arg(long, value_name = "DIR", required_unless_present = "matrix")]
        kernel_headers: Option<PathBuf>,
        /// The kernel's BTF, raw or in an ELF file: private structures come from it.
        #[arg(long, value_name = "FILE")]
        btf: Option<PathBuf>,
        /// The module to write.
        #[arg(long, value_name = "FILE", default_value = "strata.ko")]
        out: PathBuf,
        /// Build for each kernel of Debian from 5.10 on, one after the other, and show a table; keep no module. Hours.
        #[arg(long, conflicts_with_all = ["kernel_headers", "btf", "out"])]
        matrix: bool,
        /// With --matrix: only this kernel: bullseye, bookworm, bookworm-backports, trixie, trixie-backports, forky or sid,
        /// with -generic or -rt or without. May be repeated.
        #[arg(long = "kernel", value_name = "KERNEL", requires = "matrix", value_parser = KernelChoice::parse_with_module)]
        kernels: Vec<KernelChoice>,
        /// With --matrix: write the rows to FILE as JSON too.
        #[arg(long, value_name = "FILE", requires = "matrix")]
        json: Option<PathBuf>,
        /// With --matrix: put a table into docs/events.md too.
        #[arg(long, requires = "matrix")]
        update_document: bool,
    },
    /// Make what people install: Debian packages, RPMs, an archive for any Linux, an image for containers, with
    /// ready-made modules for Debian's kernels.
    Dist {
        /// The folder to put them in.
        #[arg(long, default_value = "target/dist")]
        out: PathBuf,
        /// Only this form. May be repeated.
        #[arg(long = "form", value_enum, value_name = "FORM")]
        forms: Vec<Form>,
        /// Modules for this kernel of Debian only: bookworm, bookworm-backports or trixie-backports, with -generic or
        /// without. May be repeated.
        #[arg(long = "kernel", value_name = "KERNEL")]
        kernels: Vec<KernelChoice>,
        /// Leave out strata-query, which takes long to build.
        #[arg(long)]
        no_query: bool,
    },
    /// Measure what parts of Strata cost, beside other tracers.
    #[command(subcommand)]
    Bench(BenchTask),
    /// The lab itself.
    #[command(subcommand)]
    Lab(LabTask),
}

#[derive(Subcommand)]
enum BenchTask {
    /// How fast recordings are read, merged and shown, beside babeltrace2 and trace-cmd, and reports made; in how much
    /// memory.
    Merge {
        /// Samples per case, at least 5.
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..))]
        repetitions: u16,
        /// Records of each recording.
        #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
        events: u64,
        /// Records of the recording of all layers that reports are made of.
        #[arg(long, value_name = "N", default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
        report_events: u64,
        /// Only this part.
        #[arg(long)]
        only: Option<bench::merge::Part>,
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Put the tables into docs/performance.md too.
        #[arg(long, conflicts_with = "only")]
        update_document: bool,
    },
    /// Reading the trace clock, beside the bare counter, the system's clock and other ways to publish a clock.
    Clock {
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Bringing a recording into each form on one processor, beside babeltrace2's text; ready questions beside DuckDB.
    Export {
        /// Turns, at least 5; in each, every program runs once.
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..))]
        repetitions: u16,
        /// Records of the recording; another of ten times as many is made for what memory they take.
        #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1000..))]
        events: u64,
        /// Measure Parquet and questions about it, too: builds strata-query, which takes a quarter of an hour at first.
        #[arg(long)]
        parquet: bool,
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Taking recordings into a lake on Spark beside the exporter under xargs, and the ready questions beside DuckDB.
    Fleet {
        /// Recordings.
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(2..))]
        recordings: u16,
        /// Records of the largest; the smallest has 20,000.
        #[arg(long, value_name = "N", default_value_t = 200_000)]
        events: u64,
    },
    /// What tracing a guest's kernel costs the guest, beside ftrace and LTTng's modules.
    Guest {
        /// Guests for each way of tracing, at least 5.
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..))]
        repetitions: u16,
        /// Guests for each way at most: so many more, in further turns, while noise leaves a goal undecided.
        #[arg(long, value_name = "N", default_value_t = 15)]
        most: u16,
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// What recording the host's kernel costs the recorder for each record, beside `trace-cmd record`, which gets the
    /// machine's own trace buffer, and beside moving pages into files.
    Host {
        /// Turns, at least 5; in each, every way records once.
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..))]
        repetitions: u16,
        /// System calls that each of two threads makes, a million and a quarter a second; each is two records.
        #[arg(long, value_name = "N", default_value_t = 2_500_000, value_parser = clap::value_parser!(u64).range(1..))]
        calls: u64,
        /// Compare with this other build of the example host_layer_cost of vmm.
        #[arg(long, value_name = "PROGRAM")]
        beside: Option<PathBuf>,
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// What a recorder costs the host while the guest does nothing, and what it loses when the guest wakes up.
    Idle {
        /// How long the guest does nothing in each turn, seconds.
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        seconds: u32,
        /// Turns, at least 5.
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..))]
        repetitions: u16,
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// How many instructions a record takes on each path, by callgrind; fails where it is more than 3 % more than
    /// docs/results/instructions.json says.
    Instructions {
        /// Count only the paths through the rings, as `cargo xtask test` does: seconds.
        #[arg(long, conflicts_with = "update_document")]
        rings: bool,
        /// Put the counts into docs/results/instructions.json, and the table into docs/results/instructions.md.
        #[arg(long)]
        update_document: bool,
    },
    /// How our machine boots, reads its disk and uses its network, beside QEMU's microvm; what tracing adds to loads in
    /// either.
    Machine {
        /// Guests for each way, at least 5.
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..))]
        repetitions: u16,
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// What recording an event costs, beside LTTng-UST, ftrace and the bare clock; what draining costs beside cp.
    Ring {
        /// Samples per case, at least 7.
        #[arg(long, value_name = "N", default_value_t = 11)]
        repetitions: usize,
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Put the tables into docs/performance.md too.
        #[arg(long)]
        update_document: bool,
    },
    /// Explaining the ten worst waits of a task: time and memory; what ten triggers cost for each record.
    Why {
        /// Turns, at least 5; in each, every program runs once.
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(5..))]
        repetitions: u16,
        /// Records of the recording; another of a tenth as many is made for what memory they take.
        #[arg(long, value_name = "N", default_value_t = 20_000_000)]
        #[arg(value_parser = clap::value_parser!(u64).range(1000..))]
        events: u64,
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// What a look at the rings of a guest of many vCPUs, sessions and processes costs; how well up to as many producers as
    /// there are CPUs record beside each other and a recorder.
    Wide {
        /// Turns, at least 5.
        #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u16).range(5..))]
        repetitions: u16,
        /// Write the results to FILE as JSON too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
enum LabTask {
    /// Install tools, fetch and unpack the kernel, build module, programs and guest image.
    Provision {
        /// Only what comes from packages; build nothing.
        #[arg(long)]
        packages_only: bool,
        /// Only this kernel for guests, with its headers and its module: bookworm (6.1), bookworm-backports (6.12),
        /// trixie-backports (7.3 at the time of writing); with -generic or -rt in place of the cloud flavour
        #[arg(long, value_name = "SUITE")]
        kernel: Option<KernelChoice>,
    },
    /// Let a flight recorder run, take snapshots, let the guest panic; kill another guest's VMM and recover its trace;
    /// judge all traces.
    ///
    /// Example: cargo xtask lab flight --seconds 180
    Flight {
        /// How long each guest works, seconds.
        #[arg(long, value_name = "N", default_value_t = flight_recorder::SECONDS, value_parser = clap::value_parser!(u64).range(2..=86_400))]
        seconds: u64,
    },
    /// Let a guest's CPU go and come while its modules and the events that are wanted change.
    ///
    /// Example: cargo xtask lab hotplug --cycles 200
    Hotplug {
        /// How often the CPU goes and comes.
        #[arg(long, value_name = "N", default_value_t = hotplug::CYCLES, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        cycles: u64,
    },
    /// Measure how long a guest's processes wait for their slots of the trace region while others claim and return
    /// theirs, with 2 vCPUs and with many.
    ///
    /// Example: cargo xtask lab claims --vcpus 64
    Claims {
        /// vCPUs of the larger guest: a slot has a ring for each.
        #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(3..=128))]
        vcpus: u32,
    },
    /// Build a kernel that checks its locks, memory, timers and contexts, and let it run the agent, with everything
    /// that the agent can be asked for at once. Needs no KVM.
    ///
    /// Example: cargo xtask lab debug-kernel trixie-backports --minutes 10
    DebugKernel {
        /// Where the kernel's sources come from: bookworm (6.1), bookworm-backports (6.12), trixie-backports (7.3 at
        /// the time of writing)
        #[arg(value_name = "SUITE", default_value = "bookworm")]
        suite: Suite,
        /// How long the guest works, minutes.
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1440))]
        minutes: u64,
    },
    /// Run a shell script on an emulated host: a stock kernel with KVM.
    Run {
        /// The script; it finds the files in $LAB and leaves results in $LAB_OUT.
        script: PathBuf,
        /// Files to give to the script.
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let paths = Paths::of_workspace();
    match arguments.command {
        Task::Demo { out, keep } => demo::run(&paths, &out, keep)?,
        Task::Test { quick, all, torture_minutes, fuzz_minutes, debug_kernel_minutes, lab_seed, json } => {
            let lengths = Lengths { torture: torture_minutes, fuzz: fuzz_minutes, debug_kernel: debug_kernel_minutes };
            let tier = match (quick, all) {
                (true, _) => Tier::Quick,
                (false, true) => Tier::All(lengths),
                (false, false) => Tier::Usual,
            };
            suite::run(&paths, tier, lab_seed, json.as_deref())?;
        }
        Task::Documents => documents::check(&paths)?,
        Task::Pictures => pictures::take(&paths)?,
        Task::Sources => {
            sources::check(&paths)?;
            scripts::check(&paths)?;
        }
        Task::Dependencies => dependencies::check(&paths)?,
        Task::Crates => library_crates::check(&paths)?,
        Task::Query { trace, spark: false } => query::run(&paths, trace.as_deref())?,
        Task::Query { trace, spark: true } => query::run_on_spark(&paths, trace.as_deref())?,
        Task::Fuzz { target, seconds, seed } => fuzz::run(&paths, seconds, target.as_deref(), seed)?,
        Task::Torture { minutes, seed, first_round, rounds, ends, update_document } => {
            torture::run(&paths, &torture::Options { minutes, seed, first_round, rounds, ends, update_document })?;
        }
        Task::Kmod { kernel_headers: None, kernels, json, update_document, .. } => {
            kmod_matrix::run(&paths, &kmod_matrix::Options { kernels, json, update_document })?;
        }
        Task::Kmod { kernel_headers: Some(kernel_headers), btf, out, .. } => {
            let build = || kmod::build(&paths, &kernel_headers, btf.as_deref(), &out);
            progress::step("building the guest kernel module", build)?;
            println!("{}: `strata events --list guest-kernel --agent` shows its events", out.display());
        }
        Task::Dist { out, forms, kernels, no_query } => {
            let forms = if forms.is_empty() { Form::ALL.to_vec() } else { forms };
            let kernels = if kernels.is_empty() { packaging::kernels() } else { kernels };
            let selection = Selection { forms: &forms, kernels: &kernels, query: !no_query };
            for file in packaging::build(&paths, Purpose::Release, &std::path::absolute(out)?, selection)? {
                println!("{}", file.display());
            }
        }
        Task::Bench(BenchTask::Clock { json }) => bench::clock::run(&paths, json.as_deref())?,
        Task::Bench(BenchTask::Export { repetitions, events, parquet, json }) => {
            let repetitions = repetitions.into();
            bench::export::run(&paths, &bench::export::Options { repetitions, events, parquet, json })?;
        }
        Task::Bench(BenchTask::Fleet { recordings, events }) => bench::fleet::run(&paths, recordings, events)?,
        Task::Bench(BenchTask::Guest { repetitions, most, json }) => {
            let (repetitions, most) = (repetitions.into(), most.into());
            bench::guest::run(&paths, &bench::guest::Options { repetitions, most, json })?;
        }
        Task::Bench(BenchTask::Host { repetitions, calls, beside, json }) => {
            let options = bench::host::Options { repetitions: repetitions.into(), calls, beside, json };
            bench::host::run(&paths, &options)?;
        }
        Task::Bench(BenchTask::Idle { seconds, repetitions, json }) => {
            bench::idle::run(&paths, &bench::idle::Options { seconds, repetitions, json })?;
        }
        Task::Bench(BenchTask::Instructions { rings: true, .. }) => {
            print!("{}", bench::instructions::check_recording(&paths)?);
        }
        Task::Bench(BenchTask::Instructions { update_document, .. }) => {
            bench::instructions::run(&paths, update_document)?
        }
        Task::Bench(BenchTask::Machine { repetitions, json }) => {
            bench::machine::run(&paths, &bench::machine::Options { repetitions: repetitions.into(), json })?;
        }
        Task::Bench(BenchTask::Merge { repetitions, events, report_events, only, json, update_document }) => {
            let repetitions = repetitions.into();
            let options = bench::merge::Options { repetitions, events, report_events, only, json, update_document };
            bench::merge::run(&paths, &options)?;
        }
        Task::Bench(BenchTask::Ring { repetitions, json, update_document }) => {
            bench::ring::run(&paths, &bench::ring::Options { repetitions, json, update_document })?;
        }
        Task::Bench(BenchTask::Wide { repetitions, json }) => bench::wide::run(&paths, repetitions, json.as_deref())?,
        Task::Bench(BenchTask::Why { repetitions, events, json }) => {
            bench::why::run(&paths, &bench::why::Options { repetitions: repetitions.into(), events, json })?;
        }
        Task::Lab(LabTask::Provision { packages_only, kernel: Some(choice) }) => {
            let kernels = provision::kernel(&paths, choice)?;
            println!("{}\n{}", kernels.vmlinux.display(), kernels.headers.display());
            if !packages_only {
                println!("{}", provision::agent_for(&paths, &kernels)?.display());
            }
        }
        Task::Lab(LabTask::Provision { packages_only: true, kernel: None }) => {
            let kernels = provision::kernels(&paths, true)?;
            let image = paths.images().join("guest.cpio");
            guests::guest_image(&kernels)?.write_file(&image)?;
            println!("{}\n{}", kernels.vmlinux.display(), image.display());
        }
        Task::Lab(LabTask::Provision { packages_only: false, kernel: None }) => {
            let lab = provision::lab(&paths)?;
            println!("{}", lab.agent.display());
        }
        Task::Lab(LabTask::Flight { seconds }) => run_flight(&paths, seconds)?,
        Task::Lab(LabTask::Hotplug { cycles }) => run_hotplug(&paths, cycles)?,
        Task::Lab(LabTask::Claims { vcpus }) => run_claims(&paths, vcpus)?,
        Task::Lab(LabTask::DebugKernel { suite, minutes }) => run_debug_kernel(&paths, suite, minutes)?,
        Task::Lab(LabTask::Run { script, files }) => run_script(&paths, &script, &files)?,
    }
    Ok(())
}

fn run_flight(paths: &Paths, seconds: u64) -> anyhow::Result<()> {
    let lab = provision::lab(paths)?;
    let result = progress::step("running the flight recorder, a panic and a kill", || {
        flight_recorder::run(&lab, "flight-long", seconds)
    })?;
    let strata = binaries::located(paths, Purpose::Test).strata;
    let findings = progress::step("judging the traces", || flight_check::check(&result.output, &strata))?;
    findings.iter().for_each(|finding| println!("{finding}"));
    progress::note(&format!("results in {}", result.output.display()));
    Ok(())
}

fn run_hotplug(paths: &Paths, cycles: u64) -> anyhow::Result<()> {
    let lab = provision::lab(paths)?;
    let result =
        progress::step("running CPU hotplug beside other changes", || hotplug::run(&lab, "hotplug-long", cycles))?;
    let console = std::fs::read(result.output.join("hotplug.log"))?;
    let console = String::from_utf8_lossy(&console);
    let done = console.lines().filter(|line| line.starts_with("cycle ")).count();
    progress::note(&format!("{done} of {cycles} cycles; results in {}", result.output.display()));
    anyhow::ensure!(console.contains(hotplug::CLEAN), "the guest's kernel complained, or did not come to its end");
    Ok(())
}

fn run_claims(paths: &Paths, vcpus: u32) -> anyhow::Result<()> {
    let lab = provision::lab(paths)?;
    let result = progress::step("measuring claims of process slots", || claims::run(&lab, "claims", vcpus))?;
    println!("| vCPUs | other processes | waits for | times | median, µs | 99 %, µs | worst, µs |");
    println!("|---:|---:|---|---:|---:|---:|---:|");
    for vcpus in [claims::FEW, vcpus] {
        let console = std::fs::read(result.output.join(format!("claims-{vcpus}.log")))?;
        let console = String::from_utf8_lossy(&console);
        console.lines().filter(|line| line.starts_with("| ")).for_each(|row| println!("| {vcpus} {row}"));
        let status = std::fs::read_to_string(result.output.join(format!("claims-{vcpus}.status")))?;
        let is_whole = status.trim() == "0" && console.contains("claims done");
        anyhow::ensure!(
            is_whole,
            "the guest of {vcpus} vCPUs did not come to its end; see {}",
            result.output.display()
        );
        anyhow::ensure!(!console.contains("log has warnings"), "the kernel of {vcpus} vCPUs complained");
    }
    progress::note(&format!("results in {}", result.output.display()));
    Ok(())
}

fn run_debug_kernel(paths: &Paths, suite: Suite, minutes: u64) -> anyhow::Result<()> {
    provision::kernels(paths, true)?;
    let built = debug_kernel_build::build(paths, suite)?;
    let name = format!("debug-kernel-{}", suite.name());
    let title = format!("running the agent on {} for {minutes} minutes", built.kernels.packages.release);
    let result = progress::step(&title, || debug_kernel::run(paths, &built, &name, minutes * 60))?;
    let counts = result.console.lines().filter(|line| line.ends_with(" times"));
    counts.chain(result.control.lines().last()).for_each(progress::note);
    let complaints = result.complaints();
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    progress::note(&format!("results in {}", result.folder.display()));
    anyhow::ensure!(complaints.is_empty(), "the guest's kernel complained, or did not come to its end");
    Ok(())
}

fn run_script(paths: &Paths, script: &PathBuf, files: &[PathBuf]) -> anyhow::Result<()> {
    let kernels = provision::kernels(paths, true)?;
    let text = std::fs::read_to_string(script)
        .map_err(|error| anyhow::anyhow!("cannot read {}: {error}", script.display()))?;
    let mut request = host::HostRun::new("script", &text);
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        request = request.file(&name, file);
    }
    let result = progress::step("running the script on an emulated host", || {
        nested::run(&kernels.nested_host(paths)?, &paths.runs(), &request).map_err(anyhow::Error::from)
    })?;
    print!("{}", std::fs::read_to_string(&result.script_log).unwrap_or_default());
    progress::note(&format!("status {}, results in {}", result.status, result.output.display()));
    anyhow::ensure!(result.status == 0, "the script failed");
    Ok(())
}
