//! The commands in the order in which they are used, for `strata --help`.

use super::Command;
use clap::Subcommand;
use std::fmt::Write;

/// What one does with commands, and those.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Record", &["run", "attach"]),
    ("Read a trace", &["report", "why", "events", "diff", "check", "query", "open", "export", "cut", "merge"]),
    ("While VMs run", &["ps", "top", "ctl", "metrics"]),
    ("Set up, and recover", &["doctor", "agent", "region", "recover", "completions", "help"]),
];

/// Columns that a command's name takes, with the space around it.
const NAME_WIDTH: usize = 15;

/// The help of `strata`: the commands by group, each with its purpose.
pub(super) fn template() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("strata"));
    let mut help = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (group, names) in GROUPS {
        // A string takes all that is written.
        let _ = writeln!(help, "\n{group}:");
        for &name in names {
            let about = commands.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map_or_else(|| "Print the help of a command".into(), ToString::to_string);
            let _ = writeln!(help, "  {name:width$}{about}", width = NAME_WIDTH - 2);
        }
    }
    help + "\nOptions:\n{options}{after-help}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let commands = Command::augment_subcommands(clap::Command::new("strata"));
        let mut visible: Vec<_> = commands.get_subcommands().filter(|command| !command.is_hide_set()).collect();
        visible.sort_by_key(|command| command.get_name());

        let mut grouped: Vec<_> =
            GROUPS.iter().flat_map(|(_, names)| names.iter()).filter(|name| **name != "help").collect();
        grouped.sort();

        assert_eq!(
            visible.iter().map(|command| command.get_name()).collect::<Vec<_>>(),
            grouped.iter().map(|name| **name).collect::<Vec<_>>()
        );
    }

    #[test]
    fn purposes_fit_a_terminal_of_80_columns() {
        let help = template();

        assert_eq!(help.lines().filter(|line| line.chars().count() > 80).collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
