//! The answer for people: a paragraph, and a tree whose times add up.

use super::follow::{IDLE, IDLE_FOR_LONG, PASSED_OVER};
use super::{Cause, CriticalPath, CriticalPaths, RecordOf, Share, Step};
use crate::report::rows::width;
use crate::report::scheduling::state_names::{IDLE_HOST_CPU, NOT_ALLOWED};
use crate::report::sink::Sink;
use crate::report::{Report, duration, percent};
use std::collections::BTreeMap;
use std::io;
use strata_recording::clock::{Clock, NS_PER_SECOND};
use strata_recording::text::counted::counted;

/// Causes that the paragraph names; what is not known stands beside them.
const CAUSES: usize = 5;
/// Causes below this share, in thousandths, are summed up.
const LEAST_SHARE: u64 = 5;
/// Kinds of time that are named of what is summed up.
const KINDS: usize = 3;
/// Steps beside each other that are shown one by one; of more, equal ones are put together.
const IN_ORDER: usize = 12;
/// Depth of the tree that is shown.
const DEPTH: usize = 8;

/// What a sentence is about.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct About<'s> {
    cause: Cause,
    detail: Option<&'s str>,
    whose: &'s str,
    vcpu: Option<u32>,
}

impl<'s> About<'s> {
    fn of(share: &'s Share) -> Self {
        // Who has the CPU delays a task that is ready, also while that one's exits and interrupts are handled.
        let (cause, detail) = match (share.cause, &share.runner) {
            (Cause::Exit | Cause::Vmm | Cause::WaitsForCpu, Some(runner)) => {
                (Cause::WaitsForCpu, Some(runner.as_str()))
            }
            // In which system call or interrupt is too much for a sentence.
            (Cause::Running | Cause::RunningOrStolen | Cause::Interrupted, _) => (share.cause, None),
            _ => (share.cause, share.detail.as_deref()),
        };
        Self {
            cause,
            detail,
            whose: &share.task,
            vcpu: share.vcpu.filter(|_| detail.is_some() && names_its_vcpu(cause)),
        }
    }

    /// Whether `share` is nothing but what the sentence says.
    fn is_all_of(&self, share: &Share) -> bool {
        self.cause == share.cause && (share.runner.is_none() || share.runner == share.detail)
    }
}

/// Whether the sentence about `cause` says which vCPU it is about.
const fn names_its_vcpu(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::Exit
            | Cause::Vmm
            | Cause::Preempted
            | Cause::WokenLate
            | Cause::NotAllowed
            | Cause::Halted
            | Cause::WaitsForCpu
    )
}

/// The answer in plain language.
pub(super) fn summary(
    (task, vm): (&str, &str),
    seconds: &[String; 2],
    (wall, wall_ns): (u64, u64),
    shares: &[Share],
    clock: &Clock,
) -> String {
    // The time, and how much of it is something else at the same time.
    let mut sums: BTreeMap<About<'_>, (u64, u64)> = BTreeMap::new();
    for share in shares {
        let about = About::of(share);
        let besides = if about.is_all_of(share) { 0 } else { share.ticks };
        let sum = sums.entry(about).or_default();
        (sum.0, sum.1) = (sum.0 + share.ticks, sum.1 + besides);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(_, (ticks, _))| std::cmp::Reverse(ticks));
    let time = |ticks| format!("{} ({})", duration(clock.ticks_to_ns(ticks)), percent(ticks, wall));
    let mut text = format!(
        "{task} of {vm} took {} from {} to {} s.",
        duration(wall_ns),
        seconds.first().map_or("", String::as_str),
        seconds.last().map_or("", String::as_str)
    );
    let (mut named, mut rest, mut kinds) = (0, 0, BTreeMap::new());
    let is_large = |ticks| u128::from(ticks) * 1000 >= u128::from(wall) * u128::from(LEAST_SHARE);
    for (about, (ticks, besides)) in sums {
        let cause = about.cause;
        if named < CAUSES && is_large(ticks) || cause == Cause::Unknown {
            named += usize::from(cause != Cause::Unknown);
            let besides = if is_large(besides) {
                format!(", {} of it under exits and interrupts", duration(clock.ticks_to_ns(besides)))
            } else {
                String::new()
            };
            text += &format!(" For {} {}.", time(ticks), clause(&about, &besides, task));
        } else {
            rest += ticks;
            *kinds.entry(kind(cause)).or_insert(0) += ticks;
        }
    }
    if rest > 0 {
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|&(_, ticks)| std::cmp::Reverse(ticks));
        let kinds =
            kinds.into_iter().take(KINDS).map(|(kind, ticks)| format!("{kind} {}", duration(clock.ticks_to_ns(ticks))));
        let kinds: Vec<_> = kinds.collect();
        text += &format!(" The rest, {}, is in smaller parts: {}.", time(rest), kinds.join(", "));
    }
    text
}

/// The kind of time that `cause` is, for what is summed up.
const fn kind(cause: Cause) -> &'static str {
    match cause {
        Cause::Running | Cause::RunningOrStolen => "running",
        Cause::Interrupted | Cause::Handler => "interrupts",
        Cause::Exit => "exits that KVM handled",
        Cause::Vmm => "exits that the VMM handled",
        Cause::Preempted | Cause::WokenLate | Cause::PacketHeldUp => "what the host ran instead",
        Cause::NotAllowed => "not allowed to run",
        Cause::Halted => "halted",
        Cause::WaitsForCpu => "ready while the guest ran something else",
        Cause::Sleep => "sleeping as asked for",
        Cause::Timer => "waiting for timers",
        Cause::Interrupt => "waiting for interrupts",
        Cause::Request | Cause::NotIssued => "waiting for the disk",
        Cause::Blocked | Cause::NotMade | Cause::NotWoken | Cause::WakerUnknown | Cause::NotFollowed => {
            "waiting for others"
        }
        Cause::Ended => "after its end",
        Cause::Unknown => "not known",
    }
}

/// How the interrupts of devices are called: others are of timers, of CPUs or of the kernel's own.
const DEVICES: [&str; 4] = ["irq ", "softirq block", "softirq net_rx", "softirq net_tx"];

/// What the sentence says after "For 3 ms", with what happened `besides`. `task` is the one of the question.
fn clause(about: &About<'_>, besides: &str, task: &str) -> String {
    let About { cause, whose, .. } = *about;
    let detail = about.detail.unwrap_or_default();
    let vcpu = about.vcpu.map_or_else(|| "its vCPU".into(), |vcpu| format!("vCPU {vcpu}"));
    let what = match cause {
        Cause::Running => format!("{whose} ran"),
        Cause::RunningOrStolen => format!("{whose} ran, as far as its guest can tell"),
        Cause::Interrupted => format!("interrupts ran on top of {whose}"),
        Cause::Exit => format!("KVM handled exits ({detail}) of {vcpu}, which {whose} needed"),
        Cause::Vmm => format!("the VMM handled exits ({detail}) of {vcpu}, which {whose} needed"),
        Cause::Preempted => format!("the host ran {detail} in place of {vcpu}, which {whose} needed"),
        Cause::WokenLate if detail == IDLE_HOST_CPU => {
            format!("{vcpu}, which {whose} needed, was woken, and its CPU of the host was idle and had yet to begin")
        }
        Cause::WokenLate => format!("{vcpu}, which {whose} needed, was woken, and the host ran {detail} first"),
        Cause::NotAllowed if detail == PASSED_OVER => {
            format!("{whose} was ready, and {vcpu} was idle and did not run it: a CPU limit in the guest")
        }
        Cause::NotAllowed if detail == IDLE_FOR_LONG => {
            format!("{whose} was ready, and {vcpu} was idle for long: a CPU limit in the guest, or why is not recorded")
        }
        Cause::NotAllowed if detail == NOT_ALLOWED => {
            format!(
                "{vcpu}, which {whose} needed, was ready, and its CPU of the host was idle and did not run it: a CPU limit"
            )
        }
        Cause::NotAllowed => format!(
            "{vcpu}, which {whose} needed, was ready, and its CPU of the host was idle for long: a CPU limit, or why is not \
             recorded"
        ),
        Cause::Halted => format!("{vcpu}, which {whose} needed, was halted"),
        Cause::WaitsForCpu if detail.is_empty() => format!("{whose} was ready and did not run"),
        Cause::WaitsForCpu if detail == IDLE => format!("{whose} was ready, and {vcpu} was idle and had yet to begin"),
        Cause::WaitsForCpu => format!("{whose} was ready and its guest ran {detail} on {vcpu}"),
        Cause::Blocked => format!("{whose} waited: {detail}"),
        Cause::Sleep => format!("{whose} slept, as it had asked for"),
        Cause::Timer => format!("{whose} waited for a timer: {detail}"),
        Cause::Interrupt if DEVICES.iter().any(|device| detail.starts_with(device)) => {
            format!("{whose} waited for a device: {detail}")
        }
        Cause::Interrupt => format!("{whose} waited for an interrupt: {detail}"),
        Cause::Handler => format!("the guest handled what was to wake {whose}: {detail}"),
        Cause::PacketHeldUp => format!("the host ran {detail}, which was to move the packet that {whose} waited for"),
        // `REQUEST: FROM → TO, WHERE`
        Cause::Request => match detail.split_once(": ") {
            Some((request, step)) => format!("{whose} waited for a {request} ({step})"),
            None => format!("{whose} waited for a {detail}"),
        },
        Cause::NotIssued => format!("{whose} waited for a disk request that was not issued yet"),
        Cause::NotMade => format!("{whose} was not made yet"),
        Cause::NotWoken => format!("{whose} waited, beyond the window's end: {detail}"),
        Cause::Ended => format!("{whose} had ended"),
        Cause::WakerUnknown => format!("{whose} waited, and who ended that is not known ({detail})"),
        Cause::NotFollowed => format!("{whose} waited for a task that is too far away to be followed"),
        Cause::Unknown => format!("it is not known what {whose} did: {detail}"),
    };
    if whose == task { format!("{what}{besides}") } else { format!("{what}{besides}; {task} was waiting for it") }
}

/// What a step is called in the tree; `below` is the task that it stands below.
pub(super) fn label(step: &Step, below: &str) -> String {
    let Step { cause, task, vcpu, .. } = step;
    let detail = step.detail.as_deref().unwrap_or_default();
    let whose = if task == below { String::new() } else { format!("{task}: ") };
    let on = vcpu.map_or_else(String::new, |vcpu| format!(" on vCPU {vcpu}"));
    let of = vcpu.map_or_else(String::new, |vcpu| format!(" of vCPU {vcpu}"));
    let within = if detail.is_empty() { String::new() } else { format!(" in {detail}") };
    let woken_by = step.woken_by.as_ref().map_or_else(String::new, |by| format!(", until {by} woke it"));
    let what = match cause {
        Cause::Running => format!("runs{within}{on}"),
        Cause::RunningOrStolen => format!("runs{within}{on}, as far as the guest can tell"),
        Cause::Interrupted => format!("interrupted by {detail}{on}"),
        Cause::Exit => format!("KVM handles {detail}{of}"),
        Cause::Vmm => format!("the VMM handles {detail}{of}"),
        Cause::Preempted => format!("the host runs {detail} in place{of}"),
        Cause::WokenLate if detail == IDLE_HOST_CPU => format!("woken and not run yet{on}; the host's CPU was idle"),
        Cause::WokenLate => format!("woken and not run yet{on}; the host runs {detail}"),
        Cause::NotAllowed => format!("ready, and not run{on}; the CPU runs {detail}"),
        Cause::Halted => format!("halted{on}"),
        Cause::WaitsForCpu if detail.is_empty() => format!("ready, and does not run{on}"),
        Cause::WaitsForCpu if detail == IDLE => format!("ready; idle and yet to begin{on}"),
        Cause::WaitsForCpu => format!("ready; the guest runs {detail}{on}"),
        Cause::Blocked => format!("waits for {detail}{woken_by}"),
        Cause::Sleep => "sleeps, as it asked for".into(),
        Cause::Timer => format!("waits for {detail}{woken_by}"),
        Cause::Interrupt => format!("waits for {detail}{woken_by}; for whom is not recorded"),
        Cause::Handler => format!("its wake-up is being handled: {detail}{on}"),
        Cause::PacketHeldUp => format!("its packet is held up: the host runs {detail}"),
        Cause::Request => format!("disk: {detail}"),
        Cause::NotIssued => match &step.woken_by {
            Some(by) => format!("its disk request is not issued yet, by {by}"),
            None => "its disk request is not issued yet".into(),
        },
        Cause::NotMade => match &step.woken_by {
            Some(by) => format!("not made yet, by {by}"),
            None => "not made yet".into(),
        },
        Cause::NotWoken => format!("waits for {detail}, beyond the window's end"),
        Cause::Ended => "has ended".into(),
        Cause::WakerUnknown => format!("waits for {detail}"),
        Cause::NotFollowed => format!("waits for {detail}{woken_by}, which is not followed"),
        Cause::Unknown => format!("not known: {detail}"),
    };
    format!("{whose}{what}")
}

/// A line of the tree.
struct Line<'s> {
    label: String,
    ticks: u64,
    count: usize,
    /// The step, where it is one.
    only: Option<&'s Step>,
    below: Vec<&'s Step>,
    task: &'s str,
}

/// The lines for `steps`, below `task`, of `whole` ticks: in order where they are few, else equal ones put together, the
/// longest first; and the time and number of those that are too short to be shown.
fn lines<'s>(steps: &[&'s Step], task: &str, whole: u64) -> (Vec<Line<'s>>, u64, usize) {
    let line = |step: &'s Step| Line {
        label: label(step, task),
        ticks: step.ticks,
        count: 1,
        only: Some(step),
        below: step.steps.iter().collect(),
        task: &step.task,
    };
    let mut shown: Vec<Line<'s>> = Vec::new();
    if steps.len() <= IN_ORDER {
        shown.extend(steps.iter().map(|&step| line(step)));
    } else {
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for &step in steps {
            let line = line(step);
            let place = *places.entry(line.label.clone()).or_insert(shown.len());
            match shown.get_mut(place) {
                Some(known) => {
                    (known.ticks, known.count, known.only) = (known.ticks + line.ticks, known.count + 1, None);
                    known.below.extend(line.below);
                }
                None => shown.push(line),
            }
        }
        shown.sort_by_key(|line| std::cmp::Reverse(line.ticks));
    }
    let is_short = |line: &mut Line<'_>| u128::from(line.ticks) * 1000 < u128::from(whole) * u128::from(LEAST_SHARE);
    let mut rest: Vec<_> = shown.extract_if(.., is_short).collect();
    rest.extend(shown.split_off(shown.len().min(IN_ORDER)));
    (shown, rest.iter().map(|line| line.ticks).sum(), rest.iter().map(|line| line.count).sum())
}

impl CriticalPaths {
    fn write_tree(
        &self,
        out: &mut dyn Sink,
        steps: &[&Step],
        (task, whole, depth): (&str, u64, usize),
    ) -> io::Result<()> {
        let (lines, rest, count) = lines(steps, task, whole);
        let indent = "  ".repeat(depth);
        for line in lines {
            let times = if line.count > 1 { format!("  ×{}", line.count) } else { String::new() };
            let record = line.only.and_then(|step| step.until.as_ref().or(step.since.as_ref()));
            let record = record.map_or_else(String::new, |record| format!("  [{}]", self.record(record)));
            let why = line.only.and_then(|step| step.why.as_ref());
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            self.write_line(out, (line.ticks, whole), &format!("{indent}{}{times}{why}{record}", line.label))?;
            if !line.below.is_empty() && depth < DEPTH {
                self.write_tree(out, &line.below, (line.task, whole, depth + 1))?;
            }
        }
        if rest > 0 {
            let what = if count == 1 { "shorter one" } else { "shorter ones" };
            self.write_line(out, (rest, whole), &format!("{indent}… {count} {what}"))?;
        }
        Ok(())
    }

    fn write_line(&self, out: &mut dyn Sink, (ticks, whole): (u64, u64), text: &str) -> io::Result<()> {
        writeln!(out, "{:>12}  {:>7}  {text}", duration(self.ns(ticks)), percent(ticks, whole))
    }

    fn record(&self, record: &RecordOf) -> String {
        let ns = self.ns(record.ticks.saturating_sub(self.start));
        let RecordOf { layer, cpu, event, .. } = record;
        format!("{}.{:09} {layer} {event} {cpu}", ns / NS_PER_SECOND, ns % NS_PER_SECOND)
    }

    fn ns(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * u128::from(NS_PER_SECOND) / u128::from(self.frequency_hz.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    fn write_path(&self, out: &mut dyn Sink, path: &CriticalPath) -> io::Result<()> {
        write_wrapped(out, &path.summary)?;
        writeln!(out)?;
        self.write_line(out, (path.wall_ticks, path.wall_ticks), &path.task)?;
        let steps: Vec<_> = path.steps.iter().collect();
        self.write_tree(out, &steps, (&path.task, path.wall_ticks, 1))?;
        if let Some(ticks) = path.limit_met {
            let ns = self.ns(ticks.saturating_sub(self.start));
            let seconds = format!("{}.{:09}", ns / NS_PER_SECOND, ns % NS_PER_SECOND);
            writeln!(out, "WARNING: more happened from {seconds} s on than is kept; choose a shorter window")?;
        }
        Ok(())
    }
}

/// Columns of a line of the paragraph.
const WIDTH: usize = 110;

/// Writes `text` in lines that are no longer than [`WIDTH`] and the terminal's, words aside that are.
fn write_wrapped(out: &mut dyn Sink, text: &str) -> io::Result<()> {
    let columns = out.columns().map_or(WIDTH, |columns| columns.min(WIDTH));
    width::wrap(text, columns, 0).into_iter().try_for_each(|line| writeln!(out, "{line}"))
}

impl Report for CriticalPaths {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for warning in &self.warnings {
            writeln!(out, "WARNING: {warning}")?;
        }
        if self.task_count > 1 {
            let count = self.task_count;
            writeln!(out, "NOTE: {count} tasks match; these are the longest times of all of them")?;
        }
        if let Some(unattributed @ 1..) = self.unattributed {
            let records = counted(unattributed, "record", "records");
            writeln!(out, "NOTE: of {records} of such events it is not known which task made them")?;
        }
        for (place, path) in self.paths.iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            self.write_path(out, path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_on_one_vcpu_and_on_none_is_one_sentence() {
        let share = |vcpu, ticks| Share {
            cause: Cause::Unknown,
            detail: Some("no record tells".into()),
            task: "web/7".into(),
            vcpu,
            runner: None,
            ticks,
            ns: ticks,
        };
        let clock = strata_recording::test_trace::manifest().clock;

        let shares = [share(None, 10), share(Some(1), 30)];
        let text = summary(("web/7", "vm0"), &["0".into(), "1".into()], (40, 40), &shares, &clock);

        assert_eq!(text.matches("it is not known what web/7 did").count(), 1, "{text}");
        assert!(text.contains("(100.0 %)"), "{text}");
    }

    #[test]
    fn number_and_percent_sign_stay_on_one_line() {
        let mut out = Vec::new();

        write_wrapped(&mut out, &format!("{} (3.4 %) more", "x".repeat(WIDTH - 5))).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().nth(1), Some("(3.4 %) more"));
    }
}
