//! Where rows lie: the folders of their host, boot, VM and hour.

use crate::tables::{NULL_PARTITION, PARTITIONS};
use std::fmt::Write;
use strata_analysis::timeline::{Kernel, Timeline};
use strata_recording::clock::{NS_PER_SECOND, rfc3339};
use strata_recording::reader::Trace;

/// Seconds of an hour.
const SECONDS: i64 = 3600;

/// Whose a row is: of a host or of a VM, by index in the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Place {
    /// A host's.
    Host(usize),
    /// A VM's.
    Vm(usize),
}

impl From<Kernel> for Place {
    fn from(kernel: Kernel) -> Self {
        match kernel {
            Kernel::Host(host) => Self::Host(host),
            Kernel::Guest(vm) => Self::Vm(vm),
        }
    }
}

/// The names of a host, of the boot of its kernel, and of a VM, as far as they are known.
type Names = [Option<String>; 3];

/// A recording's hosts and VMs.
#[derive(Debug)]
pub(super) struct Places {
    hosts: Vec<Names>,
    vms: Vec<Names>,
}

impl Places {
    pub(super) fn new(trace: &Trace) -> Self {
        let manifest = trace.manifest();
        let timeline = Timeline::new(trace);
        // What a recording of two hosts says of the other's boot is nothing.
        let of_host = |host: usize| {
            let name = timeline.hosts.get(host).and_then(|host| host.name.as_deref());
            let own = (!manifest.host.hostname.is_empty()).then_some(manifest.host.hostname.as_str());
            let boot = Some(manifest.host.boot_id.as_str()).filter(|boot| !boot.is_empty() && name.is_none());
            (name.or(own), boot)
        };
        let names = |host: usize, vm: Option<&str>| {
            let (name, boot) = of_host(host);
            [name, boot, vm].map(|name| name.filter(|name| !name.is_empty()).map(Into::into))
        };
        Self {
            hosts: (0..timeline.hosts.len().max(1)).map(|host| names(host, None)).collect(),
            vms: timeline.vms.iter().map(|vm| names(vm.host, Some(&vm.name))).collect(),
        }
    }

    /// What [`PARTITIONS`] are of `place` and of the hour `hour`.
    pub(super) fn values(&self, place: Place, hour: Hour) -> Option<[Option<String>; 4]> {
        let [host, boot, vm] = match place {
            Place::Host(host) => self.hosts.get(host)?,
            Place::Vm(vm) => self.vms.get(vm)?,
        }
        .clone();
        Some([host, boot, vm, Some(hour.name())])
    }

    /// The folder of `place` and of the hour `hour`, below that of a table.
    pub(super) fn folder(&self, place: Place, hour: Hour) -> Option<String> {
        let values = self.values(place, hour)?;
        let named = PARTITIONS.iter().zip(&values).map(|((column, _), value)| folder_of(column, value.as_deref()));
        Some(named.collect::<Vec<_>>().join("/"))
    }
}

/// An hour of UTC, counted from 1970 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Hour(i64);

impl Hour {
    /// The hour of a second since 1970.
    pub(super) const fn of_second(second: i64) -> Self {
        Self(second.div_euclid(SECONDS))
    }

    /// `2026-11-23T07`.
    fn name(self) -> String {
        let mut name = rfc3339(i128::from(self.0) * i128::from(SECONDS) * i128::from(NS_PER_SECOND));
        if let Some(minutes) = name.find(':') {
            name.truncate(minutes);
        }
        name
    }
}

/// The folder of the rows that have `value` in `column`.
pub(super) fn folder_of(column: &str, value: Option<&str>) -> String {
    format!("{column}={}", folder_name(value))
}

/// `value` as it stands in a folder's name, as Hive writes it: what means something there is escaped as `%` and two
/// digits.
fn folder_name(value: Option<&str>) -> String {
    let Some(value) = value else { return NULL_PARTITION.into() };
    let mut name = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => name.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => drop(write!(name, "%{byte:02X}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_holds_nothing_that_means_something_in_a_path() {
        assert_eq!(folder_name(Some("node-1.example")), "node-1.example");
        assert_eq!(folder_name(Some("../a=b c")), "..%2Fa%3Db%20c");
        assert_eq!(folder_name(None), NULL_PARTITION);
    }

    #[test]
    fn hour_is_that_of_utc() {
        assert_eq!(Hour::of_second(1_700_000_000).name(), "2023-11-14T22");
        assert_eq!(Hour::of_second(-1).name(), "1969-12-31T23");
    }
}
