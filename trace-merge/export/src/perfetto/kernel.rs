//! Wake-ups, interrupts and system calls of a kernel, as records of its CPUs.
//!
//! Perfetto ends an interrupt or a call by the record of its end. Where that was lost, one is written in its place, at the
//! moment from which on it is not known: nothing goes on longer than records say.

mod by_place;
pub(super) mod running;

use super::packets::{FtraceKind, Machine, PacketWriter};
use by_place::ByPlace;
use foldhash::HashMap;
use std::borrow::Cow;
use std::io::Write;
use strata_analysis::event::{self, Event, Interrupt};
use strata_analysis::names;
use strata_analysis::timeline::states::{Runner, TaskIndex};
use strata_analysis::timeline::{Input, Origin, Timeline};

/// Interrupts nest at most this deep; what comes on top was left without a record.
const MAX_NESTED: usize = 16;
/// What an interrupt's handler says that has handled it (`IRQ_HANDLED`).
const HANDLED: i32 = 1;

/// Where a record of a kernel comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelRecord {
    pub(super) machine: Machine,
    pub(super) cpu: u32,
    /// ns
    pub(super) time: u64,
    /// Who made it.
    pub(super) tid: i64,
    /// Which task of a guest that is.
    pub(super) task: Option<TaskIndex>,
}

/// Writes records of kernels, and what ends where records are missing.
#[derive(Debug, Default)]
pub(super) struct KernelRecords {
    /// By CPU: the interrupts that are handled, the innermost last; with names where nothing was to be drawn yet.
    interrupts: ByPlace<Vec<(Interrupt, String)>>,
    /// The calls that guests' tasks are in.
    calls: HashMap<(Machine, TaskIndex), Call>,
}

/// A call that a task is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    /// The CPU on which it was entered.
    cpu: u32,
    tid: i64,
    number: i64,
    arguments: [u64; ARGUMENTS],
    /// How many of them were recorded.
    recorded: usize,
}

/// Arguments that a call has at most.
const ARGUMENTS: usize = 6;

impl Call {
    const fn enter(&self) -> FtraceKind<'_> {
        FtraceKind::SysEnter { number: self.number, arguments: self.arguments.split_at(self.recorded).0 }
    }

    const fn exit(&self, result: Option<i64>) -> FtraceKind<'static> {
        FtraceKind::SysExit { number: self.number, result }
    }
}

impl KernelRecords {
    /// Writes a record; whether there is a form for it.
    pub(super) fn record<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        from: &KernelRecord,
        event: &Event<'_>,
        input: &Input<'_>,
    ) -> bool {
        let (place, by) = ((from.machine, from.cpu), (from.time, from.tid));
        match *event {
            Event::Wakeup { task, cpu, stage } => {
                let (comm, target_cpu) = (running::comm(&task), cpu.and_then(|cpu| i32::try_from(cpu).ok()));
                out.ftrace(place, by, FtraceKind::Wakeup { stage, comm: &comm, tid: task.tid, target_cpu });
            }
            // One that the kernel does not have.
            Event::InterruptEnter(Interrupt::Softirq(vector)) | Event::InterruptExit(Interrupt::Softirq(vector))
                if names::softirq::name(vector.into()).is_none() =>
            {
                return false;
            }
            Event::InterruptEnter(interrupt) => {
                let name = match interrupt {
                    Interrupt::Irq(_) => event::handler_name(&input.record).unwrap_or_default(),
                    Interrupt::Vector(_) => event::vector_name(input.record.schema.name())
                        .map_or(Cow::Borrowed(""), |(name, _)| ["vector ", name].concat().into()),
                    Interrupt::Softirq(_) => Cow::Borrowed(""),
                };
                self.enter(out, place, by, (interrupt, &name));
            }
            Event::InterruptExit(interrupt) => {
                let result = match interrupt {
                    Interrupt::Irq(_) => event::handler_result(&input.record).and_then(|ret| i32::try_from(ret).ok()),
                    Interrupt::Vector(_) | Interrupt::Softirq(_) => Some(HANDLED),
                };
                self.leave(out, place, by, interrupt, result);
            }
            // Perfetto knows one table of calls for each machine.
            Event::SyscallEnter { number, arguments } => {
                let all = arguments.all();
                let recorded = all.map_or(0, |all| all.len().min(ARGUMENTS));
                let arguments = std::array::from_fn(|index| all.and_then(|all| all.get(index)).unwrap_or(0));
                let call = |number| Call { cpu: from.cpu, tid: from.tid, number, arguments, recorded };
                return names::syscall::as_x86_64(number).is_some_and(|number| self.call(out, from, call(number)));
            }
            Event::SyscallExit { number, result } => {
                return names::syscall::as_x86_64(number).is_some_and(|number| self.answer(out, from, number, result));
            }
            _ => return false,
        }
        true
    }

    fn enter<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        place: (Machine, u32),
        by: (u64, i64),
        (interrupt, name): (Interrupt, &str),
    ) {
        let nested = self.interrupts.get_or_insert_with(place, Vec::new);
        if nested.len() < MAX_NESTED {
            out.ftrace(place, by, entry(interrupt, name));
            // What is drawn has been given its name.
            nested.push((interrupt, if out.muted { name.to_owned() } else { String::new() }));
        }
    }

    fn leave<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        place: (Machine, u32),
        by: (u64, i64),
        interrupt: Interrupt,
        result: Option<i32>,
    ) {
        let nested = self.interrupts.get_or_insert_with(place, Vec::new);
        // One whose entry was not recorded has nothing to end.
        let Some(at) = nested.iter().rposition(|(entered, _)| *entered == interrupt) else { return };
        // What came on top of it and is not left was left without a record.
        for (lost, _) in nested.drain(at + 1..).rev() {
            out.ftrace(place, by, exit(lost, None));
        }
        nested.truncate(at);
        out.ftrace(place, by, exit(interrupt, result));
    }

    fn call<W: Write>(&mut self, out: &mut PacketWriter<W>, from: &KernelRecord, call: Call) -> bool {
        // A call of nobody known would be drawn as somebody else's.
        let Some(task) = from.task else { return false };
        let (place, by) = ((from.machine, from.cpu), (from.time, from.tid));
        if let Some(unanswered) = self.calls.insert((from.machine, task), call) {
            out.ftrace(place, by, unanswered.exit(None));
        }
        out.ftrace(place, by, call.enter());
        true
    }

    fn answer<W: Write>(&mut self, out: &mut PacketWriter<W>, from: &KernelRecord, number: i64, result: i64) -> bool {
        let Some(task) = from.task else { return false };
        // One whose begin was not recorded has nothing to end, nor has the return of a new task.
        let Some(entered) = self.calls.remove(&(from.machine, task)) else { return false };
        let is_its = number < 0 || number == entered.number;
        out.ftrace((from.machine, from.cpu), (from.time, from.tid), entered.exit(is_its.then_some(result)));
        is_its
    }

    /// `cpu` switches threads: nothing does that in an interrupt, so that what is still entered was left without a record.
    pub(super) fn switch<W: Write>(&mut self, out: &mut PacketWriter<W>, place: (Machine, u32), time: u64) {
        for (interrupt, _) in self.interrupts.get_or_insert_with(place, Vec::new).drain(..).rev() {
            out.ftrace(place, (time, 0), exit(interrupt, None));
        }
    }

    /// A guest's task ends: so does the call that it is in.
    pub(super) fn end_task<W: Write>(&mut self, out: &mut PacketWriter<W>, from: &KernelRecord) {
        let call = from.task.and_then(|task| self.calls.remove(&(from.machine, task)));
        if let Some(call) = call {
            out.ftrace((from.machine, from.cpu), (from.time, call.tid), call.exit(None));
        }
    }

    /// Records of `place` are missing from `time` on: what it was in may end unseen, and so may the calls of all tasks that
    /// do not run elsewhere.
    pub(super) fn begin_gap<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        place: (Machine, u32),
        time: u64,
        origin: Origin,
        timeline: &Timeline,
    ) {
        self.switch(out, place, time);
        let Origin::Guest { vm, cpu } = origin else { return };
        let Some(vm) = timeline.vm(vm) else { return };
        let (machine, _) = place;
        let is_lost = |task: TaskIndex| vm.guest.is_lost_with(Runner::Task(task), cpu);
        let mut lost: Vec<_> =
            self.calls.extract_if(|&(of, task), _| of == machine && is_lost(task)).map(|(_, call)| call).collect();
        lost.sort_unstable();
        for call in lost {
            out.ftrace((machine, call.cpu), (time, call.tid), call.exit(None));
        }
    }

    /// Draws from `time` on what has begun before, when nothing was to be drawn.
    pub(super) fn resume<W: Write>(&mut self, out: &mut PacketWriter<W>, time: u64) {
        for ((machine, cpu), nested) in self.interrupts.iter_mut() {
            for (interrupt, name) in nested {
                out.ftrace((machine, cpu), (time, 0), entry(*interrupt, name));
            }
        }
        for (&(machine, _), call) in &self.calls {
            out.ftrace((machine, call.cpu), (time, call.tid), call.enter());
        }
    }
}

const fn entry(interrupt: Interrupt, name: &str) -> FtraceKind<'_> {
    match interrupt {
        Interrupt::Irq(irq) | Interrupt::Vector(irq) => FtraceKind::IrqEntry { irq, name },
        Interrupt::Softirq(vector) => FtraceKind::SoftirqEntry(vector.unsigned_abs()),
    }
}

const fn exit(interrupt: Interrupt, result: Option<i32>) -> FtraceKind<'static> {
    match interrupt {
        Interrupt::Irq(irq) | Interrupt::Vector(irq) => FtraceKind::IrqExit { irq, result },
        Interrupt::Softirq(vector) => FtraceKind::SoftirqExit(vector.unsigned_abs()),
    }
}
