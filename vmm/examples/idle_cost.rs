//! What a recorder costs the host while the guest does nothing, and whether it loses records when that wakes up:
//! `cargo xtask bench idle`.
//!
//! A thread plays the vCPU: it sleeps as a guest does that wakes up for its timer, then makes ten million records at a
//! steady rate. Once the recorder is woken by the thread's work, once it has to look by itself; in turns, in one run.

mod recorder_side;

use anyhow::Context;
use clock_sync::tsc;
use recorder_side::{RecorderSide, Shape, producer, register};
use serde::Serialize;
use shared_ring::event::{Event, Field, FieldType};
use shared_ring::layout::Mode;
use shared_ring::region::Rings;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use strata_recorder::drain::work_alarm::WorkAlarms;
use strata_recorder::region::TraceRegion;
use strata_recording::layer::LayerKind;

const EVENT: Event = Event { id: 1, class: 0, name: "bench:tick", fields: &[Field::new("number", FieldType::U64)] };
/// Records of the burst.
const BURST: u64 = 10_000_000;
/// Records that are made one after the other, and the time from one such group to the next: 2.5 million a second.
const GROUP: (u64, Duration) = (250, Duration::from_micros(100));
/// How often the idle guest wakes up in a second, and how long it works then, as measured of a Debian guest.
const WAKE_UPS: u32 = 13;
const WORK: Duration = Duration::from_micros(50);
/// The longest wait for the recorder to come to rest.
const SETTLE: Duration = Duration::from_secs(2);

/// What the recorder did in one turn.
#[derive(Clone, Copy, Debug, Serialize)]
struct Turn {
    /// Whether the guest's work wakes the recorder.
    is_woken: bool,
    /// CPU time of its thread in each second of the guest's sleep, ns.
    cpu_ns: f64,
    /// How often its thread slept and was woken in a second.
    wake_ups: f64,
    /// Records of the burst.
    records: u64,
    /// Those of them that were lost.
    lost: u64,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u32 = arguments.next().map_or(Ok(10), |text| text.parse()).context("seconds of each turn")?;
    let turns: u32 = arguments.next().map_or(Ok(5), |text| text.parse()).context("turns")?;
    let json = arguments.next().map(PathBuf::from);
    let mut results = Vec::new();
    println!("recorder          CPU in 1 s     % of a CPU   wake-ups in 1 s   lost of {BURST} records");
    for _ in 0..turns {
        for is_woken in [false, true] {
            let turn = turn(is_woken, Duration::from_secs(seconds.into()))?;
            let name = if is_woken { "woken by work" } else { "looks by itself" };
            let (us, share) = (turn.cpu_ns / 1e3, turn.cpu_ns / 1e7);
            println!("{name:15} {us:9.1} µs {share:14.4} {:17.2}   {}", turn.wake_ups, turn.lost);
            results.push(turn);
        }
    }
    for (name, figure) in [("CPU time", Turn::cpu as fn(&Turn) -> f64), ("wake-ups", Turn::wakes)] {
        let median = |is_woken| {
            let mut values: Vec<f64> = results.iter().filter(|turn| turn.is_woken == is_woken).map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!("{name}: ratio of medians {:.4}", median(true) / median(false));
    }
    if let Some(file) = json {
        fs::write(&file, serde_json::to_vec_pretty(&results)?).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

impl Turn {
    const fn cpu(&self) -> f64 {
        self.cpu_ns
    }

    const fn wakes(&self) -> f64 {
        self.wake_ups
    }
}

fn turn(is_woken: bool, idle: Duration) -> anyhow::Result<Turn> {
    let alarms = Arc::new(WorkAlarms::new(1));
    let side = RecorderSide::start(Shape::SMALL, Mode::Discard, None, &alarms)?;
    let RecorderSide { folder: _folder, region, rings, recorder } = side;

    let (orders, received) = channel();
    let (answers, answered) = channel();
    let guest = std::thread::spawn(move || {
        if is_woken {
            alarms.watch_this_thread();
        }
        guest(&region, rings, &received, &answers);
    });
    orders.send(Order::Sleep)?;
    std::thread::sleep(SETTLE);
    let (before, begun) = (Usage::of_recorder()?, Instant::now());
    std::thread::sleep(idle);
    let (after, seconds) = (Usage::of_recorder()?, begun.elapsed().as_secs_f64());
    orders.send(Order::Burst)?;
    answered.recv()?;
    drop(orders);
    guest.join().map_err(|_| anyhow::anyhow!("the guest's thread panicked"))?;
    let manifest = recorder.finish("done".into())?;

    let kernel = manifest.layers.iter().filter(|layer| layer.kind == LayerKind::GuestKernel);
    let streams: Vec<_> = kernel.flat_map(|layer| &layer.streams).collect();
    let lost: u64 = streams.iter().map(|stream| stream.lost.total()).sum();
    let records: u64 = streams.iter().map(|stream| stream.records).sum();
    anyhow::ensure!(records + lost == BURST, "{records} records and {lost} lost are not {BURST}");
    Ok(Turn {
        is_woken,
        cpu_ns: (after.cpu_ns - before.cpu_ns) as f64 / seconds,
        wake_ups: (after.wake_ups - before.wake_ups) as f64 / seconds,
        records: BURST,
        lost,
    })
}

/// What the guest is to do.
enum Order {
    Sleep,
    Burst,
}

/// Sleeps, waking up now and then, until the burst is requested.
fn guest(region: &TraceRegion, rings: Rings, orders: &Receiver<Order>, answers: &Sender<()>) {
    register(region, &[EVENT]);
    let producer = producer(region, rings, 0);
    while !matches!(orders.recv_timeout(Duration::from_secs(1) / WAKE_UPS), Ok(Order::Burst)) {
        let begun = Instant::now();
        while begun.elapsed() < WORK {
            std::hint::spin_loop();
        }
    }
    let mut next = Instant::now();
    for number in 0..BURST {
        if number % GROUP.0 == 0 {
            while Instant::now() < next {
                std::hint::spin_loop();
            }
            // A thread that the host has kept from running does not make up for it.
            next = next.max(Instant::now()) + GROUP.1;
        }
        producer.record(tsc::read_ordered, EVENT.id, &number.to_le_bytes());
    }
    // Who asked for it waits for this.
    let _ = answers.send(());
}

/// What the recorder's thread has used so far.
struct Usage {
    cpu_ns: u64,
    wake_ups: u64,
}

impl Usage {
    fn of_recorder() -> anyhow::Result<Self> {
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?.path();
            if fs::read_to_string(task.join("comm"))?.trim() == "strata-recorder" {
                let schedstat = fs::read_to_string(task.join("schedstat"))?;
                let status = fs::read_to_string(task.join("status"))?;
                let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                return Ok(Self {
                    cpu_ns: schedstat.split(' ').next().context("schedstat")?.parse()?,
                    wake_ups: switches.context("context switches")?.trim().parse()?,
                });
            }
        }
        anyhow::bail!("the recorder has no thread")
    }
}
