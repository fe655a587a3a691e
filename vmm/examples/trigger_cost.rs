//! What ten triggers cost the recorder for each record of a recording, in the order and the mixture in which they were
//! made: `cargo xtask bench why`. Prints a JSON object. With a number of triggers, only shows the records to the first so
//! many, and prints how many records these were: for counting instructions (`cargo xtask bench instructions`).
//!
//! `cargo run --release -p vmm --example trigger_cost -- TRACE [RECORDS [TRIGGERS]]`

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::hint::black_box;
use std::path::Path;
use strata_recorder::trigger::expression::Trigger;
use strata_recorder::trigger::watch::Watch;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{StreamRecord, Trace};

/// Records that are shown by default.
const RECORDS: usize = 2_000_000;
/// Records of a poll.
const POLL: usize = 1000;
/// One of each kind, and some twice, with bounds that nothing meets.
const TRIGGERS: [&str; 10] = [
    "steal>60s",
    "wakeup>60s task=web*",
    "wakeup>70s",
    "exit>60s",
    "exit:mmio>60s",
    "disk>60s",
    "guest-hang=3000s",
    "oom",
    "guest-panic",
    "event:guest:sched:sched_process_exit comm==\"none\"",
];

/// Parts of the names of events that conditions on times, or one of the triggers, are told by.
const REPORTED_BY: [&str; 11] = [
    "sched_switch",
    "sched_waking",
    "sched_wakeup",
    "kvm_exit",
    "kvm_entry",
    "vcpu_exit",
    "vcpu_enter",
    "block_",
    "process_exit",
    "mark_victim",
    "control",
];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (trace, records, triggers) = match &arguments[..] {
        [trace] => (trace, RECORDS, None),
        [trace, records] => (trace, records.parse()?, None),
        [trace, records, triggers] => (trace, records.parse()?, Some(triggers.parse()?)),
        _ => anyhow::bail!("give TRACE [RECORDS [TRIGGERS]]"),
    };
    let trace = Trace::open(Path::new(trace))?;
    let records = records_of(&trace, records);
    let vcpus = trace.manifest().vms.first().context("the recording has no VM")?.vcpu_threads.clone();
    let frequency = trace.manifest().clock.frequency_hz;
    if let Some(triggers) = triggers {
        // Valgrind has no vDSO, where the library looks for the clock.
        take(&records, (&vcpus, frequency), triggers, || 0);
        println!("{}", records.len());
        return Ok(());
    }
    // Once before, for the caches.
    let time = |records: &[Made<'_>], triggers| take(records, (&vcpus, frequency), triggers, processor_ns);
    let _ = time(&records, 0);
    let (without, with) = (time(&records, 0), time(&records, TRIGGERS.len()));
    let mut others = records.clone();
    others.retain(|(.., record)| !REPORTED_BY.iter().any(|name| record.schema.name().contains(name)));
    let of_others = time(&others, TRIGGERS.len()) - time(&others, 0);
    let figures = json!({
        "records": records.len(),
        "triggers": TRIGGERS.len(),
        "ns": with,
        "ns_without": without,
        "others": others.len(),
        "ns_of_others": of_others,
    });
    println!("{figures}");
    Ok(())
}

/// A record with where it was made.
type Made<'t> = (LayerKind, u32, StreamRecord<'t>);

/// The first records of each stream of the layers that triggers look at, `most` in all, in the order of their times.
fn records_of(trace: &Trace, most: usize) -> Vec<Made<'_>> {
    let layers = || trace.layers().iter().filter(|layer| layer.description.kind != LayerKind::GuestUser);
    let share = most / layers().map(|layer| layer.streams.len()).sum::<usize>().max(1);
    let of_layer = |layer: &'_ strata_recording::reader::TraceLayer| layer.description.kind;
    let mut records: Vec<Made<'_>> = layers()
        .flat_map(|layer| {
            layer.streams.iter().flat_map(move |stream| {
                let cpu = stream.description.cpu_id;
                layer.records(stream).take(share).map(move |record| (of_layer(layer), cpu, record))
            })
        })
        .collect();
    records.sort_by_key(|(.., record)| record.time);
    records
}

/// Processor time of this thread, ns: what others run meanwhile does not count.
fn processor_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Shows `records` to the first so many triggers; ns a record by `clock`. Those of a poll are copied before, which is not counted:
/// a drain has just done that, so that it shows records that are in the processor's caches.
#[allow(clippy::cast_precision_loss, reason = "far fewer than a double counts exactly")]
fn take(records: &[Made<'_>], (vcpus, frequency): (&[i32], u64), triggers: usize, clock: impl Fn() -> i64) -> f64 {
    let mut watch = Watch::new(frequency);
    for (number, text) in (1..).zip(TRIGGERS.iter().take(triggers)) {
        // What is written here is a trigger.
        let Ok(trigger) = Trigger::parse(text) else { continue };
        watch.arm(number, trigger, 0);
    }
    watch.set_vcpus((0..).zip(vcpus.iter().copied()));
    let (mut payloads, mut taken) = (Vec::new(), 0);
    for poll in records.chunks(POLL) {
        payloads.clear();
        poll.iter().for_each(|(.., record)| payloads.extend_from_slice(record.payload));
        let mut rest = &payloads[..];
        let mut copied: Vec<Made<'_>> = Vec::with_capacity(POLL);
        for &(layer, cpu, record) in poll {
            let payload;
            (payload, rest) = rest.split_at(record.payload.len());
            copied.push((layer, cpu, StreamRecord { payload, ..record }));
        }
        let begun = clock();
        for (layer, cpu, record) in &copied {
            watch.record(*layer, *cpu, black_box(record));
        }
        watch.settle(poll.last().map_or(0, |(.., record)| record.time));
        taken += clock() - begun;
    }
    black_box(watch.take_fired());
    taken as f64 / records.len().max(1) as f64
}
