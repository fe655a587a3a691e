//! What a guest is connected to, asked for without taking part: the hypervisor's offer, the kernel module, the trace.
#![allow(unsafe_code)] // Clock entries are memory shared with the host: raw pointers.

use crate::device::{self, DeviceError};
pub use crate::offer::Offer;
use crate::offer::{pci, pmem};
use clock_sync::entry::Reader;
use shared_ring::layout::{Mode, SESSION_SLOTS};
use shared_ring::view;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Where the kernel describes the module while it is loaded.
const MODULE: &str = "/sys/module/strata";
/// Where the module says how its process slots are used.
const ATTRIBUTES: &str = "/sys/class/misc/strata";

/// Everything that can be found out.
#[derive(Debug)]
pub struct Status {
    /// The region that the hypervisor offers, if it does.
    pub offer: Option<Offer>,
    /// Whether the kernel module is loaded.
    pub module: bool,
    /// How process slots are used; `None` without the module.
    pub slots: Option<Slots>,
    /// What the host says, or why this user cannot see it.
    pub trace: Result<Trace, DeviceError>,
}

/// How process slots are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Slots in the region.
    pub total: u32,
    /// Slots that a process has, or had and the host has not read to their end yet.
    pub used: u32,
    /// Slots that this user's processes may have at a time.
    pub user_limit: u32,
    /// Slots that this user's processes have.
    pub user_used: u32,
    /// Processes that found no free slot, since the module was loaded.
    pub refused: u64,
    /// Processes whose user had as many slots as one user gets.
    pub over_quota: u64,
}

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Layout version of the host, `major << 16 | minor`.
    pub abi_version: u32,
    /// Size of the trace region, bytes.
    pub region_size: u64,
    /// Number of vCPUs that the host traces.
    pub vcpus: u32,
    /// Whether a host drains the rings.
    pub host_alive: bool,
    /// Frequency of the trace clock, Hz.
    pub clock_frequency: u64,
    /// vCPUs whose clock the host drives.
    pub clocks: u32,
    /// The sessions there are.
    pub sessions: Vec<Session>,
}

/// A tracing session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Index of its slot; applications record for slot 0.
    pub slot: u32,
    /// Name of the session.
    pub name: String,
    /// What happens when a ring is full.
    pub mode: Mode,
    /// Enabled classes, one bit each; 0 when it is stopped.
    pub class_mask: u64,
}

impl Status {
    /// Asks the processor, the kernel, and the device.
    #[must_use]
    pub fn read() -> Self {
        Self {
            offer: offer(),
            module: Path::new(MODULE).exists(),
            slots: Slots::read(Path::new(ATTRIBUTES)),
            trace: Trace::read(),
        }
    }

    /// The first thing that keeps applications from being traced, and what to do about it; `None` if nothing does.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let trace = match (&self.offer, self.module, &self.trace) {
            (None, false, _) => {
                return Some("this machine offers no trace region: start it by `strata run --trace DIR`, or another VMM's with what \
                     `strata region create` prints"
                        .into());
            }
            (Some(_), false, _) => {
                return Some(
                    "the kernel module strata is not loaded: `modprobe strata`, and see `dmesg` if it refuses".into(),
                );
            }
            (_, true, Err(error)) => return Some(error.to_string()),
            (_, true, Ok(trace)) => trace,
        };
        if !trace.host_alive {
            return Some("the host does not drain the rings: its strata has ended, or has not begun".into());
        }
        if trace.clocks < trace.vcpus {
            let without = trace.vcpus - trace.clocks;
            return Some(format!("the host does not drive the trace clock of {without} vCPUs, which record nothing"));
        }
        None
    }
}

/// What the hypervisor offers this machine: by CPUID, or else in a PCI device, or else in persistent memory.
#[must_use]
pub fn offer() -> Option<Offer> {
    Offer::of_leaf()
        .or_else(|| pci::find(Path::new(pci::DEVICES)))
        .or_else(|| pmem::find(Path::new(pmem::DEVICES), Path::new(pmem::DISKS)))
}

impl Slots {
    fn read(folder: &Path) -> Option<Self> {
        Some(Self {
            total: number(folder, "slots")?,
            used: number(folder, "slots_used")?,
            user_limit: number(folder, "user_slots")?,
            user_used: number(folder, "user_slots_used")?,
            refused: number(folder, "processes_refused")?,
            over_quota: number(folder, "processes_over_quota")?,
        })
    }
}

fn number<N: FromStr>(folder: &Path, name: &str) -> Option<N> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

impl Trace {
    fn read() -> Result<Self, DeviceError> {
        let mapped = device::map_host_area()?;
        let (area, view) = (mapped.area(), mapped.area().view());
        let has_clock = |vcpu: u32| {
            view.clock_entry(vcpu).is_some_and(|entry| {
                // SAFETY: the entry lies inside the mapping, which lives; the host alone writes it.
                unsafe { Reader::new(mapped.base().add(entry)) }.is_valid()
            })
        };
        let superblock = view.superblock();
        Ok(Self {
            abi_version: superblock.abi_version,
            region_size: superblock.region_size,
            vcpus: superblock.vcpus,
            host_alive: area.is_host_alive(),
            clock_frequency: superblock.clock_frequency,
            clocks: u32::try_from((0..superblock.vcpus).filter(|&vcpu| has_clock(vcpu)).count()).unwrap_or(u32::MAX),
            sessions: (0..)
                .zip(0..SESSION_SLOTS)
                .filter_map(|(slot, index)| Some(Session::of(slot, &area.session(index)?, area.class_mask(index))))
                .collect(),
        })
    }
}

impl Session {
    fn of(slot: u32, session: &view::Session, class_mask: u64) -> Self {
        let length = session.name.iter().position(|&byte| byte == 0).unwrap_or(session.name.len());
        let name = String::from_utf8_lossy(&session.name[..length]).into_owned();
        Self { slot, name, mode: session.rings.mode, class_mask }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn status() -> Status {
        Status {
            offer: Some(Offer { abi_version: Some(2 << 16), address: Some(1 << 32), size: Some(1 << 20) }),
            module: true,
            slots: None,
            trace: Ok(Trace {
                abi_version: 2 << 16,
                region_size: 1 << 20,
                vcpus: 2,
                host_alive: true,
                clock_frequency: 2_450_000_000,
                clocks: 2,
                sessions: Vec::new(),
            }),
        }
    }

    #[test]
    fn guest_that_is_connected_has_no_problem() {
        assert_eq!(status().problem(), None);
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let no_region = Status { offer: None, module: false, trace: Err(DeviceError::Absent), ..status() };
        let no_module = Status { module: false, trace: Err(DeviceError::Absent), ..status() };
        let no_permission = Status { trace: Err(DeviceError::NoPermission), ..status() };

        assert!(no_region.problem().unwrap().contains("strata run"));
        assert!(no_module.problem().unwrap().contains("modprobe strata"));
        assert!(no_permission.problem().unwrap().contains("group strata"));
    }

    #[test]
    fn host_that_is_gone_is_a_problem() {
        let mut status = status();
        status.trace.as_mut().unwrap().host_alive = false;

        assert!(status.problem().unwrap().contains("has ended"));
    }

    #[test]
    fn slots_are_read_from_the_modules_attributes() {
        let folder = std::env::temp_dir().join(format!("strata-status-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let names =
            ["slots", "slots_used", "user_slots", "user_slots_used", "processes_refused", "processes_over_quota"];
        for (number, name) in (1..).zip(names) {
            fs::write(folder.join(name), format!("{number}\n")).unwrap();
        }

        let slots = Slots::read(&folder);
        fs::remove_dir_all(&folder).unwrap();

        let expected = Slots { total: 1, used: 2, user_limit: 3, user_used: 4, refused: 5, over_quota: 6 };
        assert_eq!((slots, Slots::read(&folder)), (Some(expected), None));
    }
}
