use super::*;
use strata_recording::test_trace::Field::{Arguments, Number, Text};
use strata_recording::test_trace::TestTrace;
use tempfile::TempDir;

/// Time of a round, ticks; a tick is half a nanosecond.
const ROUND: u64 = 1_000_000;
const ROUNDS: u64 = 2_400;

/// What a guest does. In each round `web` is woken, runs, reads, and leaves the guest once while it reads.
#[derive(Clone, Copy)]
struct Load {
    seed: u64,
    /// From waking until running, on average, ticks.
    latency: u64,
    /// A call of `pread64`, on average, ticks.
    read: u64,
    /// Out of the guest, on average, ticks.
    exit: u64,
    /// Rounds of 100 in which nothing happens, in bursts of rounds.
    idle: u64,
    /// Whether locks are recorded, and one is waited for in each round.
    locks: bool,
    /// Records of the guest that are lost after each 200 rounds.
    lost: u64,
}

const PLAIN: Load = Load { seed: 1, latency: 20_000, read: 60_000, exit: 8_000, idle: 0, locks: false, lost: 0 };

struct Chance(u64);

impl Chance {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    /// A time with a long tail: one in sixteen takes four times as long.
    fn time(&mut self, mean: u64) -> u64 {
        let time = mean / 2 + self.next(mean);
        if self.next(16) == 0 { 4 * time } else { time }
    }
}

fn switch(trace: TestTrace, time: u64, (prev, prev_state): (i64, i64), next: i64) -> TestTrace {
    let comm = |tid| Text(if tid == 0 { "swapper/0" } else { "web" });
    let fields = [
        ("prev_comm", comm(prev)),
        ("prev_pid", Number(prev)),
        ("prev_state", Number(prev_state)),
        ("next_comm", comm(next)),
        ("next_pid", Number(next)),
    ];
    trace.guest(0, time, "sched:sched_switch", &fields)
}

impl Load {
    fn record(self) -> TestTrace {
        let mut chance = Chance(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut trace = TestTrace::new();
        let vcpu = [("common_pid", Number(100)), ("vcpu_id", Number(0))];
        trace = trace.host(0, 500, "kvm:kvm_entry", &vcpu);
        let mut is_idle = false;
        for round in 0..ROUNDS {
            if chance.next(12) == 0 {
                is_idle = chance.next(100) < self.idle;
            }
            if self.lost > 0 && round % 200 == 0 {
                trace = trace.lost(LayerKind::GuestKernel, 0, self.lost);
            }
            if !is_idle {
                trace = self.round(trace, 1_000 + round * ROUND, &mut chance);
            }
        }
        trace
    }

    fn round(self, mut trace: TestTrace, begin: u64, chance: &mut Chance) -> TestTrace {
        let woken = [("comm", Text("web")), ("pid", Number(10)), ("target_cpu", Number(0))];
        trace = trace.guest(0, begin, "sched:sched_waking", &woken);
        let mut time = begin + chance.time(self.latency);
        trace = switch(trace, time, (0, 0), 10);
        if self.locks {
            let lock = [("lock_addr", Number(1)), ("flags", Number(1))];
            trace = trace.guest(0, time + 10, "lock:contention_begin", &lock);
            trace = trace.guest(0, time + 500, "lock:contention_end", &lock[..1]);
        }
        time += 1_000;
        trace = trace.guest(0, time, "raw_syscalls:sys_enter", &[("id", Number(17)), ("args", Arguments([0; 2]))]);
        let (read, out) = (chance.time(self.read), chance.time(self.exit));
        let exit =
            [("common_pid", Number(100)), ("exit_reason", Number(0x7b)), ("isa", Number(2)), ("vcpu_id", Number(0))];
        trace = trace.host(0, time + 100, "kvm:kvm_exit", &exit);
        trace = trace.host(0, time + 100 + out, "kvm:kvm_entry", &[exit[0], exit[3]]);
        time += 200 + out + read;
        trace = trace.guest(0, time, "raw_syscalls:sys_exit", &[("id", Number(17)), ("ret", Number(0))]);
        switch(trace, time + 1_000, (10, 1), 0)
    }
}

fn compared(a: Load, b: Load) -> Diff {
    let (of_a, of_b): ((TempDir, Trace), (TempDir, Trace)) = (a.record().open(), b.record().open());
    diff(of_a.0.path(), of_b.0.path(), &ReportOptions::default(), &AtomicU64::new(0)).unwrap()
}

fn value(diff: &Diff, report: &str, what: &str, value: &str) -> Value {
    let row = diff.rows.iter().find(|row| row.report == report && row.what == what);
    *row.unwrap().values.iter().find(|known| known.value == value).unwrap()
}

/// Report, row and value of each change.
fn changes(diff: &Diff) -> Vec<(&str, &str, &str)> {
    let of_row = |row: &'_ RowDiff| row.values.iter().filter(|value| value.changed).map(|value| value.value).collect();
    let rows = diff.rows.iter().map(|row| -> (&RowDiff, Vec<&str>) { (row, of_row(row)) });
    rows.flat_map(|(row, values)| values.into_iter().map(|value| (row.report, row.what.as_str(), value))).collect()
}

#[test]
fn recording_has_not_changed_from_itself_nor_from_another_of_the_same_load() {
    let same = compared(PLAIN, PLAIN);
    let alike = compared(PLAIN, Load { seed: 7, ..PLAIN });

    assert_eq!((changes(&same), changes(&alike)), (vec![], vec![]));
    assert!(alike.compared > 15 && alike.rows.iter().any(|row| row.report == "tasks"), "{}", alike.compared);
}

#[test]
fn bursts_that_fall_differently_are_no_change() {
    let bursty = Load { idle: 60, ..PLAIN };

    let all: Vec<Diff> =
        (0..6).map(|pair| compared(Load { seed: 20 + pair, ..bursty }, Load { seed: 40 + pair, ..bursty })).collect();

    let printed: Vec<_> = all.iter().flat_map(changes).collect();
    assert_eq!(printed, []);
}

#[test]
fn later_wake_ups_are_named_with_their_size_and_nothing_else_is() {
    let diff = compared(PLAIN, Load { seed: 7, latency: 30_000, ..PLAIN });

    let changes = changes(&diff);
    assert!(changes.contains(&("wakeups", "web", "p50")), "{changes:?}");
    let others: Vec<_> = changes.iter().filter(|(report, ..)| !["wakeups", "tasks"].contains(report)).collect();
    assert_eq!(others, Vec::<&(&str, &str, &str)>::new());
    // From 10 µs to 15 µs on average, but for the tail.
    let Value { difference, low, high, .. } = value(&diff, "wakeups", "web", "p50");
    assert!(low <= 5_000.0 && 5_000.0 <= high && low > 3_000.0, "{low} {difference} {high}");
}

#[test]
fn slower_exits_are_named_with_their_cost_and_so_are_the_calls_that_contain_them() {
    let diff = compared(PLAIN, Load { seed: 7, exit: 80_000, ..PLAIN });

    let first = diff.rows.first().unwrap();
    let exits = diff.rows.iter().find(|row| row.report == "exits").unwrap();
    assert!(exits.changed() && exits.what == "ioio");
    // 2000 rounds a second, each 36 µs longer, and one in sixteen four times as much.
    assert!((60e6..130e6).contains(&exits.cost_ns_per_second), "{}", exits.cost_ns_per_second);
    assert!(first.cost_ns_per_second.abs() >= exits.cost_ns_per_second);
    let changes = changes(&diff);
    assert!(changes.contains(&("syscalls", "web: pread64", "p50")), "{changes:?}");
    assert!(changes.contains(&("vcpus", "kvm: ioio", "time_per_second")), "{changes:?}");
    assert!(!changes.contains(&("exits", "ioio", "per_second")), "{changes:?}");
}

#[test]
fn half_as_many_rounds_are_a_change_of_the_number_and_not_of_the_times() {
    let diff = compared(PLAIN, Load { seed: 7, idle: 50, ..PLAIN });

    let changes = changes(&diff);
    assert!(changes.contains(&("wakeups", "web", "per_second")), "{changes:?}");
    assert!(!changes.iter().any(|(_, _, value)| value.starts_with('p') && *value != "per_second"), "{changes:?}");
}

#[test]
fn what_only_one_has_recorded_is_reported_and_not_compared() {
    let diff = compared(PLAIN, Load { seed: 7, locks: true, ..PLAIN });

    let reason = "recorded in B only: guest-kernel:lock:contention_begin".to_string();
    let of = |report: &str| NotCompared { vm: Some("vm0".into()), report: report.into(), reason: reason.clone() };
    assert_eq!(diff.not_compared, [of("locks"), of("tasks")]);
    assert!(!diff.rows.iter().any(|row| row.report == "locks" || row.report == "tasks"));
    assert!(diff.rows.iter().any(|row| row.report == "wakeups"));
}

#[test]
fn parts_with_lost_records_are_left_out_and_too_many_of_them_are_reported() {
    let diff = compared(PLAIN, Load { seed: 7, lost: 9, ..PLAIN });

    let not_compared: Vec<&str> = diff.not_compared.iter().map(|not| not.report.as_str()).collect();
    assert!(not_compared.contains(&"wakeups") && not_compared.contains(&"syscalls"), "{not_compared:?}");
    assert!(diff.not_compared[0].reason.contains("parts of B"), "{}", diff.not_compared[0].reason);
    // The host's records are all there.
    assert!(diff.rows.iter().any(|row| row.report == "exits"));
    assert!(!diff.b.completeness.complete && diff.a.completeness.layers.iter().all(|layer| layer.lost.total() == 0));
}

#[test]
fn text_names_the_changes_and_json_has_all_rows() {
    let (of_a, of_b) = (PLAIN.record().open(), Load { seed: 7, latency: 60_000, ..PLAIN }.record().open());
    let (mut text, mut json) = (Vec::new(), Vec::new());

    let progress = AtomicU64::new(0);
    let diff = diff(of_a.0.path(), of_b.0.path(), &ReportOptions::default(), &progress).unwrap();
    write(&diff, false, &mut text).unwrap();
    write(&diff, true, &mut json).unwrap();

    assert_eq!(progress.into_inner(), DONE);
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("values changed") && text.contains("vm0 wakeups") && text.contains("+"), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let wakeups = rows.iter().find(|row| row["report"] == "wakeups").unwrap();
    assert!(wakeups["histogram"].as_array().unwrap().iter().any(|bucket| bucket["a"] != bucket["b"]));
    assert!(rows.iter().any(|row| row["report"] == "exits"));
}

#[test]
fn window_without_a_record_is_an_error_that_names_the_recording() {
    let (dir, _trace) = PLAIN.record().open();
    let options = ReportOptions { from: Some(std::time::Duration::from_secs(3600)), ..ReportOptions::default() };

    let error = diff(dir.path(), dir.path(), &options, &AtomicU64::new(0)).unwrap_err();

    assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
}
