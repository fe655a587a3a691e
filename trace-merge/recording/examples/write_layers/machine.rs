//! A host with a VM of a few vCPUs, each of them on a CPU of its own. Time is moved on for each vCPU by itself; whatever
//! happens is recorded by every layer that would have seen it.

use super::event_types::*;
use super::recorder::{Recorder, Value};
use Value::{Number, Numbers, Text};
use std::collections::VecDeque;
use std::error::Error;

pub(super) type Done = Result<(), Box<dyn Error>>;

/// Ticks of a microsecond.
pub(super) const MICROSECOND: u64 = 2000;
pub(super) const VCPUS: u32 = 2;
/// The CPU of the VMM's thread for devices, and its stream among the VMM's threads.
pub(super) const DEVICE_CPU: u32 = VCPUS;
pub(super) const DEVICE_THREAD: i64 = 90;
/// Host thread of vCPU 0; the others follow.
pub(super) const VCPU_THREAD_0: i64 = 100;
/// Tasks of the host that take the CPU from vCPUs.
const HOG: i64 = 300;
pub(super) const BACKUP_THREAD: i64 = 4711;
/// Tasks of each vCPU, and the thread id of the first one of vCPU 0.
const TASKS: u32 = 20;
const FIRST_TASK: u32 = 1000;
/// Most tasks that are forked, so that reports have as many rows whatever the number of records.
const CHILDREN: u32 = 256;
const FIRST_CHILD: u32 = 5000;
/// `prev_state` of a task that could run on, that sleeps, that sleeps without being interruptible, that is dead.
pub(super) const PREEMPTED: i64 = 0x100;
pub(super) const SLEEPS: i64 = 1;
pub(super) const WAITS: i64 = 2;
pub(super) const DEAD: i64 = 0x10;
/// Exits as AMD's processors number them.
pub(super) const EXIT_INTERRUPT: i64 = 0x60;
pub(super) const EXIT_HLT: i64 = 0x78;
pub(super) const EXIT_IO: i64 = 0x7b;
pub(super) const EXIT_MSR: i64 = 0x7c;
pub(super) const EXIT_NPF: i64 = 0x400;
/// The guest's interrupt vectors of its timer and of its disk.
pub(super) const TIMER_VECTOR: i64 = 236;
pub(super) const DISK_VECTOR: i64 = 0x21;
/// Address of code in the guest's kernel.
pub(super) const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Functions that it consists of, and bytes of each.
const FUNCTIONS: u64 = 512;
pub(super) const FUNCTION: u64 = 0x1000;

/// A task of the guest; 0 is the idle one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Task(u32);

impl Task {
    pub(super) const IDLE: Self = Self(0);
    /// Of the story: who reads the disk, and the threads of a server; the first records events of its own.
    pub(super) const DD: Self = Self(145);
    pub(super) const WEB: [Self; 4] = [Self(812), Self(813), Self(814), Self(815)];

    pub(super) fn tid(self) -> i64 {
        self.0.into()
    }

    pub(super) fn comm(self) -> String {
        match self.0 {
            0 => "swapper".into(),
            145 => "dd".into(),
            812..=815 => "web".into(),
            child @ FIRST_CHILD.. => format!("job/{}", child % 4),
            worker => format!("worker/{}", worker % TASKS),
        }
    }

    /// The process whose records it makes, if it makes any.
    pub(super) fn recording_process(self) -> Option<u32> {
        let [server, ..] = Self::WEB;
        (self == server || processes().iter().any(|&(pid, _)| pid == self.0)).then_some(self.0)
    }
}

/// The tasks of `vcpu`.
pub(super) fn tasks(vcpu: u32) -> Vec<Task> {
    (0..TASKS).map(|task| Task(FIRST_TASK + vcpu * TASKS + task)).collect()
}

/// The processes that record events of their own: the first two tasks of each vCPU.
pub(super) fn processes() -> Vec<(u32, String)> {
    let firsts = (0..VCPUS).flat_map(|vcpu| tasks(vcpu).into_iter().take(2));
    firsts.map(|task| (task.0, task.comm())).collect()
}

/// A vCPU of the guest.
pub(super) struct Vcpu {
    /// Ticks.
    pub(super) time: u64,
    /// Who runs in the guest.
    pub(super) running: Task,
    /// Who could run, and who sleeps: the one who waits longest first.
    pub(super) ready: VecDeque<Task>,
    pub(super) asleep: VecDeque<Task>,
    /// Who was moved here from another vCPU.
    arriving: Vec<Task>,
}

pub(super) struct Machine {
    pub(super) recorder: Recorder,
    pub(super) vcpus: Vec<Vcpu>,
    draws: u64,
    children: u32,
    pub(super) next_sector: u64,
    /// About how long a vCPU that has nothing to do halts, ticks.
    pub(super) idle: u64,
}

impl Machine {
    /// A machine whose vCPUs are in the guest, each with one of its `tasks` that runs.
    pub(super) fn boot(recorder: Recorder, begin: u64, tasks: fn(u32) -> Vec<Task>) -> Result<Self, Box<dyn Error>> {
        let vcpus = (0..VCPUS).map(|number| Vcpu {
            time: begin,
            running: Task::IDLE,
            ready: VecDeque::new(),
            arriving: Vec::new(),
            asleep: tasks(number).into(),
        });
        let vcpus = vcpus.collect();
        let mut machine = Self { recorder, vcpus, draws: 1, children: 0, next_sector: 0, idle: 60 * MICROSECOND };
        for vcpu in 0..VCPUS {
            let thread = machine.thread(vcpu);
            machine.vmm(vcpu, vcpu, &VCPU_THREAD, &[Number(vcpu.into()), Number(thread)])?;
            machine.host_switch(vcpu, (0, 0), (thread, "vcpu"))?;
            machine.vmm(vcpu, vcpu, &VCPU_ENTER, &[Number(vcpu.into())])?;
            machine.enter(vcpu)?;
            if vcpu == 0 {
                machine.symbols()?;
            }
            machine.wake_one(vcpu)?;
            machine.switch(vcpu, 0)?;
        }
        Ok(machine)
    }

    fn symbols(&mut self) -> Done {
        for number in 0..FUNCTIONS {
            let name = format!("function_{number}");
            let begin = (TEXT + number * FUNCTION).cast_signed();
            self.guest(0, &SYMBOL, &[Number(begin), Number(FUNCTION.cast_signed()), Text(&name)])?;
        }
        Ok(())
    }

    pub(super) fn vcpu(&mut self, vcpu: u32) -> &mut Vcpu {
        &mut self.vcpus[vcpu as usize]
    }

    /// Host thread of `vcpu`.
    pub(super) fn thread(&self, vcpu: u32) -> i64 {
        VCPU_THREAD_0 + i64::from(vcpu)
    }

    /// The same numbers in every run, spread evenly.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.draws = self.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.draws >> 33) % limit
    }

    /// Moves the time of `vcpu` on by some tenths of a microsecond, and returns it.
    fn step(&mut self, vcpu: u32) -> u64 {
        let step = MICROSECOND / 5 + self.below(MICROSECOND * 2);
        self.vcpu(vcpu).time += step;
        self.vcpus[vcpu as usize].time
    }

    /// Lets about `ticks` pass.
    pub(super) fn wait(&mut self, vcpu: u32, ticks: u64) {
        self.vcpu(vcpu).time += ticks / 2 + self.below(ticks);
    }

    /// A record of the guest's kernel on `vcpu`.
    pub(super) fn guest(&mut self, vcpu: u32, event: &EventType, values: &[Value<'_>]) -> Done {
        let time = self.step(vcpu);
        self.recorder.record(None, vcpu, time, event, values)
    }

    /// A record of process `pid` on `vcpu`.
    pub(super) fn user(&mut self, vcpu: u32, pid: u32, event: &EventType, values: &[Value<'_>]) -> Done {
        let time = self.step(vcpu);
        self.recorder.record(Some(pid), vcpu, time, event, values)
    }

    /// A record of the host's kernel on `cpu` at the time of `vcpu`.
    pub(super) fn host(&mut self, vcpu: u32, cpu: u32, event: &EventType, values: &[Value<'_>]) -> Done {
        let time = self.step(vcpu);
        self.recorder.record(None, cpu, time, event, values)
    }

    /// A record of the VMM's `thread` at the time of `vcpu`.
    pub(super) fn vmm(&mut self, vcpu: u32, thread: u32, event: &EventType, values: &[Value<'_>]) -> Done {
        let time = self.step(vcpu);
        self.recorder.record(None, thread, time, event, values)
    }

    /// The vCPU enters the guest.
    pub(super) fn enter(&mut self, vcpu: u32) -> Done {
        let (thread, rip) = (self.thread(vcpu), self.address());
        self.host(vcpu, vcpu, &KVM_ENTRY, &[Number(thread), Number(vcpu.into()), Number(rip), Number(0)])
    }

    /// The vCPU leaves the guest for `reason`.
    pub(super) fn exit(&mut self, vcpu: u32, reason: i64) -> Done {
        let (thread, rip) = (self.thread(vcpu), self.address());
        let values = [thread, reason, rip, 2, 0, 0, 0, 0, vcpu.into()].map(Number);
        self.host(vcpu, vcpu, &KVM_EXIT, &values)
    }

    /// KVM gives the guest an interrupt with its next entry.
    pub(super) fn inject(&mut self, vcpu: u32, vector: i64) -> Done {
        let thread = self.thread(vcpu);
        let accept = [Number(thread), Number(vcpu.into()), Number(0), Number(0), Number(vector)];
        self.host(vcpu, vcpu, &KVM_ACCEPT, &accept)?;
        self.host(vcpu, vcpu, &KVM_INJECT, &[thread, vector, 0, 0].map(Number))?;
        self.enter(vcpu)
    }

    /// The guest ends an interrupt, which KVM notices at an exit.
    pub(super) fn end_of_interrupt(&mut self, vcpu: u32, vector: i64) -> Done {
        let thread = self.thread(vcpu);
        self.exit(vcpu, EXIT_MSR)?;
        self.host(vcpu, vcpu, &KVM_EOI, &[thread, vcpu.into(), vector].map(Number))?;
        self.host(vcpu, vcpu, &KVM_MSR, &[thread, 1, 0x80b, 0, 0].map(Number))?;
        self.enter(vcpu)
    }

    /// A CPU of the host switches tasks: thread and state of the one that ran, thread and name of the next.
    pub(super) fn host_switch(&mut self, vcpu: u32, prev: (i64, i64), next: (i64, &str)) -> Done {
        self.host_switch_on(vcpu, vcpu, prev, next)
    }

    pub(super) fn host_switch_on(&mut self, vcpu: u32, cpu: u32, prev: (i64, i64), next: (i64, &str)) -> Done {
        let values = [
            Number(prev.0),
            Text(host_comm(prev.0)),
            Number(prev.0),
            Number(120),
            Number(prev.1),
            Text(next.1),
            Number(next.0),
            Number(120),
        ];
        self.host(vcpu, cpu, &HOST_SWITCH, &values)
    }

    /// A CPU of the host, on which `by` runs, wakes `thread`.
    pub(super) fn host_wake(&mut self, vcpu: u32, cpu: u32, by: i64, thread: i64) -> Done {
        for event in [&HOST_WAKING, &HOST_WAKEUP] {
            let values = [Number(by), Text(host_comm(thread)), Number(thread), Number(120), Number(cpu.into())];
            self.host(vcpu, cpu, event, &values)?;
        }
        Ok(())
    }

    /// Another task of the host takes the CPU from the vCPU for a while.
    pub(super) fn steal(&mut self, vcpu: u32) -> Done {
        self.steal_by(vcpu, HOG + i64::from(vcpu), 400 * MICROSECOND)
    }

    /// The task `thief` of the host takes the CPU from the vCPU for about `ticks`.
    pub(super) fn steal_by(&mut self, vcpu: u32, thief: i64, ticks: u64) -> Done {
        let thread = self.thread(vcpu);
        self.exit(vcpu, EXIT_INTERRUPT)?;
        self.host_wake(vcpu, vcpu, thread, thief)?;
        self.host_switch(vcpu, (thread, PREEMPTED), (thief, host_comm(thief)))?;
        self.run_on(vcpu, thief, ticks)?;
        self.host_switch(vcpu, (thief, SLEEPS), (thread, "vcpu"))?;
        self.enter(vcpu)
    }

    /// The task `thief` runs on the CPU of the vCPU for about `ticks`.
    pub(super) fn run_on(&mut self, vcpu: u32, thief: i64, ticks: u64) -> Done {
        self.wait(vcpu, ticks);
        let ran = i64::try_from(ticks / MICROSECOND * 1_000)?;
        let runtime = [Number(thief), Text(host_comm(thief)), Number(thief), Number(ran), Number(1 << 30)];
        self.host(vcpu, vcpu, &HOST_RUNTIME, &runtime)
    }

    /// Halts the vCPU until the host's timer wakes it for `vector`.
    pub(super) fn halt(&mut self, vcpu: u32, vector: i64) -> Done {
        let thread = self.thread(vcpu);
        self.exit(vcpu, EXIT_HLT)?;
        self.host_switch(vcpu, (thread, SLEEPS), (0, "swapper"))?;
        self.wait(vcpu, self.idle);
        self.host_wake(vcpu, vcpu, 0, thread)?;
        self.host_switch(vcpu, (0, 0), (thread, "vcpu"))?;
        self.inject(vcpu, vector)
    }

    /// The guest's timer interrupts, and `work` is done before its soft interrupt.
    pub(super) fn timer(&mut self, vcpu: u32, work: impl FnOnce(&mut Self) -> Done) -> Done {
        self.guest(vcpu, &TIMER_ENTRY, &[Number(TIMER_VECTOR)])?;
        self.sample(vcpu)?;
        work(self)?;
        self.guest(vcpu, &SOFTIRQ_RAISE, &[Number(1)])?;
        self.guest(vcpu, &TIMER_EXIT, &[Number(TIMER_VECTOR)])?;
        self.guest(vcpu, &SOFTIRQ_ENTRY, &[Number(1)])?;
        self.guest(vcpu, &SOFTIRQ_EXIT, &[Number(1)])?;
        self.end_of_interrupt(vcpu, TIMER_VECTOR)
    }

    fn sample(&mut self, vcpu: u32) -> Done {
        let (ip, tid) = (self.address(), self.vcpu(vcpu).running.tid());
        let stack = [(); 4].map(|()| self.address().cast_unsigned());
        self.guest(vcpu, &SAMPLE, &[Number(ip), Number(tid), Number(tid), Number(0), Numbers(&stack)])
    }

    /// Wakes the task that has slept longest, if there is one.
    pub(super) fn wake_one(&mut self, vcpu: u32) -> Done {
        match self.vcpu(vcpu).asleep.pop_front() {
            Some(task) => self.wake(vcpu, task),
            None => Ok(()),
        }
    }

    pub(super) fn wake(&mut self, vcpu: u32, task: Task) -> Done {
        for event in [&WAKING, &WAKEUP] {
            let values = [Text(&task.comm()), Number(task.tid()), Number(120), Number(vcpu.into())];
            self.guest(vcpu, event, &values)?;
        }
        self.vcpu(vcpu).ready.push_back(task);
        Ok(())
    }

    /// The longest sleeper of `vcpu` is woken on another one.
    pub(super) fn migrate_one(&mut self, vcpu: u32) -> Done {
        let Some(task) = self.vcpu(vcpu).asleep.pop_front() else { return Ok(()) };
        let target = (vcpu + 1) % VCPUS;
        let comm = task.comm();
        let cpu = |cpu: u32| Number(cpu.into());
        self.guest(vcpu, &WAKING, &[Text(&comm), Number(task.tid()), Number(120), cpu(vcpu)])?;
        self.guest(vcpu, &MIGRATE, &[Text(&comm), Number(task.tid()), Number(120), cpu(vcpu), cpu(target)])?;
        self.guest(vcpu, &WAKEUP, &[Text(&comm), Number(task.tid()), Number(120), cpu(target)])?;
        self.vcpu(target).arriving.push(task);
        Ok(())
    }

    /// Brings all vCPUs to one moment: what one of them did before comes before what another one does from now on.
    pub(super) fn meet(&mut self) {
        let latest = self.vcpus.iter().map(|vcpu| vcpu.time).max().unwrap_or(0);
        for vcpu in &mut self.vcpus {
            vcpu.time = latest + MICROSECOND;
            vcpu.ready.extend(vcpu.arriving.drain(..));
        }
    }

    /// The task that runs leaves the CPU in `state`; the one that has been ready longest follows, or the idle one.
    pub(super) fn switch(&mut self, vcpu: u32, state: i64) -> Done {
        let next = self.vcpu(vcpu).ready.pop_front().unwrap_or(Task::IDLE);
        let prev = std::mem::replace(&mut self.vcpu(vcpu).running, next);
        let state = if prev == Task::IDLE { 0 } else { state };
        let values = [
            Text(&prev.comm()),
            Number(prev.tid()),
            Number(120),
            Number(state),
            Text(&next.comm()),
            Number(next.tid()),
            Number(120),
        ];
        self.guest(vcpu, &SWITCH, &values)?;
        if state == PREEMPTED {
            self.vcpu(vcpu).ready.push_back(prev);
        }
        Ok(())
    }

    /// A task that is forked; `None` when there were enough.
    pub(super) fn child(&mut self) -> Option<Task> {
        let child = (self.children < CHILDREN).then_some(Task(FIRST_CHILD + self.children))?;
        self.children += 1;
        Some(child)
    }

    pub(super) fn sys_enter(&mut self, vcpu: u32, call: i64, argument: u64) -> Done {
        self.guest(vcpu, &SYS_ENTER, &[Number(call), Numbers(&[argument, 0x7f00_0000_1000, 4096, 0, 0, 0])])
    }

    pub(super) fn sys_exit(&mut self, vcpu: u32, call: i64, value: i64) -> Done {
        self.guest(vcpu, &SYS_EXIT, &[Number(call), Number(value)])
    }

    /// An address of code in the guest's kernel, as its bits.
    pub(super) fn address(&mut self) -> i64 {
        (TEXT + self.below(FUNCTIONS * FUNCTION)).cast_signed()
    }
}

fn host_comm(thread: i64) -> &'static str {
    match thread {
        0 => "swapper",
        DEVICE_THREAD => "strata",
        BACKUP_THREAD => "backup",
        HOG.. => "hog",
        _ => "vcpu",
    }
}
