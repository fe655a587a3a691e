//! `cargo xtask bench machine`: how our machine compares with QEMU's `microvm`, and what tracing adds to loads in it.
//!
//! Each way gets a guest of its own, one after the other on one emulated (or this) host, in turns, with the same kernel,
//! disk and network. In it, `machine_load` times loads; on the host it takes the time until the guest's first program
//! and the memory of the VMM.

use super::goal::{self, Goal};
use super::quantile;
use crate::build::binaries::{self, Purpose};
use crate::build::guest_image::GuestImage;
use crate::build::qemu_files;
use crate::fetch::module_tree::ModuleTree;
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

/// Modules of the guest.
const GUEST_MODULES: [&str; 4] = ["virtio_mmio", "virtio_blk", "virtio_net", "pvpanic-mmio"];
/// The host's module that makes taps.
const HOST_MODULE: &str = "tun";
/// KiB in a MiB.
const KIBIBYTES: f64 = 1024.0;

const GUEST_SCRIPT: &str = "\
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
ip addr add 192.168.78.2/24 dev eth0
ip link set eth0 up
mount -t tmpfs tmpfs /tmp
echo 'guest is up'
sleep 2
machine_load disk /dev/vda
machine_load network 192.168.78.1
machine_load build /tmp
machine_load loopback
machine_load files /tmp
echo 'guest is idle'
sleep 1
";

/// `@MODULES@` is filled in; the guests follow.
const HOST_SCRIPT: &str = r#"
for module in @MODULES@; do insmod "$LAB/$module" 2> /dev/null; done
mkdir -p /lib64
[ -e /lib64/ld-linux-x86-64.so.2 ] || ln -s "$LAB/ld-linux-x86-64.so.2" /lib64/
busybox tunctl -t strata8 || exit 1
trap 'kill $server; busybox tunctl -d strata8; rm -f /tmp/bench-disk.img' EXIT
echo 1 > /proc/sys/net/ipv6/conf/strata8/disable_ipv6
ip addr add 192.168.78.1/24 dev strata8
ip link set strata8 up
dd if=/dev/urandom of=/tmp/bench-disk.img bs=1M count=64 2> /dev/null
machine_load serve 192.168.78.1 &
server=$!
arguments="$GUEST lab.script=bench"
strata_vm() {
    machine_load watch "$LAB_OUT/$1.log" 512 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" \
        --memory 512M --cpus 2 --disk /tmp/bench-disk.img --net tap=strata8 --cmdline "$arguments" $2
    echo "$1: status $?, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
}
qemu_vm() {
    LD_LIBRARY_PATH="$LAB" machine_load watch "$LAB_OUT/$1.log" 512 qemu-system-x86_64 -L "$LAB" \
        -machine microvm,acpi=on,x-option-roms=off,pit=off,pic=off,rtc=off -bios qboot.rom -accel kvm -cpu host \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio -smp 2 -m 512 \
        -drive id=disk,file=/tmp/bench-disk.img,format=raw,if=none -device virtio-blk-device,drive=disk \
        -netdev tap,id=net,ifname=strata8,script=no,downscript=no -device virtio-net-device,netdev=net \
        -kernel "$LAB/vmlinux" -initrd "$LAB/guest.cpio" -append "$arguments"
    echo "$1: status $?, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
}
attached_vm() {
    qemu_vm "$1" &
    until grep -q 'guest is up' "$LAB_OUT/$1.log" 2> /dev/null; do sleep 0.1; done
    strata attach "$(pidof qemu-system-x86_64)" --trace "$LAB_OUT/$1.trace" > "$LAB_OUT/$1-attach.log" 2>&1
    wait $!
    rm -rf "$LAB_OUT/$1.trace"
}
"#;

/// A way to run the guest.
struct Way {
    key: &'static str,
    label: &'static str,
    /// The line of the host's script; `@` stands for the guest's name.
    start: &'static str,
}

const WAYS: [Way; 5] = [
    Way { key: "qemu", label: "QEMU microvm", start: "qemu_vm @" },
    Way { key: "strata", label: "Strata, no tracing", start: "strata_vm @" },
    Way {
        key: "flight",
        label: "Strata, flight recorder",
        start: "strata_vm @ \"--agent $LAB/strata.ko --mode flight-recorder --trace $LAB_OUT/@.trace\"; \
                rm -rf \"$LAB_OUT/@.trace\"",
    },
    Way {
        key: "trace",
        label: "Strata, trace to disk",
        start: "strata_vm @ \"--agent $LAB/strata.ko --trace $LAB_OUT/@.trace\"; rm -rf \"$LAB_OUT/@.trace\"",
    },
    Way { key: "attach", label: "QEMU microvm, attached", start: "attached_vm @" },
];

/// What a guest measures, and how tables show it: less is better.
struct Measure {
    key: &'static str,
    label: &'static str,
    /// Of the unit of the measure's lines, this many are one of the label's.
    scale: f64,
}

const fn measure(key: &'static str, label: &'static str, scale: f64) -> Measure {
    Measure { key, label, scale }
}

const MEASURES: [Measure; 9] = [
    measure("boot", "boot to init, ms", 1e6),
    measure("memory", "VMM memory beyond the guest's, MiB", KIBIBYTES),
    measure("disk-read-4k", "4 KiB read, µs", 1e3),
    measure("disk-read-1m", "1 MiB read, µs", 1e3),
    measure("network-round-trip", "round trip to the host, µs", 1e3),
    measure("network-send", "1 MiB to the host, µs", 1e3),
    measure("build", "job of a build, µs", 1e3),
    measure("loopback", "loopback message, µs", 1e3),
    measure("files", "file of a server, µs", 1e3),
];

/// What is compared: a measure of one way with that of another, and the most that the ratio may be.
const RATIOS: [(&str, &str, &str, f64); 11] = [
    ("boot", "strata", "qemu", 0.5),
    ("disk-read-4k", "strata", "qemu", 1.0),
    ("disk-read-1m", "strata", "qemu", 1.0),
    ("network-round-trip", "strata", "qemu", 1.0),
    ("network-send", "strata", "qemu", 1.0),
    ("build", "flight", "strata", 1.03),
    ("loopback", "flight", "strata", 1.15),
    ("files", "flight", "strata", 1.05),
    ("build", "attach", "qemu", 1.03),
    ("loopback", "attach", "qemu", 1.15),
    ("files", "attach", "qemu", 1.05),
];

/// The most memory that the VMM may have beyond the guest's without tracing, MiB.
const MEMORY_LIMIT: f64 = 10.0;

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Guests of each way.
    pub repetitions: usize,
    /// Where to write the results as JSON.
    pub json: Option<PathBuf>,
}

/// What one guest measured: the values of each measure, in the unit of its label.
type Guest = BTreeMap<&'static str, Vec<f64>>;

/// The guests of each way, in the order of the turns.
type Measured = BTreeMap<&'static str, Vec<Guest>>;

#[derive(Debug, Serialize)]
struct Row {
    measure: &'static str,
    /// Median and quartiles of all guests of each way; none where nothing was measured.
    ways: BTreeMap<&'static str, Option<[f64; 3]>>,
}

#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    host: &'static str,
    repetitions: usize,
    rows: Vec<Row>,
    goals: Vec<Goal>,
}

/// Runs the benchmark; its tables go to standard output.
///
/// # Errors
///
/// When the lab cannot be made ready, the host fails, or a guest does not measure everything.
pub fn run(paths: &Paths, options: &Options) -> anyhow::Result<()> {
    let lab = provision::lab_to_measure(paths)?;
    let program = progress::step("building the program of loads", || {
        binaries::build_example(paths, Purpose::Release, "machine_load")
    })?;
    let modules = ModuleTree::open(&lab.kernels.modules)?;
    let image = paths.images().join("bench-machine.cpio");
    let guest = GuestImage::new(&lab.kernels.busybox, &modules.closure(&GUEST_MODULES)?);
    guest.program("machine_load", &program).script("bench", GUEST_SCRIPT).write_file(&image)?;
    let title = format!("running {} guests of each way", options.repetitions);
    let output = progress::step(&title, || {
        let request = request(&lab, &modules.closure(&[HOST_MODULE])?, &image, &program, options.repetitions)?;
        anyhow::Ok(lab.host.run(&lab.paths.runs(), &request)?.success(&request.name)?.output)
    })?;
    let mut measured = Measured::new();
    for way in &WAYS {
        let guests = (0..options.repetitions).map(|turn| guest_of(&output, &format!("{}-{turn}", way.key)));
        measured.insert(way.key, guests.collect::<anyhow::Result<_>>()?);
    }
    let report = report(&lab, options.repetitions, &measured);
    println!("{}", markdown(&report));
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&report)?;
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn request(
    lab: &Lab,
    host_modules: &[PathBuf],
    image: &Path,
    program: &Path,
    repetitions: usize,
) -> anyhow::Result<HostRun> {
    let name_of = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names: Vec<String> = host_modules.iter().map(name_of).collect();
    let mut script = HOST_SCRIPT.replace("@MODULES@", &names.join(" "));
    for turn in 0..repetitions {
        for way in &WAYS {
            // Writing to a string cannot fail.
            let _ = writeln!(script, "{}", way.start.replace('@', &format!("{}-{turn}", way.key)));
        }
    }
    script.push_str("exit 0\n");
    let mut request = HostRun::new("bench-machine", &script)
        .file("strata", &lab.binaries.strata)
        .file("machine_load", program)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", image)
        .file("strata.ko", &lab.agent);
    request = host_modules.iter().fold(request, |request, path| request.file(&name_of(path), path));
    request.files.extend(qemu_files::files()?);
    let guests = u64::try_from(WAYS.len() * repetitions)?;
    request.timeout = Duration::from_secs(guests.saturating_mul(90).saturating_add(120));
    Ok(request)
}

/// What the guest `name` measured, and its host of it.
fn guest_of(output: &Path, name: &str) -> anyhow::Result<Guest> {
    let log = output.join(format!("{name}.log"));
    let console = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let guest = measured_in(&String::from_utf8_lossy(&console));
    let missing: Vec<&str> =
        MEASURES.iter().map(|measure| measure.key).filter(|key| !guest.contains_key(key)).collect();
    anyhow::ensure!(missing.is_empty(), "{} was not measured; see {}", missing.join(", "), log.display());
    Ok(guest)
}

/// The lines `machine_load: MEASURE VALUE UNIT` of a console.
fn measured_in(console: &str) -> Guest {
    let mut guest = Guest::new();
    for line in console.lines() {
        let mut words = line.trim().strip_prefix("machine_load: ").unwrap_or_default().split(' ');
        let (name, value) = (words.next(), words.next().and_then(|value| value.parse::<f64>().ok()));
        let measure = MEASURES.iter().find(|measure| Some(measure.key) == name);
        if let Some((measure, value)) = measure.zip(value) {
            guest.entry(measure.key).or_default().push(value / measure.scale);
        }
    }
    guest
}

/// All values of `measure` in those guests of `way` that were chosen, sorted into quartiles; `None` where there are none.
fn quartiles(measured: &Measured, way: &str, measure: &str, chosen: &[usize]) -> Option<[f64; 3]> {
    let guests = measured.get(way)?;
    let mut values: Vec<f64> =
        chosen.iter().filter_map(|&turn| guests.get(turn)?.get(measure)).flatten().copied().collect();
    (!values.is_empty()).then(|| [1, 2, 3].map(|quarters| quantile(&mut values, quarters)))
}

fn report(lab: &Lab, repetitions: usize, measured: &Measured) -> Report {
    let all: Vec<usize> = (0..repetitions).collect();
    let row = |measure: &Measure| Row {
        measure: measure.label,
        ways: WAYS.iter().map(|way| (way.key, quartiles(measured, way.key, measure.key, &all))).collect(),
    };
    let host = match lab.host {
        Host::Direct(_) => "this machine",
        Host::Nested(_) => "an emulated machine, whose time counts instructions rather than cycles",
    };
    let kernel = lab.kernels.packages.release.clone();
    Report { kernel, host, repetitions, rows: MEASURES.iter().map(row).collect(), goals: goals(measured, repetitions) }
}

fn goals(measured: &Measured, turns: usize) -> Vec<Goal> {
    let median = |way: &str, measure: &str, chosen: &[usize]| Some(quartiles(measured, way, measure, chosen)?[1]);
    let label = |key: &str| WAYS.iter().find(|way| way.key == key).map_or("", |way| way.label);
    let ratio = |&(measure, ours, theirs, limit): &(&'static str, &'static str, &'static str, f64)| {
        let title = format!("{measure}: {} / {}", label(ours), label(theirs));
        Goal::of(title, limit, turns, |chosen| Some(median(ours, measure, chosen)? / median(theirs, measure, chosen)?))
    };
    let memory = Goal::of("memory: Strata, no tracing, MiB".into(), MEMORY_LIMIT, turns, |chosen| {
        median("strata", "memory", chosen)
    });
    RATIOS.iter().map(ratio).chain(std::iter::once(memory)).collect()
}

fn markdown(report: &Report) -> String {
    let mut text = format!(
        "Guest kernel {}, 2 vCPUs, on {}. {} guests each, in turns; medians (quartiles), less is better.\n\n| measure |",
        report.kernel, report.host, report.repetitions
    );
    WAYS.iter().for_each(|way| text += &format!(" {} |", way.label));
    text += "\n|---|";
    WAYS.iter().for_each(|_| text += "---|");
    for row in &report.rows {
        text += &format!("\n| {} |", row.measure);
        for way in &WAYS {
            let cell = row.ways.get(way.key).copied().flatten();
            text += &cell
                .map_or(" – |".into(), |[first, median, third]| format!(" {median:.1} ({first:.1}–{third:.1}) |"));
        }
    }
    text += &format!("\n\n{}", goal::HEADER);
    report.goals.iter().for_each(|goal| text += &format!("{}\n", goal.row()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::bench::goal::Verdict;

    /// Guests of five turns that measure `value` of everything.
    fn guests(value: f64) -> Vec<Guest> {
        vec![MEASURES.iter().map(|measure| (measure.key, vec![value])).collect(); 5]
    }

    #[test]
    fn lines_of_measures_are_read_in_the_units_of_the_table() {
        let console = "booting\r\nmachine_load: disk-read-4k 5000.0 ns/read\r\nmachine_load: other 1 ns\r\n\
                       machine_load: disk-read-4k 7000.0 ns/read\r\nmachine_load: memory 2048 KiB\n";

        let guest = measured_in(console);

        assert_eq!(guest, Guest::from([("disk-read-4k", vec![5.0, 7.0]), ("memory", vec![2.0])]));
    }

    #[test]
    fn machine_that_is_as_fast_meets_all_but_the_boot() {
        let measured: Measured = WAYS.iter().map(|way| (way.key, guests(2.0))).collect();

        let goals = goals(&measured, 5);

        let missed: Vec<&str> =
            goals.iter().filter(|goal| goal.verdict != Verdict::Met).map(|goal| goal.goal.as_str()).collect();
        assert_eq!(missed, ["boot: Strata, no tracing / QEMU microvm"]);
    }

    #[test]
    fn way_that_was_not_measured_has_no_figure() {
        let measured = Measured::from([("strata", guests(2.0))]);

        let goals = goals(&measured, 5);

        assert!(goals.iter().take(RATIOS.len()).all(|goal| goal.verdict == Verdict::NotMeasured), "{goals:?}");
    }
}
