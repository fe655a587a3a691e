//! Seccomp filters made of the [policy](super::policy).

use super::policy::{Call, Group, Only, Thread};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;

/// What happens to a call that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence {
    /// It ends the process.
    Kill,
    /// The kernel's log names it; then it is done.
    Log,
}

/// The filters of a kind of thread.
#[derive(Clone, Debug)]
pub struct Filter {
    programs: Vec<BpfProgram>,
}

/// Rules for each system call by its number; none means always.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

impl Filter {
    /// The filters of `thread` in this process.
    ///
    /// # Errors
    /// The policy cannot be made into filters: a fault of ours.
    pub fn new(thread: Thread, offence: Offence) -> Result<Self, BackendError> {
        let mut rules = Rules::new();
        for call in thread.groups().iter().flat_map(|group| group.calls()) {
            allow(&mut rules, call)?;
        }
        let not_permitted = SeccompAction::Errno(libc::EACCES.cast_unsigned());
        let mut programs = Vec::new();
        if !thread.looks() {
            let refused: Rules = Group::Look.calls().iter().map(|call| (call.number, Vec::new())).collect();
            rules.extend(refused.clone());
            programs.push(SeccompFilter::new(refused, SeccompAction::Allow, not_permitted, ARCH)?.try_into()?);
        }
        let action = match offence {
            // The guard is a process of its own, without the handler that says what ended it.
            Offence::Kill if thread == Thread::Guard => SeccompAction::KillProcess,
            // With its handler or without, the signal ends the process.
            Offence::Kill => SeccompAction::Trap,
            Offence::Log => SeccompAction::Log,
        };
        // Last: it may forbid to add filters.
        programs.push(SeccompFilter::new(rules, action, SeccompAction::Allow, ARCH)?.try_into()?);
        Ok(Self { programs })
    }

    /// Puts the calling thread, and those that it makes from now on, under the filters for good.
    ///
    /// # Errors
    /// The kernel has no seccomp, or the thread may not do this.
    pub fn apply(&self) -> Result<(), seccompiler::Error> {
        self.programs.iter().try_for_each(|program| apply_filter(program))
    }

    /// The programs, for a process that must not allocate any more.
    pub fn programs(&self) -> &[BpfProgram] {
        &self.programs
    }
}

/// Whether this kernel has seccomp filters that end a process.
#[must_use]
#[allow(unsafe_code)] // seccompiler does not ask
pub fn is_available() -> bool {
    let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the kernel reads the word and answers.
    unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) == 0 }
}

const ARCH: TargetArch = TargetArch::x86_64;

/// Adds `call` to `rules`.
fn allow(rules: &mut Rules, call: &Call) -> Result<(), BackendError> {
    let condition = |argument: u8, operator, value: u32| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into())?;
        SeccompRule::new(vec![condition])
    };
    let equal = SeccompCmpOp::Eq;
    let conditions = match call.only {
        None => {
            rules.insert(call.number, Vec::new());
            return Ok(());
        }
        Some(Only::Masked(argument, mask, value)) => {
            vec![condition(argument, SeccompCmpOp::MaskedEq(mask.into()), value)?]
        }
        Some(Only::OneOf(argument, values)) => {
            values.iter().map(|&value| condition(argument, equal.clone(), value)).collect::<Result<_, _>>()?
        }
        Some(Only::Not(argument, value)) => vec![condition(argument, SeccompCmpOp::Ne, value)?],
        Some(Only::ThisProcess(argument)) => vec![condition(argument, equal, std::process::id())?],
    };
    match rules.get_mut(&call.number) {
        // Another group allows it always.
        Some(known) if known.is_empty() => {}
        Some(known) => known.extend(conditions),
        None => {
            rules.insert(call.number, conditions);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last_word;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    /// What a child process does under the filter of a thread; `KIND:DEED`.
    const DEED_VARIABLE: &str = "STRATA_TEST_DEED";

    /// Does nothing unless a test below runs it.
    #[test]
    fn child_that_does_what_it_is_told() {
        let Ok(deed) = std::env::var(DEED_VARIABLE) else { return };
        let (thread, deed) = deed.split_once(':').unwrap();
        let thread = Thread::ALL.into_iter().find(|kind| kind.name() == thread).unwrap();
        // As the guard's caller does: everything that allocates comes before.
        let filter = Filter::new(thread, Offence::Kill).unwrap();
        last_word::prepare().unwrap();
        filter.apply().unwrap();
        do_deed(deed);
        exit(0);
    }

    #[allow(unsafe_code)]
    fn exit(code: i32) -> ! {
        // SAFETY: ends the process, without the test harness, which would print.
        unsafe { libc::_exit(code) }
    }

    #[allow(unsafe_code)]
    fn do_deed(deed: &str) {
        let null = std::ptr::null::<libc::c_char>();
        // SAFETY: each of these fails by its arguments if it is let through at all, or asks for nothing but a descriptor.
        unsafe {
            match deed {
                "execve" => libc::syscall(libc::SYS_execve, c"/bin/true".as_ptr(), null, null),
                "ptrace" => libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0),
                "internet" => libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0),
                "bpf" => libc::syscall(libc::SYS_bpf, 0, 0, 0),
                "executable" => libc::syscall(libc::SYS_mmap, 0, 4096, libc::PROT_READ | libc::PROT_EXEC, 0x22, -1, 0),
                "typing" => libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSTI, c"x".as_ptr()),
                "init" => libc::syscall(libc::SYS_tgkill, 1, 1, 0),
                "handler" => {
                    libc::signal(libc::SIGSYS, libc::SIG_IGN);
                    0
                }
                "file" => libc::syscall(libc::SYS_mkdir, c"/proc/strata".as_ptr(), 0),
                "look" => {
                    let opened = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/etc/hostname".as_ptr(), 0);
                    exit(if opened < 0 { *libc::__errno_location() } else { 0 });
                }
                "panic" => {
                    let _ = std::panic::catch_unwind(|| panic!("on purpose"));
                    0
                }
                _ => 0,
            };
        }
    }

    fn run(thread: Thread, deed: &str) -> Output {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "filter::tests::child_that_does_what_it_is_told", "--nocapture"]);
        child.env(DEED_VARIABLE, format!("{}:{deed}", thread.name())).env("RUST_BACKTRACE", "1");
        child.output().unwrap()
    }

    #[test]
    fn forbidden_calls_kill_under_the_filter_of_every_kind_of_thread() {
        let forbidden = ["execve", "ptrace", "internet", "bpf", "executable", "typing", "init", "handler"];
        let deeds = Thread::ALL.into_iter().flat_map(|thread| forbidden.map(|deed| (thread, deed)));

        let survived = deeds.filter(|(thread, deed)| run(*thread, deed).status.signal() != Some(libc::SIGSYS));

        assert_eq!(survived.collect::<Vec<_>>(), []);
    }

    #[test]
    fn end_by_a_forbidden_call_is_told() {
        let ended = run(Thread::Recorder, "execve");

        let told = String::from_utf8_lossy(&ended.stderr);
        assert!(told.contains("may not make the system call 59 (execve): the VM ends here"), "{told}");
    }

    #[test]
    fn threads_that_make_no_files_are_killed_when_they_do() {
        let maker = |thread: &Thread| thread.groups().contains(&Group::Files);
        let killed = |thread: &Thread| run(*thread, "file").status.signal() == Some(libc::SIGSYS);

        let (makers, others): (Vec<Thread>, Vec<Thread>) = Thread::ALL.into_iter().partition(maker);

        assert_eq!(makers, [Thread::Start, Thread::Recorder]);
        assert!(others.iter().all(killed) && !makers.iter().any(killed));
    }

    #[test]
    fn opening_is_refused_where_it_is_not_allowed_and_ends_nothing() {
        let codes = [Thread::Vcpu, Thread::Clock, Thread::EventLoop].map(|thread| run(thread, "look").status.code());

        assert_eq!(codes, [Some(libc::EACCES), Some(libc::EACCES), Some(0)]);
    }

    #[test]
    fn panic_is_printed_under_every_filter() {
        // The guard is a process without a runtime that could panic.
        let threads = || Thread::ALL.into_iter().filter(|thread| *thread != Thread::Guard);

        let ended: Vec<_> = threads().map(|thread| run(thread, "panic").status.code()).collect();

        assert_eq!(ended, threads().map(|_| Some(0)).collect::<Vec<_>>());
    }
}
