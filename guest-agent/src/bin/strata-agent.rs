//! `strata-agent`: what a guest is connected to.

use anyhow::{Result, bail};
use guest_agent::Status;
use shared_ring::event::class;
use std::process::ExitCode;

const USAGE: &str = "usage: strata-agent status";

/// The classes of a guest's events, as shown.
const CLASSES: [(u8, &str); 8] = [
    (class::SCHED, "sched"),
    (class::TASK, "task"),
    (class::IRQ, "irq"),
    (class::SOFTIRQ, "softirq"),
    (class::SYSCALL, "syscall"),
    (class::EXCEPTION, "exception"),
    (class::TIMER, "timer"),
    (class::USER, "user"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("strata-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<String> {
    match arguments {
        [command] if command == "status" => Ok(describe(&Status::read()?)),
        [option] if option == "--help" || option == "-h" => Ok(format!("{USAGE}\n")),
        _ => bail!("{USAGE}"),
    }
}

fn describe(status: &Status) -> String {
    let wanted: Vec<&str> =
        CLASSES.iter().filter(|(bit, _)| status.class_mask >> bit & 1 == 1).map(|(_, name)| *name).collect();
    let wanted = if wanted.is_empty() { "nothing".to_owned() } else { wanted.join(" ") };
    format!(
        "device    /dev/strata\n\
         region    {} KiB, {} vCPUs, {} process slots, layout {}.{}\n\
         host      {}\n\
         clock     {:.3} MHz\n\
         session   {:?}, wants {wanted} (mask {:#x})\n",
        status.region_size / 1024,
        status.vcpus,
        status.process_slots,
        status.abi_version >> 16,
        status.abi_version & 0xffff,
        if status.host_alive { "drains the rings" } else { "does not drain the rings" },
        mega(status.clock_frequency),
        status.session,
        status.class_mask,
    )
}

/// `hertz` in MHz.
#[allow(clippy::cast_precision_loss, reason = "shown with three decimals")]
fn mega(hertz: u64) -> f64 {
    hertz as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_what_the_session_wants() {
        let text = describe(&Status {
            vcpus: 2,
            region_size: 1 << 20,
            abi_version: 1 << 16,
            host_alive: true,
            clock_frequency: 2_450_000_000,
            process_slots: 8,
            session: "main".into(),
            class_mask: 1 << class::USER | 1 << class::SCHED,
        });

        assert!(text.contains("session   \"main\", wants sched user"));
        assert!(text.contains("2450.000 MHz"));
    }

    #[test]
    fn unknown_command_shows_the_usage() {
        assert!(run(&["start".into()]).unwrap_err().to_string().contains("usage"));
    }
}
