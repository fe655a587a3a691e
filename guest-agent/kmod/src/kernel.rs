//! The entry points that the C shim calls, and the panic handler. `strata.h` declares the same functions for C.
//!
//! Functions that can fail return a negative error number. Nothing here panics, allocates, waits, or calls through a
//! pointer; all but [`strata_reserve`], [`strata_commit`], [`strata_lose_nested`], [`strata_cpu_is_wanted`],
//! [`strata_cpu_repair`], [`strata_cpu_follow`], [`strata_cpu_flush`] and [`strata_note_crash_kernel`] run in process context only.
#![allow(unsafe_code)] // Entry points for C: raw pointers throughout.

use crate::catalog::{Descriptors, RawEvent};
use crate::recorder::Recorder;
use crate::region::{RegionError, publish_catalogue};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use shared_ring::guest::Region;
use shared_ring::layout::{AGENT_ALIVE, AGENT_GONE, MAX_VCPUS};
use shared_ring::producer::{Abandoned, NotReserved, RawReservation, Reservation};
use shared_ring::storage::CpuLocal;

/// Bytes of C's `struct strata_cpu`.
const CPU_SIZE: usize = 320;
/// Bytes of C's `struct strata_slot`.
const SLOT_SIZE: usize = 48;

/// C's `struct strata_cpu`: what one CPU records with. All zero until [`strata_cpu_init`].
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Cpu {
    /// For C: the session slots that the recorder has rings of, a bit each. A hint at which to ask; the recorder knows.
    sessions: AtomicU64,
    /// State of the C half; not used here.
    context: u64,
    /// 1 once `recorder` is there.
    ready: AtomicU64,
    recorder: MaybeUninit<Recorder>,
}

/// C's `struct strata_slot`: a record between reserve and commit.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct Slot {
    record: MaybeUninit<RawReservation<CpuLocal>>,
}

const _: () = assert!(size_of::<Cpu>() == CPU_SIZE && size_of::<Slot>() == SLOT_SIZE);

/// What `cpu` records with; `None` before [`strata_cpu_init`].
///
/// # Safety
/// `cpu` is live, and was zero at first.
#[inline(always)]
unsafe fn recorder<'a>(cpu: *const Cpu) -> Option<&'a Recorder> {
    // SAFETY: `cpu` is live (contract); its recorder is initialised when `ready` is set, and stays where it is.
    unsafe { ((*cpu).ready.load(Ordering::Acquire) != 0).then(|| (*cpu).recorder.assume_init_ref()) }
}

fn code(result: Result<(), RegionError>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => error.errno(),
    }
}

/// Checks the region, writes the event registry and tells the host that the agent is alive, and where the kernel's function
/// `schedule` lies.
///
/// # Safety
/// As for [`Region::open`]; `release` is a NUL-terminated string; there are `count` descriptors at `events`, as for
/// [`Descriptors::new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_attach(
    base: *mut u8,
    size: u64,
    release: *const u8,
    schedule_at: u64,
    events: *const RawEvent,
    count: u32,
) -> i32 {
    // SAFETY: passed on from the caller.
    let region = match unsafe { Region::open(base, size) } {
        Ok(region) => region,
        Err(error) => return RegionError::from(error).errno(),
    };
    // SAFETY: passed on from the caller.
    let published = publish_catalogue(&region, unsafe { Descriptors::new(events, count as usize) });
    if published.is_ok() {
        let mut length = 0;
        // SAFETY: the string ends with a NUL byte, before which every byte is readable.
        while length < 64 && unsafe { release.add(length).read() } != 0 {
            length += 1;
        }
        // SAFETY: the bytes were just read.
        let release = unsafe { core::slice::from_raw_parts(release, length) };
        region.announce(release, schedule_at, AGENT_ALIVE);
    }
    code(published)
}

/// Tells the host that the agent is gone: the rings no longer change.
///
/// # Safety
/// As for [`Region::open`]; no CPU records any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_detach(base: *mut u8, size: u64) {
    // SAFETY: passed on from the caller.
    if let Ok(region) = unsafe { Region::open(base, size) } {
        region.set_state(AGENT_GONE);
    }
}

/// Tells the host that the crash kernel takes the machine over now, while other CPUs may still record. Any context.
///
/// # Safety
/// As for [`Region::open`]; `cpu` is the calling CPU's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_note_crash_kernel(cpu: *const Cpu, base: *mut u8, size: u64) {
    // SAFETY: passed on from the caller.
    if let (Some(recorder), Ok(region)) = unsafe { (recorder(cpu), Region::open(base, size)) } {
        recorder.now().into_iter().for_each(|time| region.note_crash_kernel(time));
    }
}

/// Lets the calling CPU, which is vCPU `vcpu`, record.
///
/// # Safety
/// As for [`Region::open`]; called in a task that stays on its CPU; `cpu` is that CPU's, was zero at first, and
/// outlives all recording.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_cpu_init(cpu: *mut Cpu, base: *mut u8, size: u64, vcpu: u32) -> i32 {
    // SAFETY: passed on from the caller.
    let region = match unsafe { Region::open(base, size) } {
        Ok(region) => region,
        Err(error) => return RegionError::from(error).errno(),
    };
    // SAFETY: passed on from the caller.
    let recorder = match unsafe { Recorder::new(&region, vcpu) } {
        Ok(recorder) => recorder,
        Err(error) => return error.errno(),
    };
    // SAFETY: nobody reads the recorder before `ready` is set, and this CPU's own interrupts see its stores in order.
    unsafe {
        if (*cpu).ready.load(Ordering::Relaxed) == 0 {
            (&raw mut (*cpu).recorder).write(MaybeUninit::new(recorder));
            (*cpu).ready.store(1, Ordering::Release);
        }
        if let Some(recorder) = self::recorder(cpu) {
            recorder.follow_sessions(&region);
            (*cpu).sessions.store(recorder.sessions(), Ordering::Relaxed);
        }
    }
    0
}

/// Whether the host wants [`strata_cpu_follow`] or [`strata_cpu_flush`] of the CPU that `cpu` is of. Any CPU, any context.
///
/// # Safety
/// As for [`Region::open`]; `cpu` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_cpu_is_wanted(cpu: *const Cpu, base: *mut u8, size: u64) -> bool {
    // SAFETY: passed on from the caller.
    match unsafe { (recorder(cpu), Region::open(base, size)) } {
        // SAFETY: `cpu` is live (contract).
        (Some(recorder), Ok(region)) => recorder.is_wanted(&region) || unsafe { is_stuck(cpu, recorder) },
        _ => false,
    }
}

/// Whether the CPU has given up on a ring since it followed sessions last.
///
/// # Safety
/// `cpu` is live, and `recorder` is its own.
unsafe fn is_stuck(cpu: *const Cpu, recorder: &Recorder) -> bool {
    // SAFETY: `cpu` is live (contract).
    unsafe { (*cpu).sessions.load(Ordering::Relaxed) != recorder.sessions() }
}

/// Goes on behind records of the calling CPU that are never finished: `abandoned` ones, whose tasks have died, and any when
/// the CPU has given up on a ring. In a hard interrupt.
///
/// # Safety
/// `cpu` is the calling CPU's, no record of it is open that will be finished, and nothing on the CPU but an NMI interrupts
/// this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_cpu_repair(cpu: *const Cpu, abandoned: u32) {
    // SAFETY: passed on from the caller.
    unsafe {
        let Some(recorder) = recorder(cpu) else { return };
        match (abandoned, is_stuck(cpu, recorder)) {
            (0, false) => {}
            (1, false) => recorder.repair(Abandoned::One),
            _ => recorder.repair(Abandoned::Several),
        }
    }
}

/// Follows sessions that begin and end. On the calling CPU, in a hard interrupt or with interrupts disabled.
///
/// # Safety
/// As for [`Region::open`]; `cpu` is the calling CPU's, no record of it is unfinished, and nothing on the CPU but an NMI
/// interrupts this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_cpu_follow(cpu: *const Cpu, base: *mut u8, size: u64) {
    // SAFETY: passed on from the caller.
    unsafe {
        if let (Some(recorder), Ok(region)) = (recorder(cpu), Region::open(base, size)) {
            recorder.follow_sessions(&region);
            (*cpu).sessions.store(recorder.sessions(), Ordering::Relaxed);
        }
    }
}

/// Hands the host what it asks the calling CPU for. Any context, also within a record.
///
/// # Safety
/// `cpu` is the calling CPU's, which the caller stays on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_cpu_flush(cpu: *const Cpu) {
    // SAFETY: passed on from the caller.
    if let Some(recorder) = unsafe { recorder(cpu) } {
        recorder.flush();
    }
}

/// The calling CPU records no more, until [`strata_cpu_init`].
///
/// # Safety
/// As for [`strata_cpu_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_cpu_release(cpu: *const Cpu) {
    // SAFETY: passed on from the caller.
    unsafe {
        if let Some(recorder) = recorder(cpu) {
            recorder.release();
            (*cpu).sessions.store(0, Ordering::Relaxed);
        }
    }
}

/// Reserves a record of event `id` with `size` payload bytes in the ring of session slot `session`. Returns where to
/// write the payload, or null when the record was lost (and counted) or the CPU does not record for the session. A CPU
/// whose ring does not keep what is written to it records nothing more until [`strata_cpu_follow`]. Any context; the
/// caller stays on this CPU until it has called [`strata_commit`].
///
/// # Safety
/// `cpu` is the calling CPU's; `slot` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_reserve(cpu: *const Cpu, session: u32, id: u16, size: u32, slot: *mut Slot) -> *mut u8 {
    // SAFETY: passed on from the caller.
    let Some(recorder) = (unsafe { recorder(cpu) }) else { return core::ptr::null_mut() };
    let mut record = match recorder.reserve(session as usize, id, size as usize) {
        Some(Ok(record)) => record,
        Some(Err(NotReserved::Stuck)) => {
            // SAFETY: `cpu` is live (contract).
            unsafe { (*cpu).sessions.store(0, Ordering::Relaxed) };
            return core::ptr::null_mut();
        }
        Some(Err(_)) | None => return core::ptr::null_mut(),
    };
    let payload = record.payload().as_mut_ptr();
    // SAFETY: `slot` is the caller's own; it calls `strata_commit` with it, once.
    unsafe { (&raw mut (*slot).record).write(MaybeUninit::new(record.into_raw())) };
    payload
}

/// Commits the record of a [`strata_reserve`] that did not return null, once.
///
/// # Safety
/// `slot` is what that call filled, and the CPU is the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_commit(slot: *const Slot) {
    // SAFETY: initialised by `strata_reserve` on this CPU and used once (contract); the recorder, and the producer in it,
    // outlives all recording.
    unsafe { Reservation::from_raw((*slot).record.assume_init_read()) }.commit();
}

/// Counts a record that the CPU does not make for session slot `session`, because it is making another one in the same
/// context. Any context; the caller stays on this CPU.
///
/// # Safety
/// `cpu` is the calling CPU's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_lose_nested(cpu: *const Cpu, session: u32) {
    // SAFETY: passed on from the caller.
    if let Some(recorder) = unsafe { recorder(cpu) } {
        recorder.lose_nested(session as usize);
    }
}

/// Clears a part of a free process slot, from byte `from` on. Returns where the rest begins, 0 when nothing is left.
///
/// # Safety
/// As for [`Region::open`]; nobody else has the slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_process_clear(base: *mut u8, size: u64, slot: u32, from: u64) -> u64 {
    // SAFETY: passed on from the caller.
    let Ok(region) = (unsafe { Region::open(base, size) }) else { return 0 };
    // SAFETY: nobody else has the slot (contract). The kernel is 64-bit: the offset is the one that was returned.
    unsafe { region.clear_process_slot(slot, from as usize) }.map_or(0, |rest| rest as u64)
}

/// Gives a process slot that was cleared to a process; `false` when it is not free. One caller at a time.
///
/// # Safety
/// As for [`Region::open`]; nobody else has the slot; `comm` is 16 bytes, `vcpu_of_cpu` is [`MAX_VCPUS`] values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_process_publish(
    base: *mut u8,
    size: u64,
    slot: u32,
    pid: u32,
    comm: *const [u8; 16],
    vcpu_of_cpu: *const [u16; MAX_VCPUS as usize],
) -> bool {
    // SAFETY: passed on from the caller.
    let Ok(region) = (unsafe { Region::open(base, size) }) else { return false };
    // SAFETY: passed on from the caller, which closes a slot when no process maps it any more.
    unsafe { region.publish_process_slot(slot, pid, &*comm, &*vcpu_of_cpu) }
}

/// Closes a process slot, once no process maps it any more.
///
/// # Safety
/// As for [`Region::open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_process_close(base: *mut u8, size: u64, slot: u32) {
    // SAFETY: passed on from the caller.
    if let Ok(region) = unsafe { Region::open(base, size) } {
        region.close_process_slot(slot);
    }
}

/// Whether a process slot could be given away now.
///
/// # Safety
/// As for [`Region::open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_process_is_free(base: *mut u8, size: u64, slot: u32) -> bool {
    // SAFETY: passed on from the caller.
    unsafe { Region::open(base, size) }.is_ok_and(|region| region.is_free_process_slot(slot))
}

/// Tells the processes that have slots which vCPU a CPU is.
///
/// # Safety
/// As for [`Region::open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_process_cpu(base: *mut u8, size: u64, cpu: u32, vcpu: u16) {
    // SAFETY: passed on from the caller.
    if let Ok(region) = unsafe { Region::open(base, size) } {
        region.publish_processes_vcpu(cpu, vcpu);
    }
}

/// Counts a process that got no slot, for the host to see. One caller at a time.
///
/// # Safety
/// As for [`Region::open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strata_process_refused(base: *mut u8, size: u64, over_quota: bool) {
    // SAFETY: passed on from the caller.
    if let Ok(region) = unsafe { Region::open(base, size) } {
        region.count_refused_process(over_quota);
    }
}

unsafe extern "C" {
    /// The shim's: reports a bug in the module and does not return.
    fn strata_panic() -> !;
}

/// No path of this crate panics: the object's undefined symbols prove it on every build.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: the shim's function has no preconditions.
    unsafe { strata_panic() }
}
