use super::*;
use shared_ring::event::{FieldDescription, FieldType};
use strata_analysis::filter::FilterError;

/// The number of the event that is triggered on.
const EVENT: u16 = 7;

const TRIGGER: &str = "event:host:a:event number>5";

/// What one trigger makes of records of the host's kernel, with a time between two snapshots.
fn armed(every: Option<Duration>) -> Triggers {
    armed_for(Consequence::Snapshot, every)
}

fn armed_for(consequence: Consequence, every: Option<Duration>) -> Triggers {
    let field = FieldDescription { name: "number".into(), ty: FieldType::U64, hex: false };
    let event = EventDescription { id: EVENT, class: 0, name: "a:event".into(), fields: vec![field] };
    let mut triggers = Triggers::new(consequence, SchemaTable::new(&[event]), Vec::new(), None, 1_000_000_000);
    triggers.arm(Trigger::parse(TRIGGER).unwrap(), every, AFTER, 0).unwrap();
    triggers
}

/// Shows a record of `number`, and returns what fires at `now`.
fn show(triggers: &mut Triggers, number: u64, now: Instant) -> usize {
    triggers.host_record(0, number, EVENT, &number.to_le_bytes());
    triggers.settle(u64::MAX, now).len()
}

fn status(triggers: &Triggers) -> TriggerStatus {
    triggers.status().remove(0)
}

#[test]
fn snapshot_is_due_a_while_after_the_record_and_not_before_it() {
    let (mut triggers, now) = (armed(None), Instant::now());

    let reported = [show(&mut triggers, 5, now), show(&mut triggers, 6, now)];

    assert_eq!(reported, [0, 1]);
    assert_eq!((triggers.due(now), status(&triggers).due), (None, true));
    let why = triggers.due(now + AFTER).unwrap();
    assert_eq!(why, "trigger 'event:host:a:event number>5': a:event in host-kernel, CPU 0");
}

#[test]
fn event_is_judged_though_not_everything_before_it_has_come() {
    let (mut triggers, now) = (armed(None), Instant::now());

    triggers.host_record(0, 1_000, EVENT, &6_u64.to_le_bytes());

    assert_eq!(triggers.settle(0, now).len(), 1);
}

#[test]
fn trigger_leads_to_one_snapshot_and_is_counted_from_then_on() {
    let (mut triggers, now) = (armed(None), Instant::now());

    show(&mut triggers, 6, now);
    triggers.taken(Ok("folder".into()));
    let reported = show(&mut triggers, 7, now + Duration::from_secs(3600));

    let status = status(&triggers);
    assert_eq!((reported, status.fired, status.snapshots, status.due), (0, 2, vec!["folder".into()], false));
    assert_eq!(triggers.due(now + Duration::from_secs(7200)), None);
}

#[test]
fn trigger_leads_to_another_snapshot_when_it_has_rested() {
    let (mut triggers, now) = (armed(Some(Duration::from_secs(10))), Instant::now());

    show(&mut triggers, 6, now);
    triggers.taken(Ok("first".into()));
    let reported = [9, 10].map(|seconds| show(&mut triggers, 6, now + Duration::from_secs(seconds)));

    assert_eq!(reported, [0, 1]);
    assert!(triggers.due(now + Duration::from_secs(11)).is_some());
}

#[test]
fn snapshot_that_fails_is_reported_and_the_watch_goes_on() {
    let (mut triggers, now) = (armed(Some(Duration::ZERO)), Instant::now());

    show(&mut triggers, 6, now);
    triggers.taken(Err("the disk is full".into()));
    let reported = show(&mut triggers, 6, now);

    let status = status(&triggers);
    assert_eq!(
        (reported, status.failure.map(Foreign::into_raw).as_deref(), status.snapshots.len()),
        (1, Some("the disk is full"), 0)
    );
}

#[test]
fn number_of_snapshots_is_limited() {
    let (mut triggers, now) = (armed(Some(Duration::ZERO)), Instant::now());

    let reported = (0..MAX_SNAPSHOTS + 5).map(|_| {
        let reported = show(&mut triggers, 6, now);
        triggers.taken(Ok("folder".into()));
        reported
    });

    assert_eq!(reported.sum::<usize>(), MAX_SNAPSHOTS);
}

#[test]
fn trigger_on_what_is_not_recorded_is_refused() {
    let triggers = vec![Trigger::parse("event:host:a:event number>5").unwrap()];
    let request = TriggerRequest { triggers, ..TriggerRequest::default() };
    let known = [EventDescription { id: EVENT, class: 0, name: "a:event".into(), fields: Vec::new() }];
    let check =
        |selection| request.check(&[(LayerKind::HostKernel, &known)], &Selection::parse(selection).unwrap(), &[]);

    assert!(matches!(check("host:a:event"), Err(TriggerError::Filter(FilterError::Field { .. }))));
    assert!(matches!(check("host:b:*"), Err(TriggerError::UnknownEvent { .. })));
}

#[test]
fn in_discard_mode_a_trigger_is_marked_again_when_it_has_rested_and_no_snapshot_is_due() {
    let (mut triggers, now) = (armed_for(Consequence::Mark, Some(Duration::from_secs(10))), Instant::now());

    let reported = [0, 9, 10].map(|seconds| show(&mut triggers, 6, now + Duration::from_secs(seconds)));

    let status = status(&triggers);
    assert_eq!((reported, status.fired, status.marks, status.due), ([1, 0, 1], 3, 2, false));
    assert_eq!(triggers.due(now + Duration::from_secs(3600)), None);
}

#[test]
fn numbers_of_triggers_are_not_given_twice() {
    let mut triggers = armed(None);
    let arm = |triggers: &mut Triggers, text| triggers.arm(Trigger::parse(text).unwrap(), None, AFTER, 0);

    let second = arm(&mut triggers, "steal>1ms");
    let removed = [triggers.disarm("2"), triggers.disarm(TRIGGER)];
    let third = arm(&mut triggers, "steal>1ms");

    assert_eq!((second, third), (Ok(2), Ok(3)));
    assert_eq!(removed, [Ok("steal>1ms".into()), Ok(TRIGGER.into())]);
    assert_eq!(triggers.status().iter().map(|status| status.number).collect::<Vec<_>>(), [3]);
}

#[test]
fn what_cannot_be_armed_or_removed_is_answered_with_what_is_there() {
    let mut triggers = armed(None);
    let arm = |triggers: &mut Triggers, text: &str, after| triggers.arm(Trigger::parse(text).unwrap(), None, after, 0);

    let twice = arm(&mut triggers, TRIGGER, AFTER).unwrap_err().to_string();
    let load = arm(&mut triggers, "host-load>80%", AFTER).unwrap_err().to_string();
    let late = arm(&mut triggers, "oom", Duration::MAX).unwrap_err().to_string();
    let unknown = triggers.disarm("7").unwrap_err().to_string();
    let enough = (2..=MAX_TRIGGERS).all(|number| arm(&mut triggers, &format!("steal>{number}ms"), AFTER).is_ok());
    let too_many = arm(&mut triggers, "oom", AFTER);

    assert!(twice.contains("armed already") && load.contains("/proc/pressure/cpu"), "{twice} {load}");
    assert!(late.contains("up to") && unknown.contains("no trigger is '7'; armed are 1 (event:host"), "{unknown}");
    assert_eq!((enough, too_many), (true, Err(ArmError::TooMany)));
}

#[test]
fn snapshot_of_a_trigger_that_is_removed_is_not_taken() {
    let (mut triggers, now) = (armed(None), Instant::now());

    show(&mut triggers, 6, now);
    triggers.disarm("1").unwrap();

    assert_eq!(triggers.due(now + AFTER), None);
    assert_eq!(show(&mut triggers, 6, now), 0);
}

#[test]
fn snapshot_that_fails_is_tried_again_after_a_while_and_is_not_counted() {
    let (mut triggers, now) = (armed(None), Instant::now());

    show(&mut triggers, 6, now);
    triggers.taken(Err("the disk is full".into()));
    let reported = [AGAIN / 2, AGAIN].map(|later| show(&mut triggers, 6, now + later));
    triggers.taken(Ok("folder".into()));

    let status = status(&triggers);
    assert_eq!((reported, status.snapshots, triggers.snapshots), ([0, 1], vec!["folder".into()], 1));
    assert_eq!(show(&mut triggers, 6, now + 9 * AGAIN), 0);
}
