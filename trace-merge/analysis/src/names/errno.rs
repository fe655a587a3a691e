//! The kernel's errors: numbers and names.

use syscalls::Errno;

/// The highest number that has a name.
const LAST: i32 = 133;

/// The number of the error called `name`, as in `ENOENT`; `None` where there is none.
#[must_use]
pub fn number(name: &str) -> Option<i32> {
    (1..=LAST).find(|&number| Errno::new(number).name() == Some(name))
}

/// The name of the error `number`; `None` where there is none of that number.
#[must_use]
pub fn name(number: i64) -> Option<&'static str> {
    let number = i32::try_from(number).ok().filter(|number| (1..=LAST).contains(number))?;
    Errno::new(number).name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_kernels_numbers() {
        assert_eq!(["EPERM", "ENOENT", "EHWPOISON"].map(number), [Some(1), Some(2), Some(133)]);
        assert_eq!([number("enoent"), number("E")], [None, None]);
        assert_eq!([2, 110, 0, -2, 134].map(name), [Some("ENOENT"), Some("ETIMEDOUT"), None, None, None]);
    }
}
