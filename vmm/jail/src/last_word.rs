//! Names the forbidden system call that ends the process, on standard error.
//!
//! The kernel sends SIGSYS in place of the call. The handler writes a line, and the same signal again, which then has no
//! handler, ends the process. Filters forbid to set another handler: no code in the process can turn the end away.
#![allow(unsafe_code)] // a signal handler, and what it may call

use rustix::io::Errno;
use std::mem;
use std::ptr;
use syscalls::x86_64::Sysno;

/// Where `siginfo_t` has the number of the call, bytes from its beginning (`_sigsys._syscall`).
const CALL_OFFSET: usize = 24;
/// The code of a signal that seccomp sent.
const SYS_SECCOMP: i32 = 1;
/// Room for the line.
const LINE: usize = 256;
/// Bytes of a thread's name, its NUL included.
const NAME: usize = 16;

/// From now on the process says which forbidden call ends it.
///
/// # Errors
/// The kernel refuses.
pub fn prepare() -> Result<(), Errno> {
    // SAFETY: every bit pattern of the structure is valid; it outlives the call, and the handler is one for SA_SIGINFO.
    let answer = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = print_and_end;
        action.sa_sigaction = handler as libc::sighandler_t;
        // Only once, and not held back while it runs: what is forbidden in the handler ends the process, too.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut())
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

/// The handler: nothing in it allocates, takes a lock, or is not async-signal-safe.
extern "C" fn print_and_end(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a whole `siginfo_t`, whose fields here are those of SIGSYS if seccomp sent it; the buffers are
    // of this frame.
    unsafe {
        if (*info).si_code == SYS_SECCOMP {
            let call = info.cast::<u8>().add(CALL_OFFSET).cast::<i32>().read_unaligned();
            let mut name = [0_u8; NAME];
            libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
            let mut line = Line::default();
            compose(&mut line, &name, call);
            libc::write(2, line.bytes.as_ptr().cast(), line.used);
        }
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGSYS);
        libc::_exit(128 + libc::SIGSYS);
    }
}

/// What is reported of `call` by the thread of that `name`.
fn compose(line: &mut Line, name: &[u8; NAME], call: i32) {
    line.put(b"strata: the thread '");
    line.put(name.split(|&byte| byte == 0).next().unwrap_or_default());
    line.put(b"' may not make the system call ");
    line.put_number(call.unsigned_abs());
    if let Some(name) = usize::try_from(call).ok().and_then(Sysno::new).map(|call| call.name()) {
        line.put(b" (");
        line.put(name.as_bytes());
        line.put(b")");
    }
    line.put(b": strata ends here; --jail log only names such calls, in the kernel's log\n");
}

/// Text on the stack; what does not fit is cut.
struct Line {
    bytes: [u8; LINE],
    used: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; LINE], used: 0 }
    }
}

impl Line {
    fn put(&mut self, text: &[u8]) {
        for (to, from) in self.bytes[self.used..].iter_mut().zip(text) {
            *to = *from;
            self.used += 1;
        }
    }

    fn put_number(&mut self, mut number: u32) {
        let mut digits = [0_u8; 10];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = DIGITS[(number % 10) as usize];
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.put(&digits[first..]);
    }
}

const DIGITS: [u8; 10] = *b"0123456789";

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(name: &[u8], call: i32) -> String {
        let mut padded = [0; NAME];
        padded[..name.len()].copy_from_slice(name);
        let mut line = Line::default();
        compose(&mut line, &padded, call);
        String::from_utf8(line.bytes[..line.used].to_vec()).unwrap()
    }

    #[test]
    fn line_names_thread_and_call() {
        assert!(
            reported(b"vcpu0", 59).starts_with("strata: the thread 'vcpu0' may not make the system call 59 (execve): ")
        );
        assert!(reported(b"", 99_999).contains("system call 99999: "));
        assert!(reported(b"strata-recorder", 0).ends_with("log\n"));
    }

    #[test]
    fn text_that_does_not_fit_is_cut() {
        let mut line = Line::default();

        (0..LINE).for_each(|_| line.put(b"ab"));

        assert_eq!(line.used, LINE);
    }
}
