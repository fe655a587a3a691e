//! How long it takes from an event to the mark of its trigger, which is when a snapshot is requested:
//! `cargo xtask bench why`. Prints a JSON object; times are ns.
//!
//! A thread plays the guest's vCPU: it makes records that a trigger is about at moments that have nothing to do with
//! the recorder's. Once while nothing else runs, once while each CPU has a thread that does not sleep; as a flight
//! recorder, and in discard mode.
//!
//! `cargo run --release -p vmm --example trigger_delay -- [EVENTS]`

mod recorder_side;

use anyhow::{Context, ensure};
use clock_sync::tsc;
use recorder_side::{RecorderSide, Shape, producer, register};
use serde_json::json;
use shared_ring::event::{Event, Field, FieldType};
use shared_ring::layout::Mode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strata_recorder::drain::work_alarm::WorkAlarms;
use strata_recorder::trigger::TriggerRequest;
use strata_recorder::trigger::expression::Trigger;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;

/// Events of each turn by default.
const EVENTS: u64 = 200;
/// The event itself is triggered on.
const TICK: Event = Event { id: 1, class: 0, name: "bench:tick", fields: &[Field::new("number", FieldType::U64)] };
/// The time between these two is.
const WAKING: Event = Event {
    id: 2,
    class: 0,
    name: "sched:sched_waking",
    fields: &[Field::new("comm", FieldType::CharArray(16)), Field::new("pid", FieldType::I32)],
};
const SWITCH: Event = Event {
    id: 3,
    class: 0,
    name: "sched:sched_switch",
    fields: &[
        Field::new("prev_comm", FieldType::CharArray(16)),
        Field::new("prev_pid", FieldType::I32),
        Field::new("prev_state", FieldType::I64),
        Field::new("next_comm", FieldType::CharArray(16)),
        Field::new("next_pid", FieldType::I32),
    ],
};
/// On the event, and on the time.
const TRIGGERS: [&str; 2] = ["event:guest:bench:tick", "wakeup>1us"];
const TASK: i32 = 42;
/// The time from one event to the next, µs: at least, and by how much it may be longer.
const PAUSE: (u64, u64) = (20_000, 40_000);
/// How long the task waits.
const WAIT: Duration = Duration::from_micros(50);
/// Behind the last event, before the recording is completed.
const LAST: Duration = Duration::from_secs(2);

fn main() -> anyhow::Result<()> {
    let events = std::env::args().nth(1).map_or(Ok(EVENTS), |text| text.parse()).context("number of events")?;
    let mut turns = Vec::new();
    for mode in [Mode::FlightRecorder, Mode::Discard] {
        for is_busy in [false, true] {
            let delays = turn(mode, is_busy, events)?;
            for (kind, mut delays) in ["event", "time"].into_iter().zip(delays) {
                delays.sort_unstable();
                let of = |percent: usize| delays[(delays.len() * percent / 100).min(delays.len() - 1)];
                turns.push(json!({
                    "mode": if mode == Mode::Discard { "discard" } else { "flight-recorder" },
                    "busy": is_busy,
                    "of": kind,
                    "events": delays.len(),
                    "p50": of(50),
                    "p99": of(99),
                }));
            }
        }
    }
    println!("{}", json!(turns));
    Ok(())
}

/// The delays of events, and of times, ns.
fn turn(mode: Mode, is_busy: bool, events: u64) -> anyhow::Result<[Vec<u64>; 2]> {
    let triggers = TRIGGERS.iter().map(|text| Trigger::parse(text)).collect::<Result<_, _>>()?;
    // Marked each time, and no snapshot is written meanwhile.
    let request = TriggerRequest { triggers, every: Some(Duration::ZERO), after: Duration::from_secs(3600) };
    let alarms = Arc::new(WorkAlarms::new(1));
    let RecorderSide { folder, region, rings, recorder } =
        RecorderSide::start(Shape::SMALL, mode, Some(request), &alarms)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads = if is_busy { std::thread::available_parallelism().map_or(1, usize::from) } else { 0 };
        for _ in 0..loads {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        register(&region, &[TICK, WAKING, SWITCH]);
        let producer = producer(&region, rings, 0);
        for number in 0..events {
            // As if by chance: the pauses have no pattern that the recorder's have.
            std::thread::sleep(Duration::from_micros(PAUSE.0 + number * 7919 % PAUSE.1));
            producer.record(tsc::read_ordered, TICK.id, &number.to_le_bytes());
            std::thread::sleep(Duration::from_micros(PAUSE.0 + number * 6997 % PAUSE.1));
            producer.record(tsc::read_ordered, WAKING.id, &[&[0; 16][..], &TASK.to_le_bytes()].concat());
            std::thread::sleep(WAIT);
            producer.record(tsc::read_ordered, SWITCH.id, &[&[0; 44][..], &TASK.to_le_bytes()].concat());
        }
        std::thread::sleep(LAST);
        is_over.store(true, Ordering::Relaxed);
    });
    recorder.finish("done".into())?;
    let trace = Trace::open(&folder.path().join("trace"))?;
    let frequency = u128::from(trace.manifest().clock.frequency_hz);
    let delays = |event: &str, mark: &str| {
        let events = times(&trace, LayerKind::GuestKernel, |name, _| name == event);
        let marks = times(&trace, LayerKind::Vmm, |name, what| name == "vmm:control" && what == mark);
        ensure!(events.len() == marks.len(), "{} marks of {} events", marks.len(), events.len());
        let delay = |(event, mark): (u64, u64)| u128::from(mark.saturating_sub(event)) * 1_000_000_000 / frequency;
        events.into_iter().zip(marks).map(|pair| Ok(u64::try_from(delay(pair))?)).collect::<anyhow::Result<Vec<u64>>>()
    };
    Ok([delays(TICK.name, "trigger_1")?, delays(SWITCH.name, "trigger_2")?])
}

/// The times of records of `layer` that are wanted by their name and what they say, ticks, in their order.
fn times(trace: &Trace, layer: LayerKind, is_wanted: impl Fn(&str, &str) -> bool) -> Vec<u64> {
    let streams = trace.layers_of(layer).flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream)));
    let records = streams.flat_map(|(layer, stream)| layer.records(stream));
    let what =
        |record: &strata_recording::reader::StreamRecord<'_>| record.text("what").unwrap_or_default().into_owned();
    let wanted = records.filter(|record| is_wanted(record.schema.name(), &what(record)));
    let mut times: Vec<u64> = wanted.map(|record| record.time).collect();
    times.sort_unstable();
    times
}
