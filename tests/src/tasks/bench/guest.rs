//! `cargo xtask bench guest`: what tracing the guest's kernel costs the guest, beside ftrace and LTTng.
//!
//! Each way of tracing gets a guest of its own, one after the other on one emulated (or this) host, in turns. In it,
//! `kernel_cost` calls a system call that does nothing and lets two tasks answer each other; all tracers record the
//! same events, into rings that overwrite.

use super::goal::{self, Goal, Verdict};
use super::quantile;
use crate::build::binaries::{self, Purpose};
use crate::build::lttng_modules::LttngModules;
use crate::machine::host::{Host, HostRun};
use crate::paths::Paths;
use crate::progress;
use crate::provision::{self, Lab};
use anyhow::Context;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;

/// What Strata records in the guest; the scripts below name the same events to the others.
const STRATA_EVENTS: &str = "guest:raw_syscalls:*,guest:sched:sched_switch,guest:sched:sched_wakeup";
/// What is recorded of the host in every run, for counting exits.
const HOST_EVENTS: &str = "vmm:*,host:kvm:kvm_entry,host:kvm:kvm_exit";
/// System calls of the `getppid` part, warm-up included: see the guest program.
const GETPPID_CALLS: u32 = 8 * 20_000;
/// Records of one such call: its entry and its exit.
const RECORDS_PER_CALL: u32 = 2;

/// Has ftrace record the same events.
macro_rules! ftrace_setup {
    () => {
        "\
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo x86-tsc > trace_clock
echo 4096 > buffer_size_kb
for event in raw_syscalls/sys_enter raw_syscalls/sys_exit sched/sched_switch sched/sched_wakeup; do
    echo 1 > events/$event/enable
done
"
    };
}

const FTRACE_SCRIPT: &str = concat!(ftrace_setup!(), "kernel_cost\ngrep -h '^entries\\|^overrun' per_cpu/cpu0/stats\n");
/// Its probes are called and record nothing: what is left is the kernel's way to any tracer's probes.
const FTRACE_OFF_SCRIPT: &str = concat!(ftrace_setup!(), "echo 0 > tracing_on\nkernel_cost\n");

const LTTNG_SCRIPT: &str = "\
mount -t tmpfs tmpfs /dev/shm 2> /dev/null || { mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm; }
mkdir -p /var/run /root /tmp/out
export HOME=/root
ip link set lo up 2> /dev/null
/usr/bin/lttng-sessiond --kmod-probes=sched --daemonize || exit 1
lttng=/usr/bin/lttng
$lttng create bench --snapshot --output=/tmp/out
$lttng enable-channel --kernel bench --subbuf-size=512K --num-subbuf=8
$lttng enable-event --kernel --channel=bench --syscall --all
$lttng enable-event --kernel --channel=bench sched_switch,sched_wakeup
$lttng start || exit 1
kernel_cost
$lttng snapshot record
du -sk /tmp/out
";

/// A way of tracing.
struct Way {
    key: &'static str,
    label: &'static str,
    /// Arguments of `strata run` besides the usual.
    arguments: &'static str,
    /// What the guest does.
    script: &'static str,
}

const WAYS: [Way; 6] = [
    Way { key: "none", label: "nothing", arguments: "--no-agent", script: "kernel_cost\n" },
    Way { key: "off", label: "Strata, loaded, off", arguments: "--agent \"$LAB/strata.ko\"", script: "kernel_cost\n" },
    Way {
        key: "strata",
        label: "Strata",
        arguments: "--agent \"$LAB/strata.ko\" --mode flight-recorder --sub-buffer-size 512K --sub-buffers 8",
        script: "kernel_cost\n",
    },
    Way {
        key: "probes",
        label: "ftrace, rings off: probes called",
        arguments: "--no-agent",
        script: FTRACE_OFF_SCRIPT,
    },
    Way { key: "ftrace", label: "ftrace, clock x86-tsc", arguments: "--no-agent", script: FTRACE_SCRIPT },
    Way { key: "lttng", label: "lttng-modules", arguments: "--no-agent", script: LTTNG_SCRIPT },
];

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Guests of each way, at first.
    pub repetitions: usize,
    /// Guests of each way at most: so many more, while a goal is neither met nor missed.
    pub most: usize,
    /// Where to write the results as JSON.
    pub json: Option<PathBuf>,
}

/// What one path costs under one way of tracing.
#[derive(Debug, Serialize)]
struct Cost {
    /// Median over all turns of all guests, ns of guest time.
    nanoseconds: f64,
    /// First and third quartile.
    quartiles: [f64; 2],
    /// Number of turns that were measured.
    samples: usize,
}

/// What one guest measured: ns of an operation, one for each of its turns, and the exits of its whole life.
#[derive(Debug, Default)]
struct Guest {
    getppid: Vec<f64>,
    ping_pong: Vec<f64>,
    exits: f64,
}

/// The guests of one way of tracing, in their order: those of the same place in it ran one after the other.
type Guests = Vec<Guest>;

#[derive(Debug, Serialize)]
struct Row {
    way: &'static str,
    label: &'static str,
    getppid: Cost,
    ping_pong: Cost,
    /// Exits of the guest's whole life, median of its runs.
    exits: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    host: &'static str,
    repetitions: usize,
    rows: Vec<Row>,
    goals: Vec<Goal>,
    missing: Vec<String>,
}

/// Runs the benchmark; its table goes to standard output.
///
/// Where LTTng cannot be had, the rest is measured and the table says what is missing.
///
/// # Errors
///
/// When the lab cannot be made ready, the host fails, or a guest measures nothing.
pub fn run(paths: &Paths, options: &Options) -> anyhow::Result<()> {
    let lab = provision::lab_to_measure(paths)?;
    let program = progress::step("building the guest's program", || {
        binaries::build_example(paths, Purpose::Release, "kernel_cost")
    })?;
    let lttng = progress::step("building LTTng's modules", || LttngModules::build(paths, &lab.kernels));
    let mut missing = Vec::new();
    let image = paths.images().join("bench-guest.cpio");
    let mut guest = lab.kernels.guest_image()?.program("kernel_cost", &program);
    match lttng {
        Ok(lttng) => guest = lttng.add_to(guest)?,
        Err(error) => missing.push(format!("lttng-modules: {:#}", anyhow::Error::from(error))),
    }
    guest = WAYS.iter().fold(guest, |guest, way| guest.script(way.key, way.script));
    guest.write_file(&image)?;

    let ways: Vec<&Way> = WAYS.iter().filter(|way| way.key != "lttng" || missing.is_empty()).collect();
    let most = options.most.max(options.repetitions);
    let mut measured: BTreeMap<&'static str, Guests> = BTreeMap::new();
    let report = loop {
        let done = measured.values().map(Vec::len).next().unwrap_or(0);
        let more = options.repetitions.min(most.saturating_sub(done));
        let title = format!("running guests {} to {} of each way", done + 1, done + more);
        let output = progress::step(&title, || run_guests(&lab, &image, &ways, more))?;
        for way in &ways {
            let guests = (0..more).map(|turn| guest_of(&output, &format!("{}-{turn}", way.key)));
            measured.entry(way.key).or_default().extend(guests.collect::<anyhow::Result<Guests>>()?);
        }
        let report = report(&lab, &ways, &measured, missing.clone());
        let is_unsure = report.goals.iter().any(|goal| goal.verdict == Verdict::NotMeasured);
        if !is_unsure || done + more >= most {
            break report;
        }
    };
    println!("{}", markdown(&report));
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&report)?;
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Runs `count` guests of each way, in turns, on one host; returns the folder of what they left.
fn run_guests(lab: &Lab, image: &Path, ways: &[&Way], count: usize) -> anyhow::Result<PathBuf> {
    let guests = u64::try_from(ways.len() * count).unwrap_or(u64::MAX);
    let mut request = HostRun::new("bench-guest", &host_script(ways, count))
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", image)
        .file("strata.ko", &lab.agent);
    request.timeout = Duration::from_secs(guests.saturating_mul(60).saturating_add(120));
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success("bench-guest")?.output)
}

/// What the guest `name` measured.
fn guest_of(output: &Path, name: &str) -> anyhow::Result<Guest> {
    let log = output.join(format!("{name}.log"));
    let console = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let console = String::from_utf8_lossy(&console);
    let (getppid, ping_pong) = (measured(&console, "getppid"), measured(&console, "ping-pong"));
    anyhow::ensure!(!getppid.is_empty() && !ping_pong.is_empty(), "the guest measured nothing; see {}", log.display());
    Ok(Guest { getppid, ping_pong, exits: exits_of(&output.join(format!("{name}.trace")))? })
}

fn host_script(ways: &[&Way], repetitions: usize) -> String {
    let mut script = String::new();
    for turn in 0..repetitions {
        for Way { key, arguments, .. } in ways {
            let events = if *key == "strata" { format!("{HOST_EVENTS},{STRATA_EVENTS}") } else { HOST_EVENTS.into() };
            let _ = write!(
                script,
                r#"
timeout -s KILL 110 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --cpus 2 --memory 768M \
    --cmdline "$GUEST lab.script={key}" --events '{events}' \
    --trace "$LAB_OUT/{key}-{turn}.trace" {arguments} < /dev/null > "$LAB_OUT/{key}-{turn}.log" 2>&1
echo {key}-{turn} $?
"#
            );
        }
    }
    script
}

/// The measured values of one path in one guest's console.
fn measured(console: &str, path: &str) -> Vec<f64> {
    let prefix = format!("kernel_cost: {path} ");
    console.lines().filter_map(|line| line.trim().strip_prefix(&prefix)?.strip_suffix(" ns")?.parse().ok()).collect()
}

impl Cost {
    fn of(mut samples: Vec<f64>) -> Self {
        let [first, median, third] = [1, 2, 3].map(|quarters| quantile(&mut samples, quarters));
        Self { nanoseconds: median, quartiles: [first, third], samples: samples.len() }
    }
}

fn report(lab: &Lab, ways: &[&Way], measured: &BTreeMap<&'static str, Guests>, missing: Vec<String>) -> Report {
    let rows = ways.iter().filter_map(|way| {
        let guests = measured.get(way.key)?;
        let all =
            |(_, path): Measurement| Cost::of(guests.iter().flat_map(|guest| path(guest).iter().copied()).collect());
        let mut exits: Vec<f64> = guests.iter().map(|guest| guest.exits).collect();
        let exits = quantile(&mut exits, 2);
        Some(Row { way: way.key, label: way.label, getppid: all(GETPPID), ping_pong: all(PING_PONG), exits })
    });
    let host = match lab.host {
        Host::Direct(_) => "this machine",
        Host::Nested(_) => "an emulated machine, whose time counts instructions rather than cycles",
    };
    let rows: Vec<Row> = rows.collect();
    let repetitions = measured.values().map(Vec::len).next().unwrap_or(0);
    let goals = goals(measured);
    Report { kernel: lab.kernels.packages.release.clone(), host, repetitions, rows, goals, missing }
}

/// The number of exits in a trace.
fn exits_of(trace: &Path) -> anyhow::Result<f64> {
    let trace = Trace::open(trace)?;
    let layers = trace.layers_of(LayerKind::HostKernel);
    let records = layers.flat_map(|layer| layer.streams.iter().flat_map(|stream| layer.records(stream)));
    let exits = records.filter(|record| record.schema.name() == "kvm:kvm_exit").count();
    Ok(f64::from(u32::try_from(exits)?))
}

/// A path of the kernel that is measured: its name, and what a guest measured of it.
type Measurement = (&'static str, fn(&Guest) -> &[f64]);

const GETPPID: Measurement = ("getppid", |guest| &guest.getppid);
const PING_PONG: Measurement = ("ping-pong", |guest| &guest.ping_pong);

/// The median of `path` over those of `guests` that were chosen; one that was chosen twice counts twice.
fn median(guests: &[Guest], chosen: &[usize], path: fn(&Guest) -> &[f64]) -> f64 {
    let mut values: Vec<f64> = chosen.iter().flat_map(|&guest| path(&guests[guest]).iter().copied()).collect();
    quantile(&mut values, 2)
}

fn goals(measured: &BTreeMap<&'static str, Guests>) -> Vec<Goal> {
    let mut goals = Vec::new();
    let Some((none, ours)) = measured.get("none").zip(measured.get("strata")) else { return goals };
    let turns = none.len();
    for way in WAYS.iter().filter(|way| ["ftrace", "lttng"].contains(&way.key)) {
        let Some(rival) = measured.get(way.key) else { continue };
        for (name, path) in [GETPPID, PING_PONG] {
            let title = format!("{name}: cost added by Strata / by {}", way.label);
            goals.push(Goal::of(title, 0.5, turns, |chosen| {
                let base = median(none, chosen, path);
                goal::ratio_of_added(median(ours, chosen, path) - base, median(rival, chosen, path) - base)
            }));
        }
    }
    let Some(off) = measured.get("off") else { return goals };
    for (name, path) in [GETPPID, PING_PONG] {
        goals.push(Goal::of(format!("{name}: loaded but off / nothing"), 1.05, turns, |chosen| {
            Some(median(off, chosen, path) / median(none, chosen, path))
        }));
    }
    // the module's attaching of probes has exits too, whether or not anything is recorded
    let records = f64::from(GETPPID_CALLS * RECORDS_PER_CALL);
    let title = "exits per record, beside those of the module loaded but off".to_owned();
    goals.push(Goal::of(title, 0.01, turns, |chosen| {
        let exits = |guests: &[Guest]| {
            let mut exits: Vec<f64> = chosen.iter().map(|&guest| guests[guest].exits).collect();
            quantile(&mut exits, 2)
        };
        Some((exits(ours) - exits(off)) / records)
    }));
    goals
}

fn markdown(report: &Report) -> String {
    let mut text = format!(
        "Guest kernel {}, on {}. {} guests each, in turns; ns of the guest's clock, medians (quartiles). Events: \
         {STRATA_EVENTS}; all rings overwrite.\n\n| tracing | getppid | ping-pong | added to getppid | added to ping-pong | exits |\n\
         |---|---|---|---|---|---|\n",
        report.kernel, report.host, report.repetitions
    );
    let none = report.rows.first();
    for row in &report.rows {
        let added = |value: f64, base: Option<f64>| base.map_or(f64::NAN, |base| value - base);
        let cost = |cost: &Cost| format!("{:.0} ({:.0}–{:.0})", cost.nanoseconds, cost.quartiles[0], cost.quartiles[1]);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.0} | {:.0} |",
            row.label,
            cost(&row.getppid),
            cost(&row.ping_pong),
            added(row.getppid.nanoseconds, none.map(|none| none.getppid.nanoseconds)),
            added(row.ping_pong.nanoseconds, none.map(|none| none.ping_pong.nanoseconds)),
            row.exits,
        );
    }
    let _ = write!(text, "\n{}", goal::HEADER);
    for goal in &report.goals {
        let _ = writeln!(text, "{}", goal.row());
    }
    for missing in &report.missing {
        let _ = writeln!(text, "\nNot measured: {missing}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guests that each measure `ns` or a little more.
    fn guests(ns: f64, exits: f64) -> Guests {
        (0..5)
            .map(|turn| vec![ns + f64::from(turn)])
            .map(|ns| Guest { getppid: ns.clone(), ping_pong: ns, exits })
            .collect()
    }

    #[test]
    fn measured_reads_its_path_only() {
        let console = "kernel_cost: getppid 10.5 ns\r\nkernel_cost: ping-pong 99.0 ns\r\nother\r\n";

        assert_eq!(measured(console, "getppid"), [10.5]);
    }

    #[test]
    fn goals_compare_what_is_added() {
        let measured = [("none", guests(100.0, 0.0)), ("strata", guests(120.0, 0.0)), ("ftrace", guests(200.0, 0.0))];

        let goals = goals(&BTreeMap::from(measured));

        assert!(goals[0].value.is_some_and(|value| (value - 0.2).abs() < 1e-9), "{goals:?}");
        assert!(goals.iter().all(|goal| goal.verdict == Verdict::Met), "{goals:?}");
    }

    #[test]
    fn exit_per_record_misses_the_goal() {
        let measured =
            [("none", guests(100.0, 0.0)), ("off", guests(100.0, 0.0)), ("strata", guests(120.0, 320_000.0))];

        let goals = goals(&BTreeMap::from(measured));

        assert!(goals.iter().any(|goal| goal.verdict == Verdict::Missed), "{goals:?}");
    }

    #[test]
    fn rival_that_adds_nothing_is_no_measure() {
        let measured = [("none", guests(100.0, 0.0)), ("strata", guests(120.0, 0.0)), ("ftrace", guests(99.0, 0.0))];

        let goals = goals(&BTreeMap::from(measured));

        assert!(goals.iter().all(|goal| goal.verdict == Verdict::NotMeasured), "{goals:?}");
    }
}
