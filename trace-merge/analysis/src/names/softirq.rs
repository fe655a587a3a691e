//! Names of the kernel's soft interrupts.

/// By vector, as `include/linux/interrupt.h` numbers them.
const NAMES: [&str; 10] =
    ["hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu"];

/// The name of soft interrupt `vector`; `None` when there is none of that number.
#[must_use]
pub fn name(vector: i64) -> Option<&'static str> {
    usize::try_from(vector).ok().and_then(|vector| NAMES.get(vector)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_the_kernels_names() {
        assert_eq!([1, 9, 10, -1].map(name), [Some("timer"), Some("rcu"), None, None]);
    }
}
