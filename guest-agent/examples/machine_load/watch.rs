//! A stop watch around a program that runs a guest: how long until the guest's first program speaks, and how much memory
//! the program has beyond the guest's.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// What the guest's first program says first.
const INIT: &str = "guest: script ";
/// What the guest says when it has done its work, a while before it powers off.
const IDLE: &str = "guest is idle";

/// Runs `program`, whose output goes to `log`, and appends what was measured: `boot` and `memory` of a guest that has
/// `mebibytes` of memory.
pub fn watch(log: &Path, mebibytes: u64, program: &str, arguments: &[&str]) -> Result<()> {
    let mut output = File::create(log).with_context(|| log.display().to_string())?;
    let began = Instant::now();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(output.try_clone()?);
    let mut vmm = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let mut measured = String::new();
    let console = vmm.stdout.take().context("no output")?;
    for line in BufReader::new(console).split(b'\n') {
        let line = line?;
        output.write_all(&[&line[..], b"\n"].concat())?;
        let line = String::from_utf8_lossy(&line);
        if line.contains(INIT) && measured.is_empty() {
            measured = format!("machine_load: boot {} ns\n", began.elapsed().as_nanos());
        } else if line.contains(IDLE) {
            let maps = fs::read_to_string(format!("/proc/{}/smaps", vmm.id())).context("memory of the program")?;
            measured += &format!("machine_load: memory {} KiB\n", beyond(&maps, mebibytes * 1024));
        }
    }
    let status = vmm.wait()?;
    output.write_all(measured.as_bytes())?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// KiB that a process has in memory, by its `smaps`, its share of what it shares with others; without mappings of half
/// the guest's memory of `guest` KiB and more, which are the guest's memory or a part of it.
fn beyond(smaps: &str, guest: u64) -> u64 {
    let field = |line: &str, name: &str| -> Option<u64> {
        line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let mut size = 0;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some(mapped) = field(line, "Size:") {
            size = mapped;
        }
        if size < guest / 2 {
            sum += field(line, "Pss:").unwrap_or(0);
        }
    }
    sum
}
