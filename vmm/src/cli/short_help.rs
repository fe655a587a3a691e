//! `-h`: the first sentence of each option's `--help`, without examples.

use clap::builder::StyledStr;
use clap::{Arg, Command};

/// What ends the short help of a command that has a long one.
pub(super) const SEE_MORE: &str = "--help says more about each option, and has examples";

/// `command` with a short help for each of its commands.
pub(super) fn with_short_help(command: Command) -> Command {
    command.mut_subcommands(shortened)
}

fn shortened(command: Command) -> Command {
    let mut command = command.mut_args(with_first_sentence).mut_subcommands(shortened);
    match command.get_after_help().cloned() {
        Some(examples) if command.get_after_long_help().is_none() => {
            command = command.after_help(SEE_MORE).after_long_help(examples);
        }
        _ => {}
    }
    command
}

fn with_first_sentence(arg: Arg) -> Arg {
    let Some(help) = arg.get_help().cloned().filter(|_| arg.get_long_help().is_none()) else { return arg };
    match first_sentence(&help) {
        Some(first) => arg.help(first).long_help(help),
        None => arg,
    }
}

/// The first of several sentences, without its point.
fn first_sentence(help: &StyledStr) -> Option<String> {
    let text = help.to_string();
    let begins =
        |rest: &str| rest.trim_start().starts_with(|first: char| first.is_uppercase() || first.is_ascii_digit());
    let (end, _) = text.match_indices(". ").find(|(end, _)| begins(&text[end + 2..]))?;
    Some(text[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::program;

    /// The help of `strata` and these words.
    fn help(words: &[&str]) -> String {
        let line = ["strata"].iter().chain(words).copied();
        let help = program().try_get_matches_from(line).unwrap_err().to_string();
        // As wide as the terminal, or not.
        help.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn short_help_has_the_first_sentence_of_each_option_and_no_examples() {
        let (short, long) = (help(&["events", "-h"]), help(&["events", "--help"]));

        assert!(
            short.contains("short names are host, guest and user") && !short.contains("May be repeated"),
            "{short}"
        );
        assert!(long.contains("May be repeated") && long.contains("Examples:"), "{long}");
        assert!(!short.contains("Examples:") && short.ends_with(super::SEE_MORE), "{short}");
    }

    #[test]
    fn command_of_a_report_has_a_short_help_too() {
        let (short, long) = (help(&["report", "exits", "-h"]), help(&["report", "exits", "--help"]));

        assert!(short.len() < long.len() && !short.contains("Example"), "{short}");
    }
}
