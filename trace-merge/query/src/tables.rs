//! The tables that every export has: their names, their columns, and what these say.
//!
//! A table's place tells its partition columns: [`PARTITIONS`].

use std::collections::BTreeSet;
use strata_recording::text::nearest::nearest;
use thiserror::Error;

/// Version of the schema, which each file names under [`VERSION_KEY`]. It changes when a column is taken away or means
/// something else.
pub const VERSION: &str = "3";
/// Under which key a file's metadata names [`VERSION`].
pub const VERSION_KEY: &str = "strata.schema";
/// Under which key a file's metadata names the recording that it was made of.
pub const RECORDING_KEY: &str = "strata.recording";

/// Under which key a file's metadata names the tables that were chosen, with commas between them: the recording has others
/// that were not written. It is not there where all were.
pub const CHOSEN_KEY: &str = "strata.tables";

/// Under which key the metadata of a file of the table of an event type has the event's name as it was recorded.
pub const EVENT_KEY: &str = "strata.event";

/// The table that is not a folder of its own: it is those of all event types, whose names have a dot.
pub const EVENTS: &str = "events";

/// The tables that are written whichever are chosen: what the others are of, and what they lack.
pub const ALWAYS: [&str; 6] = ["recordings", "vms", "missing", "losses", "gaps", "event_fields"];

/// The columns that the folders of a table stand for, outermost first; all are text.
pub const PARTITIONS: [(&str, &str); 4] = [
    ("host", "name of the host"),
    ("boot", "the boot id of that host's kernel"),
    ("vm", "the VM; null for what is not a VM's"),
    ("hour", "UTC hour, `2026-11-23T07`: of the record, and of what lasts the hour in which it ended"),
];
/// What stands in a folder's name for a null, as in Hive.
pub const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// What a column holds. One of a name holds the same in all tables that every export has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Integers, 64 bits, with a sign.
    Integer,
    /// Integers, 64 bits, without one: addresses.
    Unsigned,
    /// Floating point, 64 bits.
    Float,
    /// Text, UTF-8.
    Text,
    /// True or false.
    Flag,
    /// UTC, ns.
    Moment,
    /// Lists of [`Kind::Integer`].
    Integers,
    /// Lists of [`Kind::Unsigned`].
    Unsigneds,
}

impl Kind {
    /// Its name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Unsigned => "unsigned",
            Self::Float => "float",
            Self::Text => "text",
            Self::Flag => "boolean",
            Self::Moment => "UTC",
            Self::Integers | Self::Unsigneds => "list",
        }
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

/// A column of a table that every export has.
#[derive(Clone, Copy, Debug)]
pub struct Described {
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    pub about: &'static str,
}

impl From<&Described> for Column {
    fn from(described: &Described) -> Self {
        Self { name: described.name.into(), kind: described.kind }
    }
}

/// A table that every export has.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    pub name: &'static str,
    /// What a row is.
    pub about: &'static str,
    /// Its columns behind those of [`Fixed::lead`].
    own: &'static [Described],
    /// What its rows begin with.
    pub(crate) lead: Lead,
}

/// What the rows of a table begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lead {
    Recording,
    /// The recording and a moment.
    Moment,
    /// The recording and a time that lasts.
    Lasting,
}

impl Lead {
    /// In which files of a lake the rows are.
    pub(crate) const fn part(self) -> &'static str {
        match self {
            Self::Recording => "about",
            Self::Moment => EVENTS,
            Self::Lasting => "spans",
        }
    }

    /// How many columns that are.
    pub(crate) const fn count(self) -> usize {
        match self {
            Self::Recording => 1,
            Self::Moment => 1 + LEAD_MOMENT.len(),
            Self::Lasting => 1 + LEAD_LASTING.len(),
        }
    }

    pub(crate) fn columns(self) -> impl Iterator<Item = &'static Described> {
        let time: &'static [Described] = match self {
            Self::Recording => &[],
            Self::Moment => &LEAD_MOMENT,
            Self::Lasting => &LEAD_LASTING,
        };
        std::iter::once(&RECORDING).chain(time)
    }
}

const fn column(name: &'static str, kind: Kind, about: &'static str) -> Described {
    Described { name, kind, about }
}

const RECORDING: Described = column("recording", Kind::Text, "the id of its first layer");
const LEAD_MOMENT: [Described; 3] = [
    column("time_ns", Kind::Integer, "since the first record of the recording"),
    column("utc", Kind::Moment, "the same as UTC, cut to the second"),
    column("ticks", Kind::Integer, "the same by the trace clock"),
];
const LEAD_LASTING: [Described; 3] = [
    column("begin_ns", Kind::Integer, "since the first record of the recording; null if not known"),
    column("begin_utc", Kind::Moment, "the same as UTC, cut to the second"),
    column("duration_ns", Kind::Integer, "null if begin or end is not known"),
];
/// The columns of each record, in the table of its event type.
const RECORD: [Described; 8] = [
    column("layer", Kind::Text, "`host-kernel`, `vmm`, `guest-kernel` or `guest-user`"),
    column("cpu", Kind::Integer, "the host's CPU, for records of the host's kernel"),
    column("vcpu", Kind::Integer, "the vCPU, for all other records; null for threads of the VMM that run none"),
    column("tid", Kind::Integer, "the thread that made the record: of the guest, or of the host for `host-kernel`"),
    column("pid", Kind::Integer, "the process of that thread, as far as records before this one tell"),
    column("comm", Kind::Text, "the thread's name; of the process for `guest-user`"),
    column("cgroup", Kind::Text, "the cgroup of the guest's thread"),
    column("event", Kind::Text, "name of the event"),
];
const TID: Described = column("tid", Kind::Integer, "the guest's thread");
const PID: Described = column("pid", Kind::Integer, "its process, as far as records before tell");
const COMM: Described = column("comm", Kind::Text, "its name at that time");
const CGROUP: Described = column("cgroup", Kind::Text, "its cgroup at that time");

/// What the host ran instead, where that was a thread.
const THIEF: [Described; 3] = [
    column("thief_comm", Kind::Text, "name of the host's thread that ran instead"),
    column("thief_tid", Kind::Integer, "that thread"),
    column("thief_vm", Kind::Text, "the VM whose vCPU it was"),
];
const TICKS: Described =
    column("duration_ticks", Kind::Integer, "how long by the trace clock: the report's figure is their sum");

/// All that every export has, in the order of the documentation.
pub const FIXED: [Fixed; 21] = [
    Fixed {
        name: "events",
        about: "each record of each layer: the tables of all event types, read as one",
        lead: Lead::Moment,
        own: &[RECORD[0], RECORD[1], RECORD[2], RECORD[3], RECORD[4], RECORD[5], RECORD[6], RECORD[7]],
    },
    Fixed {
        name: "vcpu_states",
        about: "what a vCPU did: as in `strata report vcpus`",
        lead: Lead::Lasting,
        own: &[
            column("vcpu", Kind::Integer, "the vCPU"),
            column(
                "state",
                Kind::Text,
                "`guest`, `kvm`, `vmm`, `kvm_run` (`guest` or `kvm`), `preempted`, `woken` (and not run), `not_allowed` (to \
                 run), `halted`, `blocked_in_kvm`, `blocked_in_vmm`, `ended` or `unknown`",
            ),
            column("detail", Kind::Text, "why the guest was left, or `thief/TID` of what the host ran instead"),
            THIEF[0],
            THIEF[1],
            THIEF[2],
            TICKS,
        ],
    },
    Fixed {
        name: "task_states",
        about: "what a guest's thread really did: as in `strata report tasks`",
        lead: Lead::Lasting,
        own: &[
            TID,
            PID,
            COMM,
            CGROUP,
            column(
                "state",
                Kind::Text,
                "`running`, `exit`, `vmm`, `stolen`, `running_or_stolen`, `halted`, `runnable`, `runnable_stolen` (its vCPU \
                 was stolen), `blocked`, `vcpu_unknown` or `unknown`",
            ),
            column("detail", Kind::Text, "the system call, the exit, the thief, or what it waited for"),
            THIEF[0],
            THIEF[1],
            THIEF[2],
            TICKS,
        ],
    },
    Fixed {
        name: "wakeups",
        about: "each wakeup of a guest's thread, from being woken until running: as in `strata report wakeups`",
        lead: Lead::Lasting,
        own: &[
            TID,
            PID,
            COMM,
            CGROUP,
            column("vcpu", Kind::Integer, "where it ran"),
            column(
                "meanwhile",
                Kind::Text,
                "what that CPU did meanwhile: JSON, a list of `{\"what\", \"ns\"}` in order",
            ),
        ],
    },
    Fixed {
        name: "syscalls",
        about: "each system call of a guest's thread: as in `strata report syscalls`",
        lead: Lead::Lasting,
        own: &[
            TID,
            PID,
            COMM,
            CGROUP,
            column("name", Kind::Text, "name of the call"),
            column("abi", Kind::Text, "which table its number is of: `x86_64`, `i386` or `x32`"),
            column("number", Kind::Integer, "its number there"),
            column("outcome", Kind::Text, "`returned`, `interrupted`, `never-returns`, `unfinished`, `return-only`"),
            column("result", Kind::Integer, "what it returned"),
            column("is_error", Kind::Flag, "whether that is an error"),
            column("cpu_ns", Kind::Integer, "of its time, that on a CPU of the guest"),
            column("page_faults", Kind::Integer, "page faults inside"),
            column("page_faults_at_most_ns", Kind::Integer, "what they took at most"),
        ],
    },
    Fixed {
        name: "locks",
        about: "each wait for a lock of a guest's kernel, or for a futex: as in `strata report locks`",
        lead: Lead::Lasting,
        own: &[
            TID,
            PID,
            COMM,
            CGROUP,
            column("what", Kind::Text, "`kernel` or `futex`"),
            column("address", Kind::Unsigned, "address of the lock"),
            column("name", Kind::Text, "its name, where the kernel's symbols tell it"),
            column("kind", Kind::Text, "what kind of lock; of a futex, the operation"),
            column("context", Kind::Text, "what waited: a system call, `interrupt`, `-` for neither, `unknown`"),
            column("calls", Kind::Text, "the calls that led there: JSON, a list of symbols or addresses"),
            column("outcome", Kind::Text, "`waited`, `timed-out`, `not-needed` or `unfinished`"),
        ],
    },
    Fixed {
        name: "exits",
        about: "each exit of a vCPU, until it was in the guest again: as in `strata report exits`",
        lead: Lead::Lasting,
        own: &[
            column("vcpu", Kind::Integer, "the vCPU"),
            column("reason", Kind::Text, "why it left the guest"),
            column("place", Kind::Text, "the first port or page of device memory whose access the VMM handled"),
            column("kvm_ns", Kind::Integer, "of its time, in KVM"),
            column("vmm_ns", Kind::Integer, "in the VMM"),
            column("stolen_ns", Kind::Integer, "while the host ran something else"),
            column("halted_ns", Kind::Integer, "halted"),
            column("blocked_ns", Kind::Integer, "while the thread waited for something else"),
        ],
    },
    Fixed {
        name: "interrupts",
        about: "each interrupt that a kernel handled: as in `strata report irqs`",
        lead: Lead::Lasting,
        own: &[
            column("cpu", Kind::Integer, "the host's CPU"),
            column("vcpu", Kind::Integer, "or the vCPU"),
            column("kind", Kind::Text, "`irq`, `softirq` or `vector`"),
            column("number", Kind::Integer, "its number among those"),
            column("name", Kind::Text, "the handler's, soft interrupt's or vector's"),
        ],
    },
    Fixed {
        name: "injections",
        about: "each interrupt that KVM injected, until its handler ran: as in `strata report irqs`",
        lead: Lead::Lasting,
        own: &[
            column("vcpu", Kind::Integer, "the vCPU"),
            column("vector", Kind::Integer, "the vector"),
            column("handler", Kind::Text, "the handler, where it was seen"),
            column("pending_ns", Kind::Integer, "how long the local APIC had it before"),
        ],
    },
    Fixed {
        name: "block_requests",
        about: "each request of a kernel to a block device: as in `strata report blocks`",
        lead: Lead::Lasting,
        own: &[
            column("device", Kind::Text, "`major:minor`"),
            column("operation", Kind::Text, "`read`, `write`, `flush`, `discard` or `other`"),
            column("sector", Kind::Integer, "first sector, of 512 bytes"),
            column("bytes", Kind::Integer, "its size"),
        ],
    },
    Fixed {
        name: "samples",
        about: "each sample of a guest's CPU: as in `strata report functions`",
        lead: Lead::Moment,
        own: &[
            TID,
            PID,
            COMM,
            CGROUP,
            column("vcpu", Kind::Integer, "the vCPU"),
            column("function", Kind::Text, "what it interrupted: a symbol or a page; null if idle"),
            column("module", Kind::Text, "its file or module; `[kernel]`, or `?`"),
            column("calls", Kind::Text, "its callers: JSON"),
        ],
    },
    Fixed {
        name: "flows",
        about: "each disk request that was followed to its end: as in `strata report flows`",
        lead: Lead::Lasting,
        own: &[
            column("flow", Kind::Integer, "its number in this export, from 0 on"),
            column("disk", Kind::Integer, "number of the VMM's disk"),
            column("device", Kind::Text, "the guest's device, `major:minor`"),
            column("kind", Kind::Text, "`read`, `write`, `flush`, …"),
            column("sector", Kind::Integer, "first sector, of 512 bytes"),
            column("bytes", Kind::Integer, "its size"),
            column("issuer_tid", Kind::Integer, "the guest's thread that issued it"),
            column("issuer_comm", Kind::Text, "its name"),
            column("woken_tid", Kind::Integer, "the guest's thread that it woke"),
            column("woken_comm", Kind::Text, "its name"),
            column("host_io_ns", Kind::Integer, "the host's own block I/O inside"),
        ],
    },
    Fixed {
        name: "flow_steps",
        about: "each step of each row of `flows`: they add up to it",
        lead: Lead::Lasting,
        own: &[
            column("flow", Kind::Integer, "which request"),
            column("number", Kind::Integer, "which of its steps, from 0 on"),
            column("step", Kind::Text, "from where to where: `issued → kicked`"),
            column("whose", Kind::Text, "whose time it is"),
            column("kind", Kind::Text, "of the request: `read`, `write`, `flush`, …"),
        ],
    },
    Fixed {
        name: "packets",
        about: "each packet that was followed to its end: as in `strata report flows --net`",
        lead: Lead::Lasting,
        own: &[
            column("packet", Kind::Integer, "its number in this export, from 0 on"),
            column("net", Kind::Integer, "number of the VMM's network device"),
            column("direction", Kind::Text, "`sent` by the guest, or `received` by it"),
            column("id", Kind::Integer, "its number on that device and in that direction, as the VMM's events have it"),
            column("device", Kind::Text, "the guest's device, where it was met there"),
            column("bytes", Kind::Integer, "its size"),
            column("tid", Kind::Integer, "the guest's thread that sent it, or that it woke"),
            column("comm", Kind::Text, "its name"),
        ],
    },
    Fixed {
        name: "packet_steps",
        about: "each step of each row of `packets`: they add up to it",
        lead: Lead::Lasting,
        own: &[
            column("packet", Kind::Integer, "which packet"),
            column("number", Kind::Integer, "which of its steps, from 0 on"),
            column("step", Kind::Text, "from where to where: `queued → given to the driver`"),
            column("whose", Kind::Text, "whose time it is"),
            column("direction", Kind::Text, "of the packet: `sent` or `received`"),
        ],
    },
    Fixed {
        name: "gaps",
        about: "a time in which records of a stream may be missing",
        lead: Lead::Lasting,
        own: &[
            column("layer", Kind::Text, "the kind of layer"),
            column("cpu", Kind::Integer, "the host's CPU"),
            column("vcpu", Kind::Integer, "the vCPU; null for other threads"),
        ],
    },
    Fixed {
        name: "losses",
        about: "what a layer holds and what it lost: as in `strata report`",
        lead: Lead::Recording,
        own: &[
            column("layer", Kind::Text, "the layer"),
            column("pid", Kind::Integer, "the guest's process, for `guest-user`"),
            column("comm", Kind::Text, "its name"),
            column("records", Kind::Integer, "records that are there"),
            column("bytes", Kind::Integer, "their bytes"),
            column("lost_full", Kind::Integer, "records lost because the ring was full"),
            column("lost_wrapped", Kind::Integer, "because a writer did not finish"),
            column("lost_too_large", Kind::Integer, "because they were too large"),
            column("rejected_bytes", Kind::Integer, "bytes that the recorder could not accept"),
            column("corrupt_streams", Kind::Integer, "rings that were closed because they contradicted themselves"),
            column("absent_streams", Kind::Integer, "streams whose files are not there"),
        ],
    },
    Fixed {
        name: "recordings",
        about: "each recording",
        lead: Lead::Recording,
        own: &[
            column("started_utc", Kind::Moment, "when it began"),
            column(
                "first_utc",
                Kind::Moment,
                "when its first record was made: what `time_ns` and `begin_ns` count from",
            ),
            column("duration_ns", Kind::Integer, "from its first record to its last one"),
            column("frequency_hz", Kind::Integer, "ticks of the trace clock a second"),
            column("clock", Kind::Text, "what the trace clock counts"),
            column("error_bound_ns", Kind::Integer, "how wrong it can be between layers"),
            column("utc_bound_ns", Kind::Integer, "how wrong its UTC was at most where it was checked"),
            column("kernel", Kind::Text, "the host's kernel"),
            column("host_cpu", Kind::Text, "the host's processor"),
            column("strata", Kind::Text, "the version of Strata"),
            column("outcome", Kind::Text, "how it ended"),
            column("incomplete", Kind::Text, "what of it is missing, in a line; null when nothing is"),
            column("records", Kind::Integer, "records in it"),
            column("from_ns", Kind::Integer, "of a part (`--from`), where it begins; null for the whole"),
            column("until_ns", Kind::Integer, "of a part (`--until`), where it ends; null for the whole"),
        ],
    },
    Fixed {
        name: "vms",
        about: "each VM of each recording",
        lead: Lead::Recording,
        own: &[
            column("vcpus", Kind::Integer, "number of its vCPUs"),
            column("kernel", Kind::Text, "the guest's kernel; null without an agent"),
        ],
    },
    Fixed {
        name: "missing",
        about: "each layer that was not recorded",
        lead: Lead::Recording,
        own: &[
            column("layer", Kind::Text, "the layer"),
            column("reason", Kind::Text, "why"),
            column("fix", Kind::Text, "what to do about it"),
        ],
    },
    Fixed {
        name: "event_fields",
        about: "each field of each event type of a layer",
        lead: Lead::Recording,
        own: &[
            column("layer", Kind::Text, "the layer"),
            column("event", Kind::Text, "name of the event"),
            column("event_table", Kind::Text, "its table"),
            column("field", Kind::Text, "the column of that table"),
            column("kind", Kind::Text, "`integer`, `unsigned`, `float`, `text` or `list`"),
        ],
    },
];

impl Fixed {
    /// The table called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        FIXED.iter().find(|table| table.name == name)
    }

    /// Its columns, those of its place left out.
    pub fn columns(&self) -> impl Iterator<Item = &'static Described> {
        self.lead.columns().chain(self.own)
    }
}

/// The columns that the table of an event type begins with.
pub fn lead_of_event_table() -> impl Iterator<Item = Column> {
    Lead::Moment.columns().chain(&RECORD).map(Column::from)
}

/// What of a name may stand in the name of a table: small letters, digits, `_`; of capitals the small letters.
fn table_word(text: &str) -> String {
    let harmless = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' };
    text.chars().map(harmless).collect()
}

/// Name of the table of the event type `event`: `sched.sched_switch` of `sched:sched_switch`.
#[must_use]
pub fn table_of_event(event: &str) -> String {
    let (provider, name) = event.split_once(':').unwrap_or(("event", event));
    format!("{}.{}", table_word(provider), table_word(name))
}

/// Whether `table` is written where `chosen` are: with [`EVENTS`] the tables of all event types are, and [`ALWAYS`] with any.
#[must_use]
pub fn is_chosen(table: &str, chosen: &BTreeSet<String>) -> bool {
    let is_of_events = Fixed::find(table).is_none() && chosen.contains(EVENTS);
    chosen.contains(table) || is_of_events || ALWAYS.contains(&table)
}

/// A table that there is not.
#[derive(Debug, Error)]
#[error("there is no table '{name}'; {hint}")]
pub struct NoTable {
    name: String,
    /// What may have been meant.
    hint: String,
}

/// Checks that each of `names` is one of the tables `known`.
///
/// # Errors
/// When one is not.
pub fn check_names(names: &[String], known: &BTreeSet<String>) -> Result<(), NoTable> {
    let Some(name) = names.iter().find(|name| !known.contains(*name)) else { return Ok(()) };
    let near = nearest(name, known.iter().map(String::as_str));
    let hint = if near.is_empty() {
        let names: Vec<&str> = FIXED.iter().map(|table| table.name).collect();
        format!("there are {}, and one for each event type, such as sched.sched_switch", names.join(", "))
    } else {
        format!("nearest: {}", near.join(", "))
    };
    Err(NoTable { name: name.clone(), hint })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use trace_merge::report::registry::REPORTS;

    #[test]
    fn event_types_become_tables_that_need_no_quotes() {
        assert_eq!(table_of_event("sched:sched_switch"), "sched.sched_switch");
        assert_eq!(table_of_event("my-app:Request/done"), "my_app.request_done");
        assert_eq!(table_of_event("alone"), "event.alone");
    }

    /// Columns as the documentation shows them.
    fn rows<'c>(columns: impl Iterator<Item = &'c Described>) -> String {
        let mut text = String::from("| column | type | meaning |\n|---|---|---|\n");
        for column in columns {
            let about = column.about.replace('|', "\\|");
            text += &format!("| `{}` | {} | {about} |\n", column.name, column.kind.name());
        }
        text + "\n"
    }

    /// The tables as the documentation shows them.
    fn markdown() -> String {
        let groups: [(&str, &[Described]); 4] = [
            ("moment", &LEAD_MOMENT),
            ("lasting", &LEAD_LASTING),
            ("thread", &[TID, PID, COMM, CGROUP]),
            ("state", &[THIEF[0], THIEF[1], THIEF[2], TICKS]),
        ];
        let is_in = |column: &Described, columns: &[Described]| {
            columns.iter().any(|known| (known.name, known.about) == (column.name, column.about))
        };
        let mut text =
            String::from("Each begins with `recording`, the id of its first layer. Tables share these columns:\n\n");
        for (name, columns) in groups {
            text += &format!("*{name}*\n\n{}", rows(columns.iter()));
        }
        for table in &FIXED {
            let all: Vec<Described> = table.columns().copied().collect();
            let shared: Vec<_> =
                groups.into_iter().filter(|(_, columns)| columns.iter().all(|column| is_in(column, &all))).collect();
            let own = all.iter().skip(Lead::Recording.count());
            let own = own.filter(|column| !shared.iter().any(|(_, columns)| is_in(column, columns)));
            let names: Vec<_> = shared.iter().map(|(name, _)| format!("*{name}*")).collect();
            let with = if names.is_empty() { String::new() } else { format!("\nWith {}.", names.join(", ")) };
            text += &format!("### `{}`\n\nA row is {}.{with}\n\n{}", table.name, table.about, rows(own));
        }
        text
    }

    #[test]
    fn documentation_has_every_table_and_column() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/query.md");
        let document = std::fs::read_to_string(path).unwrap();
        let (begin, end) = ("STRATA_UPDATE_DOCUMENTS=1 -->\n", "<!-- end -->");
        let from = document.find(begin).unwrap() + begin.len();
        let to = document.find(end).unwrap();
        let made = format!("\n{}", markdown());

        if std::env::var_os("STRATA_UPDATE_DOCUMENTS").is_some() {
            std::fs::write(path, format!("{}{made}{}", &document[..from], &document[to..])).unwrap();
            return;
        }
        assert_eq!(&document[from..to], made);
    }

    #[test]
    fn tables_name_reports_that_there_are() {
        let of_report = |table: &Fixed| table.about.split_once("as in `strata report").map(|(_, words)| words);
        let named: Vec<&str> = FIXED.iter().filter_map(of_report).map(|words| words.trim_matches([' ', '`'])).collect();

        let known: Vec<String> = REPORTS.iter().map(|report| report.words()).collect();

        assert!(named.len() > 5, "{named:?}");
        assert!(named.iter().all(|words| words.is_empty() || known.iter().any(|known| known == words)), "{named:?}");
    }

    /// The tables as the job on Spark reads them, one a line.
    fn job_tables() -> String {
        let line = |table: &Fixed| {
            let columns: Vec<_> = table.columns().map(|column| (column.name, column.kind.name())).collect();
            format!("    {:?}: {}", table.name, serde_json::json!(columns))
        };
        let tables: Vec<String> = FIXED.iter().map(line).collect();
        let parts: BTreeMap<_, _> = FIXED.iter().map(|table| (table.name, table.lead.part())).collect();
        let (always, parts) = (serde_json::json!(ALWAYS), serde_json::json!(parts));
        let tables = tables.join(",\n");
        format!(
            "{{\n  \"version\": {VERSION:?},\n  \"always\": {always},\n  \"parts\": {parts},\n  \
             \"tables\": {{\n{tables}\n  }}\n}}\n"
        )
    }

    #[test]
    fn job_on_spark_has_the_same_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/spark/tables.json");

        if std::env::var_os("STRATA_UPDATE_DOCUMENTS").is_some() {
            std::fs::write(path, job_tables()).unwrap();
            return;
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), job_tables());
    }

    #[test]
    fn columns_of_one_name_hold_the_same() {
        let mut kinds = std::collections::HashMap::new();

        for column in FIXED.iter().flat_map(Fixed::columns) {
            let known = *kinds.entry(column.name).or_insert(column.kind);
            assert_eq!(known, column.kind, "{}", column.name);
        }
    }

    #[test]
    fn no_table_has_two_columns_of_one_name() {
        for table in &FIXED {
            let mut names: Vec<&str> = table.columns().map(|column| column.name).collect();
            names.extend(PARTITIONS.map(|(name, _)| name));
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{}", table.name);
        }
    }
}
