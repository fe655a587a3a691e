//! A trace region that the hypervisor offers.

pub mod pci;
pub mod pmem;

use shared_ring::layout::PAGE_SIZE;
use std::arch::x86_64::__cpuid;
use strata_abi::CPUID_SIGNATURE;

/// A trace region as the hypervisor offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Layout version, `major << 16 | minor`; `None` where this user cannot see it.
    pub abi_version: Option<u32>,
    /// Guest-physical address; `None` for persistent memory, whose device alone tells.
    pub address: Option<u64>,
    /// Size of the region, bytes; `None` likewise.
    pub size: Option<u64>,
}

impl Offer {
    /// The CPUID leaf whose signature is ours, among those that hypervisors use.
    pub(crate) fn of_leaf() -> Option<Self> {
        if __cpuid(1).ecx >> 31 == 0 {
            return None;
        }
        (0x4000_0000_u32..0x4001_0000).step_by(0x100).find_map(|leaf| {
            let id = __cpuid(leaf);
            let signature = [id.ebx, id.ecx, id.edx].map(u32::to_le_bytes);
            (signature.as_flattened() == CPUID_SIGNATURE && id.eax > leaf).then(|| {
                let region = __cpuid(leaf + 1);
                Self {
                    abi_version: Some(region.eax),
                    address: Some(u64::from(region.ecx) << 32 | u64::from(region.ebx)),
                    size: Some(u64::from(region.edx) * PAGE_SIZE as u64),
                }
            })
        })
    }
}
