//! Counts that later ones are compared with, and the page that shows them.

use super::callgrind::Costs;
use super::{HOST, READING, READING_AS_TESTED, RECORDING, TRIGGERS};
use crate::process;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Where they lie in the source tree.
pub(super) const FILE: &str = "docs/results/instructions.json";
/// The page that shows them.
const PAGE: &str = "docs/results/instructions.md";
/// What a path may take more than it did, percent.
pub(super) const ALLOWED_PERCENT: f64 = 3.0;
/// The part of a path's instructions that a function has at least to be kept.
const KEPT_FROM: f64 = 0.01;
/// Functions that a line names.
const NAMED: usize = 3;

/// Instructions of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Count {
    instructions: f64,
    /// Those of functions that have many, without what they call.
    functions: BTreeMap<String, f64>,
}

impl Count {
    /// What a record takes, if so many records took these instructions.
    #[allow(clippy::cast_precision_loss, reason = "far fewer than a double counts exactly")]
    pub(super) fn between([few, many]: [Costs; 2], records: [u64; 2]) -> Self {
        let more = records[1].saturating_sub(records[0]).max(1) as f64;
        let cost = |costs: &Costs, name| costs.get(name).copied().unwrap_or(0) as f64;
        let names: BTreeSet<&String> = few.keys().chain(many.keys()).collect();
        let functions = names.into_iter().map(|name| (name.clone(), (cost(&many, name) - cost(&few, name)) / more));
        Self::of(functions.collect())
    }

    /// The same, less what stands around it.
    pub(super) fn without(mut self, around: &Self) -> Self {
        self.instructions = rounded(self.instructions - around.instructions);
        self
    }

    fn of(mut functions: BTreeMap<String, f64>) -> Self {
        let instructions = functions.values().sum();
        functions.retain(|_, cost| *cost >= instructions * KEPT_FROM);
        functions.values_mut().for_each(|cost| *cost = rounded(*cost));
        Self { instructions: rounded(instructions), functions }
    }

    /// The functions whose cost is the most by `cost`, with that.
    fn most(&self, cost: impl Fn(&str, f64) -> f64) -> Vec<(&str, f64)> {
        let mut functions: Vec<_> =
            self.functions.iter().map(|(name, &own)| (name.as_str(), cost(name, own))).collect();
        functions.retain(|(_, cost)| *cost > 0.0);
        functions.sort_by(|left, right| right.1.total_cmp(&left.1));
        functions.truncate(NAMED);
        functions
    }
}

/// A tenth of an instruction is enough to see 3 % of the shortest path.
fn rounded(instructions: f64) -> f64 {
    (instructions * 10.0).round() / 10.0
}

/// The counts of all paths, and what they depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) rustc: String,
    pub(super) valgrind: String,
    pub(super) paths: BTreeMap<String, Count>,
}

impl Counts {
    /// `paths`, counted with this machine's compiler and valgrind.
    pub(super) fn of(paths: BTreeMap<String, Count>) -> anyhow::Result<Self> {
        Ok(Self { rustc: first_line("rustc")?, valgrind: first_line("valgrind")?, paths })
    }

    /// Whether `now` was counted with the same programs.
    pub(super) fn is_comparable(&self, now: &Self) -> bool {
        (&self.rustc, &self.valgrind) == (&now.rustc, &now.valgrind)
    }

    /// What `now` was counted with, and these.
    pub(super) fn difference(&self, now: &Self) -> String {
        format!("counted with {} and {}, before with {} and {}", now.rustc, now.valgrind, self.rustc, self.valgrind)
    }

    pub(super) fn read(workspace: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(workspace.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
        serde_json::from_str(&text).with_context(|| format!("{FILE} holds no counts"))
    }

    /// Writes the file, and the page with the table.
    pub(super) fn write(&self, workspace: &Path) -> anyhow::Result<()> {
        let write = |name, text| fs::write(workspace.join(name), text).with_context(|| format!("cannot write {name}"));
        write(FILE, serde_json::to_string_pretty(self)? + "\n")?;
        write(PAGE, self.page())
    }

    /// A line for each path of `now` that takes more than it may, with the functions that grew, and those that cost
    /// most; and for each that has no count here.
    pub(super) fn grown(&self, now: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, count) in &now.paths {
            let Some(before) = self.paths.get(path) else {
                lines.push(format!("{path}: {:.1}, was not counted before", count.instructions));
                continue;
            };
            if count.instructions <= before.instructions * (1.0 + ALLOWED_PERCENT / 100.0) {
                continue;
            }
            let grew = count.most(|name, own| own - before.functions.get(name).copied().unwrap_or(0.0));
            lines.push(format!(
                "{path}: {:.1} in place of {:.1}; grew: {}; most: {}",
                count.instructions,
                before.instructions,
                named(&grew, "+"),
                named(&count.most(|_, own| own), ""),
            ));
        }
        if !lines.is_empty() && !self.is_comparable(now) {
            lines.push(self.difference(now));
        }
        lines
    }

    /// The table of all paths.
    pub(super) fn table(&self) -> String {
        let mut text = "| path | instructions | goal | most of it |\n|---|---:|---:|---|\n".to_owned();
        let host = [&HOST].into_iter().chain(TRIGGERS.iter().map(|(way, _)| way));
        for way in RECORDING.iter().chain(host).chain(&READING).chain(&READING_AS_TESTED) {
            let Some(count) = self.paths.get(way.name) else { continue };
            let goal = way.goal.map_or(String::new(), |goal| {
                let verdict = if count.instructions <= goal { "yes" } else { "**no**" };
                format!("{goal} {verdict}")
            });
            let most = named(&count.most(|_, own| own), "").replace('|', "\\|");
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| {} | {:.1} | {goal} | {most} |", way.name, count.instructions);
        }
        text
    }

    fn page(&self) -> String {
        format!(
            "# Instructions of a record\n\n`cargo xtask bench instructions --update-document` writes this page;\n\
             [performance.md](../performance.md#instructions) says what is counted.\n\n{}, {}:\n\n{}",
            self.rustc,
            self.valgrind,
            self.table()
        )
    }
}

/// What `program` says it is.
fn first_line(program: &str) -> anyhow::Result<String> {
    let text = process::capture(Command::new(program).arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn named(functions: &[(&str, f64)], sign: &str) -> String {
    functions.iter().map(|(name, cost)| format!("`{name}` {sign}{cost:.1}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(path: &str, functions: &[(&str, f64)]) -> Counts {
        let functions = functions.iter().map(|&(name, cost)| (name.to_owned(), cost)).collect();
        let paths = BTreeMap::from([(path.to_owned(), Count::of(functions))]);
        Counts { rustc: "rustc".to_owned(), valgrind: "valgrind".to_owned(), paths }
    }

    #[test]
    fn count_is_what_more_records_add() {
        let costs = |each: u64| Costs::from([("once".to_owned(), 5000), ("each".to_owned(), each)]);

        let count = Count::between([costs(1000), costs(4000)], [10, 40]);

        assert_eq!((count.instructions, count.functions), (100.0, BTreeMap::from([("each".to_owned(), 100.0)])));
    }

    #[test]
    fn path_that_takes_more_than_it_may_is_named_with_what_grew() {
        let before = counts("events", &[("merge", 60.0), ("format", 40.0)]);

        let grown = before.grown(&counts("events", &[("merge", 60.0), ("format", 43.1)]));

        assert_eq!(grown, ["events: 103.1 in place of 100.0; grew: `format` +3.1; most: `merge` 60.0, `format` 43.1"]);
    }

    #[test]
    fn three_percent_more_are_allowed_and_less_always() {
        let before = counts("events", &[("merge", 100.0)]);

        let lines = [103.0, 50.0].map(|cost| before.grown(&counts("events", &[("merge", cost)])).len());

        assert_eq!(lines, [0, 0]);
    }

    #[test]
    fn path_without_a_count_to_compare_with_is_named() {
        let grown = counts("events", &[("merge", 1.0)]).grown(&counts("check", &[("merge", 2.0)]));

        assert_eq!(grown, ["check: 2.0, was not counted before"]);
    }

    #[test]
    fn other_compiler_is_named_beside_what_grew() {
        let now = Counts { rustc: "newer".to_owned(), ..counts("events", &[("merge", 2.0)]) };

        let grown = counts("events", &[("merge", 1.0)]).grown(&now);

        assert_eq!(grown[1], "counted with newer and valgrind, before with rustc and valgrind");
    }
}
