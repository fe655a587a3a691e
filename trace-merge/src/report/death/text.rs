//! The end of a recording as text.

use super::{Death, LastRecord, VmDeath};
use crate::report::rows::columns;
use crate::report::sink::Sink;
use crate::report::{Report, duration, signed_duration};
use std::io;
use strata_recording::text::terminal::harmless;

impl Report for Death {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        writeln!(out, "end of the recording: {}", harmless(&self.outcome))?;
        self.vms.iter().try_for_each(|vm| vm.write(self.is_of_part, out))
    }
}

impl VmDeath {
    fn write(&self, is_of_part: bool, out: &mut dyn Sink) -> io::Result<()> {
        let Self { vm, moment_ns, after_ns, .. } = self;
        let whose = if self.is_guests { "the last record of the guest's kernel" } else { "the last record of all" };
        let place = if is_of_part { " in this part" } else { "" };
        writeln!(out, "\n{vm}: {whose}{place} is {} after the first of the recording", duration(*moment_ns))?;
        writeln!(out, "{} follow; times below are relative to it, - before and + behind", duration(*after_ns))?;
        if self.console.is_empty() {
            writeln!(
                out,
                "NOTE: nothing that the guest's kernel printed is here; 'guest-kernel:printk:console' among --events records it"
            )?;
        } else {
            writeln!(out, "\nthe guest's console:")?;
            for line in &self.console {
                writeln!(out, "{:>12}  {}", signed_duration(line.ns), harmless(&line.text))?;
            }
        }
        writeln!(out)?;
        columns::write(&self.cpus, out)?;
        if !self.host_cpus.is_empty() {
            writeln!(out)?;
            columns::write(&self.host_cpus, out)?;
        }
        for cpu in &self.cpus {
            if let Some(sample) = &cpu.sample {
                writeln!(out, "\n{vm} vCPU {}, sample of {}:", cpu.cpu, signed_duration(sample.ns))?;
                sample.stack.iter().try_for_each(|place| writeln!(out, "{:>14}{place}", ""))?;
            }
            write_records(&format!("{vm} vCPU {}, last records of its kernel", cpu.cpu), &cpu.records, out)?;
        }
        for cpu in &self.host_cpus {
            write_records(&format!("host CPU {}, last records", cpu.cpu), &cpu.records, out)?;
        }
        write_records(&format!("{vm}, last records of the VMM"), &self.vmm, out)
    }
}

fn write_records(title: &str, records: &[LastRecord], out: &mut dyn Sink) -> io::Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}:")?;
    let mut write = |record: &LastRecord| {
        writeln!(
            out,
            "{:>12}  {}: {}",
            signed_duration(record.ns),
            harmless(&record.event),
            harmless(&record.fields.to_string())
        )
    };
    records.iter().try_for_each(&mut write)
}
