//! Numbers of the kernel's errors by their names.

use syscalls::Errno;

/// The highest number that has a name.
const LAST: i32 = 133;

/// The number of the error called `name`, as in `ENOENT`; `None` where there is none.
#[must_use]
pub fn number(name: &str) -> Option<i32> {
    (1..=LAST).find(|&number| Errno::new(number).name() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_kernels_numbers() {
        assert_eq!(["EPERM", "ENOENT", "EHWPOISON"].map(number), [Some(1), Some(2), Some(133)]);
        assert_eq!([number("enoent"), number("E")], [None, None]);
    }
}
