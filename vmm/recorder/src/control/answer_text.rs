//! Answers of a running VM as text for people.

use super::protocol::{Answer, BalloonStatus, LimitStatus, LossStatus, Status, TraceStatus, TriggerStatus};
use std::fmt::Write as _;
use strata_recording::manifest::{Attached, is_vm_name};
use strata_recording::text::terminal::foreign::Foreign;

/// `answer` as text for the user.
#[must_use]
pub fn text(answer: &Answer) -> String {
    match answer {
        Answer::Status(status) => status_text(status),
        Answer::Live(live) if is_vm_name(live.name.raw()) => format!("{}: see `strata top {}`\n", live.name, live.name),
        Answer::Live(_) => "see `strata top`\n".into(),
        Answer::Balloon(balloon) => self::balloon(balloon),
        Answer::Done { message } | Answer::Refused { message } => format!("{message}\n"),
    }
}

fn status_text(status: &Status) -> String {
    let Status { name, pid, uptime_s, vcpus, memory, attached, paused, jail, balloon, limits, trace } = status;
    let paused = if *paused { ", paused" } else { "" };
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = match attached {
        Some(Attached { pid: of, comm }) => {
            writeln!(
                out,
                "{name}: {vcpus} vCPUs, run by process {of} ({comm}), recorded by process {pid} for {uptime_s} s"
            )
        }
        None => {
            let memory = memory >> 20;
            writeln!(out, "{name}: process {pid}, up {uptime_s} s, {vcpus} vCPUs, {memory} MiB of memory{paused}")
        }
    };
    let _ = jail.iter().try_for_each(|jail| writeln!(out, "jail    {jail}"));
    let _ = balloon.iter().try_for_each(|balloon| writeln!(out, "{}", balloon_line(balloon)));
    let _ = limits.iter().try_for_each(|limit| {
        let LimitStatus { device, limits, waits, waited_ms } = limit;
        writeln!(out, "limit   {device}: {limits}, waited {waits} times, {waited_ms} ms in all")
    });
    let _ = match trace {
        Some(trace) => write_trace(&mut out, trace, attached.is_none()),
        None => writeln!(out, "not traced"),
    };
    out
}

/// A recording `with_guest` has a region that is shared with the guest, and rings in it.
fn write_trace(out: &mut String, trace: &TraceStatus, with_guest: bool) -> std::fmt::Result {
    writeln!(out, "trace   {}", trace.dir)?;
    if with_guest {
        writeln!(out, "region  {} ({} KiB)", trace.region, trace.region_size >> 10)?;
        writeln!(out, "guest   {}", or_else(trace.guest_kernel.as_ref(), "no agent has come up"))?;
        if trace.restored_words > 0 {
            writeln!(
                out,
                "tampering: {} words that are the host's were changed by the guest, and restored",
                trace.restored_words
            )?;
        }
    }
    for session in &trace.sessions {
        let state = if session.active { "recording" } else { "stopped" };
        write!(out, "session {}: {state}, {}", session.name, session.mode)?;
        if with_guest {
            write!(out, ", {} x {} KiB per vCPU", session.sub_buffers, session.sub_buffer_size >> 10)?;
        }
        write!(out, ", events {}", session.events)?;
        match &session.trace {
            Some(dir) => writeln!(out, ", into {}", dir)?,
            None => writeln!(out)?,
        }
        if !session.not_joined.is_empty() {
            let vcpus = numbers(&session.not_joined);
            writeln!(out, "session {}: vCPU {vcpus} has not begun to record", session.name)?;
        }
        if let Some(nested @ 1..) = session.nested {
            writeln!(out, "session {}: {nested} records not made inside others", session.name)?;
        }
    }
    out.push_str(&triggers_text(&trace.triggers));
    for layer in &trace.layers {
        write!(out, "written {}: {} records, {} lost", layer.path, layer.records, layer.lost)?;
        for (count, what) in [(layer.overwritten, "overwritten"), (layer.dropped, "dropped to keep within the size")] {
            if count > 0 {
                write!(out, ", {count} {what}")?;
            }
        }
        if let Some(limit) = &layer.limit {
            let (times, ms) = (limit.times, limit.held_ns / 1_000_000);
            write!(out, ", limited to {limit}: held back {times} times, {ms} ms in all")?;
        }
        writeln!(out)?;
        for LossStatus { count, cause, next } in &layer.losses {
            writeln!(out, "        {count} lost: {cause}; {next}")?;
        }
    }
    trace.missing.iter().try_for_each(|line| writeln!(out, "missing {line}"))
}

/// Triggers as text for the user.
#[must_use]
pub fn triggers_text(triggers: &[TriggerStatus]) -> String {
    let mut out = String::new();
    for TriggerStatus { number, trigger, fired, last, marks, snapshots, failure, .. } in triggers {
        // Writing to a string does not fail.
        let _ = writeln!(out, "trigger {number} {trigger}: fired {fired} times");
        let _ = last.iter().try_for_each(|last| writeln!(out, "        last: {last}"));
        if *marks > 0 {
            let _ = writeln!(out, "        marked {marks} times in the trace");
        }
        let _ = snapshots.iter().try_for_each(|folder| writeln!(out, "        snapshot {}", folder));
        let _ = failure.iter().try_for_each(|why| writeln!(out, "        no snapshot: {why}"));
    }
    out
}

/// `balloon` as text for the user.
#[must_use]
pub fn balloon(balloon: &BalloonStatus) -> String {
    let what_next = match balloon {
        BalloonStatus { driven: false, .. } => "the guest has no driver for it (yet): load virtio_balloon in it\n",
        BalloonStatus { wanted, given, .. } if wanted != given => {
            "the guest goes on, as far as it can: `strata ctl VM balloon` says how far\n"
        }
        _ => "",
    };
    format!("{}\n{what_next}", balloon_line(balloon))
}

/// `balloon` in a line.
#[must_use]
pub fn balloon_line(balloon: &BalloonStatus) -> String {
    let BalloonStatus { wanted, given, reported, refused, driven: _ } = *balloon;
    let (wanted, given, reported) = (size(wanted), size(given), size(reported));
    let refused = if refused > 0 { format!(", {refused} pages refused") } else { String::new() };
    format!("balloon {given} given of {wanted} wanted back, {reported} reported free since the start{refused}")
}

fn or_else(text: Option<&Foreign<String>>, other: &str) -> String {
    text.map_or_else(|| other.into(), Foreign::to_string)
}

fn numbers(pids: &[u32]) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A size in MiB where it is a whole number of them, else in KiB.
fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::{LayerStatus, Live, Mode, SessionStatus};
    use strata_recording::manifest::RecordLimit;

    #[test]
    fn nothing_of_an_answer_acts_on_a_terminal() {
        let message = "\x1b[2Jdone\nVM is fine\u{202e}";
        let trace = TraceStatus { dir: "/tmp/\x1b[1m".into(), ..TraceStatus::default() };
        let status = Status { name: "a\nb".into(), trace: Some(trace), ..Status::default() };
        let trigger = TriggerStatus { trigger: "\x1b]0;x\x07".into(), ..TriggerStatus::default() };

        let (done, status) = (text(&Answer::done(message)), text(&Answer::Status(Box::new(status))));

        assert_eq!(done, "\\u{1b}[2Jdone\\nVM is fine\\u{202e}\n");
        assert!(status.starts_with("a\\nb: ") && status.contains("/tmp/\\u{1b}[1m"), "{status}");
        assert!(triggers_text(&[trigger]).starts_with("trigger 0 \\u{1b}]0;x\\u{7}: "));
    }

    #[test]
    fn answer_gives_no_advice_that_another_program_could_run_for() {
        let live = Live { name: "x; touch pwned".into(), ..Live::default() };

        assert_eq!(text(&Answer::Live(Box::new(live))), "see `strata top`\n");
    }

    #[test]
    fn status_of_a_recording_from_outside_names_both_processes_and_no_rings() {
        let trace = TraceStatus { sessions: vec![SessionStatus::default()], ..TraceStatus::default() };
        let attached = Some(Attached { pid: 77, comm: "qemu".into() });

        let text = status_text(&Status { pid: 9, attached, trace: Some(trace), ..Status::default() });

        assert!(text.contains("run by process 77 (qemu), recorded by process 9"), "{text}");
        assert!(!text.contains("KiB") && !text.contains("agent"), "{text}");
    }

    #[test]
    fn status_says_how_much_the_guest_has_given_back() {
        let balloon = Some(BalloonStatus { wanted: 256 << 20, given: 96 << 20, ..BalloonStatus::default() });

        let text = status_text(&Status { balloon, ..Status::default() });

        assert!(text.contains("\nballoon 96 MiB given of 256 MiB wanted back"), "{text}");
    }

    #[test]
    fn status_says_which_limits_were_waited_for() {
        let (device, limits) = ("disk 0".into(), "iops=500:1000".into());
        let limits = vec![LimitStatus { device, limits, waits: 12, waited_ms: 340 }];

        let text = status_text(&Status { limits, ..Status::default() });

        assert!(text.contains("disk 0: iops=500:1000, waited 12 times, 340 ms"), "{text}");
    }

    #[test]
    fn status_says_which_layers_were_held_back() {
        let limit = Some(RecordLimit { per_second: 500, burst: 70, times: 3, held_ns: 1_500_000_000 });
        let layers = vec![LayerStatus { path: "vm0/vmm".into(), limit, ..LayerStatus::default() }];
        let trace = Some(TraceStatus { layers, ..TraceStatus::default() });

        let text = status_text(&Status { trace, ..Status::default() });

        assert!(text.contains("limited to 500:70: held back 3 times, 1500 ms in all"), "{text}");
    }

    #[test]
    fn status_says_why_records_are_lost_and_what_helps() {
        let loss = LossStatus { count: 2, cause: "each is too large".into(), next: "record larger ones".into() };
        let layers =
            vec![LayerStatus { path: "vm0/vmm".into(), lost: 2, losses: vec![loss], ..LayerStatus::default() }];
        let trace = Some(TraceStatus { layers, ..TraceStatus::default() });

        let text = status_text(&Status { trace, ..Status::default() });

        assert!(
            text.contains(
                "written vm0/vmm: 0 records, 2 lost\n        2 lost: each is too large; record larger ones\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn status_says_what_is_recorded_and_where() {
        let session = SessionStatus {
            name: "main".into(),
            mode: Mode::FlightRecorder,
            active: true,
            not_joined: vec![1, 3],
            nested: Some(7),
            ..SessionStatus::default()
        };
        let trace = TraceStatus {
            dir: "/tmp/t".into(),
            region: "/run/strata/vm0-1/region".into(),
            sessions: vec![session],
            missing: vec!["host-kernel: no root".into()],
            ..TraceStatus::default()
        };

        let text = status_text(&Status { name: "vm0".into(), pid: 1, trace: Some(trace), ..Status::default() });

        let session = ["main: recording, flight-recorder", "vCPU 1, 3 has not begun", "7 records not made inside"];
        for part in ["vm0", "/run/strata/vm0-1/region", "no root"].into_iter().chain(session) {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn refused_pages_and_parts_of_a_size_are_reported() {
        let balloon = BalloonStatus { given: 12 << 10, refused: 7, driven: true, ..BalloonStatus::default() };

        let text = self::balloon(&balloon);

        assert!(text.contains("12 KiB given of 0 MiB") && text.contains(", 7 pages refused\n"), "{text}");
        assert!(text.contains("the guest goes on"), "{text}");
    }
}
