//! The module's units: one C file per trace header of a kernel; the kernel's own build shows which compile.
//!
//! A unit includes what its header needs (see [`crate::tracepoint_preludes`]) and then the header, for which the file
//! `shadow/trace/define_trace.h` makes probes and descriptors. Headers that do not compile outside the kernel's sources
//! are left out of the module; what they would have declared is written down in it, with the reason.

use crate::build_log::telling_lines;
use crate::kernel_make;
use crate::private_types::{Btf, BtfError};
use crate::trace_header::{self, TraceHeader};
use crate::tracepoint_preludes::{UNEXPORTED, prelude};
use object::{Object, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the names of descriptors in an object begin with.
const DESCRIPTOR: &str = "strata_event_";
/// The generated list of what the module lacks.
const MISSING_SOURCE: &str = "strata_missing.c";
/// The generated comparison of headers and BTF.
const SIZES_SOURCE: &str = "strata_sizes.c";
/// What the names of the units' files begin with.
const PREFIX: &str = "tp_";
/// Where kernels keep trace headers, below the top of their sources, and how these are included.
const FOLDERS: [(&str, &str); 4] = [
    ("arch/x86/include/asm", "asm"),
    ("include/trace/events", "trace/events"),
    ("arch/x86/include/asm/trace", "asm/trace"),
    ("include/ras", "ras"),
];
/// Trace headers of modules that are worth having although the kernel itself lacks their tracepoints.
const OF_MODULES: [&str; 3] = ["ext4", "jbd2", "kvm"];
/// The groups without which a module is of no use, since all reports build on them: a module that lacks one is not built.
const MANDATORY: [&str; 8] = ["sched", "irq", "irq_vectors", "raw_syscalls", "signal", "task", "block", "exceptions"];
/// Symbols that objects may need although `Module.symvers` does not list them: the kernel's build adds them.
const ADDED_BY_THE_BUILD: [&str; 1] = ["__fentry__"];

/// Why no units could be made.
#[derive(Debug, thiserror::Error)]
pub enum UnitsError {
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The header tree has no trace headers.
    #[error("{} has no trace headers: it is not the header tree of a kernel with tracepoints", .0.display())]
    NoHeaders(PathBuf),
    /// The BTF cannot be used.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// `make` could not be started.
    #[error("cannot start make: install the package make")]
    Make(#[source] io::Error),
    /// A header that the kernel has does not compile, and what it declares cannot be done without.
    #[error("the events of '{system}' cannot be left out: {header} {reason}")]
    MandatoryLeftOut {
        /// The group of events.
        system: String,
        /// The header, as it is included.
        header: String,
        /// Why it would be left out.
        reason: String,
    },
    /// The kernel has no tracepoints.
    #[error("the kernel of {} is built without CONFIG_TRACEPOINTS: it has no events to record", .0.display())]
    NoTracepoints(PathBuf),
    /// No header gives events that cannot be done without.
    #[error("the kernel has no events of '{0}', without which nothing can be reported; nothing is built")]
    MandatoryMissing(&'static str),
    /// Nothing compiles: something else is wrong.
    #[error("no trace header compiles: {message}")]
    NothingCompiles {
        /// The lines of the compiler's output that tell why.
        message: String,
    },
}

/// A trace header that the module lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The header, as it is included.
    pub header: String,
    /// Why it is left out.
    pub reason: String,
}

impl LeftOut {
    /// Lines of header, tab and reason.
    #[must_use]
    pub fn list(headers: &[Self]) -> String {
        headers.iter().fold(String::new(), |text, left_out| text + &left_out.header + "\t" + &left_out.reason + "\n")
    }

    /// What [`LeftOut::list`] has written.
    #[must_use]
    pub fn parse_list(text: &str) -> Vec<Self> {
        let parse = |line: &str| {
            let (header, reason) = line.split_once('\t')?;
            Some(Self { header: header.to_owned(), reason: reason.to_owned() })
        };
        text.lines().filter_map(parse).collect()
    }
}

/// A header and the unit made of it.
#[derive(Clone, Debug)]
struct Unit {
    /// Name of the C file, without the ending.
    name: String,
    header: TraceHeader,
    /// The events that it was found to record.
    recorded: BTreeSet<String>,
}

/// What became of a kernel's trace headers.
#[derive(Clone, Debug, Default)]
pub struct Units {
    compiled: Vec<Unit>,
    left_out: Vec<(Unit, String)>,
    tracepoints: BTreeSet<String>,
    /// Whether the kernel is built without cgroups.
    lacks_cgroups: bool,
}

/// Headers with an event that no registry can hold. A build without BTF, which would say that the kernel does not have
/// them, meets them too.
const INDESCRIBABLE: [(&str, &str); 1] = [("trace/events/host1x.h", "declares two fields of one name in an event")];

/// Makes the units for the kernel with the header tree `tree` in `folder`, which holds the other sources, and compiles
/// them. `log` is what the compiler said.
///
/// # Errors
/// When the tree has no trace headers, none compiles, or a program or file cannot be used.
pub fn make(tree: &Path, folder: &Path, btf: Option<&Btf>, log: &Path) -> Result<Units, UnitsError> {
    if !is_configured(tree, "CONFIG_TRACEPOINTS") {
        return Err(UnitsError::NoTracepoints(tree.to_path_buf()));
    }
    let exported = exported(tree)?;
    let units = find(tree, btf)?;
    if units.is_empty() {
        return Err(UnitsError::NoHeaders(tree.to_path_buf()));
    }
    let unexported: Vec<&str> =
        UNEXPORTED.iter().filter(|(symbol, _)| !exported.contains(*symbol)).map(|(_, call)| *call).collect();
    for unit in &units {
        write_unit(unit, tree, folder, btf, &unexported)?;
    }
    let comparison = btf.map_or_else(|| "/* Generated: there is no BTF. */\n".to_owned(), Btf::comparison);
    write_if_changed(&folder.join(SIZES_SOURCE), &comparison)?;
    write_list(&units, folder)?;
    compile(tree, folder, &units, log)?;
    let text = fs::read_to_string(log).map_err(file_error(log))?;
    let mut result =
        Units { tracepoints: btf.map(|btf| btf.tracepoints().clone()).unwrap_or_default(), ..Units::default() };
    result.lacks_cgroups = !is_configured(tree, "CONFIG_CGROUPS");
    for mut unit in units {
        let described = INDESCRIBABLE.iter().find(|(include, _)| *include == unit.header.include);
        let verdict = match described {
            Some((_, reason)) => Err((*reason).to_owned()),
            None => verdict(&unit, folder, &exported, &text),
        };
        match verdict {
            Ok(recorded) => {
                unit.recorded = recorded;
                result.compiled.push(unit);
            }
            Err(reason) => result.left_out.push((unit, reason)),
        }
    }
    if result.compiled.is_empty() {
        return Err(UnitsError::NothingCompiles { message: telling_lines(&text) });
    }
    if let Some(error) = mandatory_left_out(&result.left_out).or_else(|| mandatory_missing(&result.compiled)) {
        return Err(error);
    }
    write_list(&result.compiled, folder)?;
    write_if_changed(&folder.join(MISSING_SOURCE), &missing_source(&result.missing()))?;
    Ok(result)
}

/// The first header of a [`MANDATORY`] group among those that are left out, as an error.
fn mandatory_left_out(left_out: &[(Unit, String)]) -> Option<UnitsError> {
    let (unit, reason) = left_out.iter().find(|(unit, _)| MANDATORY.contains(&unit.header.system.as_str()))?;
    let (system, header) = (unit.header.system.clone(), unit.header.include.clone());
    Some(UnitsError::MandatoryLeftOut { system, header, reason: reason.clone() })
}

/// The first [`MANDATORY`] group without an event in any unit that compiled, as an error.
fn mandatory_missing(compiled: &[Unit]) -> Option<UnitsError> {
    let has = |system: &str| compiled.iter().any(|unit| unit.header.system == system && !unit.recorded.is_empty());
    MANDATORY.into_iter().find(|system| !has(system)).map(UnitsError::MandatoryMissing)
}

/// A C file that keeps the lines `missing` in the module, in memory that is freed once it is initialised.
fn missing_source(missing: &str) -> String {
    let mut text =
        String::from("/* Generated: what the kernel has and the module lacks. */\n#include <linux/compiler.h>\n\n");
    text.push_str("static const char strata_missing[] __used __section(\".init.strata_missing\") =");
    for line in missing.lines() {
        let line = line.replace('\\', "\\\\").replace('"', "\\\"").replace('\t', "\\t").replace('?', "\\?");
        text.push_str(&format!("\n\t\"{line}\\n\""));
    }
    text + "\n\t\"\";\n"
}

impl Units {
    /// The headers that are not in the module.
    #[must_use]
    pub fn left_out(&self) -> Vec<LeftOut> {
        let describe =
            |(unit, reason): &(Unit, String)| LeftOut { header: unit.header.include.clone(), reason: reason.clone() };
        self.left_out.iter().map(describe).collect()
    }

    /// The events that the kernel has and the module lacks, as lines of name, tab and reason. Without the kernel's BTF
    /// nobody knows what it has: then these are the events of the headers that were left out.
    #[must_use]
    pub fn missing(&self) -> String {
        let mut lines = BTreeMap::new();
        let recorded: BTreeSet<&String> = self.compiled.iter().flat_map(|unit| &unit.recorded).collect();
        for (unit, reason) in &self.left_out {
            for event in unit.header.events.iter().filter(|event| !recorded.contains(event)) {
                if self.tracepoints.is_empty() || self.tracepoints.contains(event) {
                    let name = format!("{}:{event}", unit.header.system);
                    lines.insert(name, format!("{} {reason}", unit.header.include));
                }
            }
        }
        let known: BTreeSet<&str> = self
            .compiled
            .iter()
            .chain(self.left_out.iter().map(|(unit, _)| unit))
            .flat_map(|unit| unit.header.events.iter().chain(&unit.header.bare).chain(&unit.recorded))
            .map(String::as_str)
            .collect();
        for name in self.tracepoints.iter().filter(|name| !known.contains(name.as_str())) {
            lines.insert(format!("?:{name}"), "no header of the kernel's packages declares it".to_owned());
        }
        if self.lacks_cgroups {
            let reason = "the kernel is built without CONFIG_CGROUPS; strata:task has no field cgroup";
            lines.insert("strata:cgroup".to_owned(), reason.to_owned());
        }
        lines.iter().fold(String::new(), |text, (name, reason)| text + name + "\t" + reason + "\n")
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> UnitsError + use<> {
    let path = path.to_path_buf();
    move |source| UnitsError::File { path, source }
}

/// Leaves an unchanged file's time alone, so that `make` compiles only what it must.
fn write_if_changed(path: &Path, content: &str) -> Result<(), UnitsError> {
    if fs::read(path).is_ok_and(|old| old == content.as_bytes()) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(file_error(folder))?;
    }
    fs::write(path, content).map_err(file_error(path))
}

/// The folders in which the headers of `tree` may lie: its own, and the one that its Makefile includes or `source`
/// names.
fn roots(tree: &Path) -> Vec<PathBuf> {
    let mut roots = vec![tree.to_path_buf(), tree.join("source")];
    let makefile = fs::read_to_string(tree.join("Makefile")).unwrap_or_default();
    for line in makefile.lines() {
        let Some(included) = line.strip_prefix("include ").and_then(|path| path.strip_suffix("/Makefile")) else {
            continue;
        };
        let relative = included.rsplit_once("MAKEFILE_LIST)))").map(|(_, relative)| relative);
        roots.push(relative.map_or_else(|| PathBuf::from(included), |relative| tree.join(relative)));
    }
    roots
}

/// The trace headers of the kernel, without those that only declare tracepoints that it does not have. Of a kernel without
/// CONFIG_BPF_EVENTS the BTF names none at all, and says nothing of that.
fn find(tree: &Path, btf: Option<&Btf>) -> Result<Vec<Unit>, UnitsError> {
    let btf = btf.filter(|btf| !btf.tracepoints().is_empty());
    let mut units: BTreeMap<String, Unit> = BTreeMap::new();
    for root in roots(tree) {
        for (folder, include) in FOLDERS {
            let Ok(entries) = fs::read_dir(root.join(folder)) else { continue };
            for path in entries.flatten().map(|entry| entry.path()) {
                if path.extension().is_none_or(|ending| ending != "h") {
                    continue;
                }
                let text = fs::read_to_string(&path).map_err(file_error(&path))?;
                let file = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let Some(header) = trace_header::parse(&text, format!("{include}/{file}.h"), path) else { continue };
                let has_some =
                    btf.is_none_or(|btf| header.events.iter().any(|event| btf.tracepoints().contains(event)));
                if has_some || OF_MODULES.contains(&file.as_str()) {
                    let name = format!("{PREFIX}{}", header.include.trim_end_matches(".h").replace(['/', '-'], "_"));
                    units.entry(name.clone()).or_insert(Unit { name, header, recorded: BTreeSet::new() });
                }
            }
        }
    }
    Ok(units.into_values().collect())
}

/// Whether the kernel is built with `option`; so it is where the tree does not say.
fn is_configured(tree: &Path, option: &str) -> bool {
    let line = format!("#define {option} 1");
    let options = fs::read_to_string(tree.join("include/generated/autoconf.h"));
    options.map_or(true, |options| options.lines().any(|known| known.trim_end() == line))
}

/// The symbols that the kernel itself exports. Those of its modules pass the build, but may not be there in a guest.
fn exported(tree: &Path) -> Result<BTreeSet<String>, UnitsError> {
    let path = tree.join("Module.symvers");
    let text = fs::read_to_string(&path).map_err(file_error(&path))?;
    let symbol = |line: &str| {
        let mut columns = line.split('\t');
        let (name, module) = (columns.nth(1)?, columns.next()?);
        (module == "vmlinux").then(|| name.to_owned())
    };
    Ok(text.lines().filter_map(symbol).collect())
}

fn write_unit(
    unit: &Unit,
    tree: &Path,
    folder: &Path,
    btf: Option<&Btf>,
    unexported: &[&str],
) -> Result<(), UnitsError> {
    let header = &unit.header;
    let prelude = prelude(header.file_stem());
    let roots = roots(tree);
    let mut text =
        String::from("/* SPDX-License-Identifier: GPL-2.0 */\n/* Generated. */\n#include \"strata_unit.h\"\n");
    for include in prelude.includes {
        let there = roots
            .iter()
            .any(|root| ["include", "arch/x86/include"].iter().any(|folder| root.join(folder).join(include).exists()));
        if there {
            text.push_str(&format!("#include <{include}>\n"));
        }
    }
    text.push_str(prelude.types);
    if let Some(btf) = btf {
        for (name, value) in prelude.constants.iter().filter_map(|name| Some((name, btf.enumerator(name)?))) {
            text.push_str(&format!("#define {name} {value}\n"));
        }
        text.push_str(&btf.definitions(prelude.structures)?);
    }
    text.push_str(prelude.functions);
    let class = class_of(&header.system).to_uppercase();
    text.push_str(&format!("#define STRATA_UNIT_CLASS STRATA_CLASS_{class}\n"));
    let events = prelude.events.unwrap_or(&header.include);
    text.push_str(&format!("#define STRATA_UNIT_HEADER \"{events}\"\n"));
    text.push_str(&format!("#define CREATE_TRACE_POINTS\n#include \"{}\"\n", header.include));
    write_if_changed(&folder.join(&unit.name).with_extension("c"), &text)?;

    let content = fs::read_to_string(&header.path).map_err(file_error(&header.path))?;
    let edited = trace_header::without(&content, unexported, |include| {
        header.path.parent().is_some_and(|folder| folder.join(include).exists())
    });
    let shadow = folder.join("shadow").join(&header.include);
    if edited == content {
        match fs::remove_file(&shadow) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error(&shadow)(error)),
            _ => Ok(()),
        }
    } else {
        write_if_changed(&shadow, &edited)
    }
}

/// The class of the events of a group, by the name of its constant in [`class`].
fn class_of(system: &str) -> &'static str {
    match system {
        "sched" => "sched",
        "task" => "task",
        "irq" => "softirq",
        "raw_syscalls" => "syscall",
        "exceptions" => "exception",
        "timer" | "alarmtimer" | "rtc" => "timer",
        "signal" => "signal",
        "irq_vectors" | "irq_matrix" | "ipi" | "nmi" | "msr" => "irq_vector",
        "workqueue" => "workqueue",
        "rcu" | "context_tracking" => "rcu",
        "power" | "rpm" | "cpuhp" | "thermal" | "thermal_power_allocator" | "devfreq" | "clk" | "regulator" => "power",
        "block" | "wbt" | "iocost" | "kyber" | "scsi" | "libata" | "bcache" | "nbd" => "block",
        "writeback" | "ext4" | "jbd2" | "filelock" | "filemap" | "fs_dax" | "btrfs" | "io_uring" => "file_system",
        "net" | "napi" | "skb" | "sock" | "tcp" | "udp" | "icmp" | "fib" | "fib6" | "neigh" | "qdisc" | "bridge"
        | "netlink" | "mptcp" | "page_pool" | "xdp" | "bpf_test_run" | "devlink" | "netfs" => "network",
        "kmem" | "percpu" => "allocation",
        "vmscan" | "compaction" | "migrate" | "mmap" | "mmap_lock" | "oom" | "pagemap" | "huge_memory" | "thp"
        | "tlb" | "page_isolation" | "cma" | "maple_tree" | "damon" | "swiotlb" | "iommu" | "ksm" => "memory",
        "lock" => "lock",
        "kvm" | "xen" | "hyperv" => "guest",
        _ => "other",
    }
}

fn write_list(units: &[Unit], folder: &Path) -> Result<(), UnitsError> {
    let objects: String = units.iter().map(|unit| format!(" {}.o", unit.name)).collect();
    write_if_changed(&folder.join("units.mk"), &format!("# Generated.\nstrata-units :={objects}\n"))
}

/// Compiles as many units as compile.
fn compile(tree: &Path, folder: &Path, units: &[Unit], log: &Path) -> Result<(), UnitsError> {
    let mut make = kernel_make::command(tree, folder);
    make.arg("--keep-going");
    make.args(units.iter().map(|unit| format!("{}.o", unit.name)));
    // That some header does not compile is what this is for.
    let output = make.output().map_err(UnitsError::Make)?;
    let said = [output.stdout, output.stderr].concat();
    remove_stale_objects(units, folder, &String::from_utf8_lossy(&said))?;
    fs::write(log, said).map_err(file_error(log))
}

/// Removes the objects of units that do not compile any more, which `make` leaves: it `said` which it could not make.
fn remove_stale_objects(units: &[Unit], folder: &Path, said: &str) -> Result<(), UnitsError> {
    for unit in units.iter().filter(|unit| is_failed(&unit.name, said)) {
        let object = folder.join(&unit.name).with_extension("o");
        match fs::remove_file(&object) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file_error(&object)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether `make` `said` that it could not make the object of `unit`: `*** [MAKEFILE:LINE: OBJECT] Error 1`.
fn is_failed(unit: &str, said: &str) -> bool {
    let object = format!("{unit}.o]");
    said.lines().any(|line| {
        let target = line.split_once("*** [").and_then(|(_, rest)| rest.split_once(&object));
        target.is_some_and(|(before, _)| before.is_empty() || before.ends_with(['/', ' ']))
    })
}

/// The events of a unit that compiled to an object which every kernel of this build will load; else why it did not.
fn verdict(unit: &Unit, folder: &Path, exported: &BTreeSet<String>, log: &str) -> Result<BTreeSet<String>, String> {
    let object = folder.join(&unit.name).with_extension("o");
    let Ok(bytes) = fs::read(&object) else {
        return Err(format!("does not compile outside the kernel's sources: {}", first_error(&unit.name, log)));
    };
    let file = object::File::parse(&*bytes).map_err(|error| format!("gives no object: {error}"))?;
    let refused: BTreeSet<&str> = file
        .symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| {
            !name.is_empty()
                && !name.starts_with("strata_")
                && !ADDED_BY_THE_BUILD.contains(name)
                && !exported.contains(*name)
        })
        .collect();
    if refused.is_empty() {
        let descriptors = file.symbols().filter_map(|symbol| symbol.name().ok()?.strip_prefix(DESCRIPTOR));
        return Ok(descriptors.map(str::to_owned).collect());
    }
    let names: Vec<&str> = refused.into_iter().collect();
    Err(format!("uses {}, which the kernel does not export", names.join(", ")))
}

/// The compiler's first error in a unit: behind its source's name, with which what the compiler says of a unit begins.
fn first_error<'a>(unit: &str, log: &'a str) -> &'a str {
    let source = format!("/{unit}.c");
    let mut of_unit = log.lines().skip_while(|line| !line.contains(&source));
    let message = of_unit.find_map(|line| Some(line.split_once("error: ")?.1));
    message.map_or("see the build's log", |message| message.split(" [-W").next().unwrap_or(message))
}

#[cfg(test)]
mod tests {
    //! Shows: A kernel without `CONFIG_BPF_EVENTS` gets a module with the reports' events, or none.

    use super::*;

    #[test]
    fn first_error_is_the_units_own() {
        let log = "  CC [M]  /b/tp_b.o\n  CC [M]  /b/tp_a.o\nIn file included from /b/tp_b.c:4:\n\
                   /k/b.h:9:9: error: of b [-Werror=x]\nIn file included from /b/tp_a.c:4:\n/k/a.h:1:2: error: of a\n";

        assert_eq!((first_error("tp_a", log), first_error("tp_b", log)), ("of a", "of b"));
        assert_eq!(first_error("tp_c", log), "see the build's log");
    }

    #[test]
    fn headers_of_a_distribution_lie_where_the_makefile_says() {
        let folder = tempfile::tempdir().unwrap();
        let makefile = "include $(dir $(lastword $(MAKEFILE_LIST)))../common/Makefile\n";
        fs::write(folder.path().join("Makefile"), makefile).unwrap();

        assert!(roots(folder.path()).contains(&folder.path().join("../common")));
    }

    #[test]
    fn list_of_headers_that_are_left_out_is_read_as_it_was_written() {
        let of = |header: &str, reason: &str| LeftOut { header: header.to_owned(), reason: reason.to_owned() };
        let left_out = [of("trace/events/x.h", "uses f, which the kernel does not export"), of("ras/y.h", "")];

        let read = LeftOut::parse_list(&LeftOut::list(&left_out));

        assert_eq!(read, left_out);
        assert_eq!(LeftOut::list(&left_out[..1]), "trace/events/x.h\tuses f, which the kernel does not export\n");
    }

    #[test]
    fn header_without_which_the_module_is_of_no_use_is_not_left_out() {
        let left_out = |system: &str| (unit(system, &[]), "does not compile".to_owned());

        let error = mandatory_left_out(&[left_out("xen"), left_out("sched")]).unwrap();

        assert!(
            error.to_string().contains("'sched' cannot be left out: trace/events/sched.h does not compile"),
            "{error}"
        );
        assert!(mandatory_left_out(&[left_out("xen")]).is_none());
    }

    fn unit(system: &str, recorded: &[&str]) -> Unit {
        let text = format!("#define TRACE_SYSTEM {system}\n#include <trace/define_trace.h>\n");
        let header = trace_header::parse(&text, format!("trace/events/{system}.h"), "/k/x.h".into()).unwrap();
        let recorded = recorded.iter().map(ToString::to_string).collect();
        Unit { name: format!("tp_{system}"), header, recorded }
    }

    #[test]
    fn group_without_which_the_module_is_of_no_use_has_to_be_there() {
        let mut units: Vec<Unit> = MANDATORY.iter().map(|system| unit(system, &["some"])).collect();
        assert!(mandatory_missing(&units).is_none());

        units[3].recorded.clear();
        let without_events = mandatory_missing(&units).unwrap().to_string();
        let of_modules_only = mandatory_missing(&[unit("ext4", &["ext4_sync"])]).unwrap().to_string();

        assert!(without_events.contains("no events of 'raw_syscalls'"), "{without_events}");
        assert!(of_modules_only.contains("no events of 'sched'"), "{of_modules_only}");
    }

    #[test]
    fn kernel_whose_btf_names_no_tracepoint_is_taken_to_have_what_its_headers_declare() {
        let tree = tempfile::tempdir().unwrap();
        let events = tree.path().join("include/trace/events");
        fs::create_dir_all(&events).unwrap();
        let text = "#define TRACE_SYSTEM sched\nTRACE_EVENT(sched_switch,\n#include <trace/define_trace.h>\n";
        fs::write(events.join("sched.h"), text).unwrap();
        let mut btf = vec![0x9f, 0xeb, 1, 0];
        btf.extend([24_u32, 0, 0, 0, 1].into_iter().flat_map(u32::to_le_bytes));
        btf.push(0);
        let file = tree.path().join("btf");
        fs::write(&file, btf).unwrap();
        let btf = Btf::open(&file, &tree.path().join("copy")).unwrap();

        let units = find(tree.path(), Some(&btf)).unwrap();

        assert_eq!(units.iter().map(|unit| unit.name.as_str()).collect::<Vec<_>>(), ["tp_trace_events_sched"]);
    }

    #[test]
    fn kernel_without_tracepoints_is_refused_by_that_name() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("include/generated")).unwrap();
        fs::write(tree.path().join("include/generated/autoconf.h"), "#define CONFIG_X86 1\n").unwrap();

        let error = make(tree.path(), tree.path(), None, &tree.path().join("log")).unwrap_err();

        assert!(error.to_string().contains("without CONFIG_TRACEPOINTS"), "{error}");
    }

    #[test]
    fn object_that_is_left_of_a_unit_that_does_not_compile_any_more_goes() {
        let folder = tempfile::tempdir().unwrap();
        let units = ["a", "b", "c", "a_b"].map(|system| unit(system, &[]));
        let objects = ["tp_a.o", "tp_b.o", "tp_c.o", "tp_a_b.o"].map(|name| folder.path().join(name));
        objects.iter().for_each(|object| fs::write(object, "").unwrap());
        let said = "  CC [M]  /b/tp_c.o\nmake[3]: *** [/k/Makefile.build:229: /b/tp_a.o] Error 1\n\
                    make[2]: *** [Makefile:9: tp_b.o] Error 1\nmake[1]: *** [Makefile:2: all] Error 2\n";

        remove_stale_objects(&units, folder.path(), said).unwrap();

        assert_eq!(objects.map(|object| object.exists()), [false, false, true, true]);
    }

    #[test]
    fn symbols_of_modules_are_not_the_kernels() {
        let folder = tempfile::tempdir().unwrap();
        let text = "0x1\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n0x2\tkvm_x\tarch/x86/kvm/kvm\tEXPORT_SYMBOL\t\n";
        fs::write(folder.path().join("Module.symvers"), text).unwrap();

        assert_eq!(exported(folder.path()).unwrap().into_iter().collect::<Vec<_>>(), ["printk"]);
    }

    #[test]
    fn kernel_without_cgroups_lacks_the_events_of_them_for_that_reason() {
        let tree = tempfile::tempdir().unwrap();
        let without = |options: &str| {
            fs::create_dir_all(tree.path().join("include/generated")).unwrap();
            fs::write(tree.path().join("include/generated/autoconf.h"), options).unwrap();
            Units { lacks_cgroups: !is_configured(tree.path(), "CONFIG_CGROUPS"), ..Units::default() }.missing()
        };

        let missing = without("#define CONFIG_CGROUPS_X 1\n");

        assert!(missing.starts_with("strata:cgroup\tthe kernel is built without CONFIG_CGROUPS"), "{missing}");
        assert_eq!(without("#define CONFIG_CGROUPS 1\n"), "");
    }

    #[test]
    fn missing_events_become_a_string_of_c() {
        let text = missing_source("?:a\tsays \"b\"\n");

        assert!(text.contains("=\n\t\"\\?:a\\tsays \\\"b\\\"\\n\"\n\t\"\";"), "{text}");
    }
}
