//! Sessions: begun, stopped, refused and ended while the VM runs, and how long polls may wait.

use super::*;
use shared_ring::layout::RING_ADOPTED;

#[test]
fn main_session_stops_and_starts_but_is_not_destroyed() {
    let bench = Bench::new(Mode::FlightRecorder);
    let mask = || bench.region.memory().load(bench.region.layout().session_slot(0));
    let name = || MAIN_SESSION.to_owned();

    bench.request(Request::SessionStart { name: name() });
    let started = mask();
    bench.request(Request::SessionStop { name: name() });
    let stopped = mask();
    let destroyed = bench.request(Request::SessionDestroy { name: name() });

    assert_eq!((started & 1, stopped), (1, 0));
    assert!(message(destroyed).contains("ends with the VM"));
}

#[test]
fn session_made_while_the_vm_runs_has_rings_and_a_trace_of_its_own() {
    let bench = Bench::new(Mode::Discard);
    let events = "guest:sched:*".to_owned();
    let request = Request::SessionCreate {
        name: "extra".into(),
        mode: protocol::Mode::FlightRecorder,
        sub_buffer_size: Some(4096),
        sub_buffers: Some(4),
        events: Some(events),
        trace: Some(bench.path("extra")),
        max_size: None,
        limits: Vec::new(),
    };
    let name = || "extra".to_owned();

    let created = bench.request(request);
    bench.request(Request::SessionStart { name: name() });
    bench.record(1, Mode::FlightRecorder, 9);
    let written = bench.request(Request::Snapshot { dir: bench.path("extra-now"), session: Some(name()) });
    let destroyed = bench.request(Request::SessionDestroy { name: name() });

    assert!(message(created).contains("is made"));
    assert!(message(written).starts_with("9 records"));
    assert_eq!(message(destroyed), "session extra is gone");
    assert_eq!(bench.records("extra-now", LayerKind::GuestKernel), 9);
    assert_eq!(bench.records("extra", LayerKind::GuestKernel), 9);
    assert!(bench.region.is_free(1));
}

#[test]
fn flush_asks_all_sessions_before_it_waits_for_one() {
    let mut bench = sessions(Mode::Discard);
    let extra = bench.dir.path().join("extra");
    bench.recorder.answer(create("extra", protocol::Mode::Discard, Some(extra)));
    bench.recorder.answer(Request::SessionStart { name: "extra".into() });
    let producers = [0, 1].map(|slot| bench.producer(slot, Mode::Discard));
    for producer in &producers {
        producer.record(tsc::read_ordered, EVENT.id, &7_u64.to_le_bytes());
    }

    let recorder = &mut bench.recorder;
    let flushed = std::thread::scope(|scope| {
        // Longer than any machine is held up.
        let flush = scope.spawn(move || recorder.flush(Duration::from_secs(60)).unwrap());
        // This guest answers the session that was made last first.
        for producer in producers.iter().rev() {
            while !producer.poll_flush_request(tsc::read_ordered) && !flush.is_finished() {
                std::thread::yield_now();
            }
        }
        flush.join().unwrap()
    });

    assert_eq!(flushed, Answer::done("flushed"));
}

#[test]
fn session_that_cannot_be_is_refused_and_takes_no_slot() {
    let bench = Bench::new(Mode::Discard);
    let flight = protocol::Mode::FlightRecorder;
    let large = Request::SessionCreate {
        name: "large".into(),
        mode: flight,
        sub_buffer_size: Some(1 << 20),
        sub_buffers: Some(4),
        events: None,
        trace: None,
        max_size: None,
        limits: Vec::new(),
    };

    let refusals = [
        (create("main", flight, None), "already"),
        (create("../x", flight, None), "not a session name"),
        (create("a", protocol::Mode::Discard, None), "--trace DIR"),
        (create("a", flight, Some("relative".into())), "absolute"),
        (large, "too large"),
        (create_within(1 << 20, protocol::Mode::Discard), "16 MiB or more"),
        (create_within(1 << 30, flight), "discard mode"),
        (Request::SessionStart { name: "none".into() }, "no session is called 'none'; there are main"),
        (Request::Pause, "does not serve"),
    ];

    for (request, expected) in refusals {
        let printed = message(bench.request(request));
        assert!(printed.contains(expected), "{printed}");
    }
    assert!(bench.region.is_free(1));
    bench.request(create("a", flight, None));
    assert!(message(bench.request(create("b", flight, None))).contains("destroy a session first"));
}

#[test]
fn flush_writes_the_sessions_after_one_whose_manifest_cannot_be_written() {
    let mut bench = sessions(Mode::Discard);
    let (manifest, extra) = (bench.dir.path().join("trace/session.json"), bench.dir.path().join("extra"));
    bench.recorder.answer(create("extra", protocol::Mode::Discard, Some(extra.clone())));
    bench.recorder.answer(Request::SessionStart { name: "extra".into() });
    // More than a sub-buffer, which the guest delivers unasked.
    bench.record(1, Mode::Discard, 400);
    fs::remove_file(&manifest).unwrap();
    fs::create_dir(&manifest).unwrap();

    let answer = message(bench.recorder.answer(Request::Flush));

    assert!(answer.contains("session.json"), "{answer}");
    let trace = Trace::open(&extra).unwrap();
    let streams = trace.layers_of(LayerKind::GuestKernel).flat_map(|layer| &layer.streams);
    assert!(streams.map(|stream| stream.packets()).sum::<usize>() > 0);
}

/// Sessions that nobody polls but the test, whose main one is in `mode`; they have been polled once.
fn sessions(mode: Mode) -> Bench<Sessions> {
    let (dir, region) = (TempDir::new().unwrap(), Bench::region(mode));
    let mut bench =
        Bench::started(dir, region, &request(mode), |requested, vm| Sessions::start(requested, vm).unwrap());
    bench.recorder.poll();
    bench
}

#[test]
fn poll_can_wait_until_a_ring_is_a_quarter_full() {
    let mut bench = sessions(Mode::Discard);

    // Records of 16 bytes or more, in a ring of 16 KiB.
    let waits = [0, 100, 200].map(|count| {
        bench.record(0, Mode::Discard, count);
        bench.recorder.can_wait()
    });
    bench.recorder.poll();

    assert_eq!((waits, bench.recorder.can_wait()), ([true, true, false], true));
}

#[test]
fn poll_cannot_wait_when_an_event_type_is_new() {
    let mut bench = sessions(Mode::FlightRecorder);
    let before = bench.recorder.can_wait();

    assert!(registry(&bench.region).append(&Event { id: 4, name: "sched:new", ..EVENT }));
    let with_news = bench.recorder.can_wait();
    bench.recorder.poll();

    assert_eq!([before, with_news, bench.recorder.can_wait()], [true, false, true]);
}

#[test]
fn poll_cannot_wait_while_more_than_half_of_the_process_slots_are_taken() {
    for mode in [Mode::Discard, Mode::FlightRecorder] {
        let mut bench = sessions(mode);

        let waits = [PROCESS_ACTIVE, PROCESS_CLOSED].map(|status| {
            bench.set_process(1, status);
            let waits = bench.recorder.can_wait();
            bench.recorder.poll();
            [waits, bench.recorder.can_wait()]
        });

        // The slot of a process that has ended is given back by the poll.
        assert_eq!(waits, [[false, false], [false, true]], "{mode:?}");
    }
}

#[test]
fn session_that_cannot_be_completed_does_not_concern_the_first_one() {
    let bench = Bench::new(Mode::Discard);
    bench.request(create("extra", protocol::Mode::FlightRecorder, Some(bench.path("extra"))));
    std::fs::remove_dir_all(bench.path("extra")).unwrap();

    let completed = bench.recorder.finish("over".into());

    assert_eq!(completed.unwrap().outcome.as_deref(), Some("over"));
}

#[test]
fn rings_that_the_guest_keeps_longer_than_their_session_are_given_back_afterwards() {
    let mut bench = sessions(Mode::Discard);
    let request = create("extra", protocol::Mode::FlightRecorder, None);
    let name = || "extra".to_owned();
    bench.recorder.answer(request);
    bench.recorder.answer(Request::SessionStart { name: name() });
    let adopted = bench.region.layout().kernel_ring(1, 0) + RING_ADOPTED;
    bench.region.memory().store(adopted, 1);

    let destroyed = message(bench.recorder.answer(Request::SessionDestroy { name: name() }));
    bench.recorder.poll();
    let kept = bench.region.vacate(1);
    bench.region.memory().store(adopted, 0);
    bench.recorder.poll();

    assert_eq!((destroyed.as_str(), kept), ("session extra is gone", false));
    assert!(bench.region.vacate(1));
}
