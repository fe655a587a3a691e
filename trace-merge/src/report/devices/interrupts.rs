//! Which of a guest's interrupts are which device's: what comes together again and again.

use foldhash::HashMap;
use std::collections::BTreeSet;
use std::hash::Hash;

/// How sure one can be. What proves otherwise has to come so often, since numbers may change hands.
const MOST: i8 = 8;
/// Partners, and pairs, that are remembered: a recording can claim any.
pub(super) const PARTNERS: usize = 64;
const PAIRS: usize = 4096;

/// The likeliest partner of each `K`: an interrupt's device, or a device's interrupt.
#[derive(Debug)]
pub(super) struct Likeliest<K, P> {
    partners: BTreeSet<P>,
    /// How much more often the two came together than the first without the second.
    scores: HashMap<(K, P), i8>,
}

impl<K, P> Default for Likeliest<K, P> {
    fn default() -> Self {
        Self { partners: BTreeSet::new(), scores: HashMap::default() }
    }
}

impl<K: Copy + Eq + Hash, P: Copy + Eq + Hash + Ord> Likeliest<K, P> {
    /// `key` comes together with `partners` and with no other. The partner that is the likeliest now.
    pub(super) fn meet(&mut self, key: K, partners: impl Iterator<Item = P> + Clone) -> Option<P> {
        for partner in partners.clone() {
            if self.partners.len() < PARTNERS {
                self.partners.insert(partner);
            }
        }
        for &partner in &self.partners {
            if self.scores.len() >= PAIRS && !self.scores.contains_key(&(key, partner)) {
                continue;
            }
            let score = self.scores.entry((key, partner)).or_default();
            let change = if partners.clone().any(|met| met == partner) { 1 } else { -1 };
            *score = (*score + change).clamp(-MOST, MOST);
        }
        self.of(key)
    }

    /// `key` is certainly that of `partner`, which it has met.
    pub(super) fn confirm(&mut self, key: K, partner: P) {
        if let Some(score) = self.scores.get_mut(&(key, partner)) {
            *score = MOST;
        }
    }

    /// The partner of `key`, if one is likelier than the others.
    pub(super) fn of(&self, key: K) -> Option<P> {
        let likely = |&partner: &P| Some((*self.scores.get(&(key, partner))?, partner)).filter(|&(score, _)| score > 0);
        let best = self.partners.iter().filter_map(likely).max()?;
        let equals = self.partners.iter().filter_map(likely).filter(|&(score, _)| score == best.0);
        (equals.count() == 1).then_some(best.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(disks: &mut Likeliest<i32, u32>, number: i32, answered: &[u32]) -> Option<u32> {
        disks.meet(number, answered.iter().copied())
    }

    #[test]
    fn interrupt_is_the_disks_that_has_answered() {
        let mut disks = Likeliest::default();

        assert_eq!(enter(&mut disks, 24, &[0]), Some(0));
        assert_eq!(enter(&mut disks, 25, &[0, 1]), None, "of two");
        assert_eq!(enter(&mut disks, 25, &[1]), Some(1));
        assert_eq!(enter(&mut disks, 24, &[0, 1]), Some(0));
    }

    #[test]
    fn interrupt_of_another_device_is_the_disks_only_until_it_comes_without_one() {
        let mut disks = Likeliest::default();

        let taken_for_it = enter(&mut disks, 30, &[0]);
        let without = enter(&mut disks, 30, &[]);
        let later = [enter(&mut disks, 30, &[]), enter(&mut disks, 30, &[0])];

        assert_eq!((taken_for_it, without, later), (Some(0), None, [None, None]));
        assert_eq!([enter(&mut disks, 24, &[0]), enter(&mut disks, 24, &[0])], [Some(0), Some(0)]);
    }

    #[test]
    fn interrupt_in_which_requests_complete_stays_the_disks() {
        let mut disks = Likeliest::default();
        enter(&mut disks, 24, &[0, 1]);

        disks.confirm(24, 1);

        assert_eq!(enter(&mut disks, 24, &[]), Some(1));
        assert_eq!(enter(&mut disks, 24, &[0, 1]), Some(1));
    }
}
