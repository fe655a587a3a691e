//! What the kernel's locks are, by the flags that it records them with.

/// Flags of `lock:contention_begin`.
#[allow(missing_docs, reason = "the kernel's names: `LCB_F_*`")]
pub mod flag {
    pub const SPIN: u64 = 1;
    pub const READ: u64 = 2;
    pub const WRITE: u64 = 4;
    pub const RT: u64 = 8;
    pub const PERCPU: u64 = 16;
    pub const MUTEX: u64 = 32;
}

/// What the flags of `lock:contention_begin` say a lock is.
#[must_use]
pub fn kind(flags: u64) -> &'static str {
    let is = |flag| flags & flag != 0;
    match () {
        () if is(flag::MUTEX) => "mutex",
        () if is(flag::PERCPU) && is(flag::WRITE) => "percpu rwsem (write)",
        () if is(flag::PERCPU) => "percpu rwsem (read)",
        () if is(flag::RT) => "rt-mutex",
        () if is(flag::SPIN) && is(flag::READ) => "rwlock (read)",
        () if is(flag::SPIN) && is(flag::WRITE) => "rwlock (write)",
        () if is(flag::SPIN) => "spinlock",
        () if is(flag::READ) => "rwsem (read)",
        () if is(flag::WRITE) => "rwsem (write)",
        () => "sleeping lock",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_what_a_lock_is() {
        assert_eq!([flag::SPIN, flag::SPIN | flag::MUTEX, flag::READ].map(kind), ["spinlock", "mutex", "rwsem (read)"]);
    }
}
