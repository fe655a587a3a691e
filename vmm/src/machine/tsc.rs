//! The guest's time stamp counter, and one reading of all host clocks.
#![allow(unsafe_code)] // kvm-ioctls wraps no vCPU device attributes on x86, and RDTSC is an intrinsic

use std::arch::x86_64::_rdtsc;
use std::ptr;

use kvm_bindings::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, kvm_clock_data, kvm_device_attr,
};
use kvm_ioctls::{VcpuFd, VmFd};
use rustix::time::{ClockId, clock_gettime};
use vmm_sys_util::errno;
use vmm_sys_util::ioctl::ioctl_with_ref;

use request::{KVM_GET_DEVICE_ATTR, KVM_HAS_DEVICE_ATTR, KVM_SET_DEVICE_ATTR};

mod request {
    //! Numbers of the device attribute requests.
    #![allow(missing_docs, reason = "the macro takes no documentation")]

    use kvm_bindings::{KVMIO, kvm_device_attr};
    use vmm_sys_util::ioctl_iow_nr;

    ioctl_iow_nr!(KVM_SET_DEVICE_ATTR, KVMIO, 0xe1, kvm_device_attr);
    ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);
    ioctl_iow_nr!(KVM_HAS_DEVICE_ATTR, KVMIO, 0xe3, kvm_device_attr);
}

/// Pairs of readings from which the narrowest is taken.
const BRACKETS: usize = 16;

/// The host's TSC now.
#[must_use]
pub fn host_tsc() -> u64 {
    // SAFETY: RDTSC has no memory operand, and Linux lets user space execute it.
    unsafe { _rdtsc() }
}

fn offset_attribute(value: *const u64) -> kvm_device_attr {
    kvm_device_attr { flags: 0, group: KVM_VCPU_TSC_CTRL, attr: u64::from(KVM_VCPU_TSC_OFFSET), addr: value as u64 }
}

/// Whether KVM lets the TSC offset of `vcpu` be set and read (Linux 5.16 and later).
#[must_use]
pub fn has_offset(vcpu: &VcpuFd) -> bool {
    let attribute = offset_attribute(ptr::null());
    // SAFETY: the file is a vCPU, the request only reads the structure, which outlives the call.
    unsafe { ioctl_with_ref(vcpu, KVM_HAS_DEVICE_ATTR(), &attribute) == 0 }
}

/// Sets guest TSC minus host TSC, ticks.
///
/// Some KVM builds accept an offset and ignore it: read it back and observe it too (see [`crate::probe`]).
///
/// # Errors
/// KVM does not know the attribute (`ENXIO`, `ENOTTY`).
pub fn set_offset(vcpu: &VcpuFd, offset: i64) -> Result<(), errno::Error> {
    let value = offset.cast_unsigned();
    let attribute = offset_attribute(&raw const value);
    // SAFETY: the file is a vCPU; KVM reads the structure and the eight bytes it points at, both of which
    // outlive the call.
    let result = unsafe { ioctl_with_ref(vcpu, KVM_SET_DEVICE_ATTR(), &attribute) };
    if result == 0 { Ok(()) } else { errno::errno_result() }
}

/// Reads guest TSC minus host TSC, ticks.
///
/// # Errors
/// KVM does not know the attribute (`ENXIO`, `ENOTTY`).
pub fn read_offset(vcpu: &VcpuFd) -> Result<i64, errno::Error> {
    let mut value = 0u64;
    let attribute = offset_attribute(&raw mut value);
    // SAFETY: the file is a vCPU; KVM reads the structure and writes the eight bytes it points at, both of
    // which outlive the call and are used by nobody else.
    let result = unsafe { ioctl_with_ref(vcpu, KVM_GET_DEVICE_ATTR(), &attribute) };
    if result == 0 { Ok(value.cast_signed()) } else { errno::errno_result() }
}

/// How exact a [`ClockReading`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockSource {
    /// KVM read both clocks at one instant.
    Kvm,
    /// The wall clock was read between two readings of the TSC, this many ticks apart.
    Bracketed {
        /// Ticks between the two readings: the instant is known to half of it.
        width: u64,
    },
}

/// The host's TSC and wall clock at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// Host TSC, ticks.
    pub host_tsc: u64,
    /// `CLOCK_REALTIME`, nanoseconds since 1970.
    pub realtime_ns: u64,
    /// How the two were read together.
    pub source: ClockSource,
}

/// Reads TSC and wall clock together: from KVM where it can (flags of `KVM_GET_CLOCK`), else bracketed.
#[must_use]
pub fn clock_reading(vm: &VmFd) -> ClockReading {
    vm.get_clock().ok().and_then(|clock| from_kvm(&clock)).unwrap_or_else(bracketed)
}

fn from_kvm(clock: &kvm_clock_data) -> Option<ClockReading> {
    let both = KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
    (clock.flags & both == both).then_some(ClockReading {
        host_tsc: clock.host_tsc,
        realtime_ns: clock.realtime,
        source: ClockSource::Kvm,
    })
}

/// The narrowest of several readings of the wall clock between two of the TSC.
#[must_use]
pub fn bracketed() -> ClockReading {
    let readings = (0..BRACKETS).map(|_| {
        let before = host_tsc();
        let realtime_ns = realtime_ns();
        let width = host_tsc().saturating_sub(before);
        ClockReading { host_tsc: before + width / 2, realtime_ns, source: ClockSource::Bracketed { width } }
    });
    let width = |reading: &ClockReading| match reading.source {
        ClockSource::Kvm => 0,
        ClockSource::Bracketed { width } => width,
    };
    readings.min_by_key(width).unwrap_or(ClockReading {
        host_tsc: host_tsc(),
        realtime_ns: realtime_ns(),
        source: ClockSource::Bracketed { width: u64::MAX },
    })
}

fn realtime_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn kvms_reading_is_used_when_it_has_both_clocks() {
        let clock = kvm_clock_data { flags: 0xe, realtime: 5, host_tsc: 7, ..Default::default() };
        let expected = ClockReading { host_tsc: 7, realtime_ns: 5, source: ClockSource::Kvm };
        assert_eq!(from_kvm(&clock), Some(expected));
    }

    #[test]
    fn kvms_reading_without_host_tsc_is_not_used() {
        let clock = kvm_clock_data { flags: 0x6, realtime: 5, ..Default::default() };
        assert_eq!(from_kvm(&clock), None);
    }

    #[test]
    fn a_bracketed_reading_lies_between_the_clocks_around_it() {
        let unix = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let before = (host_tsc(), unix());
        let reading = bracketed();
        let after = (host_tsc(), unix());
        assert!((before.0..=after.0).contains(&reading.host_tsc));
        assert!((before.1..=after.1).contains(&u128::from(reading.realtime_ns)));
    }
}
