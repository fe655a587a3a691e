use super::*;
use shared_ring::event::{FieldDescription, FieldType};

const AFTER: Duration = Duration::from_millis(100);
/// The number of the event that is triggered on.
const EVENT: u16 = 7;

/// What one trigger makes of records of the host's kernel, with a time between two snapshots.
fn armed(every: Option<Duration>) -> Triggers {
    let field = FieldDescription { name: "number".into(), ty: FieldType::U64, hex: false };
    let event = EventDescription { id: EVENT, class: 0, name: "a:event".into(), fields: vec![field] };
    let triggers = vec![Trigger::parse("event:host:a:event number>5").unwrap()];
    let request = TriggerRequest { triggers, every, after: AFTER };
    Triggers::new(request, SchemaTable::new(&[event]), Vec::new(), 1_000_000_000)
}

/// Shows a record of `number`, and says what is told at `now`.
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

    let told = [show(&mut triggers, 5, now), show(&mut triggers, 6, now)];

    assert_eq!(told, [0, 1]);
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
    let told = show(&mut triggers, 7, now + Duration::from_secs(3600));

    let status = status(&triggers);
    assert_eq!((told, status.fired, status.snapshots, status.due), (0, 2, vec![PathBuf::from("folder")], false));
    assert_eq!(triggers.due(now + Duration::from_secs(7200)), None);
}

#[test]
fn trigger_leads_to_another_snapshot_when_it_has_rested() {
    let (mut triggers, now) = (armed(Some(Duration::from_secs(10))), Instant::now());

    show(&mut triggers, 6, now);
    triggers.taken(Ok("first".into()));
    let told = [9, 10].map(|seconds| show(&mut triggers, 6, now + Duration::from_secs(seconds)));

    assert_eq!(told, [0, 1]);
    assert!(triggers.due(now + Duration::from_secs(11)).is_some());
}

#[test]
fn snapshot_that_fails_is_said_and_the_watch_goes_on() {
    let (mut triggers, now) = (armed(Some(Duration::ZERO)), Instant::now());

    show(&mut triggers, 6, now);
    triggers.taken(Err("the disk is full".into()));
    let told = show(&mut triggers, 6, now);

    let status = status(&triggers);
    assert_eq!((told, status.failure.as_deref(), status.snapshots.len()), (1, Some("the disk is full"), 0));
}

#[test]
fn number_of_snapshots_is_limited() {
    let (mut triggers, now) = (armed(Some(Duration::ZERO)), Instant::now());

    let told = (0..MAX_SNAPSHOTS + 5).map(|_| {
        let told = show(&mut triggers, 6, now);
        triggers.taken(Ok("folder".into()));
        told
    });

    assert_eq!(told.sum::<usize>(), MAX_SNAPSHOTS);
}

#[test]
fn trigger_on_what_is_not_recorded_is_refused() {
    let triggers = vec![Trigger::parse("event:host:a:event number>5").unwrap()];
    let request = TriggerRequest { triggers, ..TriggerRequest::default() };
    let known = [EventDescription { id: EVENT, class: 0, name: "a:event".into(), fields: Vec::new() }];
    let check = |selection| request.check(LayerKind::HostKernel, &known, &Selection::parse(selection).unwrap());

    assert!(matches!(check("host:a:event"), Err(TriggerError::Field { .. })));
    assert!(matches!(check("host:b:*"), Err(TriggerError::UnknownEvent { .. })));
}
