//! Wakes a recorder that sleeps for long when the guest begins to work.
//!
//! A producer never wakes the recorder, so the recorder looks at rings by itself: often enough that a guest that works
//! does not fill them, which is too often for one that does nothing. But records of a guest take time of its vCPUs'
//! threads. Before it sleeps for long, the recorder has the kernel tell it when such a thread has run for some
//! milliseconds more: a timer on each thread's CPU time, which counts the time in the guest too. A guest that sleeps
//! spends these milliseconds in seconds; one that works spends them at once. The guest takes no part in this.
//!
//! The timer's signal goes to the recorder's thread, whose handler writes to a socket that the recorder waits for. The
//! thread takes the signal only while it sleeps: a timer that is still armed afterwards would interrupt its other system
//! calls.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::SigId;
use signal_hook::low_level::{pipe, unregister};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use strata_clock::KickTimer;
use vmm_sys_util::signal::{SIGRTMIN, block_signal, unblock_signal};

/// CPU time of a vCPU's thread after which the recorder is woken. The kernel looks at its ticks, up to 10 ms apart:
/// together it is not longer than the recorder's pauses while records come.
const WORK: Duration = Duration::from_millis(4);

/// The signal of the timers, beside that by which vCPUs are kicked.
fn signal() -> libc::c_int {
    SIGRTMIN() + 1
}

/// The timers of all threads that record for a VM.
#[derive(Default)]
pub struct WorkAlarms {
    /// Threads that are to have one.
    expected: usize,
    /// The recorder's thread.
    recorder: OnceLock<i32>,
    timers: Mutex<Vec<KickTimer>>,
}

impl WorkAlarms {
    /// Alarms of a VM of `threads` vCPUs.
    #[must_use]
    pub fn new(threads: u32) -> Self {
        Self { expected: threads as usize, ..Self::default() }
    }

    /// Has the recorder woken by the work of the calling thread, from when the recorder asks for it. Without a timer
    /// the recorder does not sleep for long.
    pub fn watch_this_thread(&self) {
        let Some(&recorder) = self.recorder.get() else { return };
        let timer = KickTimer::on_time_of_this_thread(signal(), recorder);
        self.timers().extend(timer.ok());
    }

    /// The thread that is woken is the calling one, from now on only while it sleeps in [`Sleeper::sleep`].
    pub(crate) fn wake_this_thread(&self) {
        // Blocked already is as well; it cannot fail otherwise.
        let _ = block_signal(signal());
        let _ = self.recorder.set(rustix::thread::gettid().as_raw_nonzero().get());
    }

    /// Has the recorder woken by the next work of any thread; says whether every one is watched.
    pub(crate) fn arm(&self) -> bool {
        let timers = self.timers();
        timers.iter().for_each(|timer| timer.arm(WORK));
        self.expected > 0 && timers.len() >= self.expected
    }

    fn timers(&self) -> MutexGuard<'_, Vec<KickTimer>> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a recorder sleeps until somebody wakes it.
#[derive(Debug)]
pub struct Sleeper {
    socket: UnixStream,
    /// The handler of the alarms' signal.
    handler: SigId,
}

/// Wakes a recorder. May be used on any thread.
#[derive(Clone, Debug)]
pub struct Bell(Arc<UnixStream>);

/// A sleeper and its bell. They are made before the process is confined.
///
/// # Errors
/// The process has no descriptors left.
pub fn sleeper() -> io::Result<(Sleeper, Bell)> {
    let (socket, bell) = UnixStream::pair()?;
    socket.set_nonblocking(true)?;
    bell.set_nonblocking(true)?;
    let handler = pipe::register(signal(), bell.try_clone()?)?;
    Ok((Sleeper { socket, handler }, Bell(Arc::new(bell))))
}

impl Bell {
    /// Ends the sleeper's sleep, or its next one.
    pub fn ring(&self) {
        // A socket that is full wakes as well.
        let _ = (&*self.0).write(&[0]);
    }
}

impl Sleeper {
    /// Sleeps for `pause`, or until the bell was rung or an alarm came since the last sleep ended. The calling thread takes
    /// alarms meanwhile, and not afterwards. Says whether it was ended so.
    pub fn sleep(&mut self, pause: Duration) -> bool {
        let mut woken = [PollFd::new(&self.socket, PollFlags::IN)];
        // A pause is not so long that it does not fit.
        let pause = Timespec::try_from(pause).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        // An alarm that came before is handled here, and has written when the wait begins.
        let _ = unblock_signal(signal());
        let waited = poll(&mut woken, Some(&pause));
        let _ = block_signal(signal());
        match waited {
            Ok(0) => return false,
            // The signal itself; its handler has written meanwhile, which the next sleep finds.
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => while self.socket.read(&mut [0; 64]).is_ok_and(|bytes| bytes == 64) {},
        }
        true
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        unregister(self.handler);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::NanosleepRelativeResult;
    use std::time::Instant;

    /// An alarm rings every bell of the process: one of these tests at a time.
    static ALARMS: Mutex<()> = Mutex::new(());
    /// Longer than any wait of a test.
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn bell_that_was_rung_before_ends_the_next_sleep_and_only_that() {
        let _alone = ALARMS.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut sleeper, bell) = sleeper().unwrap();
        bell.ring();
        let begun = Instant::now();

        sleeper.sleep(LONG);
        let woken = begun.elapsed();
        sleeper.sleep(Duration::from_millis(20));

        assert!(woken < LONG && begun.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn sleeper_is_woken_when_a_thread_works_and_not_by_one_that_sleeps() {
        let _alone = ALARMS.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut sleeper, bell) = sleeper().unwrap();
        let alarms = WorkAlarms::new(1);
        alarms.wake_this_thread();
        let (work, reported) = std::sync::mpsc::channel();
        let is_armed = std::thread::scope(|scope| {
            let alarms = &alarms;
            let (ready, is_ready) = std::sync::mpsc::channel();
            scope.spawn(move || {
                alarms.watch_this_thread();
                ready.send(()).unwrap();
                // Sleeps until the test wants work, and works until the sleeper was woken.
                reported.recv().unwrap();
                while reported.try_recv().is_err() {
                    std::hint::spin_loop();
                }
            });
            is_ready.recv().unwrap();
            let is_armed = alarms.arm();
            let begun = Instant::now();
            sleeper.sleep(Duration::from_millis(100));
            let slept = begun.elapsed();
            work.send(()).unwrap();
            sleeper.sleep(LONG);
            // The signal interrupts the sleep, or was there before.
            let woken = begun.elapsed();
            work.send(()).unwrap();
            assert!(slept >= Duration::from_millis(100) && woken < LONG, "{slept:?} {woken:?}");
            is_armed
        });
        drop(bell);

        assert!(is_armed);
    }

    #[test]
    fn alarm_interrupts_no_other_system_call_and_ends_the_next_sleep() {
        let _alone = ALARMS.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut sleeper, _bell) = sleeper().unwrap();
        let alarms = WorkAlarms::new(1);
        alarms.wake_this_thread();
        let (work, reported) = std::sync::mpsc::channel::<()>();
        let (called, woken) = std::thread::scope(|scope| {
            let alarms = &alarms;
            let (ready, is_ready) = std::sync::mpsc::channel();
            scope.spawn(move || {
                alarms.watch_this_thread();
                ready.send(()).unwrap();
                while reported.try_recv().is_err() {
                    std::hint::spin_loop();
                }
            });
            is_ready.recv().unwrap();
            assert!(alarms.arm());
            let called = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 300_000_000 });
            let begun = Instant::now();
            sleeper.sleep(LONG);
            work.send(()).unwrap();
            (called, begun.elapsed())
        });

        assert!(matches!(called, NanosleepRelativeResult::Ok), "{called:?}");
        assert!(woken < LONG, "{woken:?}");
    }

    #[test]
    fn recorder_is_not_to_rely_on_alarms_that_are_not_all_there() {
        let _alone = ALARMS.lock().unwrap_or_else(PoisonError::into_inner);
        let alarms = WorkAlarms::new(2);
        alarms.wake_this_thread();

        let before = alarms.arm();
        alarms.watch_this_thread();
        let one = alarms.arm();
        alarms.watch_this_thread();

        assert_eq!((before, one, alarms.arm(), WorkAlarms::default().arm()), (false, false, true, false));
    }
}
