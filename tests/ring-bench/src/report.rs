//! The results: for machines as JSON, for readers as Markdown tables.

use crate::drain::Drain;
use crate::machine::Machine;
use crate::sampling::Measured;
use crate::scaling::Scaling;
use anyhow::Context;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Everything that one run measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The machine on which it was measured.
    pub machine: Machine,
    /// Turns that each case took.
    pub repetitions: usize,
    /// Recording an event, ours and others'.
    pub events: Vec<Measured>,
    /// Ways for a thread that may migrate.
    pub user_level: Vec<Measured>,
    /// The operations that tracers synchronise with.
    pub primitives: Vec<Measured>,
    /// Cost per event by ring size.
    pub ring_sizes: Vec<Measured>,
    /// Several producers.
    pub scaling: Vec<Scaling>,
    /// The consumer.
    pub drain: Drain,
    /// What was not measured, and why.
    pub missing: Vec<String>,
    /// What the ring is meant to reach.
    pub goals: Vec<Goal>,
}

/// One thing that the ring is meant to reach.
#[derive(Debug, Serialize)]
pub struct Goal {
    /// What is compared, in words.
    pub goal: &'static str,
    pub value: f64,
    /// Its limit.
    pub limit: f64,
    /// Whether the limit is kept.
    pub met: bool,
}

impl Goal {
    fn at_most(goal: &'static str, limit: f64, value: f64) -> Self {
        Self { goal, value, limit, met: value <= limit }
    }

    fn at_least(goal: &'static str, limit: f64, value: f64) -> Self {
        Self { goal, value, limit, met: value >= limit }
    }
}

/// The goals, as far as what they speak of was measured.
pub fn goals(events: &[Measured], user_level: &[Measured], scaling: &[Scaling], drain: &Drain) -> Vec<Goal> {
    let cost = |key| find(events, key).or_else(|| find(user_level, key)).map(|measured| measured.nanoseconds);
    let ratio = |over: Option<f64>, under: Option<f64>| Some(over? / under?);
    let mut goals = Vec::new();
    let rdtsc = cost("floor/rdtsc");
    if let Some(value) = ratio(cost("ring/discard/local/16"), rdtsc) {
        goals.push(Goal::at_most("16-byte record, discard, CPU-local / one rdtsc", 1.3, value));
    }
    if let Some(value) = ratio(cost("ring/flight/local/16"), rdtsc) {
        goals.push(Goal::at_most("16-byte record, flight recorder, CPU-local / one rdtsc", 1.3, value));
    }
    if let Some(value) = ratio(cost("lttng/tsc/16"), cost("ring/flight/local/16")) {
        goals.push(Goal::at_least("LTTng-UST with the TSC clock / flight recorder, CPU-local, 16 B", 5.0, value));
    }
    if let Some(value) = ratio(cost("module/sys-exit"), cost("ftrace/sys-exit")) {
        goals.push(Goal::at_most("sys_exit by the module's object code / by ftrace", 0.5, value));
    }
    if let Some(value) = cost("mask/class") {
        goals.push(Goal::at_most("masked event, ns", 1.0, value));
    }
    if let Some(value) = cost("user/masked") {
        goals.push(Goal::at_most("masked event of an application, ns", 1.0, value));
    }
    if let Some(value) = ratio(cost("user/event"), rdtsc) {
        goals.push(Goal::at_most("event of an application, 16 B, flight recorder / one rdtsc", 1.8, value));
    }
    if let Some(value) = ratio(cost("lttng/tsc/16"), cost("user/event")) {
        goals.push(Goal::at_least("LTTng-UST with the TSC clock / event of an application, 16 B", 4.0, value));
    }
    if let Some(last) = scaling.last() {
        goals.push(Goal::at_least("scaling efficiency, all CPUs", 0.95, last.efficiency));
        goals.push(Goal::at_least("the same / that of rdtsc alone", 0.95, last.beside_clock));
    }
    goals.push(Goal::at_least("drain / cp", 0.6, drain.ratio));
    goals
}

fn find<'m>(measured: &'m [Measured], key: &str) -> Option<&'m Measured> {
    measured.iter().find(|measured| measured.key == key)
}

impl Report {
    /// The results as JSON.
    ///
    /// # Errors
    /// When a number has no JSON form.
    pub fn to_json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// The results as Markdown.
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_markdown(&mut text);
        text
    }

    fn write_markdown(&self, text: &mut String) -> std::fmt::Result {
        let machine = &self.machine;
        let virtual_machine = if machine.is_virtual { ", a virtual machine" } else { "" };
        writeln!(
            text,
            "{} CPUs of {}{virtual_machine}, {} GiB, Linux {}, TSC {:.0} MHz,\n{}{}.\nLoad average {:.1} before and {:.1} \
             after. Medians of {} samples.\n",
            machine.cpus,
            machine.processor,
            machine.memory_gib,
            machine.kernel,
            machine.tsc_mhz,
            machine.compiler,
            machine.lttng.as_ref().map(|version| format!(", {version}")).unwrap_or_default(),
            machine.load[0],
            machine.load[1],
            self.repetitions,
        )?;
        writeln!(text, "### Goals\n\n| goal | limit | here | met |\n|---|---|---|---|")?;
        for goal in &self.goals {
            let met = if goal.met { "yes" } else { "**no**" };
            writeln!(text, "| {} | {} | {:.2} | {met} |", goal.goal, goal.limit, goal.value)?;
        }
        let rdtsc = find(&self.events, "floor/rdtsc").map_or(f64::NAN, |measured| measured.nanoseconds);
        writeln!(text, "\n### One event\n\n| what | ns | quartiles | × rdtsc |\n|---|---|---|---|")?;
        rows(text, &self.events, rdtsc)?;
        if !self.user_level.is_empty() {
            writeln!(
                text,
                "\n### User level\n\n16 B, flight recorder.\n\n| what | ns | quartiles | × rdtsc |\n|---|---|---|---|"
            )?;
            rows(text, &self.user_level, rdtsc)?;
        }
        writeln!(
            text,
            "\n### What it is made of\n\nThe tables II–VI of the synchronisation paper, on this processor; in ns and in TSC \
             cycles.\n*Behind stores that miss* is what the operation adds to eight stores to lines that are in no \
             cache.\n\n| operation | ns | cycles | ns behind stores that miss |\n|---|---|---|---|"
        )?;
        for alone in self.primitives.iter().filter(|measured| measured.key.starts_with("primitive/")) {
            let behind_key = alone.key.replacen("primitive/", "primitive-behind-stores/", 1);
            let behind = find(&self.primitives, &behind_key).map_or(f64::NAN, |measured| measured.nanoseconds);
            let cycles = alone.nanoseconds * machine.tsc_mhz / 1e3;
            writeln!(text, "| {} | {:.1} | {cycles:.0} | {behind:.1} |", alone.label, alone.nanoseconds)?;
        }
        let primitive = |key: &str| find(&self.primitives, key).map_or(f64::NAN, |measured| measured.nanoseconds);
        let baseline = primitive("primitive/spin-lock");
        writeln!(
            text,
            "\nTable VI, speed-up over a spin lock (without disabling interrupts, which user mode cannot):\nsequence lock \
             and synchronised CAS {:.1}, preemption disabled and local CAS {:.1}.",
            baseline / primitive("primitive/seqlock-cas-sync"),
            baseline / primitive("primitive/preempt-cas-local"),
        )?;
        writeln!(
            text,
            "\n### Ring size\n\nFlight recorder, CPU-local, 16 B.\n\n| ring | ns | quartiles | × rdtsc |\n|---|---|---|---|"
        )?;
        rows(text, &self.ring_sizes, rdtsc)?;
        writeln!(
            text,
            "\n### Several producers\n\n16 B, flight recorder.\n\n| producers | own rings, CPU-local: ns | efficiency | rdtsc \
             alone: ns | efficiency / its | one ring, SMP: ns |\n|---|---|---|---|---|---|"
        )?;
        for row in &self.scaling {
            let (efficiency, beside) = (row.efficiency * 100.0, row.beside_clock * 100.0);
            writeln!(
                text,
                "| {} | {:.1} | {efficiency:.0} % | {:.1} | {beside:.0} % | {:.1} |",
                row.producers, row.own_rings, row.clock, row.shared_ring
            )?;
        }
        let drain = &self.drain;
        writeln!(
            text,
            "\n### Consumer\n\n{} MiB, {} records of 16 B: {:.0} MB/s into a file, every record validated\n({:.0} MB/s without the \
             file); `cp` of the same bytes {:.0} MB/s; ratio {:.2}.",
            drain.bytes >> 20,
            drain.records,
            drain.consumer / 1e6,
            drain.without_file / 1e6,
            drain.cp / 1e6,
            drain.ratio,
        )?;
        for missing in &self.missing {
            writeln!(text, "\nNot measured: {missing}.")?;
        }
        Ok(())
    }

    /// Puts the tables between the two markers of `document`.
    ///
    /// # Errors
    /// When the document cannot be read or written, or has no markers.
    pub fn write_into(&self, document: &Path) -> anyhow::Result<()> {
        let name = document.display();
        let text = fs::read_to_string(document).with_context(|| format!("cannot read {name}"))?;
        let new = between_markers(&text, &self.to_markdown())
            .with_context(|| format!("{name} lacks the lines {BEGIN} and {END}"))?;
        fs::write(document, new).with_context(|| format!("cannot write {name}"))
    }
}

const BEGIN: &str = "<!-- ring-bench: begin -->";
const END: &str = "<!-- ring-bench: end -->";

fn between_markers(text: &str, content: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{content}\n{END}{after}"))
}

fn rows(text: &mut String, measured: &[Measured], rdtsc: f64) -> std::fmt::Result {
    for row in measured {
        let [low, high] = row.quartiles;
        let ratio = row.nanoseconds / rdtsc;
        writeln!(text, "| {} | {:.1} | {low:.1}–{high:.1} | {ratio:.2} |", row.label, row.nanoseconds)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN: Drain = Drain { bytes: 1, records: 1, consumer: 5.0, cp: 10.0, ratio: 0.5, without_file: 5.0 };

    #[test]
    fn goal_whose_rival_is_missing_is_left_out() {
        let events =
            [Measured::of("floor/rdtsc", "", vec![10.0]), Measured::of("ring/discard/local/16", "", vec![12.0])];

        let goals = goals(&events, &[], &[], &DRAIN);

        let shown: Vec<_> = goals.iter().map(|goal| (goal.value, goal.met)).collect();
        assert_eq!(shown, [(1.2, true), (0.5, false)]);
    }

    #[test]
    fn tables_replace_what_stood_between_the_markers() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb");

        assert_eq!(between_markers(&text, "new").unwrap(), format!("a\n{BEGIN}\n\nnew\n{END}\nb"));
        assert_eq!(between_markers("no markers", "new"), None);
    }
}
