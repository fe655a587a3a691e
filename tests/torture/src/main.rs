//! Hostile guests and processes, and faults, against the recorder that VMs have, without KVM: `cargo xtask torture`.
//!
//! A round has two VMs, each with a process that does all that `strata run` does but the machine ([`monitor`]). The first
//! one's guest is honest, and some of its processes are hostile; the other one's kernel is hostile. Beside that something
//! fails ([`fault`]), and another user lies in wait ([`stranger`]) for what is done with the first VM meanwhile ([`beside`]).
//! When the guests have ended, what was promised is checked ([`judge`]): first of all that what honest producers counted is
//! in the recordings, or counted there as lost. Then recordings are forged out of them ([`forgery`]).
//!
//! Shows: Hostile guests, processes and faults touch nobody else's records.
//! Shows: Hostile users and forged recordings hold up nobody, and do nothing to a terminal.

mod attack;
mod beside;
mod fault;
mod forgery;
mod guest;
mod judge;
mod mapping;
mod monitor;
mod process;
mod promise;
mod round;
mod setup;
mod stranger;
mod table;
mod tally;
mod usage;

use anyhow::Context;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Attacks the recorder of VMs, and checks what is promised.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run rounds.
    Run(Options),
    /// A process of a round.
    #[command(subcommand)]
    Role(Role),
}

#[derive(clap::Args)]
struct Options {
    /// How long, seconds. Every fault has its turn in any case.
    #[arg(long, value_name = "N", default_value_t = 40)]
    seconds: u64,
    /// Where chance begins; another number each time unless given.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The first round.
    #[arg(long, value_name = "N", default_value_t = 0)]
    first_round: u64,
    /// This many rounds, however long they take.
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// The guest of a round records for so long, milliseconds.
    #[arg(long, value_name = "N", default_value_t = 3000)]
    round_ms: u64,
    /// Short rounds, until each fault has had so many ends, or recorders that were killed.
    #[arg(long, value_name = "N", conflicts_with_all = ["rounds", "fault"])]
    ends: Option<u64>,
    /// Only these attacks.
    #[arg(long, value_name = "ATTACK", value_delimiter = ',')]
    only: Vec<attack::Attack>,
    /// Only this fault.
    #[arg(long)]
    fault: Option<fault::Fault>,
    /// Folder for recordings, on a disk.
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Put the tables between the markers of this Markdown document too.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
}

/// How long the guest of a short round records: a recording is to be older than a second.
const SHORT_ROUND: Duration = Duration::from_millis(2000);
/// VMs of a round.
const VMS: u64 = 2;

impl Options {
    /// How long the guest of a round records.
    fn round(&self) -> Duration {
        if self.ends.is_some() { SHORT_ROUND } else { Duration::from_millis(self.round_ms) }
    }

    /// How long a recorder stands still.
    fn stall(&self) -> Duration {
        if self.ends.is_some() { fault::SHORT_STALL } else { fault::STALL }
    }

    /// How many rounds of `faults` there are, if there is a limit.
    fn rounds(&self, faults: u64) -> Option<u64> {
        self.ends.map(|ends| ends.div_ceil(VMS) * faults).or(self.rounds)
    }
}

#[derive(Subcommand)]
enum Role {
    /// The VMM.
    Monitor { setup: PathBuf },
    /// The honest guest.
    Guest { setup: PathBuf, region: PathBuf },
    /// A hostile guest.
    Kernel { setup: PathBuf, region: PathBuf, seed: u64 },
    /// An honest process.
    Application { setup: PathBuf, region: PathBuf, slot: u32, number: u32 },
    /// A hostile process.
    Attacker { setup: PathBuf, region: PathBuf, slot: u32, seed: u64 },
    /// Another user of the host.
    Stranger {
        folder: PathBuf,
        seed: u64,
        #[arg(value_delimiter = ',')]
        attacks: Vec<attack::Attack>,
    },
    /// What is done beside it.
    Beside {
        setup: PathBuf,
        folder: PathBuf,
        stranger: u32,
        #[arg(value_delimiter = ',')]
        attacks: Vec<attack::Attack>,
    },
    /// What reads a forged recording.
    Reader { path: PathBuf },
}

fn main() -> ExitCode {
    let code = |is_well| if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let ended = match Arguments::parse().command {
        Command::Run(options) => run(&options).map(code),
        Command::Role(role) => play(role),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn play(role: Role) -> anyhow::Result<ExitCode> {
    match role {
        Role::Monitor { setup } => monitor::run(&setup)?,
        Role::Guest { setup, region } => guest::run(&setup, &region)?,
        Role::Kernel { setup, region, seed } => process::run_hostile_kernel(&setup, &region, seed)?,
        Role::Application { setup, region, slot, number } => process::run_honest(&setup, &region, slot, number)?,
        Role::Attacker { setup, region, slot, seed } => process::run_hostile(&setup, &region, slot, seed)?,
        Role::Stranger { folder, seed, attacks } => stranger::run(&folder, seed, &attacks)?,
        Role::Beside { setup, folder, stranger, attacks } => beside::run(&setup, &folder, stranger, &attacks)?,
        Role::Reader { path } => return forgery::read(&path),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs rounds; says whether every promise was kept.
fn run(options: &Options) -> anyhow::Result<bool> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let folder = tempfile::TempDir::with_prefix_in("torture-", &options.folder)
        .with_context(|| format!("cannot write to {}", options.folder.display()))?;
    let has_mounts = fault::own_mounts();
    println!("seed {seed}; recordings in {}", folder.path().display());
    if !has_mounts {
        println!("without rights to mount file systems: full disks and full memory are left out");
    }
    let begun = Instant::now();
    let mut board = promise::Board::default();
    let end = Duration::from_secs(options.seconds);
    for number in options.first_round.. {
        let done = number - options.first_round;
        let faults = fault::Fault::ALL.iter().filter(|fault| has_mounts || !fault.needs_mounts()).count() as u64;
        let is_enough =
            options.rounds(faults).map_or_else(|| begun.elapsed() >= end && done >= faults, |rounds| done >= rounds);
        if is_enough {
            break;
        }
        let plan = round::Plan::of(number, seed, options, has_mounts);
        let before = board.broken();
        round::run(&plan, folder.path(), &mut board)?;
        let broken = board.broken() - before;
        println!("round {number}: {plan}: {}", board.line());
        if broken > 0 {
            println!(
                "{broken} promises broken; once more: cargo xtask torture --seed {seed} --first-round {number} --rounds 1"
            );
        }
    }
    let report = table::markdown(&board, seed, begun.elapsed());
    print!("\n{report}");
    if let Some(document) = &options.document {
        table::write_into(document, &report)?;
    }
    Ok(board.broken() == 0)
}
