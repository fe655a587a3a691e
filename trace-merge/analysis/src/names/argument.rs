//! Names of what arguments of system calls say: protections, flags of `mmap` and `open`, signals, clocks, and the working
//! directory in place of a folder's descriptor.

use crate::names;
use std::borrow::Cow;
use std::sync::LazyLock;

/// Bits and names (`asm-generic/mman-common.h`).
const PROTECTIONS: [(u64, &str); 3] = [(1, "PROT_READ"), (2, "PROT_WRITE"), (4, "PROT_EXEC")];
/// Of `mmap`; the low four bits are one number.
const MAPPING: [(u64, &str); 13] = [
    (0x10, "MAP_FIXED"),
    (0x20, "MAP_ANONYMOUS"),
    (0x40, "MAP_32BIT"),
    (0x100, "MAP_GROWSDOWN"),
    (0x800, "MAP_DENYWRITE"),
    (0x1000, "MAP_EXECUTABLE"),
    (0x2000, "MAP_LOCKED"),
    (0x4000, "MAP_NORESERVE"),
    (0x8000, "MAP_POPULATE"),
    (0x1_0000, "MAP_NONBLOCK"),
    (0x2_0000, "MAP_STACK"),
    (0x4_0000, "MAP_HUGETLB"),
    (0x10_0000, "MAP_FIXED_NOREPLACE"),
];
const SHARING: [&str; 4] = ["", "MAP_SHARED", "MAP_PRIVATE", "MAP_SHARED_VALIDATE"];
/// Of `open` (`asm-generic/fcntl.h`): those with several bits before those of one of them; the low two are one number.
const OPENING: [(u64, &str); 15] = [
    (0o20_200_000, "O_TMPFILE"),
    (0o4_010_000, "O_SYNC"),
    (0o100, "O_CREAT"),
    (0o200, "O_EXCL"),
    (0o400, "O_NOCTTY"),
    (0o1_000, "O_TRUNC"),
    (0o2_000, "O_APPEND"),
    (0o4_000, "O_NONBLOCK"),
    (0o10_000, "O_DSYNC"),
    (0o40_000, "O_DIRECT"),
    (0o100_000, "O_LARGEFILE"),
    (0o200_000, "O_DIRECTORY"),
    (0o400_000, "O_NOFOLLOW"),
    (0o1_000_000, "O_NOATIME"),
    (0o2_000_000, "O_CLOEXEC"),
];
const ACCESS: [&str; 4] = ["O_RDONLY", "O_WRONLY", "O_RDWR", ""];
const CLOCKS: [&str; 12] = [
    "CLOCK_REALTIME",
    "CLOCK_MONOTONIC",
    "CLOCK_PROCESS_CPUTIME_ID",
    "CLOCK_THREAD_CPUTIME_ID",
    "CLOCK_MONOTONIC_RAW",
    "CLOCK_REALTIME_COARSE",
    "CLOCK_MONOTONIC_COARSE",
    "CLOCK_BOOTTIME",
    "CLOCK_REALTIME_ALARM",
    "CLOCK_BOOTTIME_ALARM",
    "",
    "CLOCK_TAI",
];
/// In place of a descriptor: the working directory.
const AT_FDCWD: u32 = (-100_i32).cast_unsigned();

/// What an argument says.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Protection,
    Mapping,
    Opening,
    Signal,
    Clock,
    Folder,
}

/// Arguments that a call has at most.
const ARGUMENTS: usize = 6;

/// Which arguments of a system call have names.
#[derive(Clone, Copy, Debug)]
pub struct ArgumentNames([Option<Kind>; ARGUMENTS]);

/// By number of x86-64's table.
static BY_NUMBER: LazyLock<Vec<Option<ArgumentNames>>> =
    LazyLock::new(|| names::syscall::numbers().map(ArgumentNames::new).collect());

impl ArgumentNames {
    fn new(number: i64) -> Option<Self> {
        let (call, arguments) = (names::syscall::name(number)?, names::syscall::arguments(number)?);
        let kind = |argument: &str| {
            Some(match (call, argument) {
                (_, "prot") => Kind::Protection,
                ("mmap", "flags") => Kind::Mapping,
                ("open" | "openat", "flags") => Kind::Opening,
                ("rseq", _) => return None,
                (_, "sig") => Kind::Signal,
                (_, "which_clock" | "clockid") => Kind::Clock,
                (_, "dfd") => Kind::Folder,
                _ => return None,
            })
        };
        let mut kinds = [None; ARGUMENTS];
        kinds.iter_mut().zip(arguments).for_each(|(to, argument)| *to = kind(argument));
        kinds.iter().any(Option::is_some).then_some(Self(kinds))
    }

    /// Those of system call `number`; `None` where there are none.
    #[must_use]
    pub fn of(number: i64) -> Option<&'static Self> {
        let number = names::syscall::as_x86_64(number)?;
        // Calls of the same name take other arguments in other ABIs.
        names::syscall::arguments(number)?;
        BY_NUMBER.get(usize::try_from(number).ok()?)?.as_ref()
    }

    /// The name of `value` as the argument `index`; `None` where it has none.
    #[must_use]
    pub fn name(&self, index: usize, value: u64) -> Option<Cow<'static, str>> {
        let low = u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default();
        let one_of = |names: &[&'static str]| {
            let name = names.get(usize::try_from(value).ok()?)?;
            Some(Cow::Borrowed(*name)).filter(|name| !name.is_empty())
        };
        match (*self.0.get(index)?)? {
            Kind::Protection if value == 0 => Some("PROT_NONE".into()),
            Kind::Protection => flags(None, value, &PROTECTIONS),
            Kind::Mapping => flags(one_of_bits(&SHARING, value & 0xf), value & !0xf, &MAPPING),
            Kind::Opening => flags(one_of_bits(&ACCESS, value & 3), value & !3, &OPENING),
            Kind::Signal => names::signal::name(i64::from(low)).map(Into::into),
            Kind::Clock => one_of(&CLOCKS),
            Kind::Folder => (low == AT_FDCWD).then(|| "AT_FDCWD".into()),
        }
    }
}

fn one_of_bits(names: &[&'static str], bits: u64) -> Option<&'static str> {
    names.get(usize::try_from(bits).ok()?).copied().filter(|name| !name.is_empty())
}

/// `first` and the names of the bits of `value` with `|` between them; bits without a name as a number.
fn flags(first: Option<&'static str>, value: u64, names: &[(u64, &'static str)]) -> Option<Cow<'static, str>> {
    let mut rest = value;
    let mut known: Vec<Cow<'static, str>> = first.into_iter().map(Cow::Borrowed).collect();
    for &(bits, name) in names {
        if rest & bits == bits {
            rest &= !bits;
            known.push(name.into());
        }
    }
    if rest != 0 && !known.is_empty() {
        known.push(format!("{rest:#x}").into());
    }
    match known.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        several => Some(several.join("|").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of an argument of the call `call`.
    fn name(call: &str, index: usize, value: u64) -> Option<String> {
        ArgumentNames::of(names::syscall::number(call)?)?.name(index, value).map(Cow::into_owned)
    }

    #[test]
    fn flags_have_names_and_what_is_left_is_a_number() {
        assert_eq!(name("mmap", 2, 3).as_deref(), Some("PROT_READ|PROT_WRITE"));
        assert_eq!(name("mprotect", 2, 0).as_deref(), Some("PROT_NONE"));
        assert_eq!(name("mmap", 3, 0x22).as_deref(), Some("MAP_PRIVATE|MAP_ANONYMOUS"));
        assert_eq!(
            name("openat", 2, 0o2_000_101 | 1 << 40).as_deref(),
            Some("O_WRONLY|O_CREAT|O_CLOEXEC|0x10000000000")
        );
        assert_eq!(name("openat", 2, 0).as_deref(), Some("O_RDONLY"));
        assert_eq!(name("openat", 0, 0xffff_ff9c).as_deref(), Some("AT_FDCWD"));
    }

    #[test]
    fn what_is_no_flag_has_no_name() {
        assert_eq!(name("openat", 0, 3), None);
        assert_eq!(name("mmap", 1, 3), None);
        assert_eq!(name("getpid", 0, 0), None);
        assert_eq!(name("mprotect", 2, 8), None);
        assert_eq!(
            (name("kill", 1, 9), name("clock_gettime", 0, 1)),
            (Some("SIGKILL".into()), Some("CLOCK_MONOTONIC".into()))
        );
    }
}
