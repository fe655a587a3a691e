//! What belongs to the CPUs of machines.

use crate::perfetto::packets::Machine;
use strata_analysis::timeline::by_number::ByNumber;

/// Values by machine and CPU. Mostly the next one that is requested is of the same machine as the last one.
#[derive(Debug)]
pub(super) struct ByPlace<T> {
    machines: Vec<(Machine, ByNumber<T>)>,
    /// The place of the machine that was requested last.
    last: usize,
}

impl<T> Default for ByPlace<T> {
    fn default() -> Self {
        Self { machines: Vec::new(), last: 0 }
    }
}

impl<T> ByPlace<T> {
    /// The value of `cpu` of `machine`, which `make` makes where there is none.
    #[inline]
    pub(super) fn get_or_insert_with(&mut self, (machine, cpu): (Machine, u32), make: impl FnOnce() -> T) -> &mut T {
        if self.machines.get(self.last).is_none_or(|(of, _)| *of != machine) {
            self.turn_to(machine);
        }
        self.machines[self.last].1.get_or_insert_with(cpu, make)
    }

    #[inline(never)]
    fn turn_to(&mut self, machine: Machine) {
        let known = self.machines.iter().position(|(of, _)| *of == machine);
        self.last = known.unwrap_or_else(|| {
            self.machines.push((machine, ByNumber::default()));
            self.machines.len() - 1
        });
    }

    /// All values with their machines and CPUs, to be changed, in order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = ((Machine, u32), &mut T)> {
        self.machines.sort_unstable_by_key(|(machine, _)| *machine);
        self.machines.iter_mut().flat_map(|(machine, cpus)| cpus.iter_mut().map(|(cpu, of)| ((*machine, cpu), of)))
    }
}
