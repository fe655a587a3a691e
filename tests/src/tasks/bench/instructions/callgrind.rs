//! A program's instructions, counted by valgrind's callgrind.

use crate::process;
use anyhow::{Context, ensure};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Instructions of each function, without those that it calls.
pub(super) type Costs = BTreeMap<String, u64>;

/// Runs `program` on one processor, and leaves files in `folder`: nothing of it depends on the environment, on where
/// memory lies, or on how threads meet.
pub(super) fn count(program: &Path, arguments: &[OsString], folder: &Path) -> anyhow::Result<Costs> {
    let (file, log) = (folder.join("callgrind.out"), folder.join("callgrind.log"));
    let mut command = Command::new("taskset");
    command.args(["-c", "0", "setarch", "--addr-no-randomize", "valgrind", "--tool=callgrind"]);
    command.arg(option("--callgrind-out-file=", &file)).arg(option("--log-file=", &log));
    command.arg(program).args(arguments).env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    process::run_logged(&mut command, &folder.join("output.log"))
        .with_context(|| format!("valgrind says: {}", fs::read_to_string(&log).unwrap_or_default().trim()))?;
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let costs = of_functions(&text);
    ensure!(costs.values().sum::<u64>() > 0, "{} has no counts", file.display());
    Ok(costs)
}

fn option(name: &str, value: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(value);
    option
}

/// The costs in a file of callgrind's (its manual, *Callgrind Format Specification*), of one event.
fn of_functions(text: &str) -> Costs {
    let (mut names, mut costs) = (HashMap::new(), Costs::new());
    let (mut function, mut is_of_call) = ("", false);
    for line in text.lines() {
        match line.split_once('=') {
            Some(("fn", name)) => function = whole(&mut names, name),
            Some(("cfn", name)) => _ = whole(&mut names, name),
            Some(("calls", _)) => is_of_call = true,
            // The line behind `calls` has what the called function took.
            _ if line.starts_with(|first: char| "+-*0123456789".contains(first))
                && !std::mem::take(&mut is_of_call) =>
            {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
                *costs.entry(function.to_owned()).or_default() += cost.unwrap_or(0);
            }
            _ => {}
        }
    }
    costs
}

/// The name that is meant by `(NUMBER) NAME`, or by `(NUMBER)` once that was said.
fn whole<'t>(names: &mut HashMap<&'t str, &'t str>, text: &'t str) -> &'t str {
    match text.split_once(' ') {
        Some((number, name)) => {
            names.insert(number, name);
            name
        }
        None => names.get(text).copied().unwrap_or(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_cost_what_they_take_themselves() {
        let text = "version: 1\nevents: Ir\n\nfl=(1) a.rs\nfn=(1) first\n16 400\n+2 7\ncfi=(2) b.rs\ncfn=(2) second\n\
            calls=3 20\n* 9000\n\nfn=(2)\n20 5\nfn=(1)\n16 1\n\ntotals: 413\n";

        assert_eq!(of_functions(text), Costs::from([("first".to_owned(), 408), ("second".to_owned(), 5)]));
    }
}
