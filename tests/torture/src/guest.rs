//! The honest guest of a round: its kernel records on every vCPU, in tasks and in what interrupts them, and gives process
//! slots to honest and to hostile processes, as the kernel module does.
#![allow(unsafe_code)] // The guest's side of the region, and signal handlers.

use crate::attack::{Attack, ESCAPED, STEP, STEP_ID};
use crate::mapping::{self, Access};
use crate::setup::{VCPUS, VmSetup};
use crate::tally::{Tally, interrupt_producer, task_producer};
use clock_sync::entry::Reader;
use clock_sync::tsc;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use shared_ring::guest::{Region, SessionRings};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{AGENT_ALIVE, AGENT_GONE, MAX_VCPUS};
use shared_ring::region::RegionLayout;
use shared_ring::storage::CpuLocal;
use std::cell::Cell;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What begins the process ids of honest processes; the number of the process is added.
pub const FIRST_PID: u32 = 10_000;
/// Process ids of hostile ones begin here.
pub const FIRST_HOSTILE_PID: u32 = 100_000;
/// Processes that take a slot and end at once, at most: a recording keeps 4096 apart, and honest ones are to be among them.
const MAX_CHURN: u32 = 2500;
/// Hostile processes at a time.
const HOSTILE_PROCESSES: usize = 4;
/// The signal that is an interrupt.
const INTERRUPT: libc::c_int = libc::SIGUSR1;

/// A vCPU of the guest.
struct Vcpu {
    number: u32,
    region: Region,
    clock: Reader,
    rings: SessionRings<CpuLocal>,
    tally: Tally,
}

thread_local! {
    /// The vCPU that this thread is; null for other threads.
    static VCPU: Cell<*const Vcpu> = const { Cell::new(ptr::null()) };
}

impl Vcpu {
    /// Records the next step of `producer` for all sessions that want it.
    fn record(&self, producer: u32) {
        let area = self.region.area();
        for slot in (0..2).filter(|&slot| area.is_enabled(slot, STEP.class, STEP_ID)) {
            let Some(ring) = self.rings.producer(slot) else { continue };
            // The first session alone is counted.
            let number = if slot == 0 { self.tally.attempt(producer) } else { 0 };
            let mut payload = [0; 12];
            payload[..4].copy_from_slice(&producer.to_le_bytes());
            payload[4..].copy_from_slice(&number.to_le_bytes());
            // What is lost is counted in the ring.
            let _ = ring.record(|| self.clock.now(tsc::read_ordered), STEP_ID, &payload);
        }
    }

    /// Adopts sessions and lets go of them, and honours requests to flush: what the module's timer does.
    fn tick(&self) {
        let ring = |at| {
            // SAFETY: rings of this vCPU are used by this thread alone, which stays on its CPU, and by what interrupts it.
            unsafe { CpuLocal::new(self.region.pointer(at)) }
        };
        // SAFETY: this thread is the vCPU, and is not within a record; the region stays mapped.
        unsafe { self.rings.follow(self.region.area(), self.number, ring) };
        self.rings.poll_flush_requests(|| self.clock.now(tsc::read_ordered));
    }

    fn run(&self, burst: u64, seed: u64) {
        let mut chance = fastrand::Rng::with_seed(seed);
        VCPU.set(ptr::from_ref(self));
        while !self.tally.is_stopping() {
            self.tick();
            (0..chance.u64(..=burst)).for_each(|_| self.record(task_producer(self.number)));
            std::thread::sleep(Duration::from_micros(chance.u64(..3000)));
        }
        VCPU.set(ptr::null());
        // SAFETY: this thread is the vCPU, and is not within a record.
        unsafe { self.rings.release() };
    }
}

/// The handler of [`INTERRUPT`]: records, whatever it has interrupted.
extern "C" fn interrupt(_: libc::c_int) {
    // SAFETY: a vCPU's thread sets the pointer while the vCPU lives, and takes it back before; other threads have none.
    if let Some(vcpu) = unsafe { VCPU.get().as_ref() } {
        (0..3).for_each(|_| vcpu.record(interrupt_producer(vcpu.number)));
    }
}

/// Runs the honest guest of the VM that the file `setup` describes, whose region is the file `region`, until its tally says
/// to stop.
///
/// # Errors
/// When the region cannot be used.
pub fn run(setup_file: &Path, region_file: &Path) -> anyhow::Result<()> {
    let setup = VmSetup::load(setup_file)?;
    let tally = Tally::open(&setup.tally())?;
    let layout = setup.layout()?;
    let memory = mapping::map(region_file, 0..layout.size, Access::Write)?;
    // SAFETY: the whole region is mapped, and stays so to the end of this function, by which all threads have ended.
    let region = unsafe { Region::open(memory.base(), memory.size() as u64) }?;
    // SAFETY: this process is the guest's only agent.
    unsafe { region.registry() }.append(&STEP);
    region.announce(b"6.1.0-torture", 0, AGENT_ALIVE);
    let handler: extern "C" fn(libc::c_int) = interrupt;
    // SAFETY: the handler calls nothing that a handler may not.
    unsafe { libc::signal(INTERRUPT, handler as libc::sighandler_t) };
    let threads: Vec<AtomicU64> = (0..VCPUS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, id) in (0..VCPUS).zip(&threads) {
            let (setup, memory, layout, tally, done) = (&setup, &memory, &layout, &tally, &done);
            scope.spawn(move || {
                pin(number);
                let vcpu = vcpu(number, region, memory, layout, tally);
                // SAFETY: names the calling thread.
                id.store(unsafe { libc::pthread_self() }, Ordering::Release);
                vcpu.run(setup.burst, setup.seed ^ u64::from(number) << 8);
                id.store(0, Ordering::Release);
                // It may still be interrupted: it lives until nobody does so any more.
                while !done.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        scope.spawn(|| {
            interrupts(&threads, &tally, setup.seed);
            done.store(true, Ordering::Release);
        });
        processes(&setup, setup_file, region_file, &region, &tally)
    })?;
    region.set_state(AGENT_GONE);
    Ok(())
}

fn vcpu(number: u32, region: Region, memory: &HostMemory, layout: &RegionLayout, tally: &Tally) -> Vcpu {
    // SAFETY: the entry lies inside the region, which stays mapped as long as the vCPU is used.
    let clock = unsafe { Reader::new(memory.base().add(layout.clock_entry(number))) };
    Vcpu { number, region, clock, rings: SessionRings::new(), tally: tally.clone() }
}

/// Keeps the calling thread on one CPU, if it may be.
fn pin(vcpu: u32) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let mut only = CpuSet::new();
    only.set(cpus[vcpu as usize % cpus.len()]);
    // Where it may not be, the kernel's own barriers between CPUs keep the order of one thread's stores.
    let _ = sched_setaffinity(None, &only);
}

/// Interrupts the vCPUs' threads at random instants.
fn interrupts(threads: &[AtomicU64], tally: &Tally, seed: u64) {
    let mut chance = fastrand::Rng::with_seed(seed ^ 3);
    while !tally.is_stopping() {
        let id = threads[chance.usize(..threads.len())].load(Ordering::Acquire);
        if id != 0 {
            // SAFETY: the thread lives until this function has returned; its handler was set before it began.
            unsafe { libc::pthread_kill(id, INTERRUPT) };
        }
        std::thread::sleep(Duration::from_micros(chance.u64(..400)));
    }
}

/// A process that has a slot.
struct Running {
    child: Child,
    slot: u32,
    is_honest: bool,
}

/// Begins processes, gives them slots, and takes the slots back when they have ended.
fn processes(
    setup: &VmSetup,
    setup_file: &Path,
    region_file: &Path,
    region: &Region,
    tally: &Tally,
) -> anyhow::Result<()> {
    let mut chance = fastrand::Rng::with_seed(setup.seed ^ 4);
    let (mut running, mut hostile_pid, mut churned): (Vec<Running>, u32, u32) = (Vec::new(), FIRST_HOSTILE_PID, 0);
    let program = std::env::current_exe()?;
    let hostile: Vec<Attack> = setup.attacks.iter().copied().filter(|&attack| attack != Attack::Churn).collect();
    let churns = setup.attacks.contains(&Attack::Churn);
    let cpus = [0, 1].map(|cpu| cpu % VCPUS);
    let mut vcpu_of_cpu = [0_u16; MAX_VCPUS as usize];
    for (cpu, vcpu) in vcpu_of_cpu.iter_mut().enumerate() {
        *vcpu = u16::try_from(cpus[cpu % cpus.len()])?;
    }
    loop {
        for process in &mut running {
            if let Some(status) = process.child.try_wait()? {
                if status.code() == Some(ESCAPED) {
                    tally.escaped();
                }
                anyhow::ensure!(!process.is_honest || status.success(), "an honest process ended with {status}");
                region.close_process_slot(process.slot);
            }
        }
        running.retain_mut(|process| !matches!(process.child.try_wait(), Ok(Some(_))));
        let is_stopping = tally.is_stopping();
        if is_stopping {
            running.iter_mut().filter(|process| !process.is_honest).for_each(|process| drop(process.child.kill()));
            if running.is_empty() {
                return Ok(());
            }
        }
        let honest = running.iter().filter(|process| process.is_honest).count();
        // SAFETY: this thread alone gives slots away; one that was closed belongs to a process that has ended.
        let claim = |pid: u32, name: &[u8; 16]| unsafe { region.claim_process_slot(pid, name, &vcpu_of_cpu) };
        let spawn = |role: &str, slot: u32, number: u64| {
            let mut command = Command::new(&program);
            command.args(["role", role]).arg(setup_file).arg(region_file);
            command.args([slot.to_string(), number.to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            if role == "attacker" {
                command.stderr(Stdio::null());
            }
            command.spawn()
        };
        let has_room = || (0..setup.process_slots).any(|slot| region.is_free_process_slot(slot));
        if !is_stopping
            && honest < setup.applications
            && has_room()
            && let Some(number) = tally.next_application()
            && let Some(slot) = claim(FIRST_PID + number, b"honest\0\0\0\0\0\0\0\0\0\0")
        {
            let child = spawn("application", slot, number.into())?;
            running.push(Running { child, slot, is_honest: true });
        }
        if !is_stopping && !hostile.is_empty() && running.len() - honest < HOSTILE_PROCESSES {
            hostile_pid += 1;
            match claim(hostile_pid, b"hostile\x1b\0\0\0\0\0\0\0\0") {
                Some(slot) => {
                    let child = spawn("attacker", slot, setup.seed ^ u64::from(hostile_pid))?;
                    running.push(Running { child, slot, is_honest: false });
                }
                None => region.count_refused_process(false),
            }
        }
        if !is_stopping && churns && churned < MAX_CHURN {
            for _ in 0..chance.u32(..8) {
                hostile_pid += 1;
                if let Some(slot) = claim(hostile_pid, b"churn\0\0\0\0\0\0\0\0\0\0\0") {
                    tally.strike(Attack::Churn);
                    churned += 1;
                    region.close_process_slot(slot);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
