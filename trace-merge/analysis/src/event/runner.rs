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
    /// By the event type's position in its layer; few of them say anything.
    kinds: Vec<Option<Kind>>,
    /// By the event type's position: the thread that made the record, where it says so.
    recorded_by: Vec<Option<IntegerField>>,
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
        let schemas = || layer.schemas.iter();
        Self {
            kinds: schemas().map(kind).collect(),
            recorded_by: schemas().map(|schema| schema.integer(THREAD)).collect(),
        }
    }

    /// What `record` says about the task that runs; `None` where it says nothing.
    #[inline]
    pub fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<Says<'t>> {
        self.kinds.get(record.schema.position())?.as_ref()?.read(record)
    }

    /// Whether records like `record` name the thread that made them, and which it is.
    #[inline]
    #[must_use]
    pub fn recorded_by(&self, record: &StreamRecord<'_>) -> Option<Option<Tid>> {
        let field = self.recorded_by.get(record.schema.position())?.as_ref()?;
        Some(field.read(record.payload).and_then(|tid| Tid::try_from(tid).ok()))
    }
}
