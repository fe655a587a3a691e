//! What the records of a kernel say about the task that runs on their CPU.

use super::fields::{RenameFields, THREAD, TaskFields};
use super::{Rename, Task, Tid, name};
use strata_recording::reader::{StreamRecord, TraceLayer};
use strata_recording::schema::{IntegerField, Schema};

/// What a record says about the task that runs.
#[derive(Clone, Copy, Debug)]
pub enum Says<'t> {
    /// Who ran, and who runs now (`sched:sched_switch`).
    Switch {
        /// The task that ran.
        prev: Task<'t>,
        /// The task that runs from here on.
        next: Task<'t>,
    },
    /// A task has another name (`task:task_rename`).
    Rename(Rename<'t>),
}

/// What an event type says about the task that runs.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Switch(TaskFields, TaskFields),
    Rename(RenameFields),
}

impl Kind {
    #[inline(never)]
    fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<Says<'t>> {
        Some(match self {
            Self::Switch(prev, next) => Says::Switch { prev: prev.read(record)?, next: next.read(record)? },
            Self::Rename(fields) => Says::Rename(fields.read(record)?),
        })
    }
}

/// How the event types of a kernel's layer tell who runs. Reads no others, which most records are.
#[derive(Debug)]
pub struct RunnerEvents {
    /// By the event type's position in its layer.
    types: Vec<EventType>,
    /// What event types say about who runs; few say anything.
    kinds: Vec<Kind>,
}

/// What an event type tells.
#[derive(Clone, Copy, Debug)]
struct EventType {
    /// Index of what it says about who runs, where it says something.
    kind: Option<usize>,
    /// The thread that made the record, where it says so.
    recorded_by: Option<IntegerField>,
}

/// What the records of one type say.
#[derive(Clone, Copy, Debug)]
pub struct Told<'e> {
    kind: Option<&'e Kind>,
    recorded_by: Option<&'e IntegerField>,
}

impl Told<'_> {
    /// What `record` says about the task that runs; `None` where it says nothing.
    #[inline]
    #[must_use]
    pub fn runner<'t>(&self, record: &StreamRecord<'t>) -> Option<Says<'t>> {
        self.kind?.read(record)
    }

    /// Whether records like `record` name the thread that made them, and which it is.
    #[inline]
    #[must_use]
    pub fn recorded_by(&self, record: &StreamRecord<'_>) -> Option<Option<Tid>> {
        Some(self.recorded_by?.read(record.payload).and_then(|tid| Tid::try_from(tid).ok()))
    }
}

impl RunnerEvents {
    /// Those of `layer`, which is a kernel's.
    #[must_use]
    pub fn new(layer: &TraceLayer) -> Self {
        let kind = |schema: &Schema| {
            let task = |tid, comm| TaskFields::new(schema, tid, comm);
            match schema.name() {
                name::SWITCH => Some(Kind::Switch(task("prev_pid", "prev_comm")?, task("next_pid", "next_comm")?)),
                name::RENAME => RenameFields::new(schema).map(Kind::Rename),
                _ => None,
            }
        };
        let mut kinds = Vec::new();
        let event_type = |schema: &Schema| EventType {
            kind: kind(schema).map(|kind| {
                kinds.push(kind);
                kinds.len() - 1
            }),
            recorded_by: schema.integer(THREAD),
        };
        let types = layer.schemas.iter().map(event_type).collect();
        Self { types, kinds }
    }

    /// What records of the type of `record` tell.
    #[inline]
    #[must_use]
    pub fn of(&self, record: &StreamRecord<'_>) -> Told<'_> {
        let Some(EventType { kind, recorded_by }) = self.types.get(record.schema.position()) else {
            return Told { kind: None, recorded_by: None };
        };
        Told { kind: kind.and_then(|kind| self.kinds.get(kind)), recorded_by: recorded_by.as_ref() }
    }

    /// What `record` says about the task that runs; `None` where it says nothing.
    #[inline]
    #[must_use]
    pub fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<Says<'t>> {
        self.of(record).runner(record)
    }

    /// Whether records like `record` name the thread that made them, and which it is.
    #[inline]
    #[must_use]
    pub fn recorded_by(&self, record: &StreamRecord<'_>) -> Option<Option<Tid>> {
        self.of(record).recorded_by(record)
    }
}
