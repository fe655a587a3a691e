//! A virtual processor: [`Vcpu`] moves into a thread of its own, [`VcpuHandle`] stays with the machine.
#![allow(unsafe_code)] // the kick handler and KVM's run page, a union, need it

use super::outcome::{Outcome, RunError};
use super::peripherals::Peripherals;
use crate::exit::ExitAction;
use crate::outcome::fault_state::FaultState;
use crate::outcome::run_end::{PanicGuard, RunEnd};
use clock_sync::updater::Cause;
use kvm_bindings::{
    KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_INTR, KVM_INTERNAL_ERROR_EMULATION,
    KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES, kvm_run,
};
use kvm_ioctls::VcpuFd;
use std::cell::Cell;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use strata_clock::{KickTimer, VcpuClocks};
use strata_jail::policy::Thread;
use strata_observer::{ControlEvent, Observer};
use vmm_sys_util::errno;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

/// A command to a vCPU's thread.
#[derive(Debug)]
enum VcpuCommand {
    /// Enter the guest, for the first time or after a pause.
    Run,
    /// Stay out of the guest, and say so.
    Pause(mpsc::Sender<()>),
    /// Read the counter and publish the clock anew.
    RenewClock,
    /// End.
    Stop,
}

thread_local! {
    /// The run page of the vCPU that this thread runs; null elsewhere.
    static RUN_PAGE: Cell<*mut kvm_run> = const { Cell::new(ptr::null_mut()) };
}

/// Makes the vCPU of the interrupted thread leave the guest, or not enter it.
extern "C" fn handle_kick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    RUN_PAGE.with(|page| {
        let page = page.get();
        if !page.is_null() {
            // SAFETY: `Vcpu::run` sets the pointer to the mapped run page of the vCPU it owns and clears it
            // before the mapping can go away, on this very thread. The page is shared with the kernel and only
            // ever accessed through raw pointers or for the length of a call, so a volatile store is sound.
            unsafe { ptr::write_volatile(&raw mut (*page).immediate_exit, 1) };
        }
    });
}

/// Installs the handler once per process.
fn register_kick() -> Result<(), errno::Error> {
    static REGISTERED: OnceLock<Result<(), errno::Error>> = OnceLock::new();
    *REGISTERED.get_or_init(|| register_signal_handler(SIGRTMIN(), handle_kick))
}

/// What all vCPUs of a machine share.
#[derive(Clone)]
pub struct VcpuContext {
    /// The machine's devices.
    pub peripherals: Arc<Peripherals>,
    /// Gets every entry and exit.
    pub observer: Arc<dyn Observer>,
    /// Keeps the vCPUs' clock entries, if the guest has any.
    pub clock: Option<Arc<VcpuClocks>>,
    /// Gets the outcome from the vCPU that brings it about, and looks when the guest said that it panicked.
    pub end: RunEnd,
}

/// The part of a virtual processor that runs.
pub struct Vcpu {
    index: u32,
    fd: VcpuFd,
    context: VcpuContext,
    commands: mpsc::Receiver<VcpuCommand>,
}

/// The part of a virtual processor by which it is controlled.
pub struct VcpuHandle {
    thread: JoinHandle<()>,
    commands: mpsc::Sender<VcpuCommand>,
}

/// Starts a thread for vCPU `index`; it waits until [`VcpuHandle::run`].
///
/// # Errors
/// No thread can be created, or the signal handler cannot be installed.
pub fn spawn(index: u32, fd: VcpuFd, context: VcpuContext) -> io::Result<VcpuHandle> {
    register_kick()?;
    let (commands, receiver) = mpsc::channel();
    let vcpu = Vcpu { index, fd, context, commands: receiver };
    let thread = thread::Builder::new().name(format!("vcpu{index}")).spawn(|| vcpu.run())?;
    Ok(VcpuHandle { thread, commands })
}

/// Reaches a vCPU's thread beside its handle, which must not be joined as long as this is used.
pub struct VcpuRemote {
    thread: libc::pthread_t,
    commands: mpsc::Sender<VcpuCommand>,
}

impl VcpuRemote {
    fn send(&self, command: VcpuCommand) -> bool {
        // The command first: a vCPU that was kicked looks for one.
        let taken = self.commands.send(command).is_ok();
        // SAFETY: the machine gives up its remotes before it joins the threads, so the identifier is valid even if the
        // thread has ended; the signal has a handler, installed before the thread was created.
        unsafe { libc::pthread_kill(self.thread, SIGRTMIN()) };
        taken
    }

    /// Takes the vCPU out of the guest; `parked` gets a message when it is. `false` when it has ended.
    #[must_use]
    pub fn pause(&self, parked: mpsc::Sender<()>) -> bool {
        self.send(VcpuCommand::Pause(parked))
    }

    /// Lets a paused vCPU go on.
    pub fn resume(&self) {
        self.send(VcpuCommand::Run);
    }

    /// Has the vCPU renew its clock.
    pub fn renew_clock(&self) {
        self.send(VcpuCommand::RenewClock);
    }
}

impl VcpuHandle {
    /// A second way to reach the vCPU, to be given up before this handle is joined.
    #[must_use]
    pub fn remote(&self) -> VcpuRemote {
        VcpuRemote { thread: self.thread.as_pthread_t(), commands: self.commands.clone() }
    }

    /// Lets the vCPU enter the guest.
    pub fn run(&self) {
        // A vCPU that is gone has sent its outcome.
        let _ = self.commands.send(VcpuCommand::Run);
    }

    /// Makes the vCPU leave the guest for good, without waiting for it.
    pub fn stop(&self) {
        // The command first: a vCPU that was kicked looks for one.
        let _ = self.commands.send(VcpuCommand::Stop);
        // SAFETY: the thread has not been joined (that consumes the handle), so its identifier is valid even if
        // it has ended; the signal has a handler, installed before the thread was created.
        unsafe { libc::pthread_kill(self.thread.as_pthread_t(), SIGRTMIN()) };
    }

    /// Waits for the thread's end; [`Self::stop`] it first.
    ///
    /// # Errors
    /// The thread panicked.
    pub fn join(self) -> Result<(), RunError> {
        let panicked = RunError::panicked(self.thread.thread());
        self.thread.join().map_err(|_| panicked)
    }
}

/// Takes the run page from the thread's signal handler before it is gone.
struct RunPageGuard;

impl Drop for RunPageGuard {
    fn drop(&mut self) {
        RUN_PAGE.set(ptr::null_mut());
    }
}

impl Vcpu {
    /// The thread: waits for the command to run, runs, reports.
    fn run(mut self) {
        let context = self.context.clone();
        let _panic = PanicGuard(context.end.clone());
        let _run_page = RunPageGuard;
        RUN_PAGE.set(ptr::from_mut(self.fd.get_kvm_run()));
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        context.observer.vcpu_thread_started(self.index, tid.unsigned_abs());
        strata_jail::enter(Thread::Vcpu);
        if let Ok(VcpuCommand::Run) = self.commands.recv() {
            self.publish_clock(Cause::Start);
            if let Some(outcome) = self.run_guest() {
                context.end.end(outcome);
            }
        }
    }

    /// Enters the guest until an exit ends the run (`Some`) or the handle says stop (`None`).
    fn run_guest(&mut self) -> Option<Outcome> {
        // A kick that came before this thread had its run page left only its command behind.
        if self.obey() {
            return None;
        }
        let timer = self.context.clock.as_ref().and_then(|_| KickTimer::for_this_thread(SIGRTMIN()).ok());
        loop {
            self.context.observer.vcpu_enter(self.index);
            self.limit_stay(timer.as_ref());
            match self.fd.run() {
                Ok(exit) => {
                    let left = self.context.clock.as_ref().and_then(|clock| clock.exit_time());
                    let observer = self.context.observer.as_ref();
                    observer.vcpu_exit(self.index, crate::exit::reason(&exit));
                    let bus = self.context.peripherals.as_ref();
                    let action = crate::exit::handle(self.index, exit, bus, observer);
                    if let (Some(clock), Some(left)) = (&self.context.clock, left) {
                        clock.exited(self.index, &self.fd, left);
                    }
                    if let Some(outcome) = self.outcome(action) {
                        return Some(outcome);
                    }
                }
                Err(error) if error.errno() == libc::EINTR => {
                    self.context.observer.vcpu_exit(self.index, KVM_EXIT_INTR);
                    // Cleared before looking: a kick after the look finds it set again and takes effect at once.
                    self.fd.set_kvm_immediate_exit(0);
                    if let Some(clock) = &self.context.clock {
                        clock.interrupted(self.index, &self.fd);
                    }
                    if self.obey() {
                        return None;
                    }
                }
                Err(error) if error.errno() == libc::EAGAIN => {
                    // A vCPU that waited for its start-up signal was woken: run it.
                    self.context.observer.vcpu_exit(self.index, KVM_EXIT_INTR);
                }
                Err(source) => {
                    return Some(Outcome::Failed(RunError::Kvm { vcpu: self.index, source }));
                }
            }
        }
    }

    /// Carries out the commands that have come meanwhile; `true` when one is to stop, or their sender is gone.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Err(mpsc::TryRecvError::Empty) => return false,
                Ok(VcpuCommand::Run) => {}
                Ok(VcpuCommand::RenewClock) => self.publish_clock(Cause::Periodic),
                Ok(VcpuCommand::Pause(parked)) => {
                    if self.park(parked) {
                        return true;
                    }
                }
                Ok(VcpuCommand::Stop) | Err(mpsc::TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Stays out of the guest until told to run (`false`) or to stop (`true`).
    fn park(&self, parked: mpsc::Sender<()>) -> bool {
        // Who asked may have given up waiting. It hears of a vCPU that has ended when nobody has this end any more.
        let _ = parked.send(());
        drop(parked);
        loop {
            match self.commands.recv() {
                Ok(VcpuCommand::Run) => {
                    self.publish_clock(Cause::Resume);
                    return false;
                }
                Ok(VcpuCommand::Pause(again)) => {
                    let _ = again.send(());
                }
                Ok(VcpuCommand::RenewClock) => {}
                Ok(VcpuCommand::Stop) | Err(mpsc::RecvError) => return true,
            }
        }
    }

    /// Has the vCPU kicked soon, if its clock asks for that.
    fn limit_stay(&self, timer: Option<&KickTimer>) {
        if let (Some(timer), Some(clock)) = (timer, &self.context.clock)
            && let Some(stay) = clock.entering(self.index, &self.fd)
        {
            timer.arm(stay);
        }
    }

    fn publish_clock(&self, cause: Cause) {
        if let Some(clock) = &self.context.clock {
            clock.publish(self.index, &self.fd, cause);
        }
    }

    fn outcome(&mut self, action: ExitAction) -> Option<Outcome> {
        let vcpu = self.index;
        match action {
            ExitAction::Continue => None,
            ExitAction::Panicked => {
                self.context.observer.control(ControlEvent::GuestPanicked);
                // The event loop begins to count the time that the guest has left.
                self.context.end.look();
                None
            }
            ExitAction::CrashKernel => {
                self.context.observer.control(ControlEvent::GuestPanicked);
                self.context.observer.control(ControlEvent::CrashKernelStarted);
                None
            }
            ExitAction::PowerOff => Some(Outcome::PowerOff),
            ExitAction::Reset => Some(Outcome::Reboot),
            ExitAction::TripleFault => {
                Some(Outcome::TripleFault { vcpu, state: FaultState::read(&self.fd).map(Box::new) })
            }
            ExitAction::InternalError => Some(self.internal_error()),
            ExitAction::EntryFailed { hardware_reason } => {
                Some(Outcome::Failed(RunError::EntryFailed { vcpu, hardware_reason }))
            }
            ExitAction::Unexpected { reason } => Some(Outcome::Failed(RunError::Unexpected { vcpu, reason })),
        }
    }

    /// Reads from the run page what KVM could not do.
    fn internal_error(&mut self) -> Outcome {
        let vcpu = self.index;
        let rip = self.fd.get_regs().map_or(0, |regs| regs.rip);
        let (suberror, instruction) = internal_error_details(self.fd.get_kvm_run());
        if suberror == KVM_INTERNAL_ERROR_EMULATION {
            Outcome::EmulationFailure { vcpu, rip, instruction }
        } else {
            Outcome::Failed(RunError::Internal { vcpu, suberror })
        }
    }
}

/// The suberror of an internal error, and the instruction's bytes if KVM gives them.
pub(crate) fn internal_error_details(run: &kvm_run) -> (u32, Vec<u8>) {
    if run.exit_reason != KVM_EXIT_INTERNAL_ERROR {
        return (0, Vec::new());
    }
    // SAFETY: the exit reason says that the kernel filled this member of the union; every bit pattern is valid.
    let failure = unsafe { run.__bindgen_anon_1.emulation_failure };
    let flag = u64::from(KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES);
    // The flags and the bytes count as three words of data.
    if failure.suberror != KVM_INTERNAL_ERROR_EMULATION || failure.ndata < 3 || failure.flags & flag == 0 {
        return (failure.suberror, Vec::new());
    }
    // SAFETY: the union has this one member, and every bit pattern of it is valid.
    let bytes = unsafe { failure.__bindgen_anon_1.__bindgen_anon_1 };
    let length = usize::from(bytes.insn_size).min(bytes.insn_bytes.len());
    (failure.suberror, bytes.insn_bytes[..length].to_vec())
}
