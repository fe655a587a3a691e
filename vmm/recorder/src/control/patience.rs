//! How long to wait for VMs that get a request one after the other.

use super::found_vm::Owner;
use std::time::{Duration, Instant};

/// How long to wait for VMs that get a request one after the other: those of other users cannot hold up this one.
#[derive(Clone, Debug)]
pub struct Patience {
    /// For all VMs of other users together.
    limit: Duration,
    /// Up to when they are waited for, once the first of them has a request.
    others: Option<Instant>,
}

impl Patience {
    /// Of `others` for all VMs of other users together.
    #[must_use]
    pub const fn new(others: Duration) -> Self {
        Self { limit: others, others: None }
    }

    /// Up to when `owner`'s VM is waited for, which gets a request now: for `own` if it is this user's.
    pub fn deadline(&mut self, owner: Owner, own: Duration) -> Instant {
        match owner {
            Owner::Own | Owner::Caller(_) => Instant::now() + own,
            Owner::Other(_) => *self.others.get_or_insert_with(|| Instant::now() + self.limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_vms_share_the_time_that_they_are_waited_for() {
        let mut patience = Patience::new(Duration::from_secs(5));

        let first = patience.deadline(Owner::Other(1), Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(2));

        assert_eq!(patience.deadline(Owner::Other(2), Duration::from_secs(300)), first);
        assert!(patience.deadline(Owner::Own, Duration::from_secs(30)) > first);
    }
}
