use super::*;

fn found(tid: Tid, process: Tid, cgroup: u64) -> FoundTask {
    FoundTask {
        tid,
        process,
        own_tid: tid,
        own_process: process,
        level: 0,
        namespace: 0,
        cgroup: Some(cgroup),
        is_new: false,
    }
}

/// The cgroup that the task is in, and since when.
fn cgroup(memberships: &mut Memberships, tid: Tid) -> (Option<u64>, u64) {
    let membership = memberships.of(tid);
    memberships.stay(memberships.stay_of(&membership))
}

#[test]
fn process_that_is_moved_takes_its_threads_along() {
    let mut memberships = Memberships::default();
    memberships.found(1, &found(10, 10, 5));
    memberships.found(1, &found(11, 10, 5));
    memberships.fork(Some(11), 12, true);
    memberships.fork(Some(10), 20, false);

    memberships.attach(9, 10, 6);

    let all = [10, 11, 12, 20].map(|tid| cgroup(&mut memberships, tid));
    assert_eq!(all, [(Some(6), 9), (Some(6), 9), (Some(6), 9), (Some(5), 0)]);
}

#[test]
fn thread_that_is_moved_goes_alone() {
    let mut memberships = Memberships::default();
    memberships.found(1, &found(10, 10, 5));
    memberships.found(1, &found(11, 10, 5));

    memberships.attach(9, 11, 6);

    assert_eq!((cgroup(&mut memberships, 10), cgroup(&mut memberships, 11)), ((Some(5), 0), (Some(6), 9)));
}

#[test]
fn child_of_a_task_with_a_later_record_is_where_that_was() {
    let mut memberships = Memberships::default();
    memberships.fork(Some(10), 20, false);

    memberships.found(5, &found(10, 10, 7));

    assert_eq!(cgroup(&mut memberships, 20), (Some(7), 0));
}

#[test]
fn where_a_task_was_before_it_was_moved_stays_unknown() {
    let mut memberships = Memberships::default();
    let before = memberships.of(10);

    memberships.attach(3, 10, 6);
    memberships.found(5, &found(10, 10, 6));

    assert_eq!(memberships.stay(before.stay), (None, 0));
    assert_eq!(cgroup(&mut memberships, 10), (Some(6), 3));
}

#[test]
fn number_of_a_process_that_was_moved_is_anothers_when_it_is_given_away_again() {
    let mut memberships = Memberships::default();
    memberships.found(1, &found(1, 1, 5));
    memberships.fork(Some(1), 10, false);
    memberships.attach(2, 10, 6);
    memberships.end(10);

    memberships.fork(Some(1), 10, false);

    assert_eq!(cgroup(&mut memberships, 10), (Some(5), 0));
}

#[test]
fn move_whose_record_is_missing_is_seen_with_the_tasks_next_record() {
    let mut memberships = Memberships::default();
    memberships.found(1, &found(10, 10, 5));

    memberships.found(8, &found(10, 10, 6));

    assert_eq!(cgroup(&mut memberships, 10), (Some(6), 8));
}
