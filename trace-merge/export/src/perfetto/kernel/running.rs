//! Which thread runs on each CPU, as a kernel's `sched_switch` tells.
//!
//! A thread is drawn as running only for as long as records say so. Where a switch was not recorded (it was lost, or did
//! not concern the machine and was left out), the thread before is drawn up to the last record that it made, and then a
//! thread called [`NOT_RECORDED`], up to the next switch.

use super::by_place::ByPlace;
use crate::perfetto::packets::{Machine, PacketWriter};
use crate::perfetto::proto::TaskState;
use std::borrow::Cow;
use std::io::Write;
use strata_analysis::event::{Task, Tid};

/// What stands in place of a thread that is not known.
pub(in crate::perfetto) const NOT_RECORDED: &str = "not recorded";
/// Thread id of [`NOT_RECORDED`] on CPU 0, above all that the kernel gives out (`PID_MAX_LIMIT`).
const FIRST_NOT_RECORDED: i64 = 1 << 30;

/// Priority of what has none: that of nice value 0. Viewers take a thread without a priority for one of real time.
const NORMAL_PRIORITY: i32 = 120;

/// Bits of `prev_state` as `sched_switch` shows it.
const INTERRUPTIBLE: u64 = 0x1;
const UNINTERRUPTIBLE: u64 = 0x2;
const STOPPED_OR_TRACED: u64 = 0x4 | 0x8;
const ENDED: u64 = 0x10 | 0x20;
/// Of an idle kernel thread (`TASK_IDLE`): it waits without being interruptible.
const IDLE: u64 = 0x80;
const MASK: u64 = 0xff;

/// What a CPU does.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Doing {
    /// No record has told yet.
    Nothing,
    /// It is idle.
    Idle,
    /// It runs a thread.
    Thread(Thread),
    /// Not known, and drawn as that once the time is over; before that it ran this thread.
    Unknown { before: Option<Thread> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    tid: Tid,
    comm: String,
    priority: i32,
}

#[derive(Clone, Debug)]
struct Cpu {
    doing: Doing,
    /// Since when, ns.
    since: u64,
    /// Until when that is known, ns.
    known_until: u64,
    /// Memory for the name of the thread that runs next.
    spare: String,
}

/// Draws what the CPUs of all machines run.
#[derive(Debug, Default)]
pub(in crate::perfetto) struct RunningThreads {
    cpus: ByPlace<Cpu>,
}

/// The thread that stands for what is not known on `cpu`.
pub(in crate::perfetto) fn unknown_tid(cpu: u32) -> i64 {
    FIRST_NOT_RECORDED + i64::from(cpu)
}

/// Whether a thread that is switched out with `prev_state` has ended.
pub(in crate::perfetto) const fn is_end(prev_state: u64) -> bool {
    prev_state & ENDED != 0
}

fn state(prev_state: u64) -> TaskState {
    match prev_state & MASK {
        0 => TaskState::Runnable,
        bits if bits & STOPPED_OR_TRACED != 0 => TaskState::Stopped,
        bits if bits & INTERRUPTIBLE != 0 => TaskState::InterruptibleSleep,
        bits if bits & (UNINTERRUPTIBLE | IDLE) != 0 => TaskState::UninterruptibleSleep,
        _ => TaskState::Stopped,
    }
}

/// Ends the thread that runs on `cpu`, or `unseen`, which ran there without a record. Perfetto draws a zombie, too, up to
/// the end of the trace. What it does not draw is a thread that gives way to another one and has no state then: here to
/// the idle task, for no time.
fn end<W: Write>(out: &mut PacketWriter<W>, (machine, cpu): (Machine, u32), time: u64, unseen: Option<&Task<'_>>) {
    if let Some(task) = unseen {
        out.runs(machine, time, cpu, (task.tid.into(), &comm(task)), NORMAL_PRIORITY);
    }
    let idle = (0, "swapper");
    out.runs(machine, time, cpu, idle, NORMAL_PRIORITY);
    out.stops(machine, time, cpu, idle, TaskState::InterruptibleSleep);
}

/// The name of `task` as text.
pub(in crate::perfetto) fn comm<'t>(task: &Task<'t>) -> Cow<'t, str> {
    // Mostly it is, which is found out faster than where it is not.
    str::from_utf8(task.comm).map_or_else(|_| String::from_utf8_lossy(task.comm), Cow::Borrowed)
}

impl RunningThreads {
    #[inline]
    fn cpu(&mut self, machine: Machine, cpu: u32) -> &mut Cpu {
        self.cpus.get_or_insert_with((machine, cpu), || Cpu {
            doing: Doing::Nothing,
            since: 0,
            known_until: 0,
            spare: String::new(),
        })
    }

    /// The thread `by` made a record on `cpu`; `None` where all of the CPU's switches are recorded, so that whatever ran
    /// still does.
    pub(in crate::perfetto) fn recorded(&mut self, machine: Machine, cpu: u32, time: u64, by: Option<Tid>) {
        let cpu = self.cpu(machine, cpu);
        let is_it = match (&cpu.doing, by) {
            (_, None) => true,
            (Doing::Thread(thread), Some(by)) => thread.tid == by,
            (Doing::Idle, Some(by)) => by == 0,
            (Doing::Nothing | Doing::Unknown { .. }, Some(_)) => false,
        };
        if is_it {
            cpu.known_until = time;
        }
    }

    /// `cpu` switches from `prev`, which is in `prev_state` then, to `next` of this priority, if it is known.
    pub(in crate::perfetto) fn switch<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        (machine, number): (Machine, u32),
        time: u64,
        (prev, prev_state): (&Task<'_>, u64),
        (next, priority): (&Task<'_>, Option<i64>),
    ) {
        let cpu = self.cpu(machine, number);
        let connects = match &cpu.doing {
            Doing::Thread(thread) => thread.tid == prev.tid,
            Doing::Idle => prev.tid == 0,
            Doing::Nothing | Doing::Unknown { .. } => true,
        };
        if !connects {
            cpu.lose(cpu.known_until);
        }
        cpu.know_again(out, (machine, number), time);
        if is_end(prev_state) {
            let runs = matches!(&cpu.doing, Doing::Thread(thread) if thread.tid == prev.tid);
            end(out, (machine, number), time, (!runs).then_some(prev));
        } else if prev.tid != 0 {
            out.stops(machine, time, number, (prev.tid.into(), &comm(prev)), state(prev_state));
        }
        if let Doing::Thread(before) = std::mem::replace(&mut cpu.doing, Doing::Idle) {
            cpu.spare = before.comm;
        }
        if next.tid != 0 {
            let mut name = std::mem::take(&mut cpu.spare);
            name.clear();
            name.push_str(&comm(next));
            let priority = priority.and_then(|priority| i32::try_from(priority).ok()).unwrap_or(NORMAL_PRIORITY);
            out.runs(machine, time, number, (next.tid.into(), &name), priority);
            cpu.doing = Doing::Thread(Thread { tid: next.tid, comm: name, priority });
        }
        (cpu.since, cpu.known_until) = (time, time);
    }

    /// Records of `cpu` are missing from `time` on.
    pub(in crate::perfetto) fn begin_gap(&mut self, machine: Machine, cpu: u32, time: u64) {
        self.cpu(machine, cpu).lose(time);
    }

    /// Draws from `time` on what has begun before, when nothing was to be drawn.
    pub(in crate::perfetto) fn resume<W: Write>(&mut self, out: &mut PacketWriter<W>, time: u64) {
        for ((machine, number), cpu) in self.cpus.iter_mut() {
            (cpu.since, cpu.known_until) = (cpu.since.max(time), cpu.known_until.max(time));
            match &cpu.doing {
                Doing::Thread(Thread { tid, comm, priority }) => {
                    out.runs(machine, time, number, ((*tid).into(), comm), *priority);
                }
                Doing::Nothing | Doing::Idle | Doing::Unknown { .. } => {}
            }
        }
    }

    /// Ends at `time` what is not known to have gone on until then: all but what `goes_on` says of a machine's threads.
    pub(in crate::perfetto) fn finish<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        time: u64,
        goes_on: impl Fn(Machine, Tid) -> bool,
    ) {
        for (place, cpu) in self.cpus.iter_mut() {
            let ends = match &cpu.doing {
                Doing::Thread(thread) => !goes_on(place.0, thread.tid),
                Doing::Idle => !goes_on(place.0, 0),
                Doing::Nothing | Doing::Unknown { .. } => false,
            };
            if ends && cpu.known_until < time {
                cpu.lose(cpu.known_until);
            }
            cpu.know_again(out, place, time);
        }
    }
}

impl Cpu {
    /// What the CPU does is not known from `time` on.
    fn lose(&mut self, time: u64) {
        let before = match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Thread(thread) => Some(thread),
            unknown @ Doing::Unknown { .. } => {
                self.doing = unknown;
                return;
            }
            Doing::Nothing | Doing::Idle => None,
        };
        // Perfetto takes two states of a thread at one time for an error, also of the one that stands for what is not
        // known: what has begun lasts for a nanosecond.
        self.since = time.max(self.since.saturating_add(1));
        self.doing = Doing::Unknown { before };
    }

    /// What the CPU does is known again from `time` on: draws that it was not.
    fn know_again<W: Write>(&mut self, out: &mut PacketWriter<W>, (machine, cpu): (Machine, u32), time: u64) {
        let Doing::Unknown { before } = &self.doing else { return };
        let unknown = (unknown_tid(cpu), NOT_RECORDED);
        if self.since < time {
            // Perfetto ends the slice of the thread before, and says of its state that it is not known.
            out.runs(machine, self.since, cpu, unknown, NORMAL_PRIORITY);
            out.stops(machine, time, cpu, unknown, TaskState::InterruptibleSleep);
        } else if let Some(before) = before {
            let before = (before.tid.into(), &*before.comm);
            out.stops(machine, self.since, cpu, before, TaskState::InterruptibleSleep);
        }
        self.doing = Doing::Nothing;
    }
}
