//! Names of the states in which the kernel's tasks lose the CPU.

/// By `prev_state` of `sched:sched_switch`, as `/proc/PID/status` names them; and what is ready still.
const NAMES: [(i64, &str); 10] = [
    (0, "running"),
    (1, "sleeping"),
    (2, "disk sleep"),
    (4, "stopped"),
    (8, "tracing stop"),
    (0x10, "dead"),
    (0x20, "zombie"),
    (0x40, "parked"),
    (0x80, "idle"),
    (0x100, "preempted"),
];

/// The name of `state`; `None` for several at once.
#[must_use]
pub fn name(state: i64) -> Option<&'static str> {
    NAMES.into_iter().find_map(|(known, name)| (known == state).then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_names_one_by_one() {
        assert_eq!([0, 2, 0x100, 3].map(name), [Some("running"), Some("disk sleep"), Some("preempted"), None]);
    }
}
