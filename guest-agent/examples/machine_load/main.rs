//! What `cargo xtask bench machine` runs in guests and on their host: loads whose operations are timed, the other end of
//! the network's, and a stop watch around the program that runs a guest.
//!
//! Each load runs for a while, several times, and prints a line each time: `machine_load: NAME VALUE UNIT`. A value is a
//! time or a size: less is better.

mod disk;
mod network;
mod tasks;
mod watch;

use anyhow::{Context, Result, bail};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: machine_load disk DEVICE | network ADDRESS | serve ADDRESS | build FOLDER | loopback | \
                     files FOLDER | watch LOG MEBIBYTES PROGRAM [ARGUMENT...]";
/// How often a load is timed; once more before that, to warm up.
const ROUNDS: usize = 3;
/// How long it runs each time.
const ROUND: Duration = Duration::from_millis(700);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("machine_load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["disk", device] => disk::read(device),
        ["network", address] => network::exchange(address),
        ["serve", address] => network::serve(address),
        ["build", folder] => tasks::build(folder.as_ref()),
        ["loopback"] => tasks::loopback(),
        ["files", folder] => tasks::files(folder.as_ref()),
        ["watch", log, mebibytes, program, arguments @ ..] => {
            let mebibytes = mebibytes.parse().with_context(|| format!("{mebibytes:?} is not a number of MiB"))?;
            watch::watch(log.as_ref(), mebibytes, program, arguments)
        }
        _ => bail!("{USAGE}"),
    }
}

/// Runs `operation` over and over for each round, and says how many nanoseconds a unit of it took; it returns the units
/// that it did.
fn time(name: &str, unit: &str, mut operation: impl FnMut() -> Result<u64>) -> Result<()> {
    for round in 0..=ROUNDS {
        let began = Instant::now();
        let mut done = 0;
        while began.elapsed() < ROUND {
            done += operation().with_context(|| name.to_owned())?;
        }
        if round > 0 {
            print(name, per_unit(began.elapsed(), done), unit);
        }
    }
    Ok(())
}

fn print(name: &str, value: f64, unit: &str) {
    println!("machine_load: {name} {value:.1} {unit}");
}

#[allow(clippy::cast_precision_loss, reason = "a round lasts less than 2^53 ns and does fewer units")]
fn per_unit(time: Duration, units: u64) -> f64 {
    time.as_nanos() as f64 / units.max(1) as f64
}
