//! Names of system calls: guests are x86-64.

use syscalls::x86_64::Sysno;

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
