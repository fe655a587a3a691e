//! Prints when the threads of a process are given a CPU and when they lose it, for a second:
//! `cargo run -p strata-host-kernel --example switches -- PID`. Needs root and tracefs.

use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};
use strata_clock::HostTime;
use strata_host_kernel::{EventName, EventSchema, HostItem, HostRecord, HostTraceConfig, HostTracer, Tracefs};

fn main() -> Result<(), Box<dyn Error>> {
    let process: u32 = std::env::args().nth(1).ok_or("usage: switches PID")?.parse()?;
    let threads = fs::read_dir(format!("/proc/{process}/task"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let switch = EventName { group: "sched".into(), name: "sched_switch".into() };
    let events: Vec<_> = Tracefs::find()?.available_events()?.into_iter().filter(|event| *event == switch).collect();
    // The kernel stamps records with the time stamp counter, or with CLOCK_MONOTONIC_RAW where it has given that up.
    let time = HostTime::of_this_host();
    let mut tracer =
        HostTracer::start(&HostTraceConfig { events, process, threads, takes_more: false, time, buffer_kib: 1024 })?;
    tracer.leave_out_this_thread()?;
    let schemas = tracer.schemas().clone();
    let mut print = |item: HostItem<'_>| match item {
        HostItem::Record(record) => schemas.get(record.event_id).into_iter().for_each(|schema| show(schema, &record)),
        HostItem::Lost { cpu, count } => println!("CPU {cpu}: {count:?} records lost"),
        HostItem::Gap { cpu, begins } => println!("CPU {cpu}: a gap {}", if begins { "begins" } else { "ends" }),
    };
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        tracer.poll(&mut print)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    tracer.finish(&mut print)?;
    Ok(())
}

/// Prints a switch: the CPU, the time in ticks, whose turn it was and whose it is.
fn show(schema: &EventSchema, record: &HostRecord<'_>) {
    let field = |name| schema.place(name).and_then(|place| record.payload.get(place)).unwrap_or_default();
    let number = |name| field(name).first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    // Behind its end, a name can hold what was there before.
    let text = |name| field(name).split(|&byte| byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default();
    let [from, to] = [("prev_comm", "prev_pid"), ("next_comm", "next_pid")]
        .map(|(comm, pid)| format!("{}/{}", text(comm), number(pid)));
    println!("CPU {} at {}: {from} -> {to}", record.cpu, record.time);
}
