//! Which host thread runs which vCPU, and which ones did before.

/// Most threads that are kept of those that no longer run a vCPU. Beyond, the oldest are forgotten: a monitor that takes
/// a new thread for each run of a vCPU cannot make a recording's manifest grow without bound.
const MAX_EARLIER: usize = 4096;

/// The host threads of a VM's vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadsOfVcpus {
    /// vCPU and thread, one for each vCPU.
    current: Vec<(u32, u32)>,
    /// vCPU and thread, in the order in which the threads were replaced, each pair once.
    earlier: Vec<(u32, u32)>,
}

impl ThreadsOfVcpus {
    /// `thread` runs `vcpu` from now on.
    pub fn set(&mut self, vcpu: u32, thread: u32) {
        let Some(entry) = self.current.iter_mut().find(|(known, _)| *known == vcpu) else {
            self.current.push((vcpu, thread));
            return;
        };
        if entry.1 == thread {
            return;
        }
        let replaced = std::mem::replace(entry, (vcpu, thread));
        self.earlier.retain(|&pair| pair != replaced && pair != (vcpu, thread));
        self.earlier.push(replaced);
        self.earlier.drain(..self.earlier.len().saturating_sub(MAX_EARLIER));
    }

    /// Each vCPU that has run, with the thread that ran it last.
    #[must_use]
    pub fn current(&self) -> &[(u32, u32)] {
        &self.current
    }

    /// vCPUs with threads that ran them before, the one that was replaced last at the end.
    pub fn earlier(&self) -> impl Iterator<Item = (u32, u32)> {
        self.earlier.iter().copied()
    }
}

impl FromIterator<(u32, u32)> for ThreadsOfVcpus {
    fn from_iter<T: IntoIterator<Item = (u32, u32)>>(threads: T) -> Self {
        let mut all = Self::default();
        threads.into_iter().for_each(|(vcpu, thread)| all.set(vcpu, thread));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_is_replaced_stays_known() {
        let threads: ThreadsOfVcpus = [(0, 70), (1, 71), (0, 72), (0, 72)].into_iter().collect();

        assert_eq!(threads.current(), [(0, 72), (1, 71)]);
        assert_eq!(threads.earlier().collect::<Vec<_>>(), [(0, 70)]);
    }

    #[test]
    fn thread_that_comes_back_is_no_earlier_one() {
        let threads: ThreadsOfVcpus = [(0, 70), (0, 71), (0, 70)].into_iter().collect();

        assert_eq!(threads.current(), [(0, 70)]);
        assert_eq!(threads.earlier().collect::<Vec<_>>(), [(0, 71)]);
    }

    #[test]
    fn monitor_with_a_new_thread_for_each_run_is_bounded() {
        let count = u32::try_from(2 * MAX_EARLIER).unwrap();
        let threads: ThreadsOfVcpus = (0..count).map(|thread| (0, thread)).collect();

        assert_eq!(threads.earlier().count(), MAX_EARLIER);
        assert_eq!(threads.earlier().last(), Some((0, count - 2)));
    }
}
