//! The end of a recording as text.

use super::{Death, LastExit, LastRecord, VmDeath};
use crate::report::rows::table::{Align, Table};
use crate::report::{Report, duration};
use std::io::{self, Write};
use strata_recording::terminal::harmless;

/// A time relative to the moment: `-12.345 µs` is before it.
fn shown(ns: i64) -> String {
    let sign = match ns {
        ..0 => "-",
        0 => "",
        _ => "+",
    };
    format!("{sign}{}", duration(ns.unsigned_abs()))
}

impl Report for Death {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "end of the recording: {}", harmless(&self.outcome))?;
        self.vms.iter().try_for_each(|vm| vm.write(out))
    }
}

impl VmDeath {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { vm, moment_ns, after_ns, .. } = self;
        let whose = if self.is_guests { "the last record of the guest's kernel" } else { "the last record of all" };
        writeln!(out, "\n{vm}: {whose} is {} after the first of the recording", duration(*moment_ns))?;
        writeln!(out, "{} follow; times below are relative to it, - before and + behind", duration(*after_ns))?;
        if self.console.is_empty() {
            writeln!(
                out,
                "NOTE: nothing that the guest's kernel printed is here; 'guest-kernel:printk:console' among --events records it"
            )?;
        } else {
            writeln!(out, "\nthe guest's console:")?;
            for line in &self.console {
                writeln!(out, "{:>12}  {}", shown(line.ns), harmless(&line.text))?;
            }
        }
        self.write_cpus(out)?;
        let mut hosts = Table::new(&[
            ("host CPU", Align::Right),
            ("ran, when it recorded last", Align::Left),
            ("last record", Align::Right),
        ]);
        for cpu in &self.host_cpus {
            hosts.row([cpu.cpu.to_string(), cpu.runs.clone(), cpu.last_ns.map_or_else(|| "none".into(), shown)]);
        }
        if !hosts.is_empty() {
            writeln!(out)?;
            hosts.write(out)?;
        }
        for cpu in &self.cpus {
            if let Some(sample) = &cpu.sample {
                writeln!(out, "\n{vm} vCPU {}, sample of {}:", cpu.cpu, shown(sample.ns))?;
                sample.stack.iter().try_for_each(|place| writeln!(out, "{:>14}{place}", ""))?;
            }
            write_records(&format!("{vm} vCPU {}, last records of its kernel", cpu.cpu), &cpu.records, out)?;
        }
        for cpu in &self.host_cpus {
            write_records(&format!("host CPU {}, last records", cpu.cpu), &cpu.records, out)?;
        }
        write_records(&format!("{vm}, last records of the VMM"), &self.vmm, out)
    }

    fn write_cpus(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("vCPU", Align::Right),
            ("guest", Align::Left),
            ("vCPU's thread", Align::Left),
            ("for", Align::Right),
            ("last record", Align::Right),
            ("last exits", Align::Left),
        ]);
        for cpu in &self.cpus {
            let exit = |exit: &LastExit| {
                let at = exit.at.as_ref().map_or_else(String::new, |at| format!(" at {at}"));
                format!("{} {}{at}", shown(exit.ns), exit.reason)
            };
            let exits: Vec<String> = cpu.exits.iter().rev().take(2).map(exit).collect();
            table.row([
                cpu.cpu.to_string(),
                cpu.guest.clone(),
                harmless(&cpu.vcpu),
                cpu.vcpu_ns.map_or_else(|| "?".into(), duration),
                cpu.last_ns.map_or_else(|| "none".into(), shown),
                exits.join(", "),
            ]);
        }
        writeln!(out)?;
        table.write(out)
    }
}

fn write_records(title: &str, records: &[LastRecord], out: &mut dyn Write) -> io::Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}:")?;
    let mut write = |record: &LastRecord| {
        writeln!(out, "{:>12}  {}: {}", shown(record.ns), harmless(&record.event), harmless(&record.fields.to_string()))
    };
    records.iter().try_for_each(&mut write)
}
