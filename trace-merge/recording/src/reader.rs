//! Opening a recording and reading its streams. Every packet and record is checked before it is handed on; what cannot
//! be believed is skipped and counted as [`Damage`].

use self::chunks::StreamFiles;
use crate::clock::Clock;
use crate::clock_snapshots::{self, ClockSnapshot};
use crate::files::kallsyms;
use crate::files::packed::{Packed, PackedError};
use crate::files::{CLOCKS_FILE, Files, JOURNAL_FILE, MANIFEST_FILE, METADATA_FILE};
use crate::layer::LayerKind;
use crate::manifest::{Layer, Manifest, ManifestError};
use crate::metadata::{BLOCK_ENDS, FIRST_LINE, event_type};
use crate::schema::SchemaTable;
use crate::window::Window;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

mod chunks;
mod damage;
mod decompressed;
mod gaps;
pub mod merge;
mod records;
mod stream;
pub mod totals;

pub use damage::Damage;
pub use damage::write_counts;
pub use records::{StreamCounts, StreamRecord, StreamRecords};
pub use stream::Stream;

/// Why a recording cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Its description cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It is one file, and cannot be unpacked.
    #[error(transparent)]
    Packed(#[from] PackedError),
    /// A stream is there but cannot be opened.
    #[error("{}: cannot be opened; check what it is and its permissions", .path.display())]
    Stream {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A recording, opened.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    files: Files,
    manifest: Manifest,
    layers: Vec<TraceLayer>,
    /// By VM, `None` for the host: symbols that were given to the reader.
    given_symbols: BTreeMap<Option<String>, Arc<[u8]>>,
}

/// A layer of a recording, opened.
#[derive(Debug)]
pub struct TraceLayer {
    /// What `session.json` says about it.
    pub description: Layer,
    /// Its event types.
    pub schemas: SchemaTable,
    /// Its streams, in the order of their CPUs.
    pub streams: Vec<Stream>,
    has_ended: bool,
    files: Files,
    symbols: Kallsyms,
}

/// Where the symbols of a layer's kernel are.
#[derive(Clone, Debug)]
enum Kallsyms {
    None,
    /// In this file of the recording.
    Saved(String),
    /// Here: they were given to the reader.
    Given(Arc<[u8]>),
}

/// How far a layer has come.
#[derive(Clone, Copy, Debug)]
struct LayerState {
    /// Whether its recording came to its end.
    is_finished: bool,
    /// Whether it came to its end itself: see [`Manifest::has_ended`].
    has_ended: bool,
}

impl Trace {
    /// Opens the recording at `path`: its folder, or the one file that it was [packed](crate::files::packed) into.
    ///
    /// # Errors
    /// When there is no recording or one of its streams cannot be opened. Streams that are missing or damaged are no
    /// errors: see [`Stream::absent`] and [`StreamRecords::damage`].
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let (files, manifest) = match Packed::open(path)? {
            Some(packed) => {
                let files = Files::Packed(Arc::new(packed));
                let manifest = Manifest::of(&files)?;
                (files, manifest)
            }
            None => (Files::Folder(path.into()), Manifest::load(path)?),
        };
        let mut layers = Vec::with_capacity(manifest.layers.len());
        for layer in &manifest.layers {
            layers.push(TraceLayer::open(&files, layer, &manifest)?);
        }
        if layers.iter().any(|layer| !layer.has_ended) {
            let end = layers.iter().flat_map(|layer| &layer.streams).map(Stream::last_packet_end).max().unwrap_or(0);
            layers.iter_mut().flat_map(|layer| &mut layer.streams).for_each(|stream| stream.recording_end = end);
        }
        saved_symbols(&mut layers, &files);
        layers.sort_by(|left, right| {
            let key = |layer: &TraceLayer| (layer.description.kind, layer.description.path.clone());
            key(left).cmp(&key(right))
        });
        Ok(Self { path: path.into(), files, manifest, layers, given_symbols: BTreeMap::new() })
    }

    /// Its folder or file, as it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its files.
    pub(crate) const fn files(&self) -> &Files {
        &self.files
    }

    /// Where its files lie below its folder, `session.json` first; some of them may not be there.
    pub(crate) fn file_paths(&self) -> Vec<String> {
        let mut others = BTreeSet::new();
        for TraceLayer { description: Layer { path, .. }, streams, .. } in &self.layers {
            let found = StreamFiles::of(self.files.names_in(path));
            let names = streams.iter().flat_map(|stream| found.names(&stream.description.file)).map(|(_, name)| name);
            others.extend(names.chain([METADATA_FILE]).map(|name| format!("{path}/{name}")));
        }
        others.extend(self.layers.iter().filter_map(|layer| match &layer.symbols {
            Kallsyms::Saved(path) => Some(path.clone()),
            Kallsyms::None | Kallsyms::Given(_) => None,
        }));
        let journal = self.manifest.outcome.is_none().then_some(JOURNAL_FILE);
        let clocks = self.files.has(CLOCKS_FILE).then_some(CLOCKS_FILE);
        [MANIFEST_FILE].into_iter().chain(journal).chain(clocks).map(Into::into).chain(others).collect()
    }

    /// What `session.json` says.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The clock of all records.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.manifest.clock
    }

    /// What the hosts' clocks showed while it was recorded, in the order of the ticks.
    #[must_use]
    pub fn clock_snapshots(&self) -> Vec<ClockSnapshot> {
        clock_snapshots::read(&self.files)
    }

    /// How wrong the recording's UTC was at most where the host's clock was read beside it, ns: UTC runs on from the first
    /// reading, and the host's clock may be corrected or set meanwhile.
    #[must_use]
    pub fn utc_bound_ns(&self) -> u64 {
        let snapshots = self.clock_snapshots();
        let of_this_host = snapshots.iter().filter(|snapshot| snapshot.host.is_none());
        let errors = of_this_host.map(|snapshot| snapshot.utc_error_ns(self.clock()));
        errors.fold(self.clock().utc.uncertainty_ns, u64::max)
    }

    /// The layers, in the order in which records of the same time are shown.
    #[must_use]
    pub fn layers(&self) -> &[TraceLayer] {
        &self.layers
    }

    /// The layers of one kind.
    pub fn layers_of(&self, kind: LayerKind) -> impl Iterator<Item = &TraceLayer> {
        self.layers.iter().filter(move |layer| layer.description.kind == kind)
    }

    /// The guest-kernel layers of the VM called `vm`.
    pub fn kernel_layers<'t>(&'t self, vm: &str) -> impl Iterator<Item = &'t TraceLayer> {
        self.layers_of(LayerKind::GuestKernel).filter(move |layer| layer.description.vm.as_deref() == Some(vm))
    }

    /// Takes `text`, which `/proc/kallsyms` has, for the symbols of the kernel of the guest of `vm`, or else of the host, in
    /// place of those that were saved.
    pub fn give_kallsyms(&mut self, vm: Option<&str>, text: &Arc<[u8]>) {
        self.given_symbols.insert(vm.map(Into::into), Arc::clone(text));
        // Of several hosts, it is the first one.
        let is_its = |layer: &&mut TraceLayer| {
            let Layer { vm: of, host, .. } = &layer.description;
            layer.is_of_kernel() && of.as_deref() == vm && (vm.is_some() || host.is_none())
        };
        let layers = self.layers.iter_mut().filter(is_its);
        layers.for_each(|layer| layer.symbols = Kallsyms::Given(Arc::clone(text)));
    }

    /// The kernels whose symbols were given: of VMs, or `None` of the host.
    pub fn kernels_with_given_symbols(&self) -> impl Iterator<Item = Option<&str>> {
        self.given_symbols.keys().map(Option::as_deref)
    }

    /// Whether symbols were given that are not in the recording.
    #[must_use]
    pub fn has_given_symbols(&self) -> bool {
        !self.given_symbols.is_empty()
    }

    /// The symbols of the kernel of the guest of `vm`, or else of the host, as `/proc/kallsyms` has them; `None` where nobody
    /// saved or gave them, or what was saved is damaged.
    #[must_use]
    pub fn kallsyms(&self, vm: Option<&str>) -> Option<Cow<'_, [u8]>> {
        // A guest whose own records there are none of has no layer.
        let given = self.given_symbols.get(&vm.map(Into::into)).map(|text| Cow::Borrowed(&text[..]));
        let is_its = |layer: &&TraceLayer| layer.is_of_kernel() && layer.description.vm.as_deref() == vm;
        given.or_else(|| self.layers.iter().find(is_its)?.kallsyms())
    }

    /// Time of the first record of all, ticks; `None` when there is none.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        let streams = self.layers.iter().flat_map(|layer| layer.streams.iter().map(|stream| layer.records(stream)));
        streams.filter_map(|mut records| records.next()).map(|record| record.time).min()
    }

    /// Time of the last record of all, ticks, as far as packets tell; `None` when there is none.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        let ends = self.layers.iter().flat_map(|layer| &layer.streams).map(Stream::last_packet_end);
        ends.max().filter(|&end| end > 0)
    }

    /// The part of it between `from` and `to` after its first record; `None` when that ends before it begins. Without
    /// `to` it ends at `u64::MAX`, because only reading the recording tells when it ends.
    #[must_use]
    pub fn window(&self, from: Option<Duration>, to: Option<Duration>) -> Option<Window> {
        let start = self.start().unwrap_or(0);
        let moment = |after: Duration| {
            let ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
            start.saturating_add(self.clock().ns_to_ticks(ns))
        };
        let window = Window { begin: from.map_or(start, moment), end: to.map_or(u64::MAX, moment) };
        (window.begin <= window.end).then_some(window)
    }
}

impl TraceLayer {
    fn open(files: &Files, layer: &Layer, manifest: &Manifest) -> Result<Self, ReadError> {
        let found = StreamFiles::of(files.names_in(&layer.path));
        let mut descriptions = layer.streams.clone();
        descriptions.extend(found.unlisted(&layer.streams));
        let state = LayerState { is_finished: manifest.outcome.is_some(), has_ended: manifest.has_ended(layer) };
        if !state.has_ended {
            // Of a stream that goes on and has no packet yet, all is missing so far.
            let is_known = |cpu_id| descriptions.iter().any(|stream| stream.cpu_id == cpu_id);
            let unseen: Vec<_> = manifest.streams_of(layer).filter(|&cpu_id| !is_known(cpu_id)).collect();
            descriptions.extend(unseen.into_iter().map(chunks::nothing_of));
        }
        descriptions.sort_by_key(|stream| stream.cpu_id);
        let streams = descriptions.into_iter().map(|stream| Stream::open(files, layer, stream, &found, state));
        Ok(Self {
            description: layer.clone(),
            schemas: SchemaTable::new(&layer.events),
            streams: streams.collect::<Result<_, _>>()?,
            has_ended: state.has_ended,
            files: files.clone(),
            symbols: Kallsyms::None,
        })
    }

    const fn is_of_kernel(&self) -> bool {
        matches!(self.description.kind, LayerKind::HostKernel | LayerKind::GuestKernel)
    }

    /// The symbols of its kernel, as `/proc/kallsyms` has them; `None` where nobody saved or gave them, or what was saved
    /// is damaged.
    #[must_use]
    pub fn kallsyms(&self) -> Option<Cow<'_, [u8]>> {
        match &self.symbols {
            Kallsyms::None => None,
            Kallsyms::Saved(path) => kallsyms::read(&self.files.read(path).ok()?).ok().map(Cow::Owned),
            Kallsyms::Given(text) => Some(Cow::Borrowed(&text[..])),
        }
    }

    /// What is wrong with its `metadata`, which other readers of CTF read in place of `session.json`; `None` when it is
    /// this layer's.
    #[must_use]
    pub fn metadata_problem(&self) -> Option<String> {
        let text = match self.files.read(&format!("{}/{}", self.description.path, METADATA_FILE)) {
            Ok(text) => text,
            Err(error) => {
                return Some(format!("it cannot be read ({error}), so no other reader of CTF reads the layer"));
            }
        };
        let text = String::from_utf8_lossy(&text);
        let is_its = text.starts_with(FIRST_LINE) && text.contains(&self.description.uuid.to_string());
        if !is_its {
            return Some("it is not the text that describes this layer, so no other reader of CTF reads it".into());
        }
        let described: HashSet<&str> = text.split_inclusive(BLOCK_ENDS).collect();
        let is_whole = text.trim_end().ends_with("};")
            && self.schemas.iter().all(|schema| described.contains(&*event_type(schema.description())));
        (!is_whole).then(|| "it is damaged, so no other reader of CTF reads the layer".into())
    }

    /// Whether it came to its end: see [`Manifest::has_ended`].
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The records of `stream`, which is one of this layer's.
    #[must_use]
    pub fn records<'t>(&'t self, stream: &'t Stream) -> StreamRecords<'t> {
        StreamRecords::new(stream, &self.schemas)
    }
}

/// Finds the symbols that were saved for `layers`: a kernel's lie beside one of its layers, the first one counts.
fn saved_symbols(layers: &mut [TraceLayer], files: &Files) {
    let kernel_of = |layer: &TraceLayer| {
        let Layer { kind, vm, host, .. } = &layer.description;
        (*kind, vm.clone(), host.clone())
    };
    let saved = layers.iter().rev().filter(|layer| layer.is_of_kernel()).filter_map(|layer| {
        let path = kallsyms::file_of(&layer.description.path);
        files.has(&path).then(|| (kernel_of(layer), path))
    });
    let saved: BTreeMap<_, _> = saved.collect();
    for layer in layers.iter_mut().filter(|layer| layer.is_of_kernel()) {
        if let Some(path) = saved.get(&kernel_of(layer)) {
            layer.symbols = Kallsyms::Saved(path.clone());
        }
    }
}

#[cfg(test)]
mod gap_tests;
#[cfg(test)]
mod tests {
    //! Shows: A window reads only its packets, and equals the filtered whole (proptest).

    use super::*;
    use crate::test_trace::{event, manifest};
    use crate::writer::{LayerWriter, NewLayer};
    use proptest::prelude::*;
    use shared_ring::layout::PACKET_HEADER_SIZE;
    use std::fs;
    use tempfile::TempDir;

    const SIZE: usize = 4096;

    /// A recording of one guest-kernel stream in `dir`: its file. Each record holds its number.
    fn write(dir: &TempDir, times: &[u64], packet_size: usize) -> PathBuf {
        let packet_size = packet_size as u64;
        let new = NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size };
        let mut layer = LayerWriter::create(dir.path(), &manifest(), new).unwrap();
        layer.add_events(&[event(1, "test:tick", &["number"])]).unwrap();
        for (number, &time) in (0_u32..).zip(times) {
            layer.record(0, time, 1, &number.to_le_bytes()).unwrap();
        }
        layer.flush().unwrap();
        Manifest { layers: vec![layer.layer()], ..manifest() }.save(dir.path()).unwrap();
        dir.path().join("vm0/guest-kernel/stream_0")
    }

    /// A recording of one guest-kernel stream of three packets, 600 records at ticks 1000, 1001, …
    fn recording() -> (TempDir, PathBuf) {
        let dir = TempDir::new().unwrap();
        let stream = write(&dir, &(1000..1600).collect::<Vec<_>>(), SIZE);
        (dir, stream)
    }

    /// A stream of 64 full packets of 248 records each, at ticks 0, 1, …
    fn long_recording(dir: &TempDir) -> PathBuf {
        write(dir, &(0..64 * 248).collect::<Vec<_>>(), SIZE)
    }

    fn read(dir: &TempDir) -> (Vec<u64>, Damage) {
        let trace = Trace::open(dir.path()).unwrap();
        let layer = &trace.layers()[0];
        let mut records = layer.records(&layer.streams[0]);
        let times = records.by_ref().map(|record| record.time).collect();
        (times, records.damage())
    }

    fn change(stream: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(stream).unwrap();
        change(&mut bytes);
        fs::write(stream, bytes).unwrap();
    }

    #[test]
    fn whole_stream_is_read_in_order() {
        let (dir, _) = recording();

        assert_eq!(read(&dir), ((1000..1600).collect(), Damage::default()));
    }

    #[test]
    fn truncated_last_packet_is_counted() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes.truncate(2 * SIZE + 100));

        let (times, damage) = read(&dir);

        assert_eq!(
            (times.len(), damage),
            (496, Damage { truncated_bytes: 100, missing_records: 104, ..Damage::default() })
        );
    }

    #[test]
    fn packets_cut_off_at_the_end_are_missed() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes.truncate(2 * SIZE));

        let (times, damage) = read(&dir);

        assert_eq!((times.len(), damage), (496, Damage { missing_records: 104, ..Damage::default() }));
    }

    #[test]
    fn damaged_packet_is_skipped_and_the_next_is_read() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes[SIZE] ^= 1);

        let (times, damage) = read(&dir);

        assert_eq!((times.len(), times.last()), (352, Some(&1599)));
        assert_eq!(damage, Damage { packets: 1, missing_records: 248, ..Damage::default() });
    }

    #[test]
    fn missing_packet_is_counted() {
        let (dir, stream) = recording();
        change(&stream, |bytes| drop(bytes.drain(SIZE..2 * SIZE)));

        let (times, damage) = read(&dir);

        assert_eq!(
            (times.len(), damage),
            (352, Damage { missing_packets: 1, missing_records: 248, ..Damage::default() })
        );
    }

    #[test]
    fn hole_in_a_packet_loses_its_rest() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes[PACKET_HEADER_SIZE + 16..PACKET_HEADER_SIZE + 24].fill(0));

        let (times, damage) = read(&dir);

        assert_eq!((times.len(), damage), (353, Damage { bytes: 247 * 16, missing_records: 247, ..Damage::default() }));
    }

    #[test]
    fn record_of_unknown_type_is_left_out() {
        let (dir, stream) = recording();
        change(&stream, |bytes| bytes[PACKET_HEADER_SIZE + 4] = 9);

        let (times, damage) = read(&dir);

        assert_eq!((times.len(), damage), (599, Damage { records: 1, ..Damage::default() }));
    }

    #[test]
    fn stream_that_the_manifest_does_not_list_is_found() {
        let (dir, _) = recording();
        let mut listed = Manifest::load(dir.path()).unwrap();
        listed.layers[0].streams.clear();
        listed.save(dir.path()).unwrap();

        assert_eq!(read(&dir).0.len(), 600);
    }

    #[test]
    fn stream_whose_file_is_gone_is_absent() {
        let (dir, stream) = recording();
        fs::remove_file(stream).unwrap();

        let trace = Trace::open(dir.path()).unwrap();

        assert!(trace.layers()[0].streams[0].absent);
        assert_eq!(trace.start(), None);
    }

    #[test]
    fn fifo_in_the_place_of_a_stream_is_refused_at_once() {
        let (dir, stream) = recording();
        fs::remove_file(&stream).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &stream, rustix::fs::FileType::Fifo, mode, 0).unwrap();

        let error = Trace::open(dir.path()).unwrap_err();

        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "is not a regular file");
    }

    #[test]
    fn later_start_passes_over_what_is_before() {
        let (dir, _) = recording();
        let trace = Trace::open(dir.path()).unwrap();
        let layer = &trace.layers()[0];

        let times: Vec<u64> = layer.records(&layer.streams[0]).starting_at(1400).map(|record| record.time).collect();

        assert_eq!(times, (1400..1600).collect::<Vec<_>>());
        let mut later = layer.records(&layer.streams[0]).starting_at(1400);
        assert_eq!((later.by_ref().count(), later.damage()), (200, Damage::default()));
        assert_eq!(trace.start(), Some(1000));
    }

    #[test]
    fn packets_outside_the_window_are_not_looked_at() {
        let dir = TempDir::new().unwrap();
        let stream = long_recording(&dir);
        // All but packets 31 (the window's), the one after it, and those that bisecting 64 packets for it meets.
        let kept = [31, 32, 16, 48, 24, 28, 30, 40, 36, 34, 33];
        change(&stream, |bytes| {
            let packets = bytes.chunks_mut(SIZE).enumerate().filter(|(index, _)| !kept.contains(index));
            packets.for_each(|(_, packet)| packet.fill(0xff));
        });
        let trace = Trace::open(dir.path()).unwrap();
        let layer = &trace.layers()[0];

        let mut records = layer.records(&layer.streams[0]).within(31 * 248, 31 * 248 + 9);

        assert_eq!(records.by_ref().map(|record| record.time).collect::<Vec<_>>(), (7688..7698).collect::<Vec<_>>());
        assert_eq!((records.damage(), records.counts().packets), (Damage::default(), 1));
    }

    #[test]
    fn window_beside_damaged_packets_takes_them_in() {
        let dir = TempDir::new().unwrap();
        let stream = long_recording(&dir);
        change(&stream, |bytes| [29, 30, 33].iter().for_each(|packet| bytes[packet * SIZE] ^= 1));
        let trace = Trace::open(dir.path()).unwrap();
        let stream = &trace.layers()[0].streams[0];

        let mut records = trace.layers()[0].records(stream).within(31 * 248, 33 * 248 - 1);

        assert_eq!((stream.packets(), stream.packets_within(31 * 248, 33 * 248 - 1)), (64, 29..34));
        assert_eq!((records.by_ref().count(), records.damage()), (2 * 248, Damage { packets: 3, ..Damage::default() }));
    }

    #[test]
    fn parts_of_a_damaged_stream_have_the_damage_of_the_whole() {
        let dir = TempDir::new().unwrap();
        let stream = long_recording(&dir);
        change(&stream, |bytes| {
            bytes.drain(40 * SIZE..42 * SIZE);
            [9, 10, 11, 20].iter().for_each(|packet| bytes[packet * SIZE] ^= 1);
            bytes.truncate(60 * SIZE + 77);
        });
        let trace = Trace::open(dir.path()).unwrap();
        let (layer, stream) = (&trace.layers()[0], &trace.layers()[0].streams[0]);
        let mut whole = layer.records(stream);
        let count = whole.by_ref().count();

        let parts = [0..10, 10..11, 11..20, 20..21, 21..40, 40..60];
        let parts = parts.map(|packets| {
            let mut records = layer.records(stream).of_packets(packets, 0);
            (records.by_ref().count(), records.damage())
        });

        let sum = parts.iter().fold(Damage::default(), |sum, (_, damage)| sum.plus(damage));
        assert_eq!(parts.iter().map(|(count, _)| count).sum::<usize>(), count);
        assert_eq!(Damage { missing_records: whole.damage().missing_records, ..sum }, whole.damage());
        assert_eq!((sum.packets, sum.missing_packets, sum.truncated_bytes), (4, 2, 77));
    }

    /// Bytes of the file `path` that are in this process's memory.
    fn resident(path: &Path) -> usize {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let of_file = maps.split_inclusive("VmFlags").filter(|map| map.contains(path.to_str().unwrap()));
        let kib = of_file.map(|map| {
            let line = map.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap()
        });
        kib.sum::<usize>() << 10
    }

    #[test]
    fn stream_that_was_read_in_parts_takes_no_memory() {
        let dir = TempDir::new().unwrap();
        let stream = long_recording(&dir);
        let trace = Trace::open(dir.path()).unwrap();
        let (layer, layer_stream) = (&trace.layers()[0], &trace.layers()[0].streams[0]);

        // Each behind the one after it, as threads may come to read them.
        let counts =
            [48..64, 32..48, 16..32, 0..16].map(|part| layer.records(layer_stream).of_packets(part, 0).count());
        let after = resident(&stream);
        let held = layer.records(layer_stream).next().map(|_| resident(&stream));

        assert_eq!((counts, after), ([16 * 248; 4], 0));
        assert!(held.unwrap() >= SIZE, "{held:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn window_holds_what_a_filter_leaves(
            mut times in proptest::collection::vec(0..200_u64, 0..400), from in 0..200_u64, length in 0..200_u64,
        ) {
            times.sort_unstable();
            let (dir, to) = (TempDir::new().unwrap(), from + length);
            write(&dir, &times, 256);
            let trace = Trace::open(dir.path()).unwrap();
            let layer = &trace.layers()[0];
            let found = layer.streams.iter().flat_map(|stream| layer.records(stream).within(from, to));
            let found: Vec<u64> = found.map(|record| record.time).collect();
            times.retain(|time| (from..=to).contains(time));
            prop_assert_eq!(found, times);
        }

        #[test]
        fn arbitrary_streams_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..3 * SIZE)) {
            let (dir, stream) = recording();
            fs::write(&stream, &bytes).unwrap();
            let (times, _) = read(&dir);
            prop_assert!(times.len() <= bytes.len() / 8);
        }

        #[test]
        fn damaged_streams_are_survived(changes in proptest::collection::vec((0..3 * SIZE, any::<u8>()), 1..40)) {
            let (dir, stream) = recording();
            change(&stream, |bytes| changes.iter().for_each(|&(at, value)| bytes[at] = value));
            let (times, _) = read(&dir);
            prop_assert!(times.len() <= 3 * (SIZE - PACKET_HEADER_SIZE) / 8);
        }
    }
}
