//! Ready questions: files of SQL, whose first lines say what they answer.

/// A ready question.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// Its name.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
}

impl Ready {
    /// What it answers: the comment that it begins with.
    #[must_use]
    pub fn about(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("--"));
        lines.map(str::trim).collect::<Vec<_>>().join(" ")
    }

    /// The one called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        READY.iter().find(|ready| ready.name == name)
    }
}

macro_rules! ready {
    ($($name:literal),* $(,)?) => {
        /// All of them.
        pub const READY: &[Ready] =
            &[$(Ready { name: $name, text: include_str!(concat!("../../queries/", $name, ".sql")) }),*];
    };
}

ready!(
    "recordings",
    "losses",
    "gaps",
    "events-by-type",
    "events-by-task",
    "vcpu-states",
    "steal",
    "cpu-ready",
    "longest-steals",
    "exits-by-reason",
    "exits-by-place",
    "exits-per-second",
    "slowest-exits",
    "task-states",
    "cpu-by-cgroup",
    "blocked-on",
    "worst-wakeups",
    "wakeup-latency",
    "syscalls-by-name",
    "syscalls-by-process",
    "failed-syscalls",
    "locks",
    "disk-requests",
    "disk-steps",
    "disk-steps-by-kernel",
    "slowest-requests",
    "packets",
    "packet-steps",
    "slowest-packets",
    "switches",
);
