//! What was found, as lines for people.

use super::pairs::PairCount;
use super::{BeyondObserved, CheckResult, PeriodSummary, Problem, SupportedBound, Violation, VmPairs};
use std::io::{self, Write};
use strata_recording::clock::{Clock, NS_PER_SECOND};
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;

pub(super) fn write(result: &CheckResult, trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    if let Some(line) = result.completeness.line() {
        writeln!(out, "{line}")?;
    }
    for vm in &result.without_periods {
        writeln!(
            out,
            "WARNING: CAUSALITY WAS NOT CHECKED for {vm}: no layer that tells when its vCPUs were in the guest is left; \
             what was checked is below"
        )?;
    }
    for periods in &result.periods {
        let PeriodSummary { vm, source, count, records, .. } = periods;
        writeln!(out, "{vm}: {count} periods in the guest, from the {} layer, for {records} records", source.layer())?;
        if let Some(remark) = &periods.remark {
            writeln!(out, "{vm}: {remark}")?;
        }
    }
    let (kernel, user) = (result.guest_kernel_records, result.guest_user_records);
    let tolerance = result.tolerance_ns;
    writeln!(
        out,
        "checked {kernel} guest-kernel and {user} guest-user records against them, tolerance {tolerance} ns"
    )?;
    result.supported.iter().try_for_each(|bound| write_supported(bound, out))?;
    let start = trace.start().unwrap_or(0);
    for stretch in &result.beyond_observed {
        write_beyond_observed(stretch, trace.clock(), start, out)?;
    }
    writeln!(out, "checked the order of {}", counted(result.records, "record", "records"))?;
    if result.unchecked > 0 && !result.periods.is_empty() {
        let unchecked = result.unchecked;
        writeln!(
            out,
            "NOTE: of {unchecked} guest records it is not known whether their vCPUs were in the guest, because of gaps or \
             of what a flight recorder overwrote; only their order was checked"
        )?;
    }
    if result.guest_records() + result.unchecked == 0 {
        writeln!(
            out,
            "NOTE: there is no guest record in this trace, so nothing was checked against the vCPUs' periods"
        )?;
    }
    if result.entries_checked > 0 {
        writeln!(
            out,
            "checked {} into guests against the runs of their vCPUs",
            counted(result.entries_checked, "entry", "entries")
        )?;
    }
    for vm in &result.pairs {
        write_pairs(vm, out)?;
    }
    for violation in &result.violations {
        write_violation(violation, trace.clock(), start, out)?;
    }
    let kept = result.violations.len() as u64;
    if result.total() > kept {
        writeln!(out, "… and {} more", result.total() - kept)?;
    }
    let CheckResult { outside, out_of_order, damaged, outside_runs, loss_contradictions, .. } = result;
    let (total, unbalanced) = (result.total(), result.unbalanced());
    writeln!(
        out,
        "{}: {outside} outside the periods, {out_of_order} out of order, {}, {} outside runs, {}, {} of loss",
        counted(total, "violation", "violations"),
        counted(*damaged, "damaged stream", "damaged streams"),
        counted(*outside_runs, "entry", "entries"),
        counted(unbalanced, "unbalanced event", "unbalanced events"),
        counted(*loss_contradictions, "contradicting count", "contradicting counts"),
    )
}

fn write_supported(bound: &SupportedBound, out: &mut dyn Write) -> io::Result<()> {
    let SupportedBound { vm, vcpu, records, ahead_ns, behind_ns, outside, early_ns, late_ns } = bound;
    let of = vcpu.map_or_else(|| format!("{vm} processes"), |vcpu| format!("{vm} vcpu {vcpu}"));
    if *outside > 0 {
        return writeln!(
            out,
            "WARNING: {of}: {outside} of {records} records lie outside the periods, up to {early_ns} ns before and \
             {late_ns} ns after them: the clock's error varies, and the trace itself supports no bound"
        );
    }
    let Some(ahead) = ahead_ns else { return Ok(()) };
    let behind = behind_ns.map_or_else(String::new, |ns| format!(" and {ns} ns behind"));
    writeln!(out, "{of}: by the trace itself its clock is at most {ahead} ns ahead{behind} ({records} records)")
}

fn write_beyond_observed(stretch: &BeyondObserved, clock: &Clock, start: u64, out: &mut dyn Write) -> io::Result<()> {
    let BeyondObserved { vm, vcpu, records, from_ticks, to_ticks, most_ns, bound_ns } = stretch;
    let [from, to] = [from_ticks, to_ticks].map(|ticks| since(clock, start, *ticks));
    writeln!(
        out,
        "NOT BOUNDED: {vm} vcpu {vcpu} from {from} to {to}: {records} records lie up to {most_ns} ns outside the periods, \
         comparisons saw {bound_ns} ns; the host's kernel has given up the TSC, so no bound is guaranteed"
    )
}

/// `ticks` in seconds since `start`.
fn since(clock: &Clock, start: u64, ticks: u64) -> String {
    let ns = clock.ticks_to_ns(ticks.saturating_sub(start));
    format!("{}.{:09}", ns / NS_PER_SECOND, ns % NS_PER_SECOND)
}

fn write_pairs(vm: &VmPairs, out: &mut dyn Write) -> io::Result<()> {
    let whole = |pair: &PairCount| format!("{} {}", pair.balanced, pair.pair.name());
    let whole: Vec<_> = vm.pairs.iter().map(whole).collect();
    let explained: u64 = vm.pairs.iter().map(|pair| pair.explained).sum();
    writeln!(
        out,
        "{}: whole: {}; {explained} other events have no partner, for known reasons",
        vm.vm,
        whole.join(", ")
    )?;
    let unbalanced: u64 = vm.pairs.iter().map(|pair| pair.unbalanced).sum();
    match &vm.lenient {
        Some(why) if unbalanced > 0 => writeln!(out, "NOTE: {unbalanced} events have no partner; {why}"),
        _ => Ok(()),
    }
}

fn write_violation(violation: &Violation, clock: &Clock, start: u64, out: &mut dyn Write) -> io::Result<()> {
    let seconds = |ticks: u64| since(clock, start, ticks);
    write!(out, "{}", violation.stream)?;
    if let (Some(ticks), Some(event)) = (violation.ticks, &violation.event) {
        write!(out, " at {} ({event})", seconds(ticks))?;
    }
    match &violation.problem {
        Problem::Outside { vcpu: Some(vcpu), nearest: Some(period), outside_ns: Some(ns) } => {
            let end = if period.end == u64::MAX { "on".into() } else { format!("to {}", seconds(period.end)) };
            let begin = seconds(period.begin);
            writeln!(out, ": {ns} ns outside the nearest period of vcpu {vcpu}, from {begin} {end}")
        }
        Problem::OutsideRun { vcpu, outside_ns: Some(ns) } => {
            writeln!(out, ": {ns} ns outside the nearest run of vcpu {vcpu}")
        }
        Problem::OutsideRun { vcpu, outside_ns: None } => writeln!(out, ": vcpu {vcpu} never ran"),
        Problem::Unbalanced { what } | Problem::Loss { what } => writeln!(out, ": {what}"),
        Problem::Outside { .. } => writeln!(out, ": its vCPU was never in the guest"),
        Problem::OutOfOrder { earlier_ns } => writeln!(out, ": {earlier_ns} ns before the record before it"),
        Problem::Damaged { what } => writeln!(out, ": {what}"),
    }
}
