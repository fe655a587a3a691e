//! What a timeline takes in: records, each with where it comes from.

use super::Timeline;
use crate::event::Event;
use strata_recording::layer::LayerKind;
use strata_recording::reader::StreamRecord;

/// Where a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A CPU of a host.
    Host {
        /// Index of the host.
        host: usize,
        /// The CPU.
        cpu: u32,
        /// Whether its layer can hold KVM's events only: a flight recorder keeps them in a layer of their own, which
        /// begins at another time than what else the CPU recorded.
        only_kvm: bool,
    },
    /// A thread of a VMM.
    Vmm {
        /// Index of the VM.
        vm: usize,
        /// Number of the thread's stream: its vCPU's, or the number of vCPUs for all other threads.
        thread: u32,
    },
    /// A CPU of a guest's kernel.
    Guest {
        /// Index of the VM.
        vm: usize,
        /// The vCPU.
        cpu: u32,
    },
    /// Applications of a guest.
    User {
        /// Index of the VM.
        vm: usize,
        /// The vCPU.
        cpu: u32,
    },
}

impl Origin {
    /// Whether its layer holds KVM's events only, so that what is missing there is nothing that the kernel did
    /// otherwise.
    #[must_use]
    pub const fn is_only_kvm(self) -> bool {
        matches!(self, Self::Host { only_kvm: true, .. })
    }

    /// The kind of layer that its records are in.
    #[must_use]
    pub const fn layer(self) -> LayerKind {
        match self {
            Self::Host { .. } => LayerKind::HostKernel,
            Self::Vmm { .. } => LayerKind::Vmm,
            Self::Guest { .. } => LayerKind::GuestKernel,
            Self::User { .. } => LayerKind::GuestUser,
        }
    }
}

/// A kernel: of a host or of a VM, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernel {
    /// A host's.
    Host(usize),
    /// A guest's.
    Guest(usize),
}

impl Kernel {
    /// The kernel whose records come from `origin`, and the CPU.
    #[must_use]
    pub const fn of(origin: Origin) -> Option<(Self, u32)> {
        match origin {
            Origin::Host { host, cpu, .. } => Some((Self::Host(host), cpu)),
            Origin::Guest { vm, cpu } => Some((Self::Guest(vm), cpu)),
            Origin::Vmm { .. } | Origin::User { .. } => None,
        }
    }

    /// Index of the VM; `None` for a host.
    #[must_use]
    pub const fn vm(self) -> Option<usize> {
        match self {
            Self::Host(_) => None,
            Self::Guest(vm) => Some(vm),
        }
    }

    /// Name of the VM; `None` for a host.
    #[must_use]
    pub fn vm_name(self, timeline: &Timeline) -> Option<String> {
        match self {
            Self::Host(_) => None,
            Self::Guest(vm) => timeline.vm(vm).map(|vm| vm.name.clone()),
        }
    }
}

/// A record, and what it says.
#[derive(Clone, Copy, Debug)]
pub struct Input<'t> {
    /// Where it comes from.
    pub origin: Origin,
    /// Number of its stream in the merge.
    pub source: usize,
    /// What it says; `None` where no analysis asks for such records.
    pub event: Option<Event<'t>>,
    /// The record itself.
    pub record: StreamRecord<'t>,
}

impl Input<'_> {
    /// Trace clock, ticks.
    #[must_use]
    pub const fn time(&self) -> u64 {
        self.record.time
    }
}
