//! Names of signals.

/// By number from 1 on, as x86-64 numbers them.
const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// The name of `signal`; `None` for a real-time one.
#[must_use]
pub fn name(signal: i64) -> Option<&'static str> {
    NAMES.get(usize::try_from(signal.checked_sub(1)?).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_from_one_on() {
        assert_eq!(
            [1, 9, 31, 0, 32, i64::MIN].map(name),
            [Some("SIGHUP"), Some("SIGKILL"), Some("SIGSYS"), None, None, None]
        );
    }
}
