//! What a flight recorder keeps of the host kernel's records: the last ones, up to a number of bytes, by class of
//! event.
//!
//! A guest causes as many of KVM's events as it likes: each instruction that leaves it is one. They are a class of
//! their own. When there are more bytes than there may be, the class that has more of them gives way, its oldest
//! records first, a chunk at a time: what a guest does takes half of the memory and a chunk from all other events at
//! most.
//!
//! With a file, what is kept lies there and not in memory, but for the chunk of each class that is being filled. The
//! file outlives the process: what was kept when it died is [`recovered`] from it.

mod file;
mod frame;

use crate::layer::host_records::{Item, create};
use file::HistoryFile;
use frame::{Frame, Gone, append_check, confirmed, frames};
use shared_ring::event::EventDescription;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::Path;
use strata_analysis::event::is_kvms;
use strata_recording::manifest::{Layer, Manifest};
use strata_recording::writer::{LayerWriter, WriteError};

/// Bytes of a class that give way together.
const CHUNK: usize = 1 << 20;
/// Most bytes of a frame, which a chunk that has nearly all of its own may get in addition: a record of the kernel's is
/// at most a page.
const MOST_FRAME: usize = 64 << 10;
/// The classes, by their numbers in the file.
const OTHERS: u32 = 0;
const KVM: u32 = 1;

/// The last records of the host's kernel, of all classes.
#[derive(Debug)]
pub(crate) struct History {
    limit: usize,
    /// Bytes of all classes.
    bytes: usize,
    /// What a guest does not cause at will; nothing where only KVM's events are recorded.
    others: Option<Window>,
    /// KVM's events, if they are recorded.
    kvm: Option<Window>,
    /// By number of the event type: whether it is KVM's.
    is_kvms: Vec<bool>,
    /// Where it outlives the process.
    file: Option<HistoryFile>,
    /// Why that file is not written any more.
    failed: Option<io::Error>,
}

/// Records of a class, the oldest giving way in chunks.
#[derive(Debug)]
struct Window {
    class: u32,
    bytes: usize,
    /// Those that are full, oldest first.
    older: VecDeque<Chunk>,
    newest: Chunk,
    /// What was before all that is left, by CPU.
    gone: BTreeMap<u32, Gone>,
}

#[derive(Debug, Default)]
struct Chunk {
    /// Bytes of its frames.
    size: usize,
    /// Its frames; nothing where they lie in the file alone.
    bytes: Vec<u8>,
    /// Its slot in the file.
    slot: Option<u32>,
    /// Bytes that lie there.
    saved: usize,
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

impl History {
    /// Of `limit` bytes, of records of `events`; in the empty `file`, if there is one, which outlives the process.
    pub(crate) fn new(limit: usize, events: &[EventDescription], file: Option<File>) -> Self {
        let most = events.iter().map(|event| usize::from(event.id) + 1).max().unwrap_or(0);
        let mut of_kvm = vec![false; most];
        for event in events {
            if let Some(is_kvms_own) = of_kvm.get_mut(usize::from(event.id)) {
                *is_kvms_own = is_kvms(&event.name);
            }
        }
        let any_kvm = events.iter().any(|event| is_kvms(&event.name));
        let any_other = events.iter().any(|event| !is_kvms(&event.name));
        // those that are full, and of each class the newest and what it grows by before the oldest gives way
        let chunks = limit / most_of_chunk(limit).max(1) + 4;
        let begin = |file| HistoryFile::begin(file, most_of_chunk(limit) + MOST_FRAME, chunks, events);
        let begun = file.map(begin).transpose();
        let (file, failed) = match begun {
            Ok(file) => (file, None),
            Err(error) => (None, Some(error)),
        };
        Self {
            limit,
            bytes: 0,
            others: (any_other || !any_kvm).then(|| Window::new(OTHERS)),
            kvm: any_kvm.then(|| Window::new(KVM)),
            is_kvms: of_kvm,
            file,
            failed,
        }
    }

    /// Takes in what came.
    #[inline]
    pub(crate) fn push(&mut self, item: Item<'_>) {
        match item {
            Item::Lost { cpu, records } => self.note(cpu, Unrecorded { lost: records, rejected: 0 }),
            Item::Rejected { cpu, bytes } => self.note(cpu, Unrecorded { lost: 0, rejected: bytes }),
            Item::Record { cpu, payload, .. } if !Frame::holds(payload.len()) => {
                self.note(cpu, Unrecorded { lost: 0, rejected: payload.len() as u64 });
            }
            Item::Record { cpu, payload, time, id } => {
                let is_kvms = self.is_kvms.get(usize::from(id)).copied().unwrap_or(false);
                self.keep(is_kvms, &Frame::Record { time, cpu, id, payload });
            }
            Item::Gap { cpu, begins } => {
                for is_kvms in [false, true] {
                    self.keep(is_kvms, &Frame::Gap { cpu, begins });
                }
            }
        }
        if self.bytes > self.limit {
            self.give_way();
        }
    }

    /// Keeps `frame` in its class, if that is recorded.
    #[inline]
    fn keep(&mut self, is_kvms: bool, frame: &Frame<'_>) {
        let class = if is_kvms { &mut self.kvm } else { &mut self.others };
        if let Some(window) = class {
            if window.newest.size >= most_of_chunk(self.limit) {
                self.bytes += window.begin_chunk(&mut self.file, &mut self.failed);
            }
            frame.append(&mut window.newest.bytes);
            window.newest.size += frame.size();
            window.bytes += frame.size();
            self.bytes += frame.size();
        }
    }

    /// Keeps in mind that something is missing here, of whatever class. It is counted once.
    fn note(&mut self, cpu: u32, unrecorded: Unrecorded) {
        let of_kvm = if self.others.is_some() { Unrecorded::default() } else { unrecorded };
        self.keep(false, &Frame::Unrecorded { cpu, unrecorded });
        self.keep(true, &Frame::Unrecorded { cpu, unrecorded: of_kvm });
    }

    /// The class with the most bytes gives way while there are too many.
    #[cold]
    fn give_way(&mut self) {
        let bytes = |window: &Option<Window>| window.as_ref().map_or(0, |window| window.bytes);
        while self.bytes > self.limit {
            let is_kvms = bytes(&self.kvm) > bytes(&self.others);
            let larger = if is_kvms { &mut self.kvm } else { &mut self.others };
            let Some((freed, gone)) = larger.as_mut().and_then(|window| window.give_way(&mut self.file)) else { break };
            self.bytes -= freed;
            if self.file.is_some() {
                gone.into_iter().for_each(|(cpu, gone)| self.keep(is_kvms, &Frame::Gone { cpu, gone }));
            }
        }
    }

    /// Lets all that was taken in so far outlive the process.
    pub(crate) fn save(&mut self) {
        for window in [&mut self.others, &mut self.kvm].into_iter().flatten() {
            self.bytes += window.save(&mut self.file, &mut self.failed);
        }
    }

    /// Why what is taken in does not outlive the process any more; once.
    pub(crate) fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Writes each class as a layer of the recording `dir`; `is_corrupt` says whether reading ended early. Calls
    /// `meanwhile` behind each chunk.
    pub(crate) fn write(
        &self,
        dir: &Path,
        manifest: &Manifest,
        events: &[EventDescription],
        is_corrupt: bool,
        meanwhile: &mut dyn FnMut(),
    ) -> Vec<Result<Layer, WriteError>> {
        let of_class = |of_kvm: bool| events.iter().filter(|event| is_kvms(&event.name) == of_kvm).cloned().collect();
        let write = |(window, events): (&Window, Vec<EventDescription>)| {
            let mut writer = create(None, dir, manifest, &events)?;
            window.write(&mut writer, self.file.as_ref(), meanwhile)?;
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

/// Bytes that a chunk has at least before the next one begins.
const fn most_of_chunk(limit: usize) -> usize {
    if limit / 8 < CHUNK { limit / 8 } else { CHUNK }
}

/// Writes what a process that died has left in the file of its history as layers of the recording `dir`, one for each
/// class of events.
///
/// # Errors
/// When it is not such a file, or cannot be read.
pub fn recovered(file: &File, dir: &Path, manifest: &Manifest) -> io::Result<Vec<Result<Layer, WriteError>>> {
    let (events, chunks) = file::found(file)?;
    let mut history = History::new(usize::MAX, &events, None);
    for found in chunks {
        let window = if found.class == KVM { &mut history.kvm } else { &mut history.others };
        let Some(window) = window else { continue };
        let mut bytes = found.bytes;
        let left = confirmed(&bytes);
        let mut size = 0;
        for frame in frames(bytes.get(..left).unwrap_or_default()) {
            match frame {
                Frame::Gone { cpu, gone } => drop(window.gone.insert(cpu, gone)),
                // what no trace can tell is damage, and nothing behind it is known
                Frame::Record { time, .. } if time > manifest.clock.last_ticks() => break,
                _ => {}
            }
            size += frame.size();
        }
        let is_cut = size < bytes.len();
        bytes.truncate(size);
        window.older.push_back(Chunk { size, bytes, ..Chunk::default() });
        if is_cut {
            window.cut();
        }
    }
    // what came between the last look and the death is not there
    let ends_early = true;
    Ok(history.write(dir, manifest, &events, ends_early, &mut || {}))
}

impl Window {
    const fn new(class: u32) -> Self {
        let newest = Chunk { size: 0, bytes: Vec::new(), slot: None, saved: 0 };
        Self { class, bytes: 0, older: VecDeque::new(), newest, gone: BTreeMap::new() }
    }

    /// The newest chunk is full: it lies in the file alone from now on, if there is one. Returns the bytes of its check.
    #[cold]
    fn begin_chunk(&mut self, file: &mut Option<HistoryFile>, failed: &mut Option<io::Error>) -> usize {
        let check = self.save(file, failed);
        let mut full = std::mem::take(&mut self.newest);
        if full.slot.is_some() && full.saved == full.size {
            self.newest.bytes = std::mem::take(&mut full.bytes);
            self.newest.bytes.clear();
        }
        self.older.push_back(full);
        check
    }

    /// What was behind all that is there now, of whatever CPU, is not there.
    fn cut(&mut self) {
        let mut cpus: BTreeSet<u32> = self.gone.keys().copied().collect();
        for frame in self.older.iter().flat_map(|chunk| frames(&chunk.bytes)) {
            if let Frame::Record { cpu, .. } | Frame::Unrecorded { cpu, .. } = frame {
                cpus.insert(cpu);
            }
        }
        let mut gaps = Chunk::default();
        for cpu in cpus {
            Frame::Unrecorded { cpu, unrecorded: Unrecorded::default() }.append(&mut gaps.bytes);
        }
        self.older.push_back(gaps);
    }

    /// Writes what is new in the newest chunk into the file, with a check of it; returns the bytes of the check. Where
    /// that fails, nothing is written any more: what lies there can be read, and what comes is kept in memory.
    fn save(&mut self, file: &mut Option<HistoryFile>, failed: &mut Option<io::Error>) -> usize {
        let chunk = &mut self.newest;
        let Some(file) = file.as_mut().filter(|file| file.is_written() && chunk.saved < chunk.size) else { return 0 };
        append_check(&mut chunk.bytes, chunk.saved);
        let check = chunk.bytes.len() - chunk.size;
        chunk.size += check;
        self.bytes += check;
        let mut save = || {
            let slot = match chunk.slot {
                Some(slot) => slot,
                None => *chunk.slot.insert(file.begin_chunk(self.class)?),
            };
            file.save(slot, &chunk.bytes, chunk.saved)?;
            chunk.saved = chunk.size;
            Ok(())
        };
        if let Err(error) = save() {
            file.end();
            *failed = Some(error);
        }
        check
    }

    /// The oldest chunk gives way, but not the newest one: the bytes that it had, and what has given way so far of the
    /// CPUs that it had something of, which may be no more than such a note.
    fn give_way(&mut self, file: &mut Option<HistoryFile>) -> Option<(usize, Vec<(u32, Gone)>)> {
        let oldest = self.older.pop_front()?;
        self.bytes -= oldest.size;
        let mut cpus = BTreeSet::new();
        // what cannot be read is not counted, and was reported when it was written
        let bytes = oldest.read(file.as_ref()).unwrap_or_default();
        for frame in frames(&bytes) {
            let (Frame::Record { cpu, .. }
            | Frame::Unrecorded { cpu, .. }
            | Frame::Gap { cpu, .. }
            | Frame::Gone { cpu, .. }) = frame
            else {
                continue;
            };
            let total = self.gone.entry(cpu).or_default();
            match frame {
                Frame::Record { .. } => total.records += 1,
                Frame::Unrecorded { unrecorded: Unrecorded { lost, rejected }, .. } => {
                    total.unrecorded.lost = total.unrecorded.lost.saturating_add(lost);
                    total.unrecorded.rejected = total.unrecorded.rejected.saturating_add(rejected);
                }
                Frame::Gap { begins, .. } => total.in_gap = begins,
                Frame::Gone { .. } | Frame::Check { .. } => {}
            }
            cpus.insert(cpu);
        }
        if let Some((file, slot)) = file.as_mut().zip(oldest.slot) {
            file.free(slot);
        }
        let gone = cpus.into_iter().filter_map(|cpu| Some((cpu, *self.gone.get(&cpu)?)));
        Some((oldest.size, gone.collect()))
    }

    fn write(
        &self,
        writer: &mut LayerWriter,
        file: Option<&HistoryFile>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), WriteError> {
        for (&cpu, Gone { unrecorded, .. }) in &self.gone {
            writer.add_lost(cpu, unrecorded.lost);
            writer.add_rejected(cpu, unrecorded.rejected);
        }
        // CPUs in a gap that ends with their next record: its end was told, or another class counts what is missing.
        let mut gaps = BTreeSet::new();
        // Time of the youngest record, of whatever CPU.
        let mut latest: Option<u64> = None;
        // CPUs in a gap whose end is told; and those of them of whose gap only what gave way was there so far.
        let in_gap = self.gone.iter().filter(|(_, gone)| gone.in_gap);
        let mut open: BTreeSet<u32> = in_gap.map(|(&cpu, _)| cpu).collect();
        let mut begun_before = open.clone();
        for chunk in self.older.iter().chain([&self.newest]) {
            let Ok(bytes) = chunk.read(file) else {
                writer.set_corrupt();
                continue;
            };
            for frame in frames(&bytes) {
                match frame {
                    Frame::Record { time, cpu, id, payload } => {
                        if !gaps.is_empty() && gaps.remove(&cpu) {
                            writer.end_gap(cpu, Some(time))?;
                        }
                        if !begun_before.is_empty() && begun_before.remove(&cpu) {
                            writer.begin_gap(cpu)?;
                        }
                        writer.record(cpu, time, id, payload)?;
                        latest = latest.max(Some(time));
                    }
                    Frame::Unrecorded { cpu, unrecorded }
                        if unrecorded == Unrecorded::default() && open.contains(&cpu) => {}
                    Frame::Unrecorded { cpu, unrecorded } => unrecorded.report(cpu, writer, &mut gaps)?,
                    Frame::Gap { cpu, begins: true } => {
                        gaps.remove(&cpu);
                        begun_before.remove(&cpu);
                        open.insert(cpu);
                        writer.begin_gap(cpu)?;
                    }
                    Frame::Gap { cpu, begins: false } if open.remove(&cpu) && !begun_before.remove(&cpu) => {
                        gaps.insert(cpu);
                    }
                    // Where nothing is left of it there is nothing to end.
                    Frame::Gap { .. } => {}
                    Frame::Gone { .. } | Frame::Check { .. } => {}
                }
            }
            meanwhile();
        }
        for cpu in gaps.into_iter().chain(open.into_iter().filter(|cpu| !begun_before.contains(cpu))) {
            writer.end_gap(cpu, latest)?;
        }
        for (&cpu, gone) in self.gone.iter().filter(|(_, gone)| gone.records > 0) {
            writer.set_overwritten(cpu, gone.records);
        }
        writer.flush()
    }
}

impl Chunk {
    /// Its frames, from memory or out of the file.
    fn read(&self, file: Option<&HistoryFile>) -> io::Result<Cow<'_, [u8]>> {
        match (file, self.slot) {
            (Some(file), Some(slot)) if self.bytes.is_empty() => file.read(slot, self.size).map(Cow::Owned),
            _ => Ok(Cow::Borrowed(&self.bytes)),
        }
    }
}

impl Unrecorded {
    fn report(self, cpu: u32, writer: &mut LayerWriter, gaps: &mut BTreeSet<u32>) -> Result<(), WriteError> {
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
pub(crate) mod tests {
    use super::*;
    use crate::recorder::tests::manifest;
    use proptest::prelude::*;
    use shared_ring::event::{FieldDescription, FieldType};
    use std::os::unix::fs::FileExt;
    use strata_recording::reader::Trace;
    use strata_recording::reader::merge::{Merge, Step};
    use tempfile::TempDir;

    const SWITCH: u16 = 1;
    const EXIT: u16 = 2;
    const LIMIT: usize = 1 << 20;

    fn events() -> Vec<EventDescription> {
        let field = FieldDescription { name: "bytes".into(), ty: FieldType::CharArray(100), hex: false };
        let event = |id, name: &str| EventDescription { id, class: 0, name: name.into(), fields: vec![field.clone()] };
        vec![event(SWITCH, "sched:sched_switch"), event(EXIT, "kvm:kvm_exit")]
    }

    /// Leaves records of these times in the empty `file`, as a process that died.
    pub(crate) fn leave(file: File, times: impl IntoIterator<Item = u64>) {
        let mut history = History::new(LIMIT, &events(), Some(file));
        times.into_iter().for_each(|time| history.push(record(time, SWITCH)));
        history.save();
    }

    fn record(time: u64, id: u16) -> Item<'static> {
        Item::Record { cpu: 3, time, id, payload: &[7; 100] }
    }

    fn window(history: &History, id: u16) -> &Window {
        if id == EXIT { history.kvm.as_ref().unwrap() } else { history.others.as_ref().unwrap() }
    }

    fn times(history: &History, id: u16) -> Vec<u64> {
        let window = window(history, id);
        let chunks = window.older.iter().chain([&window.newest]);
        let bytes: Vec<u8> = chunks.flat_map(|chunk| chunk.read(history.file.as_ref()).unwrap().into_owned()).collect();
        let time = |frame| if let Frame::Record { time, .. } = frame { Some(time) } else { None };
        frames(&bytes).filter_map(time).collect()
    }

    /// A recording of what is in `history`.
    fn written(history: &History) -> (TempDir, Trace) {
        written_until(history, false)
    }

    /// As [`written`], of a layer that ends early or not.
    fn written_until(history: &History, ends_early: bool) -> (TempDir, Trace) {
        let dir = TempDir::new().unwrap();
        let layers = history.write(dir.path(), &manifest(), &events(), ends_early, &mut || {});
        opened(dir, layers)
    }

    /// A recording of what `file` holds after the death of who wrote it.
    fn left(file: &File) -> (TempDir, Trace) {
        let dir = TempDir::new().unwrap();
        let layers = recovered(file, dir.path(), &manifest()).unwrap();
        opened(dir, layers)
    }

    fn opened(dir: TempDir, layers: Vec<Result<Layer, WriteError>>) -> (TempDir, Trace) {
        let layers = layers.into_iter().collect::<Result<_, _>>().unwrap();
        Manifest { layers, outcome: Some("stopped".into()), ..manifest() }.save(dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        (dir, trace)
    }

    /// What a layer of `trace` gives: times of records, and the gaps between them.
    fn steps(trace: &Trace, layer: usize) -> Vec<String> {
        let mut merge = Merge::new(trace.layers().get(layer), 0);
        let reported = std::iter::from_fn(|| merge.next_step()).map(|step| match step {
            Step::Record(merged) => merged.record.time.to_string(),
            Step::GapBegin { .. } => "gap".into(),
            Step::GapEnd { .. } => "end".into(),
        });
        reported.collect()
    }

    #[test]
    fn everything_is_kept_up_to_the_limit() {
        let mut history = History::new(LIMIT, &events(), None);

        (0..2000).for_each(|time| history.push(record(time, if time % 4 == 0 { SWITCH } else { EXIT })));

        assert_eq!((times(&history, SWITCH).len(), times(&history, EXIT).len()), (500, 1500));
        assert!(window(&history, EXIT).gone.is_empty());
    }

    #[test]
    fn storm_of_exits_leaves_all_other_events_where_they_are() {
        let mut history = History::new(LIMIT, &events(), None);
        (0..1000).for_each(|time| history.push(record(time, SWITCH)));

        (1000..1_000_000).for_each(|time| history.push(record(time, EXIT)));

        let exits = times(&history, EXIT);
        let bytes = window(&history, SWITCH).bytes + window(&history, EXIT).bytes;
        assert_eq!(times(&history, SWITCH), (0..1000).collect::<Vec<_>>());
        assert_eq!(exits.last(), Some(&999_999));
        assert_eq!(window(&history, EXIT).gone[&3].records, exits[0] - 1000);
        assert!(bytes <= LIMIT && exits.len() > 5000, "{bytes} bytes, {} exits", exits.len());
    }

    #[test]
    fn class_that_is_alone_has_all_of_the_memory() {
        let mut alone = History::new(LIMIT, &events()[1..], None);
        let mut beside = History::new(LIMIT, &events(), None);

        for history in [&mut alone, &mut beside] {
            (0..100_000).for_each(|time| history.push(record(time, EXIT)));
        }

        assert_eq!(times(&alone, EXIT), times(&beside, EXIT));
        assert!(alone.others.is_none());
        assert!(window(&alone, EXIT).bytes > LIMIT * 3 / 4);
    }

    #[test]
    fn classes_are_written_as_layers_that_begin_when_their_records_do() {
        let mut history = History::new(LIMIT, &events(), None);
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
        let mut history = History::new(LIMIT, &events(), None);
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
    fn records_between_the_edges_of_a_gap_lie_in_it() {
        let mut history = History::new(LIMIT, &events(), None);
        history.push(record(10, EXIT));
        history.push(Item::Lost { cpu: 3, records: 2 });
        history.push(Item::Gap { cpu: 3, begins: true });
        history.push(record(20, EXIT));
        history.push(record(21, EXIT));
        history.push(Item::Gap { cpu: 3, begins: false });
        history.push(record(30, EXIT));
        history.push(record(31, EXIT));

        let (_dir, trace) = written(&history);

        let expected = ["10", "gap", "end", "20", "gap", "end", "21", "gap", "end", "30", "31"];
        assert_eq!(steps(&trace, 1), expected);
    }

    #[test]
    fn gap_before_the_first_record_of_a_class_lies_at_that_record() {
        let mut history = History::new(LIMIT, &events(), None);
        history.push(record(10, SWITCH));
        history.push(Item::Lost { cpu: 3, records: 2 });
        history.push(Item::Gap { cpu: 3, begins: true });
        history.push(record(20, SWITCH));
        history.push(Item::Gap { cpu: 3, begins: false });
        history.push(record(30, EXIT));

        let (_dir, trace) = written(&history);

        let first = trace.layers()[1].streams[0].header(0).unwrap();
        assert_eq!(first.time_begin, 30);
        assert_eq!(steps(&trace, 1), ["gap", "end", "30"]);
    }

    #[test]
    fn gap_that_outlasts_a_class_without_records_of_its_cpu_lies_at_the_youngest_record() {
        let mut history = History::new(LIMIT, &events(), None);
        history.push(Item::Record { cpu: 1, time: 10, id: EXIT, payload: &[7; 100] });
        history.push(Item::Lost { cpu: 3, records: 2 });
        history.push(record(20, SWITCH));

        let (_dir, trace) = written(&history);

        let begins = trace.layers()[1].streams.iter().map(|stream| stream.header(0).map(|header| header.time_begin));
        assert_eq!(begins.collect::<Vec<_>>(), [Some(10), Some(10)]);
    }

    #[test]
    fn gap_whose_beginning_gave_way_lasts_up_to_its_end() {
        let mut history = History::new(LIMIT, &events(), None);
        history.push(Item::Gap { cpu: 3, begins: true });
        (0..50_000).for_each(|time| history.push(record(time, EXIT)));
        history.push(Item::Gap { cpu: 3, begins: false });
        history.push(record(50_000, EXIT));
        history.push(record(50_001, EXIT));

        let (_dir, trace) = written(&history);

        let steps = steps(&trace, 1);
        let last = ["49998", "gap", "end", "49999", "gap", "end", "50000", "50001"];
        assert_eq!(steps[steps.len() - last.len()..], last);
    }

    #[test]
    fn loss_that_gave_way_with_its_records_is_written_at_the_beginning() {
        let mut history = History::new(LIMIT, &events(), None);

        history.push(record(1, SWITCH));
        history.push(Item::Lost { cpu: 3, records: 2 });
        (2..100_000).for_each(|time| history.push(record(time, SWITCH)));

        let (_dir, trace) = written(&history);
        let others = steps(&trace, 0);
        assert_eq!(trace.layers()[0].streams[0].description.lost.total(), 2);
        assert_eq!(others[..2], ["gap", "end"]);
    }

    /// Records, lost and overwritten records of each layer of `trace`, and its steps.
    fn reported(trace: &Trace) -> Vec<(u64, u64, u64, Vec<String>)> {
        let of_layer = |(index, layer): (usize, &strata_recording::reader::TraceLayer)| {
            let stream = &layer.streams[0].description;
            (stream.records, stream.lost.total(), stream.overwritten, steps(trace, index))
        };
        trace.layers().iter().enumerate().map(of_layer).collect()
    }

    #[test]
    fn file_outlives_the_process_with_all_that_was_saved() {
        let file = tempfile::tempfile().unwrap();
        let mut history = History::new(LIMIT, &events(), Some(file.try_clone().unwrap()));
        (0..1000).for_each(|time| history.push(record(time, SWITCH)));
        history.push(Item::Lost { cpu: 3, records: 5 });
        (1000..50_000).for_each(|time| history.push(record(time, EXIT)));
        history.save();
        let (_written, alive) = written_until(&history, true);

        history.push(record(50_000, SWITCH));
        drop(history);

        let (_left, dead) = left(&file);
        assert_eq!(reported(&dead), reported(&alive));
        assert!(reported(&dead)[1].2 > 10_000, "{:?}", reported(&dead)[1].2);
    }

    #[test]
    fn gap_whose_beginning_gave_way_outlives_the_process() {
        let file = tempfile::tempfile().unwrap();
        let mut history = History::new(LIMIT, &events(), Some(file.try_clone().unwrap()));
        history.push(Item::Gap { cpu: 3, begins: true });
        (0..50_000).for_each(|time| history.push(record(time, EXIT)));
        history.save();
        let (_written, alive) = written_until(&history, true);

        drop(history);

        let (_left, dead) = left(&file);
        assert_eq!(reported(&dead), reported(&alive));
    }

    #[test]
    fn what_gave_way_of_a_cpu_that_is_quiet_since_outlives_the_process() {
        let file = tempfile::tempfile().unwrap();
        let mut history = History::new(LIMIT, &events(), Some(file.try_clone().unwrap()));
        history.push(Item::Record { cpu: 1, time: 0, id: EXIT, payload: &[7; 100] });
        (0..50_000).for_each(|time| history.push(record(time, EXIT)));
        history.save();

        drop(history);

        let (_left, dead) = left(&file);
        let quiet = &dead.layers()[1].streams[0].description;
        assert_eq!((quiet.cpu_id, quiet.overwritten), (1, 1));
    }

    #[test]
    fn what_a_crash_of_the_host_left_as_zeros_is_a_gap() {
        let file = tempfile::tempfile().unwrap();
        let mut history = History::new(LIMIT, &events(), Some(file.try_clone().unwrap()));
        for time in 0..4000 {
            history.push(record(time, SWITCH));
            if time % 100 == 99 {
                history.save();
            }
        }
        drop(history);

        // the second half of the first slot, and of the last one up to the end
        let slot = (most_of_chunk(LIMIT) + MOST_FRAME + 16).next_multiple_of(8) as u64;
        let length = file.metadata().unwrap().len();
        let last = length - (length - 4096) % slot;
        file.write_all_at(&[0; 64 << 10], 4096 + (64 << 10)).unwrap();
        file.set_len(last + 4096).unwrap();

        let (_left, dead) = left(&file);
        let steps = steps(&dead, 0);
        let of_first = (64 << 10) / 116 / 100 * 100 - 1;
        let kept: Vec<u64> = steps.iter().filter_map(|step| step.parse().ok()).collect();
        let next = kept.iter().position(|&time| time > of_first).unwrap();
        let around: Vec<&str> =
            steps.iter().map(String::as_str).skip(usize::try_from(of_first).unwrap()).take(4).collect();
        assert_eq!(around, [&of_first.to_string(), "gap", "end", &kept[next].to_string()]);
        assert!(kept[next] > 1000 && kept.last() < Some(&3999), "{:?}", kept.last());
    }

    #[test]
    fn full_chunks_lie_in_the_file_alone() {
        let mut history = History::new(LIMIT, &events(), Some(tempfile::tempfile().unwrap()));

        (0..7000).for_each(|time| history.push(record(time, EXIT)));

        let window = window(&history, EXIT);
        assert!(!window.older.is_empty() && window.older.iter().all(|chunk| chunk.bytes.is_empty()));
        assert_eq!(times(&history, EXIT), (0..7000).collect::<Vec<_>>());
    }

    #[test]
    fn what_the_file_has_no_room_for_is_kept_in_memory_and_reported_once() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut history = History::new(LIMIT, &events(), Some(full));

        (0..5000).for_each(|time| history.push(record(time, EXIT)));
        history.save();

        assert_eq!(times(&history, EXIT).len(), 5000);
        assert_eq!(history.take_failure().unwrap().kind(), io::ErrorKind::StorageFull);
        assert!(history.take_failure().is_none());
    }

    #[test]
    fn what_is_to_happen_meanwhile_happens_behind_each_chunk() {
        let dir = TempDir::new().unwrap();
        let mut history = History::new(LIMIT, &events(), None);
        (0..6_000).for_each(|time| history.push(record(time, SWITCH)));
        let mut times = 0;

        let _ = history.write(dir.path(), &manifest(), &events(), false, &mut || times += 1);

        let chunks = |id| window(&history, id).older.len() + 1;
        assert!(chunks(SWITCH) > 2);
        assert_eq!(times, chunks(SWITCH) + chunks(EXIT));
    }

    proptest! {
        /// Whatever comes: the limit holds, each record is kept or counted, and a class gives way only from half of the
        /// memory on.
        #[test]
        fn each_record_is_kept_or_counted(
            runs in proptest::collection::vec((any::<bool>(), 1..3000_u64), 1..40),
            has_file in any::<bool>(),
        ) {
            let file = has_file.then(|| tempfile::tempfile().unwrap());
            let mut history = History::new(LIMIT, &events(), file);
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
                let overwritten = window.gone.get(&3).map_or(0, |gone| gone.records);
                prop_assert_eq!(times(&history, id).len() as u64 + overwritten, pushed);
                prop_assert!(overwritten == 0 || window.bytes + LIMIT / 8 + 200 >= LIMIT / 2);
            }
            prop_assert!(window(&history, SWITCH).bytes + window(&history, EXIT).bytes <= LIMIT);
        }
    }
}
