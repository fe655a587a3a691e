//! Requests to block devices, as the kernels of host and guests see them: by device and operation how many, how large
//! and how long, from `block:block_rq_issue` (the driver has it) to `block:block_rq_complete` of the same device and
//! sector.
//!
//! Counted apart, and never timed: requests whose end is not in the recording, or during which records were lost.

use crate::report::description::{Description, Requested};
use crate::report::rows::columns;
use crate::report::rows::columns::{Column, ReportRow, Unit, column, distribution, figure};
use crate::report::sink::Sink;
use crate::report::statistics::distribution::{Distribution, Durations};
use crate::report::statistics::ended::{Keep, KeepsEnded};
use crate::report::statistics::samples::{ReportedBy, Sampled, Samples, reported_by_itself};
use crate::report::{Report, ReportBuilder, ReportError, Window};
use foldhash::HashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::event::{self, BlockRequest, Event};
use strata_analysis::names::device;
use strata_analysis::timeline::{ChangeKind, Input, Kernel, Timeline};
use strata_analysis::{Analysis, Gap, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "blocks",
    about: "Requests to block devices, as the kernels of host and guests see them: count, bytes and time by operation",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[columns::rows::<DeviceBlocks>("kernels[].devices[]")],
    begin: |_, _, _| Ok(Box::new(BlockTimes::default())),
};

/// Requests under way at once that are followed, by kernel: more than all queues hold.
const UNDER_WAY: usize = 1 << 16;

/// Requests to block devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlocksReport {
    /// By kernel: the host's first.
    pub kernels: Vec<KernelBlocks>,
}

/// Requests of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelBlocks {
    /// The VM; `None` for a host.
    pub vm: Option<String>,
    /// By device and operation.
    #[serde(serialize_with = "columns::serialize")]
    pub devices: Vec<DeviceBlocks>,
    /// Requests whose end is not in the recording, or during which records were lost. Not in the rows.
    pub unfinished: u64,
}

/// Requests of one operation to one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBlocks {
    /// `major:minor`.
    pub device: String,
    /// `read`, `write`, `flush`, `discard` or `other`.
    pub operation: &'static str,
    /// Bytes of all of them.
    pub bytes: u64,
    /// From issue to completion.
    pub time: Distribution,
}

impl ReportRow for DeviceBlocks {
    const COLUMNS: &'static [Column<Self>] = &[
        column("device", "device", Unit::Text, "`major:minor`", |row| (&row.device).into()),
        column("operation", "operation", Unit::Text, "`read`, `write`, `flush`, `discard` or `other`", |row| {
            row.operation.into()
        }),
        column("bytes", "bytes", Unit::Bytes, "Bytes of all of them", |row| row.bytes.into()),
        distribution("time", figure::DISTRIBUTION, "From issue to completion", |row| (&row.time).into()),
    ];
}

/// A request that is over, of those that the report counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// The kernel that issued it.
    pub kernel: Kernel,
    /// From issue to completion.
    pub window: Window,
    /// `major:minor`.
    pub device: String,
    /// `read`, `write`, `flush`, `discard` or `other`.
    pub operation: &'static str,
    /// Its first sector, of 512 bytes.
    pub sector: u64,
    pub bytes: u64,
}

/// The report in the making. Takes memory for each device, and for the requests that are under way.
#[derive(Debug, Default)]
pub struct BlockTimes {
    kernels: BTreeMap<Kernel, Collector>,
    kept: Keep<EndedRequest>,
    samples: Samples,
}

/// What tells of requests to block devices.
const REPORTED_BY: [ReportedBy; 2] =
    [reported_by_itself(event::name::BLOCK_ISSUE), reported_by_itself(event::name::BLOCK_COMPLETE)];

impl BlockTimes {
    /// One that keeps requests one by one.
    #[must_use]
    pub fn keeping_ended() -> Self {
        let mut times = Self::default();
        times.kept.begin();
        times
    }

    /// Requests that are over since this was asked last.
    pub fn take_ended(&mut self) -> impl Iterator<Item = EndedRequest> {
        self.kept.take()
    }
}

impl KeepsEnded for BlockTimes {
    fn has_ended(&self) -> bool {
        !self.kept.is_empty()
    }
}

impl Sampled for BlockTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples)]
    }
}

#[derive(Debug, Default)]
struct Collector {
    /// By device and first sector.
    under_way: HashMap<(u64, u64), Issued>,
    devices: BTreeMap<(u64, &'static str), (u64, Durations)>,
    unfinished: u64,
    /// CPUs whose records are missing at the moment.
    gaps: usize,
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
struct Issued {
    operation: &'static str,
    bytes: u64,
    /// When it was issued, ticks.
    time: u64,
}

impl Collector {
    fn issue(&mut self, request: &BlockRequest<'_>, time: u64) {
        let (Some(device), Some(sector)) = (request.device, request.sector) else { return };
        // While records are missing, the completion that is seen may be a later request's.
        if self.gaps > 0 || self.under_way.len() >= UNDER_WAY {
            self.unfinished += 1;
            return;
        }
        let bytes = request.sectors.unwrap_or(0).saturating_mul(512);
        let issued = Issued { operation: operation(request.flags.unwrap_or_default()), bytes, time };
        // A second issue of the same place, as of a request that was split or issued again, begins anew.
        let before = self.under_way.insert((device, sector), issued);
        self.unfinished += u64::from(before.is_some());
    }

    /// A request is over: its device, its first sector, and what it was.
    fn complete(&mut self, request: &BlockRequest<'_>, time: u64) -> Option<(u64, u64, Issued)> {
        let (device, sector) = (request.device?, request.sector?);
        let issued = self.under_way.remove(&(device, sector))?;
        let (sum, times) = self.devices.entry((device, issued.operation)).or_default();
        *sum = sum.saturating_add(issued.bytes);
        times.add(time.saturating_sub(issued.time));
        Some((device, sector, issued))
    }

    fn gap(&mut self, begins: bool) {
        self.gaps = if begins { self.gaps + 1 } else { self.gaps.saturating_sub(1) };
        if begins {
            self.unfinished += self.under_way.drain().count() as u64;
        }
    }
}

/// What the letters of `rwbs` say.
fn operation(flags: &[u8]) -> &'static str {
    // A flush before or after a write is marked in front of it.
    match flags.iter().find(|&&flag| flag != b'F').or(flags.first()) {
        Some(b'R') => "read",
        Some(b'W') => "write",
        Some(b'D') => "discard",
        Some(b'F') => "flush",
        _ => "other",
    }
}

impl Analysis for BlockTimes {
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn needs_states(&self) -> bool {
        false
    }

    fn layers(&self) -> &'static [LayerKind] {
        &[LayerKind::HostKernel, LayerKind::GuestKernel]
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        matches!(input.event, Some(Event::BlockIssue(_) | Event::BlockComplete(_)))
    }

    fn record(&mut self, input: &Input<'_>, _timeline: &Timeline) {
        let (request, is_issue) = match &input.event {
            Some(Event::BlockIssue(request)) => (request, true),
            Some(Event::BlockComplete(request)) => (request, false),
            _ => return,
        };
        let Some((kernel, _)) = Kernel::of(input.origin) else { return };
        let collector = self.kernels.entry(kernel).or_default();
        if is_issue {
            collector.issue(request, input.time());
        } else if let Some((device, sector, issued)) = collector.complete(request, input.time()) {
            let Issued { operation, bytes, time: begin } = issued;
            let window = Window { begin, end: input.time() };
            let row = || format!("{}: {operation}", device::name(device));
            self.samples.add(kernel.vm(), window.end, window.end.saturating_sub(begin), row);
            self.kept.add(|| EndedRequest { kernel, window, device: device::name(device), operation, sector, bytes });
        }
    }

    fn gap(&mut self, gap: &Gap, _timeline: &Timeline) {
        if let Some((kernel, _)) = Kernel::of(gap.origin)
            && !gap.origin.is_only_kvm()
        {
            self.kernels.entry(kernel).or_default().gap(gap.begins);
        }
    }
}

impl ReportBuilder for BlockTimes {
    type Report = BlocksReport;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<BlocksReport, ReportError> {
        let mut kernels = Vec::new();
        for (kernel, collector) in self.kernels {
            let device = |((device, operation), (bytes, times)): ((u64, &'static str), (u64, Durations))| {
                DeviceBlocks { device: device::name(device), operation, bytes, time: times.distribution(trace.clock()) }
            };
            let devices: Vec<_> = collector.devices.into_iter().map(device).collect();
            let unfinished = collector.unfinished + collector.under_way.len() as u64;
            if !devices.is_empty() || unfinished > 0 {
                kernels.push(KernelBlocks { vm: kernel.vm_name(&passed.timeline), devices, unfinished });
            }
        }
        if kernels.is_empty() {
            return Err(ReportError::nothing(
                "no kernel recorded a request to a block device",
                "record with --events 'host-kernel:block:*,guest-kernel:block:*'",
            ));
        }
        Ok(BlocksReport { kernels })
    }
}

/// Makes the report.
///
/// # Errors
/// When no kernel recorded requests.
pub fn report(trace: &Trace, window: Window) -> Result<BlocksReport, ReportError> {
    crate::report::make(trace, window, BlockTimes::default())
}

impl Report for BlocksReport {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for kernel in &self.kernels {
            writeln!(out, "{}: requests to block devices", kernel.vm.as_deref().unwrap_or("host"))?;
            columns::write(&kernel.devices, out)?;
            if kernel.unfinished > 0 {
                let requests = counted(kernel.unfinished, "request", "requests");
                writeln!(out, "{requests} without a time: the end is not in the records")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::test_trace::Field::{Number, Text};
    use strata_recording::test_trace::TestTrace;

    const VDA: i64 = 254 << 20;

    fn block(trace: TestTrace, name: &'static str, time: u64, sector: i64, rwbs: &'static str) -> TestTrace {
        let place = [("dev", Number(VDA)), ("sector", Number(sector)), ("nr_sector", Number(8)), ("rwbs", Text(rwbs))];
        trace.guest(0, time, name, &place)
    }

    fn issue(trace: TestTrace, time: u64, sector: i64, rwbs: &'static str) -> TestTrace {
        block(trace, "block:block_rq_issue", time, sector, rwbs)
    }

    fn complete(trace: TestTrace, time: u64, sector: i64) -> TestTrace {
        block(trace, "block:block_rq_complete", time, sector, "R")
    }

    fn made(trace: TestTrace) -> KernelBlocks {
        let (_dir, trace) = trace.open();
        report(&trace, Window::ALL).unwrap().kernels.remove(0)
    }

    #[test]
    fn requests_are_timed_by_device_and_operation() {
        let trace = issue(issue(TestTrace::new(), 10, 64, "R"), 20, 128, "FWS");

        let kernel = made(complete(complete(trace, 110, 64), 220, 128));

        let rows: Vec<_> = kernel.devices.iter().map(|row| (row.operation, row.bytes, row.time.total_ns)).collect();
        // A tick is half a nanosecond.
        assert_eq!(rows, [("read", 4096, 50), ("write", 4096, 100)]);
        assert_eq!((kernel.devices[0].device.as_str(), kernel.unfinished), ("254:0", 0));
    }

    #[test]
    fn request_without_an_end_is_counted_apart() {
        let kernel = made(complete(issue(issue(TestTrace::new(), 10, 64, "R"), 20, 128, "R"), 50, 128));

        assert_eq!((kernel.devices[0].time.count, kernel.unfinished), (1, 1));
    }

    #[test]
    fn request_across_lost_records_is_not_timed() {
        let trace = issue(TestTrace::new().switch(0, 1, 0, 7), 10, 64, "R").lost(LayerKind::GuestKernel, 0, 1);

        let kernel = made(complete(trace, 500, 64));

        assert_eq!((kernel.devices.len(), kernel.unfinished), (0, 1));
    }
}
