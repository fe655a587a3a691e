//! What a command line that is refused may have meant: words of other tools, words in another order, options of another
//! command.

use super::CtlCommand;
use super::reading::report_called;
use clap::Subcommand;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::path::Path;
use strata_recording::text::terminal::shell_word;
use trace_merge::moment::Moment;

/// What other tools call what commands do, and what does it here.
const COMMANDS: [(&str, &str); 16] = [
    ("record", "`strata run --trace DIR` records a guest that it starts, `strata attach` a VM that runs"),
    ("start", "`strata run` starts a guest"),
    ("boot", "`strata run` starts a guest"),
    ("list", "`strata ps` lists VMs, `strata events --list LAYER` events"),
    ("ls", "`strata ps` lists VMs, `strata events --list LAYER` events"),
    ("stat", "`strata report TRACE` counts and sums, `strata top` shows VMs that run"),
    ("stats", "`strata report TRACE` counts and sums, `strata top` shows VMs that run"),
    ("show", "`strata report TRACE` reports, `strata events TRACE` lists records, `strata open TRACE` draws"),
    ("view", "`strata report TRACE` reports, `strata events TRACE` lists records, `strata open TRACE` draws"),
    ("script", "`strata events TRACE` lists records"),
    ("dump", "`strata events TRACE` lists records"),
    ("sql", "`strata query` asks in SQL"),
    ("convert", "`strata export` writes a trace in the form of another tool"),
    ("split", "`strata cut` makes a trace of a part of one"),
    ("compare", "`strata diff` compares two traces"),
    ("version", "`strata --version` prints it"),
];

/// Options of QEMU, and those of `strata run` that do the same.
const QEMU_OPTIONS: [(&str, &str); 16] = [
    ("smp", "--cpus N"),
    ("m", "--memory SIZE"),
    ("mem", "--memory SIZE"),
    ("append", "--cmdline STR"),
    ("drive", "--disk FILE"),
    ("hda", "--disk FILE"),
    ("blockdev", "--disk FILE"),
    ("kernel", "--kernel FILE"),
    ("initrd", "--initrd FILE"),
    ("netdev", "--net tap=NAME or --net passt"),
    ("nic", "--net tap=NAME or --net passt"),
    ("net", "--net tap=NAME or --net passt"),
    ("name", "--name NAME"),
    ("sandbox", "--jail on, which is the default"),
    ("enable-kvm", "nothing: a guest always runs on KVM"),
    ("nographic", "nothing: the guest's console is standard input and output"),
];

/// The refusal `error` of the command line `words`, with what was meant where that is known.
#[must_use]
pub fn advised(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    // No command takes such a value.
    let is_of_use = |tip: &clap::builder::StyledStr| !tip.to_string().contains("as a value, use");
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(is_of_use);
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    let words: Vec<String> = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if is_without_kernel(&error, &words) {
        let either = vec!["--image <FILE> or --kernel <FILE>".into()];
        error.insert(ContextKind::InvalidArg, ContextValue::Strings(either));
        error.remove(ContextKind::Usage);
    }
    if let Some(advice) = advice(&error, &words) {
        // Names that only look alike, and the usage with those.
        let alike = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
        for kind in alike.into_iter().chain([ContextKind::Usage]) {
            error.remove(kind);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    error
}

/// What `error` has as `kind`, where that is text.
fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// Whether `strata run` has neither a kernel nor an image.
fn is_without_kernel(error: &clap::Error, words: &[String]) -> bool {
    let names_kernel = |missing: &[String]| matches!(missing, [one] if one.starts_with("--kernel"));
    words.first().is_some_and(|command| command == "run")
        && error.kind() == ErrorKind::MissingRequiredArgument
        && matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::Strings(missing)) if names_kernel(missing))
}

/// What the words behind `strata` may have meant; `error` refuses one of them.
fn advice(error: &clap::Error, words: &[String]) -> Option<String> {
    let (command, rest) = words.split_first()?;
    let argument = || text(error, ContextKind::InvalidArg);
    match (error.kind(), command.as_str()) {
        (ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument, "ctl") => vm_first(rest),
        (ErrorKind::InvalidSubcommand, _) if text(error, ContextKind::InvalidSubcommand)? == command => {
            of_command(command, rest)
        }
        (ErrorKind::UnknownArgument, "run") => of_qemu(argument()?, rest),
        (ErrorKind::UnknownArgument, _) if argument()? == "--html" => {
            Some("`strata report TRACE --html FILE` writes the page".into())
        }
        (ErrorKind::UnknownArgument, "why") if !argument()?.starts_with('-') => task_of_why(argument()?, rest),
        (ErrorKind::ArgumentConflict, "export") if argument()?.starts_with("--format") => part_of_export(),
        (ErrorKind::InvalidValue, "export") if argument()?.starts_with("--format") => {
            let value = text(error, ContextKind::InvalidValue)?;
            value.parse::<Moment>().ok().and_then(|_| part_of_export())
        }
        _ => None,
    }
}

/// What does what a `command` that does not exist would do with the words `rest`.
fn of_command(command: &str, rest: &[String]) -> Option<String> {
    let known = COMMANDS.iter().find(|(name, _)| *name == command);
    if let Some((_, advice)) = known {
        return Some((*advice).to_owned());
    }
    let traces = if rest.is_empty() { "TRACE".into() } else { quoted(rest) };
    if let Some(report) = report_called(command) {
        return Some(format!("`strata report {report} {traces}` reports that"));
    }
    if is_ctl_command(command) {
        let line = ctl_line(command, rest);
        return Some(format!("`{line}` asks a running VM for that"));
    }
    Path::new(command).exists().then(|| format!("`strata report {}` reports on a trace", shell_word(command)))
}

/// `words` as a shell takes them.
fn quoted(words: &[String]) -> String {
    words.iter().map(shell_word).collect::<Vec<_>>().join(" ")
}

/// Whether `strata ctl VM` takes this.
fn is_ctl_command(name: &str) -> bool {
    CtlCommand::has_subcommand(name)
}

/// The advice to give the word `task` of `rest`, which follows `strata why`, to the option for it.
fn task_of_why(task: &str, rest: &[String]) -> Option<String> {
    let (before, behind) = rest.split_at(rest.iter().rposition(|word| word == task)?);
    let words = [before, &["--task".into()], behind].concat();
    Some(format!("`strata why {}` explains that task", quoted(&words)))
}

/// The advice to name the VM before the request; `rest` is what follows `strata ctl`.
fn vm_first(rest: &[String]) -> Option<String> {
    let (command, others) = rest.split_first()?;
    is_ctl_command(command).then(|| format!("the VM comes first: `{}`", ctl_line(command, others)))
}

/// The command line that asks a VM for `command`, which `rest` follows: a word behind what takes none is the VM.
fn ctl_line(command: &str, rest: &[String]) -> String {
    let takes_words = CtlCommand::augment_subcommands(clap::Command::new("ctl"))
        .find_subcommand(command)
        .is_none_or(|command| command.has_subcommands() || command.get_positionals().next().is_some());
    let (vm, rest) = match rest.split_first() {
        Some((vm, rest)) if !takes_words && !vm.starts_with('-') => (shell_word(vm), rest),
        _ => ("VM".into(), rest),
    };
    let words = [&[command.to_owned()][..], rest].concat();
    format!("strata ctl {vm} {}", quoted(&words))
}

/// The option of `strata run` in place of one of QEMU's that clap refuses as `argument`: of `-append` it says `-a`.
fn of_qemu(argument: &str, rest: &[String]) -> Option<String> {
    let refused = rest.iter().find(|word| word.starts_with(argument))?;
    let name = refused.split('=').next()?;
    let bare = name.trim_start_matches('-');
    let (_, own) = QEMU_OPTIONS.iter().find(|(option, _)| *option == bare)?;
    Some(format!("in place of QEMU's {name}: {own}"))
}

fn part_of_export() -> Option<String> {
    Some("a part ends at --until; --to is another name of --format".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, program};

    /// How `strata` refuses the words of `line`.
    fn refused(line: &str) -> String {
        let words: Vec<OsString> = format!("strata {line}").split(' ').map(OsString::from).collect();
        advised(program().try_get_matches_from(&words).unwrap_err(), &words).to_string()
    }

    #[test]
    fn words_of_other_tools_name_what_does_it_here() {
        for (line, advice) in [
            ("record", "`strata run --trace DIR`"),
            ("list", "`strata ps`"),
            ("stat", "`strata report TRACE`"),
            ("version", "`strata --version`"),
            ("ls", "`strata ps`"),
            ("view t", "`strata report TRACE` reports"),
            ("sched t", "`strata report wakeups t`"),
            ("tasks demo", "`strata report tasks demo`"),
            ("exits", "`strata report exits TRACE`"),
            ("exits demo --json", "`strata report exits demo --json`"),
            ("pause vm0", "`strata ctl vm0 pause`"),
            ("snapshot dir", "`strata ctl VM snapshot dir`"),
            ("/dev", "`strata report /dev`"),
            ("run --kernel k --smp 2", "in place of QEMU's --smp: --cpus N"),
            ("run --kernel k -smp=2", "in place of QEMU's -smp: --cpus N"),
            ("run --kernel k -m 2G", "in place of QEMU's -m: --memory SIZE"),
            ("run --kernel k -append x", "in place of QEMU's -append: --cmdline STR"),
            ("run --kernel k -drive x", "in place of QEMU's -drive: --disk FILE"),
        ] {
            let error = refused(line);
            assert!(error.contains(&format!("tip: {advice}")), "{line}: {error}");
            assert!(!error.contains("similar"), "{line}: {error}");
        }
    }

    #[test]
    fn words_in_another_order_are_put_in_theirs() {
        for (line, advice) in [
            ("ctl status vm0", "the VM comes first: `strata ctl vm0 status`"),
            ("ctl status", "the VM comes first: `strata ctl VM status`"),
            ("ctl status --json", "the VM comes first: `strata ctl VM status --json`"),
            ("ctl snapshot dir", "the VM comes first: `strata ctl VM snapshot dir`"),
            ("ctl session create io", "the VM comes first: `strata ctl VM session create io`"),
            ("why demo dd/145", "`strata why demo --task dd/145`"),
            ("why --worst 3 demo dd --json", "`strata why --worst 3 demo --task dd --json`"),
            ("why demo --html y", "`strata report TRACE --html FILE`"),
            ("report tasks demo --html y", "`strata report TRACE --html FILE`"),
            ("export t --to perfetto --from 1 --to 2 -o x", "a part ends at --until"),
            ("export t --from 1 --to 2 -o x", "a part ends at --until"),
        ] {
            let error = refused(line);
            assert!(error.contains(&format!("tip: {advice}")), "{line}: {error}");
        }
        assert!(!refused("export t --format chrome -o x").contains("--until"));
    }

    #[test]
    fn run_needs_an_image_or_a_kernel() {
        let error = refused("run --cpus 2");

        assert!(error.contains("--image <FILE> or --kernel <FILE>") && !error.contains("Usage"), "{error}");
    }

    #[test]
    fn no_refusal_tells_how_to_pass_an_option_as_a_value() {
        for line in ["events t --nosuch", "report t --nosuch", "why t --htm y", "events t -z", "ctl vm0 --nosuch"] {
            let error = refused(line);

            assert!(!error.contains("as a value"), "{line}: {error}");
        }
    }

    #[test]
    fn advice_is_not_of_commands_that_exist() {
        for (name, _) in COMMANDS {
            assert!(!Command::has_subcommand(name), "{name}");
        }
    }
}
