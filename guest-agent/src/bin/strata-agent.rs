//! `strata-agent`: what a guest is connected to.

use guest_agent::status::{self, Offer, Session, Slots, Status, Trace};
use serde_json::{Value, json};
use std::process::ExitCode;
use strata_abi::class;

const USAGE: &str = "\
Says what this guest is connected to.

Usage: strata-agent status [--json]
       strata-agent offered

status   region, module, process slots, host, clock and sessions; exit status 0 when applications can be traced, 1 when
         not, and then standard error says why
offered  says nothing; exit status 0 when this machine offers a trace region, 1 when not, for scripts and service managers

Example:
  strata-agent status
";

/// The classes of a guest's events, as shown.
const CLASSES: [(u8, &str); 21] = [
    (class::SCHED, "sched"),
    (class::TASK, "task"),
    (class::IRQ, "irq"),
    (class::SOFTIRQ, "softirq"),
    (class::SYSCALL, "syscall"),
    (class::EXCEPTION, "exception"),
    (class::TIMER, "timer"),
    (class::SIGNAL, "signal"),
    (class::IRQ_VECTOR, "irq-vector"),
    (class::WORKQUEUE, "workqueue"),
    (class::RCU, "rcu"),
    (class::POWER, "power"),
    (class::BLOCK, "block"),
    (class::FILE_SYSTEM, "file-system"),
    (class::NETWORK, "network"),
    (class::ALLOCATION, "allocation"),
    (class::MEMORY, "memory"),
    (class::LOCK, "lock"),
    (class::GUEST, "guest"),
    (class::OTHER, "other"),
    (class::USER, "user"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let json = match arguments.as_slice() {
        ["status"] => false,
        ["status", "--json"] | ["--json", "status"] => true,
        ["offered"] => return if status::offer().is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        ["--help" | "-h"] | ["status" | "offered", "--help" | "-h"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => return failed("what shall it do? `strata-agent status`, or see --help"),
        [unknown, ..] => return failed(&format!("{unknown:?} is not understood here; see `strata-agent --help`")),
    };
    let status = Status::read();
    let problem = status.problem();
    if json {
        println!("{:#}", as_json(&status, problem.as_deref()));
    } else {
        print!("{}", as_text(&status));
    }
    problem.map_or(ExitCode::SUCCESS, |problem| failed(&problem))
}

fn failed(message: &str) -> ExitCode {
    eprintln!("strata-agent: {message}");
    ExitCode::FAILURE
}

fn as_text(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| text.push_str(&format!("{name:<9} {value}\n"));
    line("region", status.offer.as_ref().map_or("none is offered".to_owned(), describe_offer));
    line("module", if status.module { "strata is loaded" } else { "strata is not loaded" }.to_owned());
    if let Some(slots) = &status.slots {
        line("slots", describe_slots(slots));
    }
    if let Ok(trace) = &status.trace {
        let host = if trace.host_alive { "drains the rings" } else { "does not drain the rings" };
        line("host", format!("{host}, layout {}", version(trace.abi_version)));
        line("clock", describe_clock(trace));
        if trace.sessions.is_empty() {
            line("session", "there is none".to_owned());
        }
        for session in &trace.sessions {
            line("session", describe_session(session));
        }
    }
    text
}

fn describe_offer(offer: &Offer) -> String {
    let place = match (offer.address, offer.size) {
        (Some(address), Some(size)) => format!("{} KiB at {address:#x}", size / 1024),
        _ => "persistent memory".to_owned(),
    };
    format!("{place}, layout {}", offer.abi_version.map_or("unknown to this user".to_owned(), version))
}

fn describe_slots(slots: &Slots) -> String {
    format!(
        "{} of {} in use; this user's processes have {} of at most {}; {} processes found none, {} were over their user's \
         share",
        slots.used, slots.total, slots.user_used, slots.user_limit, slots.refused, slots.over_quota
    )
}

fn describe_clock(trace: &Trace) -> String {
    #[allow(clippy::cast_precision_loss, reason = "shown with three decimals")]
    let mega_hertz = trace.clock_frequency as f64 / 1e6;
    format!("{mega_hertz:.3} MHz, driven on {} of {} vCPUs", trace.clocks, trace.vcpus)
}

fn describe_session(session: &Session) -> String {
    let wanted = wanted(session.class_mask);
    let wanted = if wanted.is_empty() { "nothing".to_owned() } else { wanted.join(" ") };
    format!("{:?}, {}, wants {wanted} (mask {:#x})", session.name, mode(session), session.class_mask)
}

fn wanted(class_mask: u64) -> Vec<&'static str> {
    CLASSES.iter().filter(|(bit, _)| class_mask >> bit & 1 == 1).map(|(_, name)| *name).collect()
}

fn mode(session: &Session) -> &'static str {
    use shared_ring::layout::Mode;
    match session.mode {
        Mode::Discard => "discard",
        Mode::FlightRecorder => "flight-recorder",
    }
}

fn version(abi_version: u32) -> String {
    format!("{}.{}", abi_version >> 16, abi_version & 0xffff)
}

fn as_json(status: &Status, problem: Option<&str>) -> Value {
    let offer = status.offer.map(
        |offer| json!({"abi_version": offer.abi_version.map(version), "address": offer.address, "size": offer.size}),
    );
    let slots = status.slots.map(|slots| {
        json!({
            "total": slots.total, "used": slots.used, "user_limit": slots.user_limit, "user_used": slots.user_used,
            "processes_refused": slots.refused, "processes_over_quota": slots.over_quota,
        })
    });
    let session = |session: &Session| {
        json!({
            "slot": session.slot, "name": session.name, "mode": mode(session), "class_mask": session.class_mask,
            "wants": wanted(session.class_mask),
        })
    };
    let trace = status.trace.as_ref().ok().map(|trace| {
        json!({
            "abi_version": version(trace.abi_version), "region_size": trace.region_size, "vcpus": trace.vcpus,
            "host_alive": trace.host_alive, "clock_frequency_hz": trace.clock_frequency, "clocks": trace.clocks,
            "sessions": trace.sessions.iter().map(session).collect::<Vec<_>>(),
        })
    });
    json!({"region": offer, "module_loaded": status.module, "slots": slots, "trace": trace, "problem": problem})
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::layout::Mode;

    fn status() -> Status {
        let session = Session {
            slot: 0,
            name: "main".into(),
            mode: Mode::FlightRecorder,
            class_mask: 1 << class::USER | 1 << class::SCHED,
        };
        Status {
            offer: Some(Offer { abi_version: Some(2 << 16 | 1), address: Some(0x1_0000_0000), size: Some(64 << 20) }),
            module: true,
            slots: Some(Slots { total: 16, used: 3, user_limit: 8, user_used: 1, refused: 2, over_quota: 5 }),
            trace: Ok(Trace {
                abi_version: 2 << 16 | 1,
                region_size: 64 << 20,
                vcpus: 2,
                host_alive: true,
                clock_frequency: 2_450_000_000,
                clocks: 2,
                sessions: vec![session],
            }),
        }
    }

    #[test]
    fn text_names_region_slots_clock_and_sessions() {
        let text = as_text(&status());

        assert!(text.contains("65536 KiB at 0x100000000, layout 2.1"), "{text}");
        assert!(text.contains("3 of 16 in use; this user's processes have 1 of at most 8"), "{text}");
        assert!(text.contains("2450.000 MHz, driven on 2 of 2 vCPUs"), "{text}");
        assert!(text.contains("session   \"main\", flight-recorder, wants sched user"), "{text}");
    }

    #[test]
    fn json_says_the_same() {
        let value = as_json(&status(), Some("why"));

        assert_eq!(value["region"]["address"], 0x1_0000_0000_u64);
        assert_eq!(value["slots"]["user_limit"], 8);
        assert_eq!(value["trace"]["sessions"][0]["wants"], json!(["sched", "user"]));
        assert_eq!(value["problem"], "why");
    }
}
