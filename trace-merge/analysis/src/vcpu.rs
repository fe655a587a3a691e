//! When each vCPU was in the guest, and why it left: from the host kernel's KVM events, or from the VMM's.

use crate::event::{self, Decoder, Event};
use crate::exit_reason::ExitReason;
use serde::Serialize;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Vm;
use strata_recording::reader::merge::Merge;
use strata_recording::reader::{Trace, TraceLayer};

/// The layer that tells when vCPUs were in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchSource {
    /// `kvm:kvm_entry` and `kvm:kvm_exit` of the host's kernel: at the switch itself.
    HostKernel,
    /// `vmm:vcpu_enter` and `vmm:vcpu_exit` of the VMM: around the whole of `KVM_RUN`, in which the vCPU may leave and
    /// enter the guest many times.
    Vmm,
}

impl SwitchSource {
    /// The kind of the layer.
    #[must_use]
    pub const fn layer(self) -> LayerKind {
        match self {
            Self::HostKernel => LayerKind::HostKernel,
            Self::Vmm => LayerKind::Vmm,
        }
    }

    /// The layers of `trace` that tell it of `vm` this way: those that have both event types.
    pub fn layers<'t>(self, trace: &'t Trace, vm: &Vm) -> impl Iterator<Item = &'t TraceLayer> {
        trace.layers_of(self.layer()).filter(move |layer| {
            let of_vm = match self {
                Self::HostKernel => layer.description.host == vm.host && !vm.outside_host_kernel,
                Self::Vmm => layer.description.vm.as_ref() == Some(&vm.name),
            };
            of_vm && event::is_about_vcpus(layer)
        })
    }
}

/// A vCPU entering or leaving the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuSwitch {
    /// Time, trace clock ticks.
    pub time: u64,
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Why it left; `None` when it entered.
    pub exit: Option<ExitReason>,
}

/// The switches of a VM's vCPUs, in time order.
pub struct Switches<'t> {
    merge: Merge<'t>,
    decoder: Decoder,
    vm: Vm,
}

impl<'t> Switches<'t> {
    /// The switches of `vm`'s vCPUs as `source` tells them. Host events are those of the VM's vCPU threads; of a VM
    /// whose threads are not known, those of every thread.
    #[must_use]
    pub fn new(trace: &'t Trace, vm: &Vm, source: SwitchSource) -> Self {
        let merge = Merge::new(source.layers(trace, vm), 0);
        Self { merge, decoder: Decoder::default(), vm: vm.clone() }
    }
}

impl Iterator for Switches<'_> {
    type Item = VcpuSwitch;

    fn next(&mut self) -> Option<VcpuSwitch> {
        loop {
            let merged = self.merge.next()?;
            let event = self.decoder.event(&merged);
            if let Some((vcpu, exit)) = event.and_then(|event| switch(&event, &self.vm)) {
                return Some(VcpuSwitch { time: merged.record.time, vcpu, exit });
            }
        }
    }
}

/// The vCPU that `event` tells entering or leaving the guest, and why it left; `None` for other events, and for those of
/// threads that never ran a vCPU of `vm`. The vCPU is what the event says itself, else the one that the thread runs; of a
/// VM whose threads are not known every thread counts.
#[must_use]
pub fn switch(event: &Event<'_>, vm: &Vm) -> Option<(u32, Option<ExitReason>)> {
    let of_thread = |tid: i32, stated: Option<u32>| {
        let known = vm.vcpu_of_thread(tid);
        if known.is_none() && !vm.vcpu_threads.is_empty() {
            return None;
        }
        stated.or(known)
    };
    Some(match *event {
        Event::KvmEntry { tid, vcpu } => (of_thread(tid, vcpu)?, None),
        Event::KvmExit { tid, vcpu, reason } => (of_thread(tid, vcpu)?, Some(reason)),
        Event::VmmEnter { vcpu } => (vcpu, None),
        Event::VmmExit { vcpu, reason } => (vcpu, Some(reason)),
        _ => return None,
    })
}

/// A period during which a vCPU was in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Period {
    /// When it entered, ticks.
    pub begin: u64,
    /// When it left, ticks; `u64::MAX` when it had not by the end of the recording.
    pub end: u64,
}
