//! Seccomp filters made of the table of [`policy`](super::policy).

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
    /// The filters of `thread` in this process, which watches the thread of the number `watched`, if any.
    ///
    /// # Errors
    /// The policy cannot be made into filters: a fault of ours.
    pub fn new(thread: Thread, offence: Offence, watched: Option<u32>) -> Result<Self, BackendError> {
        let mut rules = Rules::new();
        for call in thread.groups().iter().flat_map(|group| group.calls()) {
            allow(&mut rules, call, watched)?;
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
fn allow(rules: &mut Rules, call: &Call, watched: Option<u32>) -> Result<(), BackendError> {
    if call.only.is_empty() {
        rules.insert(call.number, Vec::new());
        return Ok(());
    }
    // The conditions of each form of the call that is allowed.
    let mut forms = vec![Vec::new()];
    for only in call.only {
        let alternatives = conditions(*only, watched)?;
        let with = |form: &Vec<SeccompCondition>| {
            let with = |condition: &SeccompCondition| form.iter().chain([condition]).cloned().collect();
            alternatives.iter().map(with).collect::<Vec<_>>()
        };
        forms = forms.iter().flat_map(with).collect();
    }
    let forms = forms.into_iter().map(SeccompRule::new).collect::<Result<Vec<_>, _>>()?;
    match rules.get_mut(&call.number) {
        // Another group allows it always.
        Some(known) if known.is_empty() => {}
        Some(known) => known.extend(forms),
        // An empty list would allow it always.
        None if forms.is_empty() => {}
        None => {
            rules.insert(call.number, forms);
        }
    }
    Ok(())
}

/// Conditions; one must hold so that `only` does.
fn conditions(only: Only, watched: Option<u32>) -> Result<Vec<SeccompCondition>, BackendError> {
    let condition = |argument: u8, operator, value: u32| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into())
    };
    let any = |argument: u8, values: &mut dyn Iterator<Item = u32>| {
        values.map(|value| condition(argument, SeccompCmpOp::Eq, value)).collect()
    };
    match only {
        Only::OneOf(argument, values) => any(argument, &mut values.iter().map(|(_, value)| *value)),
        Only::ThisProcess(argument) => any(argument, &mut std::iter::once(std::process::id())),
        Only::WatchedThread(argument) => any(argument, &mut watched.into_iter()),
        Only::Without(argument, bits) => {
            let bits = bits.iter().fold(0, |bits, (_, bit)| bits | bit);
            Ok(vec![condition(argument, SeccompCmpOp::MaskedEq(bits.into()), 0)?])
        }
        Only::Letter(argument, letter) => {
            Ok(vec![condition(argument, SeccompCmpOp::MaskedEq(0xff00), u32::from(letter) << 8)?])
        }
        Only::Not(argument, (_, value)) => Ok(vec![condition(argument, SeccompCmpOp::Ne, value)?]),
    }
}

#[cfg(test)]
mod tests {
    //! Shows: Each thread's filter ends the process at a forbidden call; a run with every option needs none.

    use super::*;
    use crate::last_word;
    use crate::policy::Named;
    use std::collections::BTreeSet;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus, Output};

    /// What a child process does under the filter of a thread; `KIND:DEED`.
    const DEED_VARIABLE: &str = "STRATA_TEST_DEED";
    /// A thread that a watchdog watches: of another process, which nobody asks for anything.
    const WATCHED: u32 = 0x7fff_fff0;
    /// Behind the last number of a system call, those of 32-bit programs (x32) included.
    const NUMBERS: i64 = 600;
    /// `uretprobe` and `uprobe`: the kernel lets them by without asking filters (Linux 6.14, 6.18). Who does not come from a
    /// probe that somebody has set in the program gets an error or SIGILL.
    const UNFILTERED: [i64; 2] = [335, 336];
    /// A number with this bit is one of x32's.
    const X32: i64 = 0x4000_0000;
    /// No pointer, descriptor, signal or process: a call that is let through fails by it.
    const NONSENSE: u64 = u64::MAX;

    /// Does nothing unless a test below runs it.
    #[test]
    fn child_that_makes_the_given_call() {
        let Ok(deed) = std::env::var(DEED_VARIABLE) else { return };
        let (thread, deed) = deed.split_once(':').unwrap();
        let thread = Thread::ALL.into_iter().find(|kind| kind.name() == thread).unwrap();
        // As the guard's caller does: everything that allocates comes before.
        let filter = Filter::new(thread, Offence::Kill, None).unwrap();
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
        child.args(["--exact", "filter::tests::child_that_makes_the_given_call", "--nocapture"]);
        child.env(DEED_VARIABLE, format!("{}:{deed}", thread.name())).env("RUST_BACKTRACE", "1");
        child.output().unwrap()
    }

    /// A system call under a filter.
    struct Attempt<'f> {
        filter: &'f Filter,
        number: i64,
        arguments: [u64; 6],
    }

    /// Makes the call and leaves with its error.
    #[allow(unsafe_code)]
    extern "C" fn attempt(what: *mut libc::c_void) -> libc::c_int {
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `what` is an [`Attempt`] of the parent, which waits; the process makes system calls and neither allocates
        // nor takes a lock. A call that is let through fails by its arguments.
        unsafe {
            let Attempt { filter, number, arguments } = &*what.cast::<Attempt<'_>>();
            let [first, second, third, fourth, fifth, sixth] = *arguments;
            libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
            libc::alarm(60);
            if filter.apply().is_err() {
                libc::_exit(libc::ENOSYS);
            }
            *libc::__errno_location() = 0;
            libc::syscall(*number, first, second, third, fourth, fifth, sixth);
            libc::_exit(*libc::__errno_location())
        }
    }

    /// How a process ends that makes one system call under `filter`. It shares this one's memory, which makes it cheap, and
    /// nothing else.
    #[allow(unsafe_code)]
    fn end_by(filter: &Filter, number: i64, arguments: [u64; 6]) -> ExitStatus {
        let mut stack = vec![0_u128; 1024];
        let mut what = Attempt { filter, number, arguments };
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: stack and attempt outlive the child: this thread goes on when it has ended.
        unsafe {
            let child = libc::clone(attempt, stack.as_mut_ptr_range().end.cast(), flags, (&raw mut what).cast());
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            ExitStatus::from_raw(status)
        }
    }

    fn filter_of(thread: Thread) -> Filter {
        Filter::new(thread, Offence::Kill, Some(WATCHED)).unwrap()
    }

    fn calls_of(thread: Thread) -> impl Iterator<Item = &'static Call> {
        thread.groups().iter().flat_map(|group| group.calls())
    }

    fn is_killed(filter: &Filter, number: i64, arguments: [u64; 6]) -> bool {
        end_by(filter, number, arguments).signal() == Some(libc::SIGSYS)
    }

    #[test]
    fn every_call_that_is_not_listed_ends_a_thread_of_every_kind() {
        for thread in Thread::ALL {
            let filter = filter_of(thread);
            let refused = Group::Look.calls().iter().filter(|_| !thread.looks());
            let known: BTreeSet<i64> = calls_of(thread).chain(refused).map(|call| call.number).collect();
            let unlisted = (0..NUMBERS).filter(|number| !known.contains(number) && !UNFILTERED.contains(number));
            let foreign = known.iter().map(|number| number | X32);

            let survived = unlisted.chain(foreign).filter(|number| !is_killed(&filter, *number, [NONSENSE; 6]));

            assert_eq!(survived.collect::<Vec<_>>(), Vec::<i64>::new(), "{thread:?}");
        }
    }

    /// Whether `only` holds of `arguments`.
    fn holds(only: Only, arguments: [u64; 6]) -> bool {
        let argument = |number: u8| u32::try_from(arguments[usize::from(number)] & 0xffff_ffff).unwrap();
        match only {
            Only::OneOf(number, values) => values.iter().any(|(_, value)| *value == argument(number)),
            Only::Without(number, bits) => bits.iter().all(|(_, bit)| bit & argument(number) == 0),
            Only::Letter(number, letter) => argument(number).to_le_bytes()[1] == letter,
            Only::ThisProcess(number) => argument(number) == std::process::id(),
            Only::WatchedThread(number) => argument(number) == WATCHED,
            Only::Not(number, (_, value)) => argument(number) != value,
        }
    }

    /// The number of the argument that `only` is about, and values on both sides of it.
    fn tried(only: Only) -> (u8, Vec<u32>) {
        let near =
            |values: &[Named]| values.iter().flat_map(|(_, value)| [*value, value + 1, value ^ 0x8000_0000]).collect();
        match only {
            Only::OneOf(number, values) | Only::Without(number, values) => (number, near(values)),
            Only::Letter(number, letter) => (number, vec![u32::from(letter) << 8, u32::from(letter + 1) << 8]),
            Only::ThisProcess(number) => (number, vec![std::process::id(), std::process::id() + 1]),
            Only::WatchedThread(number) => (number, vec![WATCHED, WATCHED + 1]),
            Only::Not(number, value) => (number, near(&[value])),
        }
    }

    #[test]
    fn every_listed_call_with_other_arguments_ends_a_thread_of_every_kind() {
        let mut tries = 0;
        for thread in Thread::ALL {
            let filter = filter_of(thread);
            let refused: Vec<i64> =
                Group::Look.calls().iter().filter(|_| !thread.looks()).map(|call| call.number).collect();
            let numbers: BTreeSet<i64> = calls_of(thread).map(|call| call.number).collect();
            for number in numbers.into_iter().filter(|number| !refused.contains(number)) {
                let forms = || calls_of(thread).filter(move |call| call.number == number);
                let mut all = vec![[NONSENSE; 6]];
                for (argument, values) in forms().flat_map(|call| call.only).map(|only| tried(*only)) {
                    let with = |base: &[u64; 6]| {
                        let (base, values) = (*base, values.iter().copied().chain([0, 1, u32::MAX]));
                        values.map(move |value| {
                            let mut with = base;
                            with[usize::from(argument)] = value.into();
                            with
                        })
                    };
                    all = all
                        .iter()
                        .copied()
                        .chain(all.iter().flat_map(with))
                        .collect::<BTreeSet<_>>()
                        .into_iter()
                        .collect();
                }
                let is_allowed =
                    |arguments: &[u64; 6]| forms().any(|call| call.only.iter().all(|only| holds(*only, *arguments)));
                let forbidden: Vec<_> = all.into_iter().filter(|arguments| !is_allowed(arguments)).collect();
                tries += forbidden.len();

                let survived = forbidden.into_iter().filter(|arguments| !is_killed(&filter, number, *arguments));

                assert_eq!(survived.collect::<Vec<_>>(), Vec::<[u64; 6]>::new(), "{thread:?} {number}");
            }
        }
        assert!(tries > 500, "{tries}");
    }

    /// Calls that act on other processes, run programs or reach out, whatever the table says: with arguments that say so.
    fn forbidden() -> Vec<(&'static str, i64, [u64; 6])> {
        let init = 1;
        let other = u64::from(std::process::id()) + 1;
        vec![
            ("runs a program", libc::SYS_execve, [NONSENSE; 6]),
            ("looks into a process", libc::SYS_ptrace, [NONSENSE; 6]),
            ("reads a process", libc::SYS_process_vm_readv, [NONSENSE; 6]),
            ("loads a program into the kernel", libc::SYS_bpf, [NONSENSE; 6]),
            ("reaches out", libc::SYS_socket, [2, 1, 0, 0, 0, 0]),
            ("maps memory to be executed", libc::SYS_mmap, [0, 4096, 5, 0x22, NONSENSE, 0]),
            ("makes memory executable", libc::SYS_mprotect, [0, 4096, 5, 0, 0, 0]),
            ("types", libc::SYS_ioctl, [0, 0x5412, NONSENSE, 0, 0, 0]),
            ("turns its end away", libc::SYS_rt_sigaction, [31, NONSENSE, 0, 8, 0, 0]),
            ("sends a signal", libc::SYS_kill, [init, 0, 0, 0, 0, 0]),
            ("sends a signal to a thread", libc::SYS_tgkill, [init, init, 0, 0, 0, 0]),
            ("sends a signal to a thread of any process", libc::SYS_tkill, [init, 0, 0, 0, 0, 0]),
            ("sends a signal with a word", libc::SYS_rt_sigqueueinfo, [init, 0, NONSENSE, 0, 0, 0]),
            ("sends a signal by a descriptor", libc::SYS_pidfd_send_signal, [NONSENSE, 0, 0, 0, 0, 0]),
            ("gives a descriptor's signals away (F_SETOWN)", libc::SYS_fcntl, [0, 8, init, 0, 0, 0]),
            ("gives a descriptor's signals away (F_SETOWN_EX)", libc::SYS_fcntl, [0, 15, NONSENSE, 0, 0, 0]),
            ("chooses a descriptor's signal (F_SETSIG)", libc::SYS_fcntl, [0, 10, 9, 0, 0, 0]),
            ("has a descriptor's signals sent (O_ASYNC)", libc::SYS_fcntl, [0, 4, 0o24000, 0, 0, 0]),
            ("has a folder's signals sent (F_NOTIFY)", libc::SYS_fcntl, [0, 1026, 0x8000_0001, 0, 0, 0]),
            ("has a lease's signals sent (F_SETLEASE)", libc::SYS_fcntl, [0, 1024, 0, 0, 0, 0]),
            ("gives a descriptor's signals away (FIOSETOWN)", libc::SYS_ioctl, [0, 0x8901, NONSENSE, 0, 0, 0]),
            ("gives a descriptor's signals away (SIOCSPGRP)", libc::SYS_ioctl, [0, 0x8902, NONSENSE, 0, 0, 0]),
            ("has a descriptor's signals sent (FIOASYNC)", libc::SYS_ioctl, [0, 0x5452, NONSENSE, 0, 0, 0]),
            ("takes a terminal", libc::SYS_ioctl, [0, 0x540e, 1, 0, 0, 0]),
            ("gives a terminal to another group", libc::SYS_ioctl, [0, 0x5410, NONSENSE, 0, 0, 0]),
            ("limits another process", libc::SYS_prlimit64, [other, 7, NONSENSE, NONSENSE, 0, 0]),
            ("slows another process down", libc::SYS_sched_setscheduler, [other, 5, NONSENSE, 0, 0, 0]),
            ("slows another process down by attributes", libc::SYS_sched_setattr, [other, NONSENSE, 0, 0, 0, 0]),
            ("slows another process down by its nice value", libc::SYS_setpriority, [0, other, 19, 0, 0, 0]),
            ("moves another process", libc::SYS_sched_setaffinity, [other, 8, NONSENSE, 0, 0, 0]),
            ("moves another process's memory", libc::SYS_migrate_pages, [other, 8, NONSENSE, NONSENSE, 0, 0]),
            ("dies with another process", libc::SYS_prctl, [1, 9, 0, 0, 0, 0]),
            ("lets another process look in", libc::SYS_prctl, [0x5961_6d61, init, 0, 0, 0, 0]),
            ("listens to a filter", libc::SYS_seccomp, [3, 0, NONSENSE, 0, 0, 0]),
            ("queues work", libc::SYS_io_uring_setup, [1, NONSENSE, 0, 0, 0, 0]),
            ("has a file run with its owner's rights", libc::SYS_fchmod, [NONSENSE, 0o4755, 0, 0, 0, 0]),
            ("has others write a file", libc::SYS_fchmod, [NONSENSE, 0o666, 0, 0, 0, 0]),
            ("gives a file away", libc::SYS_fchown, [NONSENSE, 0, 0, 0, 0, 0]),
            ("changes permissions where landlock looks away", libc::SYS_fchmodat, [NONSENSE; 6]),
        ]
    }

    #[test]
    fn what_reaches_other_processes_ends_a_thread_of_every_kind() {
        for thread in Thread::ALL {
            let filter = filter_of(thread);

            let survived =
                forbidden().into_iter().filter(|(_, number, arguments)| !is_killed(&filter, *number, *arguments));

            // A thread that starts the others lets the watchdog choose any priority; it alone is not under its own.
            let survived: Vec<_> = survived.map(|(what, ..)| what).collect();
            let is_starter = matches!(thread, Thread::Start | Thread::AttachStart);
            let expected: &[&str] = if is_starter { &["slows another process down"] } else { &[] };
            assert_eq!(survived, expected, "{thread:?}");
        }
    }

    #[test]
    fn end_by_a_forbidden_call_is_reported() {
        let ended = run(Thread::Recorder, "execve");

        let reported = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(libc::SIGSYS));
        assert!(reported.contains("may not make the system call 59 (execve): strata ends here"), "{reported}");
    }

    #[test]
    fn threads_that_make_no_files_are_killed_when_they_do() {
        let maker = |thread: &Thread| thread.groups().contains(&Group::Files);
        let killed = |thread: &Thread| run(*thread, "file").status.signal() == Some(libc::SIGSYS);

        let (makers, others): (Vec<Thread>, Vec<Thread>) = Thread::ALL.into_iter().partition(maker);

        assert_eq!(makers, [Thread::Start, Thread::Recorder, Thread::AttachStart]);
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
