//! What a flight recorder keeps of the host kernel's records: the last ones, up to a number of bytes, by class of
//! event.
//!
//! A guest causes as many of KVM's events as it likes: each instruction that leaves it is one. They are a class of
//! their own. When there are more bytes than there may be, the class that has more of them gives way, its oldest
//! records first: what a guest does takes half of the memory from all other events at most, and theirs is never less
//! than the other half.

use super::host_layer::{Item, create};
use shared_ring::event::EventDescription;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use trace_merge::event::is_kvms;
use trace_merge::manifest::{Layer, Manifest};
use trace_merge::writer::{LayerWriter, WriteError};

/// Bytes of a class that give way together.
const CHUNK: usize = 1 << 20;

/// The last records of the host's kernel, of all classes.
#[derive(Debug)]
pub(super) struct History {
    limit: usize,
    /// Bytes of all classes.
    bytes: usize,
    /// What a guest does not cause at will; nothing where only KVM's events are recorded.
    others: Option<Window>,
    /// KVM's events, if they are recorded.
    kvm: Option<Window>,
    /// By number of the event type: whether it is KVM's.
    is_kvms: Vec<bool>,
}

/// Records of a class, the oldest giving way in chunks.
#[derive(Debug, Default)]
struct Window {
    bytes: usize,
    /// Those that are full, oldest first.
    older: VecDeque<Chunk>,
    newest: Chunk,
    /// Records that gave way, by CPU.
    overwritten: BTreeMap<u32, u64>,
    /// What was lost and rejected before all that is left, by CPU.
    unrecorded: BTreeMap<u32, Unrecorded>,
}

#[derive(Debug, Default)]
struct Chunk {
    bytes: usize,
    entries: Vec<Entry>,
    payloads: Vec<u8>,
    /// What is not among the entries, each with the number of entries of the chunk before it and its CPU.
    unrecorded: Vec<(usize, u32, Unrecorded)>,
}

/// What came from a CPU and could not be kept. Without a count it says that something may be missing here, which
/// another class counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unrecorded {
    /// Records.
    lost: u64,
    /// Bytes.
    rejected: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    time: u64,
    cpu: u32,
    id: u16,
    /// A record of the kernel's is at most a page.
    size: u16,
}

impl History {
    /// Of `limit` bytes, of records of `events`.
    pub(super) fn new(limit: usize, events: &[EventDescription]) -> Self {
        let most = events.iter().map(|event| usize::from(event.id) + 1).max().unwrap_or(0);
        let mut of_kvm = vec![false; most];
        for event in events {
            if let Some(is_kvms_own) = of_kvm.get_mut(usize::from(event.id)) {
                *is_kvms_own = is_kvms(&event.name);
            }
        }
        let any_kvm = events.iter().any(|event| is_kvms(&event.name));
        let any_other = events.iter().any(|event| !is_kvms(&event.name));
        Self {
            limit,
            bytes: 0,
            others: (any_other || !any_kvm).then(Window::default),
            kvm: any_kvm.then(Window::default),
            is_kvms: of_kvm,
        }
    }

    /// Takes in what came.
    #[inline]
    pub(super) fn push(&mut self, item: Item<'_>) {
        let most = CHUNK.min(self.limit / 8);
        match item {
            Item::Lost { cpu, records } => self.note(cpu, Unrecorded { lost: records, rejected: 0 }),
            Item::Rejected { cpu, bytes } => self.note(cpu, Unrecorded { lost: 0, rejected: bytes }),
            Item::Record { cpu, payload, time, id } => match u16::try_from(payload.len()) {
                Ok(size) => {
                    let is_kvms = self.is_kvms.get(usize::from(id)).copied().unwrap_or(false);
                    let class = if is_kvms { &mut self.kvm } else { &mut self.others };
                    if let Some(window) = class {
                        let chunk = window.room_for(most, size_of::<Entry>() + payload.len());
                        chunk.entries.push(Entry { time, cpu, id, size });
                        chunk.payloads.extend_from_slice(payload);
                        self.bytes += size_of::<Entry>() + payload.len();
                    }
                }
                Err(_) => self.note(cpu, Unrecorded { lost: 0, rejected: payload.len() as u64 }),
            },
        }
        if self.bytes > self.limit {
            self.give_way();
        }
    }

    /// Keeps in mind that something is missing here, of whatever class. It is counted once.
    fn note(&mut self, cpu: u32, unrecorded: Unrecorded) {
        let most = CHUNK.min(self.limit / 8);
        let mut counted = unrecorded;
        for window in [&mut self.others, &mut self.kvm].into_iter().flatten() {
            let counted = std::mem::take(&mut counted);
            let chunk = window.room_for(most, size_of::<(usize, u32, Unrecorded)>());
            chunk.unrecorded.push((chunk.entries.len(), cpu, counted));
            self.bytes += size_of::<(usize, u32, Unrecorded)>();
        }
    }

    /// The class with the most bytes gives way while there are too many.
    #[cold]
    fn give_way(&mut self) {
        let bytes = |window: &Option<Window>| window.as_ref().map_or(0, |window| window.bytes);
        while self.bytes > self.limit {
            let larger = if bytes(&self.kvm) > bytes(&self.others) { &mut self.kvm } else { &mut self.others };
            let Some(freed) = larger.as_mut().and_then(Window::give_way) else { break };
            self.bytes -= freed;
        }
    }

    /// Writes each class as a layer of the recording `dir`; `is_corrupt` says whether reading ended early.
    pub(super) fn write(
        &self,
        dir: &Path,
        manifest: &Manifest,
        events: &[EventDescription],
        is_corrupt: bool,
    ) -> Vec<Result<Layer, WriteError>> {
        let of_class = |of_kvm: bool| events.iter().filter(|event| is_kvms(&event.name) == of_kvm).cloned().collect();
        let write = |(window, events): (&Window, Vec<EventDescription>)| {
            let mut writer = create(None, dir, manifest, &events)?;
            window.write(&mut writer)?;
            if is_corrupt {
                writer.set_corrupt();
            }
            Ok(writer.layer())
        };
        let classes = [(&self.others, false), (&self.kvm, true)];
        let windows = classes.into_iter().filter_map(|(window, of_kvm)| Some((window.as_ref()?, of_class(of_kvm))));
        windows.map(write).collect()
    }
}

impl Window {
    /// The chunk that the next `bytes` go into: the last one, unless it has `most` bytes.
    #[inline]
    fn room_for(&mut self, most: usize, bytes: usize) -> &mut Chunk {
        self.bytes += bytes;
        if self.newest.bytes >= most {
            self.older.push_back(std::mem::take(&mut self.newest));
        }
        self.newest.bytes += bytes;
        &mut self.newest
    }

    /// The oldest chunk gives way, but not the newest one; the bytes that it had.
    fn give_way(&mut self) -> Option<usize> {
        let oldest = self.older.pop_front()?;
        self.bytes -= oldest.bytes;
        for entry in &oldest.entries {
            *self.overwritten.entry(entry.cpu).or_default() += 1;
        }
        for &(_, cpu, Unrecorded { lost, rejected }) in &oldest.unrecorded {
            let total = self.unrecorded.entry(cpu).or_default();
            total.lost = total.lost.saturating_add(lost);
            total.rejected = total.rejected.saturating_add(rejected);
        }
        Some(oldest.bytes)
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.older.iter().chain([&self.newest])
    }

    fn write(&self, writer: &mut LayerWriter) -> Result<(), WriteError> {
        for (&cpu, counted) in &self.unrecorded {
            writer.add_lost(cpu, counted.lost);
            writer.add_rejected(cpu, counted.rejected);
        }
        // CPUs of which another class counts what is missing, since their last record.
        let mut gaps = BTreeSet::new();
        for chunk in self.chunks() {
            let mut payloads = chunk.payloads.as_slice();
            let mut unrecorded = chunk.unrecorded.iter().peekable();
            for (index, entry) in chunk.entries.iter().enumerate() {
                while let Some(&(_, cpu, unrecorded)) = unrecorded.next_if(|&&(before, ..)| before <= index) {
                    unrecorded.tell(cpu, writer, &mut gaps)?;
                }
                if !gaps.is_empty() && gaps.remove(&entry.cpu) {
                    writer.end_gap(entry.cpu, entry.time)?;
                }
                let (payload, rest) = payloads.split_at(usize::from(entry.size));
                payloads = rest;
                writer.record(entry.cpu, entry.time, entry.id, payload)?;
            }
            unrecorded.try_for_each(|&(_, cpu, unrecorded)| unrecorded.tell(cpu, writer, &mut gaps))?;
        }
        for cpu in gaps {
            writer.end_gap(cpu, 0)?;
        }
        for (&cpu, &records) in &self.overwritten {
            writer.set_overwritten(cpu, records);
        }
        writer.flush()
    }
}

impl Unrecorded {
    fn tell(self, cpu: u32, writer: &mut LayerWriter, gaps: &mut BTreeSet<u32>) -> Result<(), WriteError> {
        if self == Self::default() {
            gaps.insert(cpu);
            return writer.begin_gap(cpu);
        }
        if self.lost > 0 {
            writer.add_lost(cpu, self.lost);
        }
        if self.rejected > 0 {
            writer.add_rejected(cpu, self.rejected);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracing::recorder::tests::manifest;
    use proptest::prelude::*;
    use shared_ring::event::{FieldDescription, FieldType};
    use tempfile::TempDir;
    use trace_merge::merge::{Merge, Step};
    use trace_merge::reader::Trace;

    const SWITCH: u16 = 1;
    const EXIT: u16 = 2;
    const LIMIT: usize = 1 << 20;

    fn events() -> Vec<EventDescription> {
        let field = FieldDescription { name: "bytes".into(), ty: FieldType::CharArray(100), hex: false };
        let event = |id, name: &str| EventDescription { id, class: 0, name: name.into(), fields: vec![field.clone()] };
        vec![event(SWITCH, "sched:sched_switch"), event(EXIT, "kvm:kvm_exit")]
    }

    fn record(time: u64, id: u16) -> Item<'static> {
        Item::Record { cpu: 3, time, id, payload: &[7; 100] }
    }

    fn window(history: &History, id: u16) -> &Window {
        if id == EXIT { history.kvm.as_ref().unwrap() } else { history.others.as_ref().unwrap() }
    }

    fn times(history: &History, id: u16) -> Vec<u64> {
        window(history, id).chunks().flat_map(|chunk| chunk.entries.iter().map(|entry| entry.time)).collect()
    }

    /// A recording of what is in `history`.
    fn written(history: &History) -> (TempDir, Trace) {
        let dir = TempDir::new().unwrap();
        let layers = history.write(dir.path(), &manifest(), &events(), false);
        let layers = layers.into_iter().collect::<Result<_, _>>().unwrap();
        Manifest { layers, outcome: Some("stopped".into()), ..manifest() }.save(dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        (dir, trace)
    }

    /// What a layer of `trace` gives: times of records, and the gaps between them.
    fn steps(trace: &Trace, layer: usize) -> Vec<String> {
        let mut merge = Merge::new(trace.layers().get(layer), 0);
        let told = std::iter::from_fn(|| merge.next_step()).map(|step| match step {
            Step::Record(merged) => merged.record.time.to_string(),
            Step::GapBegin { .. } => "gap".into(),
            Step::GapEnd { .. } => "end".into(),
        });
        told.collect()
    }

    #[test]
    fn everything_is_kept_up_to_the_limit() {
        let mut history = History::new(LIMIT, &events());

        (0..2000).for_each(|time| history.push(record(time, if time % 4 == 0 { SWITCH } else { EXIT })));

        assert_eq!((times(&history, SWITCH).len(), times(&history, EXIT).len()), (500, 1500));
        assert!(window(&history, EXIT).overwritten.is_empty());
    }

    #[test]
    fn storm_of_exits_leaves_all_other_events_where_they_are() {
        let mut history = History::new(LIMIT, &events());
        (0..1000).for_each(|time| history.push(record(time, SWITCH)));

        (1000..1_000_000).for_each(|time| history.push(record(time, EXIT)));

        let exits = times(&history, EXIT);
        let bytes = window(&history, SWITCH).bytes + window(&history, EXIT).bytes;
        assert_eq!(times(&history, SWITCH), (0..1000).collect::<Vec<_>>());
        assert_eq!(exits.last(), Some(&999_999));
        assert_eq!(window(&history, EXIT).overwritten[&3], exits[0] - 1000);
        assert!(bytes <= LIMIT && exits.len() > 5000, "{bytes} bytes, {} exits", exits.len());
    }

    #[test]
    fn class_that_is_alone_has_all_of_the_memory() {
        let mut alone = History::new(LIMIT, &events()[1..]);
        let mut beside = History::new(LIMIT, &events());

        for history in [&mut alone, &mut beside] {
            (0..100_000).for_each(|time| history.push(record(time, EXIT)));
        }

        assert_eq!(times(&alone, EXIT), times(&beside, EXIT));
        assert!(alone.others.is_none());
        assert!(window(&alone, EXIT).bytes > LIMIT * 3 / 4);
    }

    #[test]
    fn classes_are_written_as_layers_that_begin_when_their_records_do() {
        let mut history = History::new(LIMIT, &events());
        (0..1000).for_each(|time| history.push(record(time, SWITCH)));
        (1000..50_000).for_each(|time| history.push(record(time, EXIT)));

        let (_dir, trace) = written(&history);

        let layers: Vec<_> = trace.layers().iter().map(|layer| layer.description.path.as_str()).collect();
        let late: Vec<_> = trace.layers().iter().map(|layer| layer.streams[0].begins_late()).collect();
        let events: Vec<_> = trace.layers().iter().map(|layer| layer.description.events[0].name.as_str()).collect();
        assert_eq!(layers, ["host-kernel", "host-kernel-2"]);
        assert_eq!(late, [false, true]);
        assert_eq!(events, ["sched:sched_switch", "kvm:kvm_exit"]);
        assert_eq!(steps(&trace, 0).len(), 1000);
        assert_eq!(steps(&trace, 1)[..2], ["gap", "end"]);
    }

    #[test]
    fn loss_is_a_gap_of_every_class_where_it_happened_and_counted_once() {
        let mut history = History::new(LIMIT, &events());
        history.push(record(10, SWITCH));
        history.push(record(11, EXIT));
        history.push(Item::Lost { cpu: 3, records: 2 });
        history.push(record(20, EXIT));
        history.push(record(21, SWITCH));
        history.push(Item::Rejected { cpu: 3, bytes: 8 });
        history.push(record(30, EXIT));
        history.push(record(31, SWITCH));

        let (_dir, trace) = written(&history);

        let lost = trace.layers().iter().map(|layer| {
            let stream = &layer.streams[0].description;
            (stream.lost.total(), stream.rejected_bytes)
        });
        assert_eq!(lost.collect::<Vec<_>>(), [(2, 8), (0, 0)]);
        assert_eq!(steps(&trace, 1), ["11", "gap", "end", "20", "gap", "end", "30"]);
        let others = steps(&trace, 0).join(" ");
        assert!(others.contains("10 gap end 21 gap end 31"), "{others}");
    }

    #[test]
    fn loss_that_gave_way_with_its_records_is_written_at_the_beginning() {
        let mut history = History::new(LIMIT, &events());

        history.push(record(1, SWITCH));
        history.push(Item::Lost { cpu: 3, records: 2 });
        (2..100_000).for_each(|time| history.push(record(time, SWITCH)));

        let (_dir, trace) = written(&history);
        let others = steps(&trace, 0);
        assert_eq!(trace.layers()[0].streams[0].description.lost.total(), 2);
        assert_eq!(others[..2], ["gap", "end"]);
    }

    proptest! {
        /// Whatever comes: the limit holds, each record is kept or counted, and a class gives way only from half of the
        /// memory on.
        #[test]
        fn each_record_is_kept_or_counted(runs in proptest::collection::vec((any::<bool>(), 1..3000_u64), 1..40)) {
            let mut history = History::new(LIMIT, &events());
            let (mut time, mut pushed) = (0, [0, 0]);
            for (is_exit, count) in runs {
                for _ in 0..count {
                    history.push(record(time, if is_exit { EXIT } else { SWITCH }));
                    time += 1;
                }
                pushed[usize::from(is_exit)] += count;
            }

            for (id, pushed) in [SWITCH, EXIT].into_iter().zip(pushed) {
                let window = window(&history, id);
                let overwritten = window.overwritten.get(&3).copied().unwrap_or(0);
                prop_assert_eq!(times(&history, id).len() as u64 + overwritten, pushed);
                prop_assert!(overwritten == 0 || window.bytes + LIMIT / 8 + 200 >= LIMIT / 2);
            }
            prop_assert!(window(&history, SWITCH).bytes + window(&history, EXIT).bytes <= LIMIT);
        }
    }
}
