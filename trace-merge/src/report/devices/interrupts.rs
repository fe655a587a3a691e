//! Which of a guest's interrupts are which disk's: what the guest enters when the disk has answered.

use foldhash::HashMap;
use std::collections::BTreeSet;

/// How sure one can be. What proves otherwise has to come so often, since numbers may change hands.
const MOST: i8 = 8;
/// Disks, and pairs of a disk and a number, that are remembered: a recording can claim any.
const DISKS: usize = 64;
const PAIRS: usize = 4096;

/// What is known of the interrupts of a guest's disks.
#[derive(Debug, Default)]
pub(super) struct DiskInterrupts {
    disks: BTreeSet<u32>,
    /// By number and disk: how much more often that had answered when the guest entered it than not.
    scores: HashMap<(i32, u32), i8>,
}

impl DiskInterrupts {
    /// The guest enters the handler of the interrupt `number` when the disks `answered` have. Whose it is, where one is
    /// more likely than the others.
    pub(super) fn enter(&mut self, number: i32, answered: impl Iterator<Item = u32> + Clone) -> Option<u32> {
        for disk in answered.clone() {
            if self.disks.len() < DISKS {
                self.disks.insert(disk);
            }
        }
        let mut best: Option<(i8, u32)> = None;
        let mut is_one = false;
        for &disk in &self.disks {
            if self.scores.len() >= PAIRS && !self.scores.contains_key(&(number, disk)) {
                continue;
            }
            let score = self.scores.entry((number, disk)).or_default();
            *score =
                (*score + if answered.clone().any(|answered| answered == disk) { 1 } else { -1 }).clamp(-MOST, MOST);
            let score = *score;
            match best {
                Some((most, _)) if score < most => {}
                Some((most, _)) if score == most => is_one = false,
                _ => (best, is_one) = (Some((score, disk)), true),
            }
        }
        best.filter(|&(score, _)| is_one && score > 0).map(|(_, disk)| disk)
    }

    /// The guest completes a request of `disk` in the handler of the interrupt `number`.
    pub(super) fn complete(&mut self, number: i32, disk: u32) {
        if let Some(score) = self.scores.get_mut(&(number, disk)) {
            *score = MOST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(interrupts: &mut DiskInterrupts, number: i32, answered: &[u32]) -> Option<u32> {
        interrupts.enter(number, answered.iter().copied())
    }

    #[test]
    fn interrupt_is_the_disks_that_has_answered() {
        let mut interrupts = DiskInterrupts::default();

        assert_eq!(enter(&mut interrupts, 24, &[0]), Some(0));
        assert_eq!(enter(&mut interrupts, 25, &[0, 1]), None, "of two");
        assert_eq!(enter(&mut interrupts, 25, &[1]), Some(1));
        assert_eq!(enter(&mut interrupts, 24, &[0, 1]), Some(0));
    }

    #[test]
    fn interrupt_of_another_device_is_the_disks_only_until_it_comes_without_one() {
        let mut interrupts = DiskInterrupts::default();

        let taken_for_it = enter(&mut interrupts, 30, &[0]);
        let without = enter(&mut interrupts, 30, &[]);
        let later = [enter(&mut interrupts, 30, &[]), enter(&mut interrupts, 30, &[0])];

        assert_eq!((taken_for_it, without, later), (Some(0), None, [None, None]));
        assert_eq!([enter(&mut interrupts, 24, &[0]), enter(&mut interrupts, 24, &[0])], [Some(0), Some(0)]);
    }

    #[test]
    fn interrupt_in_which_requests_complete_stays_the_disks() {
        let mut interrupts = DiskInterrupts::default();
        enter(&mut interrupts, 24, &[0, 1]);

        interrupts.complete(24, 1);

        assert_eq!(enter(&mut interrupts, 24, &[]), Some(1));
        assert_eq!(enter(&mut interrupts, 24, &[0, 1]), Some(1));
    }
}
