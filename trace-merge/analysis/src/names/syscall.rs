//! Names of system calls and of their arguments: guests are x86-64, whose kernels have a table of calls for each of three
//! ABIs.
//!
//! A *number* here says both the ABI and the place in its table: see [`in_table`].

use std::borrow::Cow;
use std::sync::LazyLock;
use syscalls::{x86, x86_64};

/// A line for each call: its name and those of its arguments, as in the kernel's `include/linux/syscalls.h`.
const ARGUMENTS: &str = include_str!("syscall_arguments.txt");

/// Names of arguments, by the call's number.
static BY_NUMBER: LazyLock<Vec<Option<Vec<&'static str>>>> = LazyLock::new(|| {
    let mut by_number = Vec::new();
    for line in ARGUMENTS.lines() {
        let mut words = line.split(' ');
        let number = words.next().and_then(number).and_then(|number| usize::try_from(number).ok());
        if let Some(number) = number {
            by_number.resize(by_number.len().max(number + 1), None);
            by_number[number] = Some(words.collect());
        }
    }
    by_number
});

/// The place of a number's ABI: above all numbers of calls.
const ABI_SHIFT: u32 = 32;
/// What makes the number of a call one of x32's table, as the kernel records it.
const X32_BIT: i64 = 1 << 30;
/// Where x32 has calls of its own.
const X32_OWN: i64 = 512;
/// They are called, in the order of their numbers.
const X32_NAMES: [&str; 36] = [
    "rt_sigaction",
    "rt_sigreturn",
    "ioctl",
    "readv",
    "writev",
    "recvfrom",
    "sendmsg",
    "recvmsg",
    "execve",
    "ptrace",
    "rt_sigpending",
    "rt_sigtimedwait",
    "rt_sigqueueinfo",
    "sigaltstack",
    "timer_create",
    "mq_notify",
    "kexec_load",
    "waitid",
    "set_robust_list",
    "get_robust_list",
    "vmsplice",
    "move_pages",
    "preadv",
    "pwritev",
    "rt_tgsigqueueinfo",
    "recvmmsg",
    "sendmmsg",
    "process_vm_readv",
    "process_vm_writev",
    "setsockopt",
    "getsockopt",
    "io_setup",
    "io_submit",
    "execveat",
    "preadv2",
    "pwritev2",
];

/// Which table a system call's number is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// 64-bit programs.
    X86_64,
    /// 32-bit programs, and 64-bit ones that use `int 0x80`.
    I386,
    /// Programs with 32-bit pointers in 64-bit mode.
    X32,
}

impl Abi {
    /// Its name, as files of the kernel have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::I386 => "i386",
            Self::X32 => "x32",
        }
    }
}

/// The number, as this module has it, of the call that was recorded with `id` and `abi` (field `abi` of
/// `raw_syscalls:sys_enter` and `sys_exit`; `None` where the agent did not record it). Numbers of x86-64's own table are as
/// they were recorded.
#[must_use]
pub fn in_table(id: i64, abi: Option<i64>) -> i64 {
    let within = |bits: u64, id: i64| (bits << ABI_SHIFT).cast_signed() | id & i64::from(u32::MAX);
    match abi {
        // What a tracer puts in place of a call that is to be skipped is none of any table.
        _ if id < 0 => id,
        Some(abi) if abi == i64::from(strata_abi::SYSCALL_I386) => within(1, id),
        _ if id & X32_BIT != 0 => within(2, id ^ X32_BIT),
        // The kernel's numbers have 32 bits.
        _ => id & i64::from(u32::MAX),
    }
}

/// The ABI of `number`, and the call's place in its table, as the kernel records it without [`Abi`].
#[must_use]
pub fn abi(number: i64) -> (Abi, i64) {
    let id = number & i64::from(u32::MAX);
    match number >> ABI_SHIFT {
        1 => (Abi::I386, id),
        2 => (Abi::X32, id | X32_BIT),
        _ => (Abi::X86_64, number),
    }
}

/// Bits that a place in a table takes, in [`short`].
const SHORT_SHIFT: u32 = 12;

/// `number` in two bytes; -1 where it is none that a kernel knows.
#[must_use]
pub fn short(number: i64) -> i16 {
    let (abi, id) = abi(number);
    let (bits, place) = match abi {
        Abi::X86_64 => (0, id),
        Abi::I386 => (1, id),
        Abi::X32 => (2, id ^ X32_BIT),
    };
    match i16::try_from(place) {
        Ok(place) if (0..1 << SHORT_SHIFT).contains(&place) => bits << SHORT_SHIFT | place,
        _ => -1,
    }
}

/// The number that is `short`.
#[must_use]
pub fn of_short(short: i16) -> i64 {
    match short {
        ..0 => short.into(),
        _ => i64::from(short >> SHORT_SHIFT) << ABI_SHIFT | i64::from(short & ((1 << SHORT_SHIFT) - 1)),
    }
}

/// The name of system call `number`, without a prefix; `None` for numbers that have none (among them -1, which a tracer
/// puts in place of a call that is to be skipped).
#[must_use]
pub fn name(number: i64) -> Option<&'static str> {
    let (abi, id) = abi(number);
    match abi {
        Abi::X86_64 => usize::try_from(id).ok().and_then(x86_64::Sysno::new).map(|call| call.name()),
        Abi::I386 => usize::try_from(id).ok().and_then(x86::Sysno::new).map(|call| call.name()),
        Abi::X32 => {
            let id = id ^ X32_BIT;
            match usize::try_from(id - X32_OWN) {
                Ok(own) => X32_NAMES.get(own).copied(),
                Err(_) => name(id),
            }
        }
    }
}

/// The same, with the ABI before it where that is not x86-64's own: `i386:getpid`.
#[must_use]
pub fn shown(number: i64) -> Option<Cow<'static, str>> {
    let name = name(number)?;
    Some(match abi(number).0 {
        Abi::X86_64 => name.into(),
        abi => format!("{}:{name}", abi.name()).into(),
    })
}

/// Whether `number` is `clone`.
#[must_use]
pub fn is_clone(number: i64) -> bool {
    is(number, x86_64::Sysno::clone, x86::Sysno::clone)
}

/// Whether `number` is `futex`.
#[must_use]
pub fn is_futex(number: i64) -> bool {
    is(number, x86_64::Sysno::futex, x86::Sysno::futex)
}

/// Whether the system call `number` ends its task.
#[must_use]
pub fn never_returns(number: i64) -> bool {
    is(number, x86_64::Sysno::exit, x86::Sysno::exit) || is(number, x86_64::Sysno::exit_group, x86::Sysno::exit_group)
}

/// Whether `number` is a call of x86-64, which x32 has at the same place, or that of i386: by number, for who asks at each
/// call.
fn is(number: i64, call: x86_64::Sysno, of_i386: x86::Sysno) -> bool {
    match abi(number) {
        (Abi::X86_64, id) => id == i64::from(call.id()),
        (Abi::X32, id) => id ^ X32_BIT == i64::from(call.id()),
        (Abi::I386, id) => id == i64::from(of_i386.id()),
    }
}

/// The number, in x86-64's own table, of the system call called `name`; `None` when there is none.
#[must_use]
pub fn number(name: &str) -> Option<i64> {
    name.parse::<x86_64::Sysno>().ok().map(|call| i64::from(call.id()))
}

/// The number of the same call in x86-64's own table; `None` for calls that only another ABI has.
#[must_use]
pub fn as_x86_64(call: i64) -> Option<i64> {
    match abi(call) {
        (Abi::X86_64, id) => Some(id),
        _ => number(name(call)?),
    }
}

/// The names of the arguments of system call `number`; `None` when they are not known. Those of i386 are not: calls of the
/// same name take other arguments there, or the same ones in another order.
#[must_use]
pub fn arguments(number: i64) -> Option<&'static [&'static str]> {
    let place = match abi(number) {
        (Abi::X86_64, id) => id,
        (Abi::X32, id) if id ^ X32_BIT < X32_OWN => id ^ X32_BIT,
        _ => return None,
    };
    BY_NUMBER.get(usize::try_from(place).ok()?)?.as_deref()
}

/// The numbers of x86-64's table up to the last call whose arguments' names are known.
pub(crate) fn numbers() -> impl Iterator<Item = i64> {
    (0..).take(BY_NUMBER.len())
}

/// Whether a task that returns from call `exited` may have entered `entered`: another one returns where registers of an
/// earlier time are restored, and from the call that begins a program, which may have another ABI.
#[must_use]
pub fn is_return(entered: i64, exited: i64) -> bool {
    entered == exited
        || match name(entered) {
            Some("rt_sigreturn" | "sigreturn") => true,
            Some("execve" | "execveat") => name(exited) == Some("execve"),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_old_and_new_have_their_names() {
        let names = [0, 1, 39, 59, 202, 231, 441].map(name);

        let expected = ["read", "write", "getpid", "execve", "futex", "exit_group", "epoll_pwait2"].map(Some);
        assert_eq!(names, expected);
    }

    #[test]
    fn calls_of_every_abi_have_the_names_of_its_table() {
        let i386 = |id| in_table(id, Some(strata_abi::SYSCALL_I386.into()));
        let x32 = |id| in_table(id | X32_BIT, Some(strata_abi::SYSCALL_X32.into()));

        assert_eq!([i386(20), x32(39), x32(520), 20].map(name), ["getpid", "getpid", "execve", "writev"].map(Some));
        assert_eq!(shown(i386(20)).unwrap(), "i386:getpid");
        assert_eq!((shown(x32(39)).unwrap(), shown(39).unwrap()), ("x32:getpid".into(), "getpid".into()));
        assert_eq!([i386(20), x32(39), 39].map(abi), [(Abi::I386, 20), (Abi::X32, 39 | X32_BIT), (Abi::X86_64, 39)]);
        // Where the agent is too old to say the ABI, and what is not a call of any.
        assert_eq!((in_table(20, None), in_table(39 | X32_BIT, None)), (20, x32(39)));
        assert_eq!((i386(-1), in_table(-1, None), name(i386(4000)), name(x32(4000))), (-1, -1, None, None));
        assert_eq!([i386(20), x32(520), i386(102), -1].map(as_x86_64), [Some(39), Some(59), None, Some(-1)]);
        assert_eq!((arguments(i386(90)), arguments(x32(520)), arguments(x32(1))), (None, None, arguments(1)));
    }

    #[test]
    fn short_numbers_are_the_same_calls() {
        let i386 = |id| in_table(id, Some(strata_abi::SYSCALL_I386.into()));
        let calls = [0, 39, i386(20), i386(0), in_table(520 | X32_BIT, None)];

        assert_eq!(calls.map(|call| of_short(short(call))), calls);
        assert_eq!([-1, i64::MAX, 4096, i386(4096)].map(|call| of_short(short(call))), [-1; 4]);
    }

    #[test]
    fn task_returns_from_the_call_that_it_has_entered() {
        let i386 = |id| in_table(id, Some(strata_abi::SYSCALL_I386.into()));
        let [execve, execveat, write] = ["execve", "execveat", "write"].map(|call| number(call).unwrap());

        assert!(is_return(write, write) && is_return(execve, i386(11)) && is_return(execveat, execve));
        assert!(is_return(i386(119), write) && !is_return(write, i386(4)) && !is_return(write, execve));
    }

    #[test]
    fn arguments_have_the_kernels_names() {
        assert_eq!(arguments(1), Some(&["fd", "buf", "count"][..]));
        assert_eq!((arguments(39), arguments(-1), arguments(100_000)), (Some(&[][..]), None, None));
        assert!((0..512).filter_map(arguments).all(|names| names.len() <= 6));
    }

    #[test]
    fn numbers_that_are_no_call_have_no_name() {
        assert_eq!([-1, i64::MIN, 387, 100_000].map(name), [None; 4]);
    }

    #[test]
    fn name_and_number_belong_together() {
        let named: Vec<(i64, &str)> = (0..512).filter_map(|number| Some((number, name(number)?))).collect();

        assert!(named.len() > 340, "{}", named.len());
        assert!(named.iter().all(|&(call, name)| number(name) == Some(call)));
    }
}
