//! Which task runs on a kernel's CPU, by its records.

use super::fields::{RenameFields, THREAD, TaskFields};
use super::{Rename, Task, Tid, name};
use strata_recording::reader::{StreamRecord, TraceLayer};
use strata_recording::schema::{IntegerField, Schema};

/// A record that changes who runs, or its name.
#[derive(Clone, Copy, Debug)]
pub enum RunnerChange<'t> {
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

/// An event type of such records.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Switch(TaskFields, TaskFields),
    Rename(RenameFields),
}

impl Kind {
    #[inline(never)]
    fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<RunnerChange<'t>> {
        Some(match self {
            Self::Switch(prev, next) => RunnerChange::Switch { prev: prev.read(record)?, next: next.read(record)? },
            Self::Rename(fields) => RunnerChange::Rename(fields.read(record)?),
        })
    }
}

/// The event types of a kernel's layer that change who runs. Reads no others, which most records are.
#[derive(Debug)]
pub struct RunnerEvents {
    /// By the event type's position in its layer.
    types: Vec<EventType>,
    /// How those few are read.
    kinds: Vec<Kind>,
}

/// What is known of an event type.
#[derive(Clone, Copy, Debug)]
struct EventType {
    /// Index of how it is read, where it changes who runs.
    kind: Option<usize>,
    /// The thread that made the record, where the record names it.
    recorded_by: Option<IntegerField>,
}

/// How the records of one type are read.
#[derive(Clone, Copy, Debug)]
pub struct TypeReader<'e> {
    kind: Option<&'e Kind>,
    recorded_by: Option<&'e IntegerField>,
}

impl TypeReader<'_> {
    /// What `record` changes of the task that runs; `None` where that is nothing.
    #[inline]
    #[must_use]
    pub fn runner<'t>(&self, record: &StreamRecord<'t>) -> Option<RunnerChange<'t>> {
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

    /// How records of the type of `record` are read.
    #[inline]
    #[must_use]
    pub fn of(&self, record: &StreamRecord<'_>) -> TypeReader<'_> {
        let Some(EventType { kind, recorded_by }) = self.types.get(record.schema.position()) else {
            return TypeReader { kind: None, recorded_by: None };
        };
        TypeReader { kind: kind.and_then(|kind| self.kinds.get(kind)), recorded_by: recorded_by.as_ref() }
    }

    /// What `record` changes of the task that runs; `None` where that is nothing.
    #[inline]
    #[must_use]
    pub fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<RunnerChange<'t>> {
        self.of(record).runner(record)
    }

    /// Whether records like `record` name the thread that made them, and which it is.
    #[inline]
    #[must_use]
    pub fn recorded_by(&self, record: &StreamRecord<'_>) -> Option<Option<Tid>> {
        self.of(record).recorded_by(record)
    }
}
