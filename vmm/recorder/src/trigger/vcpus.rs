//! The threads of a VM's vCPUs, each in a place of its own.

use strata_analysis::event::Tid;

/// Place of a thread; it keeps it when others come and go.
pub(in crate::trigger) type Place = u32;

/// The threads that are vCPUs now, and those that were.
#[derive(Debug, Default)]
pub(in crate::trigger) struct VcpuThreads {
    /// By the low bits of the thread: the thread and its place. It is as long as it takes for no two to meet.
    places: Vec<Option<(Tid, Place)>>,
    /// By place; the vCPU is `None` of a thread that is none any more.
    threads: Vec<(Tid, Option<u32>)>,
    /// As they were given.
    given: Vec<(u32, Tid)>,
}

impl VcpuThreads {
    /// The VM's vCPUs have these threads from now on.
    pub(super) fn set(&mut self, threads: impl Iterator<Item = (u32, Tid)>) {
        let threads: Vec<_> = threads.collect();
        if threads == self.given {
            return;
        }
        self.threads.iter_mut().for_each(|(_, vcpu)| *vcpu = None);
        for &(vcpu, tid) in &threads {
            let known = self.threads.iter().position(|&(known, _)| known == tid);
            let place = known.unwrap_or(self.threads.len());
            match self.threads.get_mut(place) {
                Some(thread) => thread.1 = Some(vcpu),
                None => self.threads.push((tid, Some(vcpu))),
            }
        }
        self.given = threads;
        // Thread ids have 22 bits at most, so that this ends.
        let mut size = self.given.len().next_power_of_two();
        while !self.fit(size) {
            size *= 2;
        }
    }

    /// Tries to make a table of `size` places; says whether no two threads meet.
    fn fit(&mut self, size: usize) -> bool {
        self.places.clear();
        self.places.resize(size, None);
        for (place, &(tid, vcpu)) in (0..).zip(&self.threads) {
            let slot = self.places.get_mut(tid.cast_unsigned() as usize & (size - 1));
            let Some(slot) = slot.filter(|_| vcpu.is_some()) else { continue };
            if slot.replace((tid, place)).is_some() {
                return false;
            }
        }
        true
    }

    /// Whether none is known.
    pub(super) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// The place of the thread `tid`, if it is a vCPU.
    #[inline]
    pub(super) fn place(&self, tid: Tid) -> Option<Place> {
        let slot = self.places.get(tid.cast_unsigned() as usize & self.places.len().wrapping_sub(1));
        slot.copied().flatten().filter(|&(known, _)| known == tid).map(|(_, place)| place)
    }

    /// The vCPU of the thread at `place`, if it still is one.
    #[inline]
    pub(super) fn vcpu(&self, place: Place) -> Option<u32> {
        self.threads.get(place as usize)?.1
    }

    /// The vCPU whose thread is `tid`.
    #[inline]
    pub(super) fn vcpu_of(&self, tid: Tid) -> Option<u32> {
        self.vcpu(self.place(tid)?)
    }

    /// The threads that are vCPUs.
    pub(in crate::trigger) fn iter(&self) -> impl Iterator<Item = (Place, u32)> {
        (0..).zip(&self.threads).filter_map(|(place, &(_, vcpu))| Some((place, vcpu?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_keeps_its_place_when_others_come_and_go() {
        let mut threads = VcpuThreads::default();

        threads.set([(0, 100), (1, 101)].into_iter());
        let before = threads.place(101).unwrap();
        threads.set([(0, 101), (1, 102)].into_iter());

        assert_eq!((threads.place(101), threads.vcpu(before), threads.vcpu_of(102)), (Some(before), Some(0), Some(1)));
        assert_eq!((threads.place(100), threads.vcpu(0)), (None, None));
    }
}
