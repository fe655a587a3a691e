//! The process that takes a region away from QEMU.
//!
//! That needs a connection to a socket that may be another user's, which this process cannot make when it has [confined]
//! itself: whoever may connect as root reaches every service of the host. So another process, forked before, without
//! guest memory, waits for a word to do this and nothing else. Where this process is killed, it ends and leaves the region to
//! the next recording.
//!
//! [confined]: strata_jail
#![allow(unsafe_code)] // no crate in use here forks

use super::failure::AttachError;
use super::hot_plug::HotPlugged;
use super::process::Process;
use super::stop::Stop;
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::CapabilitySet;
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use strata_jail::blocked_signals::BlockedSignals;
use strata_jail::files::Places;
use strata_jail::inherited::close_from;
use strata_jail::policy::Thread;
use strata_jail::{Mode, confine_process};
use strata_recorder::session::Notify;
use strata_recording::stop_signals::STOPS;

/// How often a wait for its answer looks whether a further signal has come.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// What the process can be sent: to take the region away, to take away its file only, to end its waits.
const UNPLUG: u8 = b'u';
const FORGET: u8 = b'f';
const STOP: u8 = b's';
/// What it says: that it waits, that it has done so, that it could not.
const READY: u8 = b'r';
const DONE: u8 = b'd';
const FAILED: u8 = b'n';

/// A region that QEMU was given, in the hands of a process that takes it away when this is dropped.
#[derive(Debug)]
pub struct Unplugging {
    process: Pid,
    link: UnixStream,
    notify: Notify,
    stop: Stop,
    /// Whether it has got a word.
    is_reported: bool,
}

impl Unplugging {
    /// Leaves `plugged` to a process that is confined as `jail` says. For a process of one thread.
    ///
    /// # Errors
    /// There is no such process: the region was taken away.
    pub fn begin(plugged: HotPlugged, jail: Mode) -> Result<Self, AttachError> {
        let (mut link, theirs) = UnixStream::pair().map_err(AttachError::Unplugging)?;
        // The child keeps them so: its parent passes on what is meant for it.
        let blocked = BlockedSignals::of(&STOPS);
        // SAFETY: this process has one thread, so the child finds everything as it is here.
        let process = match unsafe { libc::fork() } {
            0 => lead(&theirs, plugged, jail),
            process => Pid::from_raw(process).filter(|process| process.as_raw_nonzero().get() > 0),
        };
        let error = io::Error::last_os_error();
        drop((blocked, theirs));
        let process = process.ok_or(error).map_err(AttachError::Unplugging)?;
        let (notify, stop) = (plugged.notify(), plugged.stop().clone());
        let mut word = [0];
        let is_ready = link.read_exact(&mut word).and_then(|()| link.set_read_timeout(Some(LOOK_INTERVAL)));
        is_ready.map_err(AttachError::Unplugging)?;
        // It is the process's to take away. This one's copy has nothing but memory and a descriptor.
        mem::forget(plugged);
        Ok(Self { process, link, notify, stop, is_reported: false })
    }

    /// The VM has ended, and the device with it.
    pub fn forget(mut self) {
        self.request(FORGET);
    }

    /// Takes the region away; whether that was done. If not, it is reported.
    pub fn unplug(mut self) -> bool {
        self.request(UNPLUG)
    }

    /// Has the process do `what`; whether it has.
    fn request(&mut self, what: u8) -> bool {
        self.is_reported = true;
        // A signal that ended the recording does not end this; another one does.
        let mut stop = Some(self.stop.beginning_now());
        // Whether it still reads is seen below.
        let _ = self.link.write_all(&[what]);
        let mut word = [FAILED];
        loop {
            match self.link.read(&mut word) {
                Ok(1..) => break,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    if stop.take_if(|stop| stop.is_requested()).is_some() {
                        let _ = self.link.write_all(&[STOP]);
                    }
                }
                Ok(0) | Err(_) => {
                    (self.notify)("the trace region stays plugged into QEMU: the process that takes it away has ended");
                    break;
                }
            }
        }
        // It ends with its answer.
        let _ = waitpid(Some(self.process), WaitOptions::empty());
        word == [DONE]
    }
}

impl Drop for Unplugging {
    fn drop(&mut self) {
        if !self.is_reported {
            self.request(UNPLUG);
        }
    }
}

/// What the process does, which gets its orders through `link`. It ends here, also by a panic.
fn lead(link: &UnixStream, mut plugged: HotPlugged, jail: Mode) -> ! {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            // SAFETY: ends the process, without what its parent has prepared for its own end.
            unsafe { libc::_exit(1) }
        }
    }
    let end = End;
    let link = keep_only(link, plugged.process());
    wait_and_take_away(link, plugged, jail);
    drop(end);
    unreachable!("the process has ended")
}

/// Closes all descriptors but `link`, that of QEMU's `process` and standard error: nothing else of the parent's is left.
fn keep_only(link: &UnixStream, process: &mut Process) -> UnixStream {
    // SAFETY: what is closed belongs to values of the parent's, which nobody uses or drops here any more. 0 and 1 are
    // this process's own.
    unsafe {
        libc::dup2(link.as_raw_fd(), 0);
        libc::dup2(process.pidfd().as_raw_fd(), 1);
        close_from(3);
        process.hold_by(OwnedFd::from_raw_fd(1));
        UnixStream::from_raw_fd(0)
    }
}

fn wait_and_take_away(mut link: UnixStream, mut plugged: HotPlugged, jail: Mode) {
    // A name is for people alone.
    let _ = rustix::thread::set_name(c"strata-unplug");
    // The region's folder, and the one that it lies in.
    let (cleared, emptied) = plugged.folders();
    let (read, written, offered) = (Vec::new(), Vec::new(), Vec::new());
    let places = Places { read, written, offered, emptied: vec![emptied], cleared: vec![cleared] };
    // For the socket, which may be closed to all but another user.
    if let Err(error) = confine_process(jail, Thread::Unplug, CapabilitySet::DAC_OVERRIDE, &places) {
        (plugged.notify())(&format!("{:#}", anyhow::Error::from(error)));
        return mem::forget(plugged);
    }
    let mut word = [0];
    let reported = link.write_all(&[READY]).and_then(|()| link.read_exact(&mut word));
    match (reported, word) {
        (Ok(()), [FORGET]) => {
            plugged.forget();
            let _ = link.write_all(&[DONE]);
        }
        (Ok(()), _) => {
            let Ok(other) = link.try_clone() else { return mem::forget(plugged) };
            plugged.stop_by(Stop::Word(Arc::new(other)));
            let answer = if plugged.unplug() { DONE } else { FAILED };
            let _ = link.write_all(&[answer]);
        }
        // The parent was killed.
        (Err(_), _) => mem::forget(plugged),
    }
}
