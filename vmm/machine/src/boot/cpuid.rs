//! What the guest learns from the CPUID instruction: KVM's supported leaves, the topology, and our discovery leaf.

use kvm_bindings::{KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

/// First leaf of ours. KVM's own leaves stay at 0x4000_0000, where a guest looks for kvm-clock.
pub const DISCOVERY_BASE: u32 = 0x4000_0100;
/// The leaf that describes the trace region.
pub const DISCOVERY_REGION: u32 = DISCOVERY_BASE + 1;
/// Signature in EBX, ECX, EDX of [`DISCOVERY_BASE`].
pub const DISCOVERY_SIGNATURE: [u8; 12] = strata_abi::CPUID_SIGNATURE;

/// Leaf 1 ECX: TSC-deadline timer.
const TSC_DEADLINE: u32 = 1 << 24;
/// Leaf 1 ECX: running under a hypervisor.
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1 EDX: more than one logical processor per package.
const HTT: u32 = 1 << 28;
/// Leaf 1 EBX: CLFLUSH line size in units of eight bytes.
const CLFLUSH_LINE: u32 = 8 << 8;

/// Leaf 1 ECX: VMX. What a guest cannot use well, or should not without being given it, is not announced.
const VMX: u32 = 1 << 5;
/// Leaf 0x8000_0001 ECX: SVM.
const SVM: u32 = 1 << 2;
/// Leaf 1 ECX: capabilities of the performance counters.
const PDCM: u32 = 1 << 15;
/// Leaf 0x8000_0001 ECX: AMD's further performance counters, of cores, northbridge, time and caches.
const AMD_COUNTERS: u32 = 1 << 23 | 1 << 24 | 1 << 27 | 1 << 28;
/// Leaf 7 EBX: Intel's processor trace.
const PROCESSOR_TRACE: u32 = 1 << 25;
/// Leaf 7 EDX: architectural records of last branches.
const LAST_BRANCHES: u32 = 1 << 19;

/// The trace region as the discovery leaf gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// ABI version of the region.
    pub abi_version: u32,
    /// Guest-physical address.
    pub address: u64,
    /// Size, bytes; a multiple of 4096.
    pub size: u64,
}

/// What distinguishes one vCPU's CPUID from what KVM supports.
#[derive(Clone, Copy, Debug)]
pub struct CpuidConfig {
    /// Number of vCPUs, all in one package, one thread per core.
    pub cpus: u32,
    /// KVM emulates the TSC-deadline timer.
    pub tsc_deadline: bool,
    /// The trace region, if the guest is to find it.
    pub discovery: Option<Discovery>,
    /// What else the guest is given.
    pub extras: CpuExtras,
}

/// What a guest is given of the host's CPU when it is requested: KVM's largest and least tried parts stand behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuExtras {
    /// Virtualisation: the guest may run guests of its own.
    pub nested: bool,
    /// Performance counters.
    pub pmu: bool,
}

/// The entries for vCPU `index`, from those that KVM supports.
#[must_use]
pub fn entries(supported: &[kvm_cpuid_entry2], index: u32, config: &CpuidConfig) -> Vec<kvm_cpuid_entry2> {
    let mut entries: Vec<_> = supported.iter().filter(|entry| entry.function != 0xb).copied().collect();
    for entry in &mut entries {
        adapt(entry, index, config);
        withhold(entry, config.extras);
    }
    if supported.iter().any(|entry| entry.function == 0 && entry.eax >= 0xb) {
        entries.extend(topology(index, config.cpus));
    }
    if let Some(discovery) = &config.discovery {
        entries.extend(discovery_leaves(discovery));
    }
    entries
}

/// Width of the APIC identifier's core field, bits.
fn core_bits(cpus: u32) -> u32 {
    cpus.next_power_of_two().trailing_zeros()
}

fn adapt(entry: &mut kvm_cpuid_entry2, index: u32, config: &CpuidConfig) {
    let last_core = config.cpus - 1;
    match entry.function {
        1 => {
            entry.ebx = entry.ebx & 0xff | CLFLUSH_LINE | config.cpus << 16 | index << 24;
            entry.ecx |= HYPERVISOR;
            if config.tsc_deadline {
                entry.ecx |= TSC_DEADLINE;
            }
            entry.edx &= !HTT;
            if config.cpus > 1 {
                entry.edx |= HTT;
            }
        }
        // Caches (Intel: 4, AMD: 0x8000_001d): the third level is shared by the package, the others by nobody.
        4 | 0x8000_001d => {
            let level = entry.eax >> 5 & 7;
            let sharing = if level >= 3 { last_core } else { 0 };
            entry.eax = entry.eax & 0x3fff | sharing << 14;
            if entry.function == 4 {
                entry.eax |= last_core.min(63) << 26;
            }
        }
        // AMD: number of cores and width of the core field.
        0x8000_0008 => {
            entry.ecx = entry.ecx & !0xf0ff | core_bits(config.cpus) << 12 | last_core;
        }
        // AMD: extended APIC identifier, core, node.
        0x8000_001e => {
            entry.eax = index;
            entry.ebx = index;
            entry.ecx = 0;
        }
        _ => {}
    }
}

/// Takes out of `entry` what the guest is not given.
fn withhold(entry: &mut kvm_cpuid_entry2, extras: CpuExtras) {
    if !extras.nested {
        match entry.function {
            1 => entry.ecx &= !VMX,
            0x8000_0001 => entry.ecx &= !SVM,
            // SVM's features.
            0x8000_000a => clear(entry),
            _ => {}
        }
    }
    if !extras.pmu {
        match entry.function {
            1 => entry.ecx &= !PDCM,
            7 if entry.index == 0 => {
                entry.ebx &= !PROCESSOR_TRACE;
                entry.edx &= !LAST_BRANCHES;
            }
            0x8000_0001 => entry.ecx &= !AMD_COUNTERS,
            // Intel's counters, processor trace and last branches; AMD's counters, version 2.
            0xa | 0x14 | 0x1c | 0x8000_0022 => clear(entry),
            _ => {}
        }
    }
}

const fn clear(entry: &mut kvm_cpuid_entry2) {
    (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
}

/// The extended topology leaf: one thread per core, all cores in one package.
fn topology(index: u32, cpus: u32) -> [kvm_cpuid_entry2; 3] {
    const THREADS: u32 = 1 << 8;
    const CORES: u32 = 2 << 8;
    let level = |subleaf: u32, shift: u32, count: u32, kind: u32| kvm_cpuid_entry2 {
        function: 0xb,
        index: subleaf,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax: shift,
        ebx: count,
        ecx: kind | subleaf,
        edx: index,
        ..Default::default()
    };
    [level(0, 0, 1, THREADS), level(1, core_bits(cpus), cpus, CORES), level(2, 0, 0, 0)]
}

#[allow(clippy::cast_possible_truncation, reason = "an address is split into its halves")]
fn discovery_leaves(discovery: &Discovery) -> [kvm_cpuid_entry2; 2] {
    let word = |at: usize| {
        let s = &DISCOVERY_SIGNATURE;
        u32::from_le_bytes([s[at], s[at + 1], s[at + 2], s[at + 3]])
    };
    [
        kvm_cpuid_entry2 {
            function: DISCOVERY_BASE,
            eax: DISCOVERY_REGION,
            ebx: word(0),
            ecx: word(4),
            edx: word(8),
            ..Default::default()
        },
        kvm_cpuid_entry2 {
            function: DISCOVERY_REGION,
            eax: discovery.abi_version,
            ebx: discovery.address as u32,
            ecx: (discovery.address >> 32) as u32,
            edx: (discovery.size >> 12) as u32,
            ..Default::default()
        },
    ]
}

/// Width of a guest-physical address, bits, from the leaves that KVM supports.
#[must_use]
pub fn physical_bits(supported: &[kvm_cpuid_entry2]) -> u32 {
    // Processors without the leaf have 36 bits.
    supported.iter().find(|entry| entry.function == 0x8000_0008).map_or(36, |entry| entry.eax & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(function: u32, eax: u32) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 { function, eax, ..Default::default() }
    }

    fn config(cpus: u32) -> CpuidConfig {
        CpuidConfig { cpus, tsc_deadline: true, discovery: None, extras: CpuExtras::default() }
    }

    fn find(entries: &[kvm_cpuid_entry2], function: u32, index: u32) -> kvm_cpuid_entry2 {
        *entries.iter().find(|e| (e.function, e.index) == (function, index)).unwrap()
    }

    #[test]
    fn each_vcpu_has_its_own_apic_identifier() {
        let found = entries(&[leaf(0, 0xd), leaf(1, 0)], 3, &config(4));
        assert_eq!((find(&found, 1, 0).ebx >> 24, find(&found, 0xb, 1).edx), (3, 3));
    }

    #[test]
    fn topology_is_one_package_of_cores() {
        let found = entries(&[leaf(0, 0xd)], 0, &config(3));
        let cores = find(&found, 0xb, 1);
        assert_eq!((cores.eax, cores.ebx, cores.ecx), (2, 3, 0x201));
    }

    #[test]
    fn processor_without_the_topology_leaf_gets_none() {
        let found = entries(&[leaf(0, 0xa)], 0, &config(2));
        assert!(found.iter().all(|entry| entry.function != 0xb));
    }

    #[test]
    fn single_vcpu_claims_no_siblings() {
        let all_set = kvm_cpuid_entry2 { edx: u32::MAX, ..leaf(1, 0) };
        let found = entries(&[all_set], 0, &config(1));
        assert_eq!(find(&found, 1, 0).edx & HTT, 0);
    }

    #[test]
    fn amd_core_count_and_width_are_set() {
        let found = entries(&[leaf(0x8000_0008, 0x3028)], 0, &config(5));
        assert_eq!(find(&found, 0x8000_0008, 0).ecx, 3 << 12 | 4);
    }

    #[test]
    fn only_the_third_level_cache_is_shared() {
        let caches = [1 << 5, 3 << 5].map(|eax| leaf(0x8000_001d, eax | 0xffff_c000));
        let found = entries(&caches, 0, &config(4));
        let shared: Vec<_> = found.iter().map(|entry| entry.eax >> 14).collect();
        assert_eq!(shared, [0, 3]);
    }

    #[test]
    fn kvms_own_leaves_are_kept() {
        let kvm = kvm_cpuid_entry2 { ebx: 0x4b4d_564b, ..leaf(0x4000_0000, 0x4000_0001) };
        let found = entries(&[kvm], 0, &config(1));
        assert_eq!(find(&found, 0x4000_0000, 0), kvm);
    }

    #[test]
    fn discovery_leaf_carries_signature_version_address_and_size() {
        let discovery = Discovery { abi_version: 7, address: 0x1_4000_0000, size: 0x3000 };
        let found = entries(&[], 0, &CpuidConfig { discovery: Some(discovery), ..config(1) });
        let base = find(&found, DISCOVERY_BASE, 0);
        let signature = [base.ebx, base.ecx, base.edx].map(u32::to_le_bytes).concat();
        let region = find(&found, DISCOVERY_REGION, 0);
        assert_eq!((base.eax, signature.as_slice()), (DISCOVERY_REGION, &b"STRATATRACE\0"[..]));
        assert_eq!((region.eax, region.ebx, region.ecx, region.edx), (7, 0x4000_0000, 1, 3));
    }

    /// The leaves that tell of virtualisation and performance counters, with every bit set.
    fn full() -> Vec<kvm_cpuid_entry2> {
        let all = u32::MAX;
        let full = |function| kvm_cpuid_entry2 { eax: all, ebx: all, ecx: all, edx: all, ..leaf(function, 0) };
        [1, 7, 0xa, 0x14, 0x1c, 0x8000_0001, 0x8000_000a, 0x8000_0022].map(full).into()
    }

    #[test]
    fn virtualisation_and_counters_are_withheld() {
        let found = entries(&full(), 0, &config(1));

        let gone = [0xa, 0x14, 0x1c, 0x8000_000a, 0x8000_0022].map(|function| find(&found, function, 0));
        assert!(gone.iter().all(|entry| (entry.eax, entry.ebx, entry.ecx, entry.edx) == (0, 0, 0, 0)));
        assert_eq!(find(&found, 1, 0).ecx, !(VMX | PDCM));
        assert_eq!(find(&found, 0x8000_0001, 0).ecx, !(SVM | AMD_COUNTERS));
        assert_eq!((find(&found, 7, 0).ebx, find(&found, 7, 0).edx), (!PROCESSOR_TRACE, !LAST_BRANCHES));
    }

    #[test]
    fn virtualisation_and_counters_are_given_when_requested() {
        let given = |extras| entries(&full(), 0, &CpuidConfig { extras, ..config(1) });
        let nested = given(CpuExtras { nested: true, pmu: false });
        let pmu = given(CpuExtras { nested: false, pmu: true });

        assert_eq!((find(&nested, 1, 0).ecx, find(&nested, 0x8000_000a, 0).eax), (!PDCM, u32::MAX));
        assert_eq!((find(&pmu, 1, 0).ecx, find(&pmu, 0xa, 0).eax), (!VMX, u32::MAX));
    }

    #[test]
    fn address_width_is_read() {
        assert_eq!(physical_bits(&[leaf(0x8000_0008, 0x3030)]), 48);
    }
}
