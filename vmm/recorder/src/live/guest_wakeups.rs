//! Wake-ups of a guest's tasks: from being woken until running. Triggers and the live summary measure them alike.

use foldhash::HashMap;
use strata_analysis::event::{Event, Tid, WakeupStage};

/// Tasks that were woken and have not run yet, at most: a guest may wake what never runs.
const MAX_WOKEN: usize = 1 << 16;

/// A task's name, as a kernel has it: up to its first zero.
pub type Comm = [u8; 16];

/// What a record of the guest's kernel says of wake-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeupStep {
    /// A task is woken.
    Woken {
        /// The task.
        tid: Tid,
    },
    /// A CPU goes from one task to another.
    Switch {
        /// The task that ran.
        prev: Tid,
        /// The task that runs from now on.
        next: Tid,
        /// Its name.
        comm: Comm,
    },
}

impl WakeupStep {
    /// What `event`, of the guest's kernel, says; `None` of any other.
    #[must_use]
    #[inline]
    pub fn of(event: &Event<'_>) -> Option<Self> {
        match event {
            Event::Wakeup { task, stage, .. } if *stage != WakeupStage::Wakeup => Some(Self::Woken { tid: task.tid }),
            Event::Switch { prev, next, .. } => {
                let mut comm = Comm::default();
                let length = next.comm.len().min(comm.len());
                comm[..length].copy_from_slice(&next.comm[..length]);
                Some(Self::Switch { prev: prev.tid, next: next.tid, comm })
            }
            _ => None,
        }
    }
}

/// The text of a task's name.
#[must_use]
pub fn name_of(comm: &Comm) -> String {
    let comm = comm.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(comm).into_owned()
}

/// Tasks that were woken and have not run yet, with the time. What they get comes in the order of times.
#[derive(Debug, Default)]
pub struct WokenTasks {
    woken: HashMap<Tid, u64>,
}

impl WokenTasks {
    /// The task `tid` is woken at `time`, ticks. Of several times the first counts.
    pub fn wake(&mut self, tid: Tid, time: u64) {
        if tid > 0 {
            self.woken.entry(tid).or_insert(time);
        }
        if self.woken.len() > MAX_WOKEN {
            self.forget();
        }
    }

    /// A CPU goes from `prev` to `next`. Returns when `next` was woken, ticks, if it has not run since. A task that was
    /// woken while it still ran did not wait: it is not told of at its next turn.
    pub fn switch(&mut self, prev: Tid, next: Tid) -> Option<u64> {
        // A CPU's idle task is never woken, and is in every other switch.
        if prev != next && prev > 0 {
            self.woken.remove(&prev);
        }
        if next > 0 { self.woken.remove(&next) } else { None }
    }

    /// Nothing is known any more: records are missing.
    pub fn forget(&mut self) {
        self.woken.clear();
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.woken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakeup_lasts_from_its_first_time_until_the_task_runs() {
        let mut tasks = WokenTasks::default();

        tasks.wake(7, 100);
        tasks.wake(7, 150);
        let switches = [tasks.switch(3, 8), tasks.switch(8, 7), tasks.switch(9, 7)];

        assert_eq!(switches, [None, Some(100), None]);
    }

    #[test]
    fn task_that_was_woken_while_it_ran_did_not_wait() {
        let mut tasks = WokenTasks::default();

        tasks.switch(3, 7);
        tasks.wake(7, 100);
        tasks.switch(7, 3);
        tasks.wake(7, 900);

        assert_eq!(tasks.switch(3, 7), Some(900));
    }

    #[test]
    fn tasks_that_never_run_take_bounded_memory() {
        let mut tasks = WokenTasks::default();

        (1..2 * 65_536 + 9).for_each(|tid| tasks.wake(tid, 0));

        assert!((1..=MAX_WOKEN).contains(&tasks.count()), "{}", tasks.count());
    }
}
