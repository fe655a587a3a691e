//! What a shell completes command lines with: the program answers it, since only that knows which VMs run, and what a
//! trace has.

use super::values::DEFAULT_TRACE;
use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use strata_recorder::control::client::address;
use strata_recorder::control::found_vm::{list_all, runtime_folders};
use strata_recording::reader::Trace;
use strata_recording::text::terminal::harmless;
use trace_merge::report::description::Description;
use trace_merge::report::registry::REPORTS;

/// The variable that a shell's function sets to ask, to the shell's name.
const VARIABLE: &str = "STRATA_COMPLETE";
const PROGRAM: &str = "strata";
/// zsh finds the function by the name of a file, which it takes for the function's body: without this, the first attempt
/// to complete would only define what answers.
const ZSH_FIRST: &str = "if [ \"$funcstack[1]\" = \"_strata\" ]; then\n    _clap_dynamic_completer_strata \"$@\"\nfi\n";

/// Answers a shell that asks for completions of `program`'s command lines, and ends the process then.
pub fn answer(program: impl Fn() -> Command) {
    CompleteEnv::with_factory(program).var(VARIABLE).complete();
}

/// What `shell` has to read once.
///
/// # Errors
/// When there are no completions for it.
pub fn script(shell: Shell) -> io::Result<String> {
    let mut text = Vec::new();
    let shells = Shells::builtins();
    let known = shells.completer(&shell.to_string()).ok_or_else(|| io::Error::other("a shell without completions"))?;
    known.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut text)?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if shell == Shell::Zsh {
        text.push_str(ZSH_FIRST);
    }
    Ok(text)
}

/// Those of `names` that begin with `current`.
fn candidates(current: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    // What a guest or another user chose and does more than name something is no word of a command line.
    let is_plain = |name: &String| harmless(name) == *name && !name.contains(char::is_whitespace);
    let names: BTreeSet<String> =
        names.into_iter().filter(|name| name.starts_with(current) && is_plain(name)).collect();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// VMs that run: this user's by name, others' by user and process.
pub fn running_vms() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let found = runtime_folders().and_then(|folders| list_all(&folders)).unwrap_or_default();
        let running = found.iter().filter(|found| found.alive);
        let names = running.map(|found| match found.owner.other_user() {
            Some(_) => address(found),
            None => found.vm.name.to_string(),
        });
        candidates(current, names)
    })
}

/// The words of the command line that is completed, behind the program's name.
fn words() -> Vec<String> {
    let words = env::args_os().skip_while(|word| word != "--").skip(2);
    words.filter_map(|word| word.into_string().ok()).collect()
}

/// The trace that the command line names, or else the one that it means.
fn trace() -> Option<Trace> {
    let named = words().into_iter().map(PathBuf::from).chain([DEFAULT_TRACE.into()]);
    named.filter(|path| path.exists()).find_map(|path| Trace::open(&path).ok())
}

/// VMs of the trace.
pub fn vms_of_trace() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let trace = trace();
        let vms = trace.iter().flat_map(|trace| &trace.manifest().vms);
        candidates(current, vms.map(|vm| vm.name.clone()))
    })
}

/// Events of the trace, and groups of them, each by its own name: bash takes a colon for the end of a word.
pub fn events_of_trace() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let trace = trace();
        let events = trace.iter().flat_map(Trace::layers).flat_map(|layer| layer.schemas.iter());
        let names = events.filter_map(|schema| schema.name().split_once(':'));
        candidates(current, names.flat_map(|(group, name)| [group.to_owned(), name.to_owned()]))
    })
}

/// The report that the command line names.
fn report() -> Option<&'static Description> {
    words().iter().find_map(|word| REPORTS.into_iter().find(|report| report.name == word))
}

/// Columns of the report by which its rows can be ordered.
pub fn columns_of_report() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let columns = report().into_iter().flat_map(|report| report.rows).flat_map(|rows| (rows.columns)());
        candidates(current, columns.filter(|column| column.is_sortable()).map(|column| column.key))
    })
}

/// Tables of the report.
pub fn tables_of_report() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        candidates(current, report().into_iter().flat_map(|report| report.rows).filter_map(|rows| rows.table_name()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_would_act_in_a_shell_are_not_offered() {
        let offered = |current: &str| -> Vec<String> {
            let names = ["web", "web 2", "we\x1b[2J", "db"].map(Into::into);
            let candidates = candidates(OsStr::new(current), names);
            candidates.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
        };

        assert_eq!((offered("w"), offered("")), (vec!["web".to_owned()], vec!["db".to_owned(), "web".to_owned()]));
    }
}
