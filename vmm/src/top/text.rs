//! The picture for people.

use super::{OwnThread, Picture, VmPicture};
use std::io;
use strata_recorder::control::answer_text;
use strata_recorder::control::protocol::{Late, LiveDisk, LiveExits, LiveGuest, LiveWakeup, Thief, Times, Watched};
use trace_merge::report::rows::table::{Align, Table};
use trace_merge::report::sink::Sink;
use trace_merge::report::{duration, percent};

/// Thieves, exit reasons and late turns that are shown; JSON has all.
const SHOWN: usize = 5;
const NS_PER_SECOND: u64 = 1_000_000_000;

impl Picture {
    /// Writes it for people.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        if self.vms.is_empty() {
            writeln!(out, "VMs have just begun: nothing to show yet")?;
        }
        for (place, vm) in self.vms.iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            vm.write_text(out)?;
        }
        Ok(())
    }
}

impl VmPicture {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        let Self {
            pid, attached, unknown, period_ns, host, guest, disks, balloon, layers, own_threads, missing, ..
        } = self;
        let name = self.user.as_ref().map_or_else(|| self.name.to_string(), |user| format!("{user}/{}", self.name));
        if let Some(unknown) = unknown {
            return writeln!(out, "{name}: process {pid}: {unknown}");
        }
        let of = attached.as_ref().map_or_else(String::new, |of| format!(" records {} ({})", of.pid, of.comm));
        let cost: u64 = own_threads.iter().map(|thread| thread.cpu_ns).sum();
        let parts = own_threads.iter().filter(|thread| thread.cpu_ns > 0);
        let parts = parts.map(|OwnThread { name, cpu_ns }| format!("{name} {}", percent(*cpu_ns, *period_ns)));
        let parts = parts.collect::<Vec<_>>().join(", ");
        writeln!(out, "{name}: process {pid}{of}; tracing takes {} of a CPU ({parts})", percent(cost, *period_ns))?;
        match host {
            Some(host) => write_watched(host, out)?,
            None => writeln!(out, "the host's kernel is not recorded: what vCPUs do is not known")?,
        }
        guest.iter().try_for_each(|guest| write_guest(guest, out))?;
        for LiveDisk { disk, kind, times } in disks.iter().filter(|disk| disk.times.count > 0) {
            writeln!(out, "disk {disk} {kind}: {}", rate_and_quantiles(times, *period_ns))?;
        }
        balloon.iter().try_for_each(|balloon| writeln!(out, "{}", answer_text::balloon_line(balloon)))?;
        for layer in layers {
            let rate = per_second(layer.records, *period_ns);
            writeln!(out, "written {}: {rate} records/s, {} lost", layer.path, layer.lost)?;
        }
        missing.iter().try_for_each(|line| writeln!(out, "missing {line}"))
    }
}

fn write_guest(guest: &LiveGuest, out: &mut dyn Sink) -> io::Result<()> {
    let LiveGuest { since_ns, until_ns, wakeups, worst } = guest;
    if wakeups.count == 0 {
        return Ok(());
    }
    let period_ns = until_ns.saturating_sub(*since_ns);
    writeln!(out, "guest's tasks, woken until run: {}", rate_and_quantiles(wakeups, period_ns))?;
    let shown =
        |LiveWakeup { task, tid, cpu, ns, .. }: &LiveWakeup| format!("{task}/{tid} {} (vCPU {cpu})", duration(*ns));
    let worst: Vec<String> = worst.iter().take(SHOWN).map(shown).collect();
    if worst.is_empty() { Ok(()) } else { writeln!(out, "latest of them: {}", worst.join(", ")) }
}

/// How many `times` there are each second, and where most of them lie.
fn rate_and_quantiles(times: &Times, period_ns: u64) -> String {
    let [half, most] = [50, 99].map(|percent| duration(times.below_ns(percent)));
    format!("{}/s, p50 < {half}, p99 < {most}", per_second(times.count, period_ns))
}

fn write_watched(watched: &Watched, out: &mut dyn Sink) -> io::Result<()> {
    let Watched { since_ns, until_ns, vcpus, thieves, exits, ready, late, records, lost } = watched;
    let period_ns = &until_ns.saturating_sub(*since_ns);
    let headings = ["vCPU", "guest", "KVM", "VMM", "preempted", "woken", "halted", "blocked", "unknown"];
    let mut table = Table::new(&headings.map(|heading| (heading, Align::Right)));
    for vcpu in vcpus {
        let shares = vcpu.parts().map(|ns| percent(ns, *period_ns));
        table.row([vcpu.vcpu.to_string()].into_iter().chain(shares));
    }
    table.write(out)?;
    let shown = |thief: &Thief| format!("{} {}", thief.name, percent(thief.ns, *period_ns));
    let thieves: Vec<String> = thieves.iter().take(SHOWN).map(shown).collect();
    if !thieves.is_empty() {
        writeln!(out, "ran in place of vCPUs: {}", thieves.join(", "))?;
    }
    if ready.count > 0 {
        writeln!(out, "ready until run: {}", rate_and_quantiles(ready, *period_ns))?;
    }
    for Late { vcpu, ns, by, .. } in late.iter().take(1) {
        writeln!(out, "latest: vCPU {vcpu} waited {} while the host ran {}", duration(*ns), by)?;
    }
    let mut table = Table::new(&[
        ("exits", Align::Left),
        ("number/s", Align::Right),
        ("time", Align::Right),
        ("p50 <", Align::Right),
        ("p99 <", Align::Right),
    ]);
    for LiveExits { reason, times } in exits.iter().take(SHOWN) {
        let quantiles = [50, 99].map(|percent| duration(times.below_ns(percent)));
        let head =
            [reason.to_string(), per_second(times.count, *period_ns).to_string(), percent(times.total_ns, *period_ns)];
        table.row(head.into_iter().chain(quantiles));
    }
    if !table.is_empty() {
        table.write(out)?;
    }
    writeln!(out, "read from the host's kernel: {} records/s, {lost} lost", per_second(*records, *period_ns))
}

/// How many of `count` there are each second.
fn per_second(count: u64, period_ns: u64) -> u64 {
    let rate = u128::from(count) * u128::from(NS_PER_SECOND) / u128::from(period_ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}
