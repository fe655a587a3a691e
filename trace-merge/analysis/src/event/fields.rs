//! The fields of event types: where each lies is found out once, and it is read there from each record.

use super::{BlockRequest, FoundTask, Rename, Task};
use strata_recording::reader::StreamRecord;
use strata_recording::schema::{IntegerField, Schema, Value, up_to_zero};

/// The field of the host's events that names the thread which records them.
pub(super) const THREAD: &str = "common_pid";

/// A field that is found at once where it can be, and by walking where a field before it varies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number {
    index: usize,
    fixed: Option<IntegerField>,
}

impl Number {
    pub(super) fn new(schema: &Schema, names: &[&str]) -> Option<Self> {
        let fields = &schema.description().fields;
        let name = names.iter().find(|&name| fields.iter().any(|field| field.name == *name))?;
        let index = fields.iter().position(|field| field.name == *name)?;
        Some(Self { index, fixed: schema.integer(name) })
    }

    /// The number, where 64 bits with a sign can hold it.
    #[inline]
    pub(super) fn read(&self, record: &StreamRecord<'_>) -> Option<i64> {
        match self.fixed {
            Some(fixed) => fixed.read(record.payload),
            None => match self.walk(record)? {
                Value::Unsigned(number) => i64::try_from(number).ok(),
                Value::Signed(number) => Some(number),
                _ => None,
            },
        }
    }

    #[inline(never)]
    fn walk<'t>(&self, record: &StreamRecord<'t>) -> Option<Value<'t>> {
        record.schema.fields(record.payload).nth(self.index).map(|(_, value)| value)
    }

    #[inline]
    pub(super) fn as_i32(&self, record: &StreamRecord<'_>) -> Option<i32> {
        i32::try_from(self.read(record)?).ok()
    }

    #[inline]
    pub(super) fn as_u32(&self, record: &StreamRecord<'_>) -> Option<u32> {
        u32::try_from(self.read(record)?).ok()
    }

    /// The number's bits.
    #[inline]
    pub(super) fn as_bits(&self, record: &StreamRecord<'_>) -> Option<u64> {
        match self.fixed {
            Some(fixed) => fixed.bits(record.payload),
            None => match self.walk(record)? {
                Value::Unsigned(number) => Some(number),
                Value::Signed(number) => Some(number.cast_unsigned()),
                _ => None,
            },
        }
    }

    #[inline]
    pub(super) fn as_i64(&self, record: &StreamRecord<'_>) -> Option<i64> {
        Some(self.as_bits(record)?.cast_signed())
    }
}

/// A text field: in its place where no field before it varies.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextField {
    index: usize,
    /// Offset and size, bytes.
    fixed: Option<(usize, usize)>,
}

impl TextField {
    pub(super) fn new(schema: &Schema, name: &str) -> Option<Self> {
        let fields = &schema.description().fields;
        let index = fields.iter().position(|field| field.name == name)?;
        let size = fields.get(index)?.ty.fixed_size();
        let offset = fields.get(..index)?.iter().map(|field| field.ty.size_in_place()).sum::<Option<usize>>();
        Some(Self { index, fixed: offset.zip(size) })
    }

    #[inline]
    pub(super) fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<&'t [u8]> {
        if let Some((offset, size)) = self.fixed {
            return record.payload.get(offset..offset + size).map(up_to_zero);
        }
        match record.schema.fields(record.payload).nth(self.index)?.1 {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Where a task's id and name lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskFields {
    pub(super) tid: Number,
    comm: Option<TextField>,
}

impl TaskFields {
    pub(super) fn new(schema: &Schema, tid: &str, comm: &str) -> Option<Self> {
        Some(Self { tid: Number::new(schema, &[tid])?, comm: TextField::new(schema, comm) })
    }

    #[inline]
    pub(super) fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<Task<'t>> {
        let comm = self.comm.and_then(|comm| comm.read(record)).unwrap_or_default();
        Some(Task { tid: self.tid.as_i32(record)?, comm })
    }

    /// The same without the name.
    pub(super) const fn without_name(self) -> Self {
        Self { comm: None, ..self }
    }

    /// The name alone, zeros where there is none. What is behind its first zero means nothing.
    #[inline]
    pub(super) fn name(&self, record: &StreamRecord<'_>) -> [u8; 16] {
        let Some(comm) = self.comm else { return [0; 16] };
        let whole = comm.fixed.and_then(|(offset, size)| record.payload.get(offset..offset + size)?.try_into().ok());
        whole.unwrap_or_else(|| {
            let mut name = [0; 16];
            name.iter_mut().zip(comm.read(record).unwrap_or_default()).for_each(|(to, from)| *to = *from);
            name
        })
    }
}

/// Where the fields of `task:task_rename` lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct RenameFields {
    tid: Option<Number>,
    before: TextField,
    after: TextField,
}

impl RenameFields {
    pub(super) fn new(schema: &Schema) -> Option<Self> {
        let text = |name| TextField::new(schema, name);
        Some(Self { tid: Number::new(schema, &["pid"]), before: text("oldcomm")?, after: text("newcomm")? })
    }

    #[inline]
    pub(super) fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<Rename<'t>> {
        let tid = match self.tid {
            Some(tid) => Some(tid.as_i32(record)?),
            None => None,
        };
        Some(Rename { tid, before: self.before.read(record)?, after: self.after.read(record)? })
    }
}

/// Where the fields of `block:block_rq_*` lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockFields {
    thread: Option<Number>,
    device: Option<Number>,
    sector: Option<Number>,
    sectors: Option<Number>,
    flags: Option<TextField>,
}

impl BlockFields {
    pub(super) fn new(schema: &Schema) -> Self {
        let number = |name| Number::new(schema, &[name]);
        Self {
            thread: number(THREAD),
            device: number("dev"),
            sector: number("sector"),
            sectors: number("nr_sector"),
            flags: TextField::new(schema, "rwbs"),
        }
    }

    pub(super) fn read<'t>(&self, record: &StreamRecord<'t>) -> BlockRequest<'t> {
        let bits = |field: Option<Number>| field?.as_bits(record);
        BlockRequest {
            thread: self.thread.and_then(|thread| thread.as_i32(record)),
            device: bits(self.device),
            sector: bits(self.sector),
            sectors: bits(self.sectors),
            flags: self.flags.and_then(|flags| flags.read(record)),
        }
    }
}

/// Where the fields of `strata:task` lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundFields {
    tid: Number,
    process: Number,
    own_tid: Number,
    own_process: Number,
    level: Number,
    namespace: Number,
    cgroup: Option<Number>,
    is_new: Number,
}

impl FoundFields {
    pub(super) fn new(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        Some(Self {
            tid: number("tid")?,
            process: number("pid")?,
            own_tid: number("vtid")?,
            own_process: number("vpid")?,
            level: number("ns_level")?,
            namespace: number("ns_inum")?,
            cgroup: number("cgroup"),
            is_new: number("is_new")?,
        })
    }

    pub(super) fn read(&self, record: &StreamRecord<'_>) -> Option<FoundTask> {
        Some(FoundTask {
            tid: self.tid.as_i32(record)?,
            process: self.process.as_i32(record)?,
            own_tid: self.own_tid.as_i32(record)?,
            own_process: self.own_process.as_i32(record)?,
            level: self.level.as_u32(record)?,
            namespace: self.namespace.as_u32(record)?,
            cgroup: self.cgroup.and_then(|cgroup| cgroup.as_bits(record)),
            is_new: self.is_new.as_bits(record)? != 0,
        })
    }
}
