//! What tracing costs on wide machines: `cargo xtask bench wide`.
//!
//! Looks: one thread polls recorders of small and of wide guests, in turns, while nothing is recorded or one vCPU
//! records, with caches that other work has used meanwhile. Producers: one thread on each CPU plays a vCPU that
//! records at a steady rate, while a recorder drains all rings into files.

mod recorder_side;

use anyhow::{Context, ensure};
use clock_sync::tsc;
use recorder_side::{Prepared, RecorderSide, Shape, producer, register};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use shared_ring::event::{Event, Field, FieldType};
use shared_ring::layout::{Mode, PROCESS_ACTIVE, ProcessEntry};
use shared_ring::producer::Producer;
use shared_ring::region::Rings;
use shared_ring::storage::CpuLocal;
use shared_ring::view::ProcessState;
use std::fs;
use std::hint::black_box;
use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};
use strata_recorder::control::protocol::{Answer, Request};
use strata_recorder::drain::work_alarm::WorkAlarms;
use strata_recorder::region::TraceRegion;
use strata_recorder::session::sessions::Sessions;
use strata_recorder::session::thread_times;
use strata_recording::layer::LayerKind;
use tempfile::TempDir;

const EVENT: Event = Event { id: 1, class: 0, name: "bench:words", fields: &FIELDS };
const FIELDS: [Field; 2] = [Field::new("first", FieldType::U64), Field::new("second", FieldType::U64)];

/// Sub-buffers of the guests that are only looked at: what a look costs does not depend on their size.
const LOOKED_AT: (u64, u32) = (4096, 4);
/// Bytes that are read between two looks, as other work does.
const OTHER_WORK: usize = 64 << 20;
/// Looks of each kind in a turn.
const LOOKS: usize = 5;

/// Records that are made one after the other.
const GROUP: u64 = 200;
/// The time from one group of a producer to the next: a million records a second.
const GROUP_INTERVAL: Duration = Duration::from_micros(200);
/// How long producers record in each turn.
const RECORDING: Duration = Duration::from_millis(500);
/// A group that takes longer was interrupted, ticks.
const INTERRUPTED: u64 = 1_000_000;

/// A guest that is looked at.
#[derive(Clone, Copy, Serialize)]
struct Guest {
    vcpus: u32,
    sessions: usize,
    process_slots: u32,
    /// Processes that have a slot.
    processes: u32,
}

const GUESTS: [Guest; 5] = [
    Guest { vcpus: 2, sessions: 1, process_slots: 16, processes: 0 },
    Guest { vcpus: 64, sessions: 1, process_slots: 16, processes: 0 },
    Guest { vcpus: 64, sessions: 4, process_slots: 256, processes: 0 },
    Guest { vcpus: 64, sessions: 4, process_slots: 256, processes: 16 },
    Guest { vcpus: 64, sessions: 4, process_slots: 256, processes: 128 },
];

/// What looks at one guest took, µs.
#[derive(Serialize)]
struct Looks {
    guest: Guest,
    quiet: Quartiles,
    one_vcpu_records: Quartiles,
}

/// What a record costs while so many producers record.
#[derive(Serialize)]
struct Producers {
    producers: usize,
    /// ns of a record, over turns and producers.
    ns: Quartiles,
    /// ns with one producer over ns with so many: 1 is perfect.
    efficiency: f64,
    /// What `rdtsc` alone took the producers between two groups, ns: a processor slows down when more of it is used.
    clock_ns: Quartiles,
    /// `efficiency` over that of `rdtsc` alone.
    beside_clock: f64,
    /// CPU time of the recorder for each record, ns.
    recorder_ns: Quartiles,
    records: u64,
    lost: u64,
}

#[derive(Clone, Copy, Serialize)]
struct Quartiles {
    lower: f64,
    median: f64,
    upper: f64,
}

impl Quartiles {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at =
            |quarters: usize| values.get(values.len().saturating_sub(1) * quarters / 4).copied().unwrap_or(f64::NAN);
        Self { lower: at(1), median: at(2), upper: at(3) }
    }

    fn show(&self) -> String {
        format!("{:.1} ({:.1}–{:.1})", self.median, self.lower, self.upper)
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let turns: usize = arguments.next().map_or(Ok(11), |text| text.parse()).context("turns")?;
    let json = arguments.next().map(PathBuf::from);
    let looks = looks(turns)?;
    println!("| vCPUs | sessions | process slots | processes | a look, µs | while one vCPU records, µs |");
    println!("|---|---|---|---|---|---|");
    for Looks { guest, quiet, one_vcpu_records } in &looks {
        let Guest { vcpus, sessions, process_slots, processes } = guest;
        let (quiet, one) = (quiet.show(), one_vcpu_records.show());
        println!("| {vcpus} | {sessions} | {process_slots} | {processes} | {quiet} | {one} |");
    }
    let producers = producers(turns)?;
    println!(
        "\n| producers | ns a record | efficiency | rdtsc alone, ns | efficiency / its | recorder, ns a record \
         | records | lost |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for row in &producers {
        let Producers { producers, records, lost, .. } = row;
        let [ns, clock, recorder] = [row.ns, row.clock_ns, row.recorder_ns].map(|quartiles| quartiles.show());
        let [efficiency, beside] = [row.efficiency, row.beside_clock].map(|part| part * 100.0);
        println!(
            "| {producers} | {ns} | {efficiency:.1} % | {clock} | {beside:.1} % | {recorder} | {records} | {lost} |"
        );
    }
    if let Some(file) = json {
        let text = serde_json::json!({ "looks": looks, "producers": producers });
        fs::write(&file, serde_json::to_vec_pretty(&text)?).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// A guest whose recorder is this thread.
struct Polled {
    _folder: TempDir,
    region: Arc<TraceRegion>,
    rings: Rings,
    sessions: Sessions,
}

impl Polled {
    /// The recorder of `guest`, whose vCPUs' threads are `threads`.
    fn new(guest: Guest, threads: &[u32]) -> anyhow::Result<Self> {
        let shape = Shape {
            vcpus: guest.vcpus,
            kernel_rings: LOOKED_AT,
            more_sessions: guest.sessions - 1,
            process_slots: guest.process_slots,
            process_rings: LOOKED_AT,
            process_descriptors: guest.processes as usize * guest.vcpus as usize,
        };
        let Prepared { folder, region, rings, requested, vm } =
            Prepared::of(shape, Mode::Discard, None, &Arc::new(WorkAlarms::new(1)))?;
        let threads_of_vcpus = (0..guest.vcpus).zip(threads.iter().copied());
        *vm.vcpu_threads.lock().unwrap_or_else(PoisonError::into_inner) = threads_of_vcpus.collect();
        let mut sessions = Sessions::start(requested, vm)?;
        for number in 1..guest.sessions {
            let name = format!("session{number}");
            let create = Request::SessionCreate {
                name: name.clone(),
                mode: rings.mode.into(),
                sub_buffer_size: Some(LOOKED_AT.0),
                sub_buffers: Some(LOOKED_AT.1),
                events: Some("guest-kernel:*".into()),
                trace: Some(folder.path().join(&name)),
                max_size: None,
                limits: Vec::new(),
            };
            for request in [create, Request::SessionStart { name }] {
                let answer = sessions.answer(request);
                ensure!(matches!(answer, Answer::Done { .. }), "refused: {answer:?}");
            }
        }
        let polled = Self { _folder: folder, region, rings, sessions };
        register(&polled.region, &[EVENT]);
        for slot in 0..guest.processes {
            polled.open_process(slot);
        }
        Ok(polled)
    }

    /// Has a process open `slot`, as the guest's kernel does.
    fn open_process(&self, slot: u32) {
        let entry = self.region.layout().process_table + slot as usize * size_of::<ProcessEntry>();
        let memory = self.region.memory();
        memory.store(entry + offset_of!(ProcessEntry, pid), u64::from(1000 + slot));
        let state = ProcessState { generation: 1, status: PROCESS_ACTIVE };
        memory.store(entry + offset_of!(ProcessEntry, state), state.to_word());
    }

    /// Fills one sub-buffer of vCPU 0.
    fn record(&self) {
        let producer = producer(&self.region, self.rings, 0);
        for number in 0..LOOKED_AT.0 / 24 {
            producer.record(tsc::read_ordered, EVENT.id, &payload(number));
        }
    }

    /// What one poll takes, µs.
    fn look(&mut self) -> f64 {
        let begun = Instant::now();
        black_box(self.sessions.poll());
        begun.elapsed().as_secs_f64() * 1e6
    }
}

fn looks(turns: usize) -> anyhow::Result<Vec<Looks>> {
    raise_descriptor_limit()?;
    let other_work = vec![1_u64; OTHER_WORK / size_of::<u64>()];
    // vCPU 0 is this thread, which records; the others' sleep.
    let asleep = Arc::new(Mutex::new(()));
    let awake = asleep.lock().unwrap_or_else(PoisonError::into_inner);
    let mut threads = vec![this_thread()];
    for _ in 1..GUESTS.iter().map(|guest| guest.vcpus).max().unwrap_or(1) {
        let (asleep, (reported, reports)) = (Arc::clone(&asleep), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let _ = reported.send(this_thread());
            drop(asleep.lock());
        });
        threads.push(reports.recv()?);
    }
    let mut guests = GUESTS.map(|guest| Polled::new(guest, &threads).map(|polled| (polled, Vec::new(), Vec::new())));
    for turn in 0..=turns {
        for guest in &mut guests {
            let Ok((polled, quiet, recording)) = guest else { continue };
            for _ in 0..LOOKS {
                // Until nothing is left to be taken: descriptions, layers of new processes.
                while polled.sessions.poll().has_more() {}
                black_box(other_work.iter().sum::<u64>());
                let of_nothing = polled.look();
                polled.record();
                black_box(other_work.iter().sum::<u64>());
                let of_one = polled.look();
                if turn > 0 {
                    quiet.push(of_nothing);
                    recording.push(of_one);
                }
            }
        }
    }
    drop(awake);
    let measured = GUESTS.into_iter().zip(guests);
    measured
        .map(|(guest, measured)| {
            let (_, quiet, recording) = measured?;
            Ok(Looks { guest, quiet: Quartiles::of(quiet), one_vcpu_records: Quartiles::of(recording) })
        })
        .collect()
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// Streams of many processes are many files.
fn raise_descriptor_limit() -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("cannot raise the limit of open files")
}

fn payload(number: u64) -> [u8; 16] {
    let mut payload = [0; 16];
    payload[..8].copy_from_slice(&number.to_le_bytes());
    payload
}

fn producers(turns: usize) -> anyhow::Result<Vec<Producers>> {
    let set = sched_getaffinity(None).context("cannot ask for this process's CPUs")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |&count| Some(count * 2)).take_while(|&count| count < cpus.len()).collect();
    counts.push(cpus.len());
    let mut taken: Vec<Taken> = counts.iter().map(|_| Taken::default()).collect();
    for turn in 0..=turns {
        for (&count, taken) in counts.iter().zip(&mut taken) {
            let mut unused = Taken::default();
            together(&cpus[..count], if turn > 0 { taken } else { &mut unused })?;
        }
    }
    let of =
        |taken: &Taken| [&taken.ns, &taken.clock_ns, &taken.recorder_ns].map(|values| Quartiles::of(values.clone()));
    let [alone, clock_alone, _] = of(&taken[0]);
    let result = counts.into_iter().zip(&taken).map(|(producers, taken)| {
        let [ns, clock_ns, recorder_ns] = of(taken);
        let efficiency = alone.median / ns.median;
        let beside_clock = efficiency * clock_ns.median / clock_alone.median;
        let Taken { records, lost, .. } = *taken;
        Producers { producers, ns, efficiency, clock_ns, beside_clock, recorder_ns, records, lost }
    });
    Ok(result.collect())
}

/// What turns of one number of producers took.
#[derive(Default)]
struct Taken {
    /// Of each producer in each turn the medians of its groups: ns of a record, and of `rdtsc` alone.
    ns: Vec<f64>,
    clock_ns: Vec<f64>,
    recorder_ns: Vec<f64>,
    records: u64,
    lost: u64,
}

/// Records on each of `cpus` while a recorder drains, and adds to `taken` what that took.
fn together(cpus: &[usize], taken: &mut Taken) -> anyhow::Result<()> {
    let shape = Shape { vcpus: u32::try_from(cpus.len())?, ..Shape::SMALL };
    let alarms = Arc::new(WorkAlarms::new(1));
    let RecorderSide { folder: _folder, region, rings, recorder } =
        RecorderSide::start(shape, Mode::Discard, None, &alarms)?;
    register(&region, &[EVENT]);
    let barrier = Barrier::new(cpus.len());
    let made = AtomicU64::new(0);
    let before = recorder_cpu_ns()?;
    let medians = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(cpus)
            .map(|(vcpu, &cpu)| {
                let (region, barrier, made) = (&region, &barrier, &made);
                scope.spawn(move || {
                    let pinned = pin(cpu);
                    barrier.wait();
                    pinned?;
                    let (medians, records) = record_steadily(&producer(region, rings, vcpu));
                    made.fetch_add(records, Ordering::Relaxed);
                    Ok(medians)
                })
            })
            .collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a producer panicked"))?);
        joined.collect::<anyhow::Result<Vec<_>>>()
    })?;
    // Until it has taken what it takes while the guest runs.
    std::thread::sleep(Duration::from_millis(50));
    let used = recorder_cpu_ns()? - before;
    let manifest = recorder.finish("done".into())?;
    let kernel = manifest.layers.iter().filter(|layer| layer.kind == LayerKind::GuestKernel);
    let streams: Vec<_> = kernel.flat_map(|layer| &layer.streams).collect();
    let records: u64 = streams.iter().map(|stream| stream.records).sum();
    let lost: u64 = streams.iter().map(|stream| stream.lost.total()).sum();
    let made = made.into_inner();
    ensure!(records + lost == made, "{records} records and {lost} lost are not {made}");
    taken.ns.extend(medians.iter().map(|(ns, _)| ns));
    taken.clock_ns.extend(medians.iter().map(|(_, clock_ns)| clock_ns));
    taken.recorder_ns.push(used as f64 / records as f64);
    taken.records += records;
    taken.lost += lost;
    Ok(())
}

/// Records group after group, and reads the clock as often between them: the medians of a record and of a reading, ns,
/// and how many records there were.
fn record_steadily(producer: &Producer<CpuLocal>) -> ((f64, f64), u64) {
    let (begun, first_tick) = (Instant::now(), tsc::read_ordered());
    let (mut groups, mut readings, mut records, mut next) = (Vec::new(), Vec::new(), 0, begun);
    while begun.elapsed() < RECORDING {
        let producer = black_box(producer);
        groups.extend(group(|number| {
            black_box(producer.record(tsc::read, EVENT.id, &payload(number)));
        }));
        readings.extend(group(|_| {
            black_box(tsc::read());
        }));
        records += GROUP;
        next = next.max(Instant::now()) + GROUP_INTERVAL;
        while Instant::now() < next {
            std::hint::spin_loop();
        }
    }
    let ns_of_tick = begun.elapsed().as_nanos() as f64 / (tsc::read_ordered() - first_tick) as f64;
    let [record, reading] = [groups, readings].map(|groups| Quartiles::of(groups).median * ns_of_tick);
    ((record, reading), records)
}

/// Ticks of each of a group of operations; `None` where that was interrupted.
fn group(mut operation: impl FnMut(u64)) -> Option<f64> {
    let start = tsc::read_ordered();
    for number in 0..GROUP {
        operation(number);
    }
    let took = tsc::read_ordered() - start;
    (took < INTERRUPTED).then_some(took as f64 / GROUP as f64)
}

/// Keeps the calling thread on `cpu`.
fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

/// CPU time that the recorder's thread has used.
fn recorder_cpu_ns() -> anyhow::Result<u64> {
    let mut threads = Vec::new();
    thread_times::update(&mut threads);
    let recorder = threads.iter().find(|thread| thread.name == "strata-recorder");
    Ok(recorder.context("the recorder has no thread")?.cpu_ns)
}
