use super::*;
use crate::recorder::tests::manifest;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use strata_recording::schema::Schema;

/// A time that is later than the begin of every watch: a tick is half a nanosecond.
const BEGIN: u64 = 1 << 62;
const US: u64 = 2_000;

fn schema(id: u16, name: &str, fields: &[(&str, FieldType)]) -> Schema {
    let field = |&(name, ty): &(&str, FieldType)| FieldDescription { name: name.into(), ty, hex: false };
    Schema::new(EventDescription { id, class: 0, name: name.into(), fields: fields.iter().map(field).collect() })
}

/// A watch, and the types of what it is shown.
struct Bench {
    watch: GuestWatch,
    types: Types,
}

struct Types {
    waking: Schema,
    switch: Schema,
    other: Schema,
}

impl Bench {
    fn new() -> Self {
        let comm = FieldType::CharArray(16);
        let (pid, state) = (FieldType::I32, FieldType::I64);
        let types = Types {
            waking: schema(1, "sched:sched_waking", &[("comm", comm), ("pid", pid)]),
            switch: schema(
                2,
                "sched:sched_switch",
                &[
                    ("prev_comm", comm),
                    ("prev_pid", pid),
                    ("prev_state", state),
                    ("next_comm", comm),
                    ("next_pid", pid),
                ],
            ),
            other: schema(3, "irq:irq_handler_entry", &[("irq", pid)]),
        };
        Self { watch: GuestWatch::new(&manifest().clock, HostTime::MonotonicRaw), types }
    }

    fn show(&mut self, cpu: u32, time: u64, schema: fn(&Types) -> &Schema, payload: &[u8]) {
        let record =
            StreamRecord { time: BEGIN + time, schema: schema(&self.types), payload, packet: 0, after_gap: false };
        self.watch.record(cpu, &record);
    }

    fn waking(&mut self, cpu: u32, time: u64, tid: i32) {
        self.show(cpu, time, |types| &types.waking, &[&comm("task")[..], &tid.to_le_bytes()].concat());
    }

    fn switch(&mut self, cpu: u32, time: u64, prev: i32, next: (i32, &str)) {
        let state = 1_i64.to_le_bytes();
        let (prev, next, name) = (prev.to_le_bytes(), next.0.to_le_bytes(), comm(next.1));
        self.show(cpu, time, |types| &types.switch, &[&comm("prev")[..], &prev, &state, &name, &next].concat());
    }

    /// What there is when everything has come.
    fn request(&mut self) -> LiveGuest {
        self.watch.end_look(u64::MAX);
        self.watch.request()
    }
}

fn comm(name: &str) -> [u8; 16] {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name.as_bytes());
    comm
}

#[test]
fn wakeup_is_timed_whichever_vcpu_is_read_first() {
    let mut bench = Bench::new();

    bench.switch(0, 6 * US, 7, (42, "web"));
    bench.show(0, 6 * US, |types| &types.other, &[0; 4]);
    bench.waking(1, US, 42);
    let guest = bench.request();

    assert_eq!((guest.wakeups.count, guest.wakeups.total_ns), (1, 5_000));
    let LiveWakeup { task, tid, cpu, ns, .. } = &guest.worst[0];
    assert_eq!((task.raw().as_str(), *tid, *cpu, *ns), ("web", 42, 0, 5_000));
}

#[test]
fn records_younger_than_the_look_wait_for_the_next_one() {
    let mut bench = Bench::new();
    bench.switch(0, 6 * US, 7, (42, "web"));
    bench.watch.end_look(BEGIN + 5 * US);
    let before = bench.watch.request().wakeups.count;

    bench.waking(1, US, 42);

    assert_eq!((before, bench.request().wakeups.count), (0, 1));
}

#[test]
fn only_the_longest_wakeups_of_a_second_are_kept_and_only_of_the_last_seconds() {
    let mut bench = Bench::new();
    let second = 1_000_000 * US;

    for (number, tid) in (0..40 * 20).zip(1..) {
        let at = number / 20 * second + number % 20 * 1_000 * US;
        bench.waking(0, at, tid);
        bench.switch(0, at + (number % 20 + 1) * US, 0, (tid, "task"));
    }
    let worst = bench.request().worst;

    assert_eq!(worst.len(), LATE_SECONDS * WORST);
    let shortest = worst.iter().map(|wakeup| wakeup.ns).min();
    assert_eq!((worst[0].ns, shortest), (20_000, Some(16_000)));
    assert!(worst.iter().all(|wakeup| wakeup.at_ns >= (BEGIN / 2) + 23 * 1_000_000_000), "{worst:?}");
}

#[test]
fn after_lost_records_wakeups_from_before_are_not_paired() {
    let mut bench = Bench::new();
    bench.waking(1, US, 42);
    bench.watch.end_look(u64::MAX);

    bench.watch.forget();
    bench.switch(0, 6 * US, 7, (42, "web"));

    assert_eq!(bench.request().wakeups.count, 0);
}

#[test]
fn records_from_before_the_first_question_are_not_counted() {
    let mut bench = Bench::new();
    bench.watch.from = BEGIN + 3 * US;

    bench.waking(1, US, 42);
    bench.switch(0, 6 * US, 7, (42, "web"));

    assert_eq!(bench.request().wakeups.count, 0);
}

#[test]
fn event_of_that_name_with_other_fields_says_nothing() {
    let mut bench = Bench::new();
    bench.types.switch = schema(2, "sched:sched_switch", &[("next_pid", FieldType::U8)]);

    (0..9).for_each(|time| bench.show(0, time, |types| &types.switch, &[42]));

    assert_eq!(bench.request().wakeups, Times::default());
}

#[test]
fn what_is_held_is_bounded() {
    let mut bench = Bench::new();

    (0..3 * MAX_HELD as u64).for_each(|time| bench.waking(0, time, 42));

    assert!(bench.watch.held.len() < MAX_HELD);
}

/// What a record costs; says it, and holds nothing against it: `docs/control.md` has the figure.
#[test]
#[ignore = "by hand: cargo test --release -p vmm --lib guest::tests::cost -- --ignored --nocapture"]
fn cost_of_a_record() {
    let mut bench = Bench::new();
    let pairs = 1_000_000_u64;

    let payload = |tid: i32| [&comm("prev")[..], &[0; 12], &comm("task")[..], &tid.to_le_bytes()].concat();
    let payloads: Vec<(Vec<u8>, Vec<u8>)> =
        (1..1_000_i32).map(|tid| ([&comm("task")[..], &tid.to_le_bytes()].concat(), payload(tid))).collect();

    let begun = Instant::now();
    for (number, (waking, switch)) in (0..pairs).zip(payloads.iter().cycle()) {
        bench.show(1, number * 20 * US, |types| &types.waking, waking);
        bench.show(0, number * 20 * US + 5 * US, |types| &types.switch, switch);
        if number % 2_500 == 0 {
            bench.watch.end_look(BEGIN + number * 20 * US);
        }
    }
    let passed = begun.elapsed();

    assert_eq!(bench.request().wakeups.count, pairs);
    println!("{:.1} ns a record", passed.as_secs_f64() * 1e9 / (2 * pairs) as f64);
}
