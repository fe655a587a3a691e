//! The usage of what `strata ctl` asks a VM for. Of clap's own making it has the VM only in the help of the first word
//! behind it: not of a further one, and not in manual pages.

use clap::Command;

/// `command` with the VM in the usage of all that `strata ctl` takes behind it.
pub(super) fn with_vm(command: Command) -> Command {
    command.mut_subcommands(|command| if command.get_name() == "ctl" { with_usages(command) } else { command })
}

fn with_usages(ctl: Command) -> Command {
    let ctl = ctl.mut_subcommands(|request| {
        let name = format!("strata ctl <VM> {}", request.get_name());
        request.bin_name(name)
    });
    let mut built = ctl.clone().bin_name("strata ctl");
    built.build();
    ctl.mut_subcommands(|request| match built.find_subcommand(request.get_name()) {
        Some(built) => request.mut_subcommands(|command| with_usage_of(command, built)),
        None => request,
    })
}

/// `command` with the usage that `request`, which is built, has for it.
fn with_usage_of(command: Command, request: &Command) -> Command {
    let built = request.find_subcommand(command.get_name()).cloned();
    let usage = built.map(|mut built| built.render_usage().ansi().to_string()).unwrap_or_default();
    match usage.split_once(' ') {
        Some((_heading, usage)) => command.override_usage(usage.to_owned()),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::super::program;

    /// The help of `strata ctl` and these words.
    fn help(words: &str) -> String {
        program().try_get_matches_from(format!("strata ctl {words} --help").split(' ')).unwrap_err().to_string()
    }

    #[test]
    fn help_names_the_vm_before_each_request() {
        for (words, usage) in [
            ("vm0 status", "Usage: strata ctl <VM> status [OPTIONS]\n"),
            ("vm0 session", "Usage: strata ctl <VM> session [OPTIONS] <COMMAND>\n"),
            ("vm0 session start", "Usage: strata ctl <VM> session start [OPTIONS] <NAME>\n"),
            ("vm0 trigger add", "Usage: strata ctl <VM> trigger add [OPTIONS] <EXPR>\n"),
        ] {
            let help = help(words);

            assert!(help.contains(usage), "{words}: {help}");
        }
    }

    #[test]
    fn manual_pages_name_the_vm_before_each_request() {
        let folder = tempfile::tempdir().unwrap();

        clap_mangen::generate_to(program(), folder.path()).unwrap();

        for words in ["status", "session", "session create", "trigger remove"] {
            let page = folder.path().join(format!("strata-ctl-{}.1", words.replace(' ', "-")));
            let page = std::fs::read_to_string(page).unwrap();
            assert!(page.contains(&format!("strata ctl <VM> {words}")), "{page}");
        }
    }
}
