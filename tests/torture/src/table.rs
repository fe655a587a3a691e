//! The tables of a run.

use crate::promise::{Board, By, Kills};
use anyhow::Context;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

const BEGIN: &str = "<!-- torture: begin -->";
const END: &str = "<!-- torture: end -->";

/// The run's tables, as Markdown.
#[must_use]
pub fn markdown(board: &Board, seed: u64, took: Duration) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(board, seed, took, &mut text);
    text
}

fn write(board: &Board, seed: u64, took: Duration, out: &mut String) -> std::fmt::Result {
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d");
    writeln!(out, "{today}, {}: {} rounds in {} s from seed {seed}.", machine(), board.rounds, took.as_secs())?;
    writeln!(out, "Honest producers whose layers are counted exactly made {} records:", thousands(board.produced))?;
    writeln!(out, "{} were delivered, {} counted as lost.", thousands(board.delivered), thousands(board.lost))?;
    writeln!(out, "A recorder's process took {} % of a processor at most.\n", board.processor)?;
    writeln!(out, "| attacker | attack | strokes | rounds | rounds with a broken promise |\n|---|---|---:|---:|---:|")?;
    for ((by, attack), struck) in &board.attacks {
        let by = match by {
            By::Process => "process",
            By::Kernel => "kernel",
            By::User => "another user",
            By::Maker => "maker of a recording",
        };
        let strokes = thousands(struck.strokes);
        writeln!(out, "| {by} | {} | {strokes} | {} | {} |", attack.text(), struck.rounds, struck.broken)?;
    }
    writeln!(out, "\n| what fails beside | rounds | rounds with a broken promise |\n|---|---:|---:|")?;
    for (fault, (rounds, broken)) in &board.faults {
        writeln!(out, "| {fault} | {rounds} | {broken} |")?;
    }
    writeln!(out, "\n| end by SIGTERM, beside it fails | ends | median, ms | p99, ms | worst, ms |")?;
    writeln!(out, "|---|---:|---:|---:|---:|")?;
    for (fault, ends) in &board.ends {
        let (median, p99, worst) = (percentile(ends, 50), percentile(ends, 99), percentile(ends, 100));
        writeln!(out, "| {fault} | {} | {median} | {p99} | {worst} |", ends.len())?;
    }
    let Kills { killed, recovered, cut } = board.kills;
    writeln!(out, "\nOf {killed} recorders that were killed, {recovered} regions were recovered, and read without a")?;
    writeln!(out, "complaint of `strata check` and babeltrace2; {cut} recordings end within a packet.")?;
    writeln!(out, "\n| promise | checked | broken | worst |\n|---|---:|---:|---:|")?;
    for (promise, kept) in &board.promises {
        let worst = kept.worst.map_or_else(String::new, thousands);
        writeln!(out, "| {} | {} | {} | {worst} |", promise.text(), thousands(kept.times), kept.broken)?;
    }
    Ok(())
}

fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    format!("{cpus} CPUs of {}", model.map_or("an unknown kind", |(_, model)| model.trim()))
}

/// The smallest of `values` that `percent` of them are not above; 0 if there are none.
fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// `number` with commas between thousands.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Puts `report` between the markers of `document`.
///
/// # Errors
/// When the document lacks them, or cannot be written.
pub fn write_into(document: &Path, report: &str) -> anyhow::Result<()> {
    let name = document.display();
    let text = fs::read_to_string(document).with_context(|| format!("cannot read {name}"))?;
    let new = between_markers(&text, report).with_context(|| format!("{name} lacks the lines {BEGIN} and {END}"))?;
    fs::write(document, new).with_context(|| format!("cannot write {name}"))
}

fn between_markers(text: &str, content: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{content}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promise::Promise;

    #[test]
    fn broken_promise_is_in_the_table_and_in_the_sum() {
        let mut board = Board::default();
        board.check(Promise::Exact, Ok(()));
        board.check(Promise::Exact, Err("two are missing".into()));
        board.check_limit(Promise::Stop, 1234, 2000, "vm0");

        let text = markdown(&board, 7, Duration::from_secs(9));

        assert!(text.contains("produced = delivered + counted as lost | 2 | 1 |  |"), "{text}");
        assert!(text.contains("(worst, ms) | 1 | 0 | 1,234 |"), "{text}");
        assert_eq!(board.broken(), 1);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<u64> = (1..=50).rev().collect();

        let of = |percent| percentile(&values, percent);

        assert_eq!((of(50), of(99), of(100), percentile(&[7], 50), percentile(&[], 99)), (25, 50, 50, 7, 0));
    }

    #[test]
    fn tables_replace_what_was_between_the_markers() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb");

        assert_eq!(between_markers(&text, "new").unwrap(), format!("a\n{BEGIN}\n\nnew\n{END}\nb"));
        assert_eq!(between_markers("nothing", "new"), None);
    }
}
