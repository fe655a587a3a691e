//! Names of system calls and of their arguments: guests are x86-64.

use std::sync::LazyLock;
use syscalls::x86_64::Sysno;

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

/// The name of system call `number` of x86-64, without a prefix; `None` for numbers that have none (among them -1, which
/// a tracer puts in place of a call that is to be skipped).
#[must_use]
pub fn name(number: i64) -> Option<&'static str> {
    usize::try_from(number).ok().and_then(Sysno::new).map(|call| call.name())
}

/// The number of the system call called `name`; `None` when there is none.
#[must_use]
pub fn number(name: &str) -> Option<i64> {
    name.parse::<Sysno>().ok().map(|call| i64::from(call.id()))
}

/// The names of the arguments of system call `number`; `None` when they are not known.
#[must_use]
pub fn arguments(number: i64) -> Option<&'static [&'static str]> {
    BY_NUMBER.get(usize::try_from(number).ok()?)?.as_deref()
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
