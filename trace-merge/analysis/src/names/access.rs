//! What accesses to memory, to devices and to ports were, by the numbers that processor and KVM record them with.

/// Bits of a page fault's error code but the first (Intel SDM volume 3, 4.7), and of a nested one's (AMD APM volume 2, 15.25.6).
const PAGE_FAULT: [(u64, &str); 9] = [
    (1 << 1, "write"),
    (1 << 2, "user"),
    (1 << 3, "reserved"),
    (1 << 4, "instruction"),
    (1 << 5, "pkey"),
    (1 << 6, "shadow_stack"),
    (1 << 15, "sgx"),
    (1 << 32, "guest_final"),
    (1 << 33, "guest_page"),
];

/// What the error code of a page fault says, joined by `|`; bits without a name in hexadecimal.
#[must_use]
pub fn page_fault(code: u64) -> String {
    let first = if code & 1 == 0 { "not_present" } else { "protection" };
    let known = PAGE_FAULT.into_iter().filter(|(bit, _)| code & bit != 0);
    let unknown = PAGE_FAULT.into_iter().fold(code & !1, |rest, (bit, _)| rest & !bit);
    let mut words = vec![first.to_owned()];
    words.extend(known.map(|(_, name)| name.to_owned()));
    words.extend((unknown != 0).then(|| format!("{unknown:#x}")));
    words.join("|")
}

/// By `type` of `kvm:kvm_mmio`, as the kernel prints it.
#[must_use]
pub fn mmio(kind: i64) -> Option<&'static str> {
    match kind {
        0 => Some("unsatisfied-read"),
        1 => Some("read"),
        2 => Some("write"),
        _ => None,
    }
}

/// By `rw` of `kvm:kvm_pio`.
#[must_use]
pub fn port(direction: i64) -> Option<&'static str> {
    match direction {
        0 => Some("read"),
        1 => Some("write"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_a_page_fault_have_names() {
        assert_eq!(
            [0, 6, 3, 0x15].map(page_fault),
            ["not_present", "not_present|write|user", "protection|write", "protection|user|instruction"]
        );
        assert_eq!(page_fault(1 << 32 | 1 << 20), "not_present|guest_final|0x100000");
    }
}
