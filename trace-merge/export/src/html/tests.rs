//! Shows: A page has the reports' times and the listing's records, hatches gaps, fetches and runs nothing.

use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encoding::tests::numbers;
use serde_json::Value;
use std::io::Read;
use strata_recording::layer::LayerKind;
use strata_recording::test_trace::Field::{Number, Text};
use strata_recording::test_trace::TestTrace;
use strata_recording::test_trace::packet::there_and_back;
use trace_merge::critical_path::{CriticalPathOptions, critical_paths};
use trace_merge::report::scenario::preempted_in_an_exit;

/// What the browser gets.
struct Page {
    text: String,
    about: Value,
    exported: Exported,
}

/// Row, begin and end in ns, name.
type Slice = (u64, u64, String);

fn page_within(bounds: Bounds, trace: TestTrace) -> Page {
    page_with(bounds, trace, |_| None)
}

fn page_with(bounds: Bounds, trace: TestTrace, why: impl FnOnce(&Trace) -> Option<CriticalPaths>) -> Page {
    let (_dir, trace) = trace.open();
    let why = why(&trace);
    let mut bytes = Vec::new();
    let exported = export_within(bounds, &trace, &Options::default(), None, why.as_ref(), &mut bytes).unwrap();
    assert_eq!(exported.bytes, bytes.len() as u64);
    let text = String::from_utf8(bytes).unwrap();
    let about = serde_json::from_str(element(&text, "about")).unwrap();
    Page { text, about, exported }
}

fn page(trace: TestTrace) -> Page {
    page_within(BOUNDS, trace)
}

/// What lies in the element called `id`.
fn element<'t>(text: &'t str, id: &str) -> &'t str {
    let (_, rest) = text.split_once(&format!(" id=\"{id}\">")).unwrap();
    rest.split_once("</script>").unwrap().0
}

impl Page {
    fn column(&self, id: &str) -> Vec<u8> {
        let packed = STANDARD.decode(element(&self.text, id)).unwrap();
        let mut bytes = Vec::new();
        flate2::read::ZlibDecoder::new(&*packed).read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn row(&self, name: &str) -> usize {
        self.about["rows"].as_array().unwrap().iter().position(|row| row["name"] == name).unwrap()
    }

    /// The bins of the counter called `name`.
    fn counter(&self, name: &str) -> Vec<u64> {
        let all = numbers(&self.column("counters"));
        let mut rest = &all[..];
        for counter in self.about["counters"]["counters"].as_array().unwrap() {
            let (bins, behind) = rest[1..].split_at(usize::try_from(rest[0]).unwrap());
            if counter["name"] == name {
                return bins.to_vec();
            }
            rest = behind;
        }
        panic!("no counter is called {name}: {}", self.about["counters"])
    }

    /// The slices of the row called `name`.
    fn slices(&self, name: &str) -> Vec<Slice> {
        let all = numbers(&self.column(&format!("slices-{}", self.row(name))));
        let count = usize::try_from(all[0]).unwrap();
        // Each number of the columns behind their sizes is one, whatever its bytes.
        let column = |place: usize| &all[2 + place * (count + 1)..][..count];
        let mut end = 0;
        let slice = |index: usize| {
            let begin = end + column(0)[index];
            end = begin + column(1)[index];
            let name = usize::try_from(column(2)[index]).unwrap();
            (begin, end, self.about["names"][name][0].as_str().unwrap().into())
        };
        (0..count).map(slice).collect()
    }

    /// Kind, row and time of the begin, row and time of the end of each arrow.
    fn arrows(&self) -> Vec<(u64, String, u64, String, u64)> {
        let mut begin = 0_i64;
        let name = |row: u64| self.about["rows"][usize::try_from(row).unwrap()]["name"].as_str().unwrap().to_owned();
        let arrow = |parts: &[u64]| {
            begin += (parts[1] >> 1).cast_signed() ^ -(parts[1] & 1).cast_signed();
            (parts[0], name(parts[2]), begin.cast_unsigned(), name(parts[4]), begin.cast_unsigned() + parts[3])
        };
        numbers(&self.column("arrows")).chunks(5).map(arrow).collect()
    }
}

fn named(slices: &[Slice]) -> Vec<(u64, u64, &str)> {
    slices.iter().map(|(begin, end, name)| (*begin, *end, &**name)).collect()
}

#[test]
fn vcpu_has_the_states_of_the_report_on_it() {
    let slices = page(preempted_in_an_exit()).slices("vCPU 0");

    // The page begins with the first record, at 4500 ns.
    let expected = [
        (500, 5_500, "guest"),
        (5_500, 6_500, "kvm: ioio"),
        (6_500, 15_500, "preempted: hog/200"),
        (15_500, 18_000, "kvm: ioio"),
        (18_000, 20_500, "vmm: ioio"),
        (20_500, 21_500, "kvm: ioio"),
    ];
    let first: Vec<_> = slices.into_iter().skip_while(|slice| slice.2 != "guest").take(expected.len()).collect();
    assert_eq!(named(&first), expected);
}

#[test]
fn hosts_cpu_is_drawn_from_its_first_record_on() {
    let slices = page(preempted_in_an_exit()).slices("CPU 0");

    let vcpu = "vm0 vCPU 0 (vcpu0/100)";
    let expected = [
        (0, 6_500, vcpu),
        (6_500, 15_500, "hog/200"),
        (15_500, 31_500, vcpu),
        (31_500, 39_500, "idle"),
        (39_500, 41_000, vcpu),
    ];
    assert_eq!(named(&slices), expected);
}

#[test]
fn switches_that_do_not_connect_leave_what_is_not_recorded() {
    let switch = |trace: TestTrace, time, prev: i64, next: i64| {
        let fields = [
            ("common_pid", Number(prev)),
            ("prev_comm", Text("other")),
            ("prev_pid", Number(prev)),
            ("prev_state", Number(1)),
            ("next_comm", Text("other")),
            ("next_pid", Number(next)),
        ];
        trace.host(0, time, "sched:sched_switch", &fields)
    };
    let trace = switch(TestTrace::new(), 1_000, 0, 300);
    let trace = trace.host(0, 3_000, "irq:irq_handler_exit", &[("common_pid", Number(300)), ("irq", Number(1))]);
    let trace = switch(trace, 9_000, 301, 0);
    let trace = switch(trace, 11_000, 0, 302);
    let trace = trace.host(1, 21_000, "irq:irq_handler_exit", &[("common_pid", Number(7)), ("irq", Number(1))]);

    let slices = page(trace).slices("CPU 0");

    let expected = [
        (0, 1_000, "other/300"),
        (1_000, 4_000, "not recorded"),
        (4_000, 5_000, "idle"),
        (5_000, 10_000, "not recorded"),
    ];
    assert_eq!(named(&slices), expected);
}

#[test]
fn task_has_its_fused_states_and_the_arrow_of_its_waker() {
    let page = page(preempted_in_an_exit());

    let slices = page.slices("app/10");
    assert!(slices.contains(&(6_500, 15_500, "stolen: hog/200".into())), "{slices:?}");
    assert_eq!(page.arrows(), [(0, "app/10".into(), 25_500, "late/11".into(), 29_500)]);
}

#[test]
fn packets_lie_in_rows_with_their_steps_and_arrows() {
    let page = page(there_and_back(TestTrace::new(), 10_000, 1));

    let flows: Value = serde_json::from_slice(&page.column("flows")).unwrap();
    let flows: Vec<_> = flows.as_array().unwrap().iter().map(|flow| (&flow["what"], &flow["facts"])).collect();
    let [sent, received] = ["packet 1, sent, 98 bytes, network 0", "packet 1, received, 98 bytes, network 0"]
        .map(|what| Value::from(format!("{what} (eth0 in the guest)")));
    let task = |role: &str| serde_json::json!([[role, "seven/7"]]);
    assert_eq!(flows, [(&sent, &task("sent by")), (&received, &task("woke"))]);
    let kinds: Vec<_> = page.arrows().into_iter().map(|(kind, from, _, to, _)| (kind, from, to)).collect();
    assert!(kinds.contains(&(3, "seven/7".into(), "packets".into())), "{kinds:?}");
    assert!(kinds.contains(&(4, "packets".into(), "seven/7".into())), "{kinds:?}");
    let first = &page.slices("packets")[0];
    assert_eq!((first.1 - first.0, &*first.2), (50, "sent: called → queued"));
}

#[test]
fn path_of_a_task_has_a_row_for_it_and_one_for_whom_it_waited_for() {
    let switch = |trace: TestTrace, time, prev: i64, state, next: i64| {
        let fields = [
            ("prev_comm", Text("task")),
            ("prev_pid", Number(prev)),
            ("prev_state", Number(state)),
            ("next_comm", Text("task")),
            ("next_pid", Number(next)),
        ];
        trace.guest(0, time, "sched:sched_switch", &fields)
    };
    // Without records of interrupts, one of them may have woken whom it likes.
    let interrupts = [
        ("irq:softirq_entry", "vec", 9),
        ("irq:softirq_exit", "vec", 9),
        ("irq_vectors:local_timer_entry", "vector", 236),
        ("irq_vectors:local_timer_exit", "vector", 236),
    ];
    let trace = (1_000..).step_by(2).zip(interrupts).fold(TestTrace::new(), |trace, (time, (event, field, number))| {
        trace.guest(0, time, event, &[(field, Number(number))])
    });
    let trace = switch(trace, 2_000, 7, 0, 10);
    let trace = switch(trace, 10_000, 10, 1, 11);
    let waking = [("comm", Text("task")), ("pid", Number(10)), ("target_cpu", Number(0))];
    let trace = trace.guest(0, 20_000, "sched:sched_waking", &waking);
    let trace = switch(trace, 24_000, 11, 0, 10);
    let trace = switch(trace, 30_000, 10, 0, 7);
    let options = CriticalPathOptions::of("task/10".parse().unwrap());
    let why = |trace: &Trace| Some(critical_paths(trace, &options).unwrap().0);

    let page = page_with(BOUNDS, trace, why);

    // The page begins with the first record, at 500 ns; two ticks are a nanosecond.
    let expected = [
        (0, 500, "not known: no record tells"),
        (500, 4_500, "runs on vCPU 0, as far as the guest can tell"),
        (4_500, 9_500, "waits for event, until task/11 woke it"),
        (9_500, 11_500, "ready; the guest runs task/11 on vCPU 0"),
        (11_500, 14_500, "runs on vCPU 0, as far as the guest can tell"),
    ];
    assert_eq!(named(&page.slices("why task/10")), expected);
    let below = [(4_500, 9_500, "task/11: runs on vCPU 0, as far as the guest can tell")];
    assert_eq!(named(&page.slices("… 1 below")), below);
    assert_eq!(page.about["rows"][page.row("why task/10")]["kind"], "why");
}

#[test]
fn records_are_there_with_their_fields_and_the_meaning_of_their_numbers() {
    let page = page(preempted_in_an_exit());

    let records = &page.about["records"];
    let types = records["types"].as_array().unwrap();
    let call = types.iter().find(|event| event["name"] == "raw_syscalls:sys_enter").unwrap();
    assert_eq!((&call["meanings"]["230"], &call["layer"]), (&"clock_nanosleep".into(), &"guest-kernel".into()));
    assert_eq!(records["kept"], page.exported.records);
    assert_eq!(numbers(&page.column("record-times")).iter().sum::<u64>(), 41_000);
    assert_eq!(numbers(&page.column("record-kinds")).len() as u64, page.exported.records);
}

#[test]
fn exits_and_records_are_counted_in_the_bins_of_their_times() {
    let page = page(preempted_in_an_exit());

    let exits: u64 = page.counter("vCPU 0: exits").iter().sum();
    assert_eq!(page.about["counters"]["shift"], 14);
    let counted: u64 = ["host-kernel: records", "guest-kernel: records", "vmm: records"]
        .iter()
        .map(|name| page.counter(name).iter().sum::<u64>())
        .sum();
    assert_eq!((exits, counted), (3, page.exported.records));
    // The last record is at 41 µs, in the third bin.
    assert_eq!(page.counter("host-kernel: records").len(), 3);
}

#[test]
fn lost_records_are_counted_where_their_packet_ends() {
    let trace = TestTrace::new().switch(0, 1_000, 0, 7).lost(LayerKind::GuestKernel, 0, 5).switch(0, 101_000, 7, 0);

    let page = page(trace);

    let lost = page.counter("vm0 guest-kernel vcpu 0: records lost");
    assert_eq!((lost.iter().sum::<u64>(), lost.len()), (5, 4));
    assert_eq!(page.about["counters"]["counters"].as_array().unwrap().last().unwrap()["kind"], "total");
}

#[test]
fn long_recording_is_bounded_and_says_what_is_left_out() {
    let bounds = Bounds { slices: 4, records: 3, field_bytes: 1000, arrows: 0, tasks: 1 };

    let page = page_within(bounds, preempted_in_an_exit());

    let about = &page.about;
    assert_eq!((&about["records"]["kept"], &about["arrows"]["left_out"]), (&3.into(), &0.into()));
    assert_eq!(about["records"]["left_out"], page.exported.records - 3);
    assert_eq!((&about["tasks_left_out"], about["slices"]["left_out_from"].is_u64()), (&1.into(), true));
    assert_eq!(page.exported.drawn, 3);
}

#[test]
fn nothing_that_a_guest_names_ends_an_element() {
    let evil = "</script><script>boom()</script><!--&";
    let trace = TestTrace::new().switch(0, 1_000, 0, 1);
    let fields = |prev: (&'static str, i64), next: (&'static str, i64)| {
        [
            ("prev_comm", Text(prev.0)),
            ("prev_pid", Number(prev.1)),
            ("prev_state", Number(0)),
            ("next_comm", Text(next.0)),
            ("next_pid", Number(next.1)),
        ]
    };
    let trace = trace.guest(0, 2_000, "sched:sched_switch", &fields(("init", 1), (evil, 66)));
    let trace = trace.guest(0, 3_000, "sched:sched_switch", &fields((evil, 66), ("swapper", 0)));

    let page = page(trace);

    assert!(!page.text.contains("boom()</script>") && !page.text.contains("<script>boom"));
    assert!(page.about["rows"].as_array().unwrap().iter().any(|row| row["name"] == format!("{evil}/66")));
    // What lies in the elements is the same number of elements as without it.
    let scripts = page.text.matches("<script").count();
    assert_eq!(scripts, page.text.matches("</script>").count());
}

#[test]
fn page_fetches_nothing_and_runs_only_its_own_scripts() {
    let page = page(preempted_in_an_exit());

    assert!(page.text.contains("default-src 'none'") && !page.text.contains("{{nonce}}"));
    assert!(!page.text.contains("http://") && !page.text.contains("https://"), "an address");
    assert!(!page.text.contains("<link") && !page.text.contains(" src=") && !page.text.contains("import("));
}

#[test]
fn recording_of_an_application_alone_is_shown_and_a_part_without_its_records_is_refused() {
    let event = |trace: TestTrace, time| trace.user(7, 0, time, "app:event", &[("x", Number(1))]);
    let (_dir, trace) = event(event(TestTrace::new(), 1_000), 9_000).open();
    let between = [1_000, 2_000].map(|ns| Some(std::time::Duration::from_nanos(ns)));
    let part = Options { from: between[0], to: between[1], ..Options::default() };

    let shown = export(&trace, &Options::default(), None, None, std::io::sink()).unwrap();
    let refused = export(&trace, &part, None, None, std::io::sink());

    assert_eq!(shown.records, 2);
    assert!(matches!(refused, Err(ExportError::Nothing)), "{refused:?}");
}

#[test]
fn guests_cpu_and_its_records_have_the_name_of_their_time() {
    let trace = TestTrace::new()
        .named_switch((0, 1_000), (0, "swapper"), 0, (7, "sh"))
        .guest(0, 1_500, "test:event", &[])
        .rename(0, 2_000, 7, "sh", "dd")
        .guest(0, 3_000, "test:event", &[])
        .named_switch((0, 4_000), (7, "dd"), 0x10, (0, "swapper"))
        .guest(0, 4_500, "test:event", &[]);

    let page = page(trace);

    assert_eq!(named(&page.slices("guest CPU 0")), [(0, 500, "sh/7"), (500, 1_500, "dd/7"), (1_500, 1_750, "idle")]);
    let whos = page.about["records"]["whos"].as_array().unwrap();
    assert!(["sh/7", "dd/7"].iter().all(|name| whos.iter().any(|who| who[0] == *name)), "{whos:?}");
    assert!(page.about["rows"][page.row("dd/7")]["kind"] == "task");
}

#[test]
fn hosts_cpu_has_the_name_that_its_thread_gives_itself() {
    let fields = |prev: (i64, &'static str), next: (i64, &'static str)| {
        [
            ("common_pid", Number(prev.0)),
            ("prev_comm", Text(prev.1)),
            ("prev_pid", Number(prev.0)),
            ("prev_state", Number(0)),
            ("next_comm", Text(next.1)),
            ("next_pid", Number(next.0)),
        ]
    };
    let rename =
        [("common_pid", Number(200)), ("pid", Number(200)), ("oldcomm", Text("sh")), ("newcomm", Text("worker"))];
    let trace = TestTrace::new()
        .host(0, 1_000, "sched:sched_switch", &fields((0, "swapper"), (200, "sh")))
        .host(0, 2_000, "task:task_rename", &rename)
        .host(0, 4_000, "sched:sched_switch", &fields((200, "worker"), (0, "swapper")));

    let page = page(trace);

    assert_eq!(named(&page.slices("CPU 0")), [(0, 500, "sh/200"), (500, 1_500, "worker/200")]);
}
