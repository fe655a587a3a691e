//! Names of interrupt vectors and exceptions.

/// Linux's own vectors of x86-64, as `asm/irq_vectors.h` has them.
const VECTORS: [(i64, &str); 21] = [
    (0x20, "irq_move_cleanup"),
    (0x80, "int80"),
    (0xec, "local_timer"),
    (0xed, "hyperv_stimer0"),
    (0xee, "hyperv_reenlightenment"),
    (0xef, "managed_irq_shutdown"),
    (0xf0, "posted_interrupt_nested"),
    (0xf1, "posted_interrupt_wakeup"),
    (0xf2, "posted_interrupt"),
    (0xf3, "hypervisor_callback"),
    (0xf4, "deferred_error"),
    (0xf6, "irq_work"),
    (0xf7, "x86_platform_ipi"),
    (0xf8, "reboot"),
    (0xf9, "threshold_apic"),
    (0xfa, "thermal_apic"),
    (0xfb, "call_function_single"),
    (0xfc, "call_function"),
    (0xfd, "reschedule"),
    (0xfe, "error_apic"),
    (0xff, "spurious_apic"),
];

/// By vector, the processor's exceptions; empty where there is none.
const EXCEPTIONS: [&str; 22] = [
    "#DE", "#DB", "NMI", "#BP", "#OF", "#BR", "#UD", "#NM", "#DF", "", "#TS", "#NP", "#SS", "#GP", "#PF", "", "#MF",
    "#AC", "#MC", "#XM", "#VE", "#CP",
];

/// The name of a vector of Linux, which is one of the processor's below 32; `None` where it is a device's.
#[must_use]
pub fn name(vector: i64) -> Option<&'static str> {
    exception(vector).or_else(|| VECTORS.iter().find_map(|&(known, name)| (known == vector).then_some(name)))
}

/// The name of an exception; `None` when there is none of that vector.
#[must_use]
pub fn exception(vector: i64) -> Option<&'static str> {
    let name = EXCEPTIONS.get(usize::try_from(vector).ok()?)?;
    Some(*name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_linuxs_names_and_devices_none() {
        assert_eq!(
            [236, 0xfd, 14, 0x22, -1, 9].map(name),
            [Some("local_timer"), Some("reschedule"), Some("#PF"), None, None, None]
        );
    }
}
