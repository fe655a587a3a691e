//! What a VM answers, within what a VM can have: another user's may repeat itself, and has a mebibyte for that.

use std::collections::BTreeSet;
use strata_recorder::control::protocol::{Live, LiveDisk, Watched};
use strata_recorder::live::{MAX_REASONS, MAX_THIEVES};
use strata_recording::text::terminal::foreign::Foreign;

/// Most vCPUs: what KVM allows on x86.
const MAX_VCPUS: usize = 4096;
/// Most kinds of requests to disks: three of each of 64.
const MAX_DISKS: usize = 3 * 64;
/// Most of what has no number that bounds it: layers, and lines for people.
const MAX_OTHERS: usize = 8192;
/// Longest name of an exit reason or of a kind of request, bytes.
const MAX_NAME: usize = 128;

/// `live` with each of its parts once, and no more of them than there can be.
#[must_use]
pub fn bounded(live: Live) -> Live {
    let host = live.host.map(|host| Watched {
        vcpus: first_of_each(host.vcpus, MAX_VCPUS, |vcpu| Some(vcpu.vcpu)),
        // One stands for all others.
        thieves: first_of_each(host.thieves, MAX_THIEVES + 1, |thief| Some(thief.name.to_string())),
        exits: first_of_each(host.exits, MAX_REASONS, |exits| name(&exits.reason)),
        late: first(host.late),
        ..host
    });
    let mut guest = live.guest;
    guest.iter_mut().for_each(|guest| guest.worst.truncate(MAX_OTHERS));
    Live {
        host,
        guest,
        disks: first_of_each(live.disks, MAX_DISKS, |LiveDisk { disk, kind, .. }| Some((*disk, name(kind)?))),
        layers: first_of_each(live.layers, MAX_OTHERS, |layer| Some(layer.path.to_string())),
        missing: first(live.missing),
        ..live
    }
}

/// The name as it is shown, where it can be one: what looks the same is the same.
fn name(text: &Foreign<String>) -> Option<String> {
    let shown = text.to_string();
    (shown.len() <= MAX_NAME).then_some(shown)
}

fn first<T>(values: Vec<T>) -> Vec<T> {
    values.into_iter().take(MAX_OTHERS).collect()
}

/// Of `values` the first of each `key`, `most` of them; without those that have none.
fn first_of_each<T, K: Ord>(values: Vec<T>, most: usize, key: impl Fn(&T) -> Option<K>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    values.into_iter().filter(|value| key(value).is_some_and(|key| seen.insert(key))).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recorder::control::protocol::{LiveExits, LiveVcpu};

    fn exits(reason: impl Into<Foreign<String>>) -> LiveExits {
        LiveExits { reason: reason.into(), ..LiveExits::default() }
    }

    #[test]
    fn answer_has_each_part_once_and_no_more_than_a_vm_can_have() {
        let host = Watched {
            vcpus: (0..10_000).map(|vcpu| LiveVcpu { vcpu: vcpu / 2, ..LiveVcpu::default() }).collect(),
            exits: (0..1000).map(|reason| exits(reason.to_string())).collect(),
            ..Watched::default()
        };
        let disk = |disk| LiveDisk { disk, kind: "read".into(), ..LiveDisk::default() };
        let disks = [0, 0, 1].map(disk).into_iter().chain((2..1000).map(disk)).collect();

        let live = bounded(Live { host: Some(host), disks, ..Live::default() });

        let host = live.host.unwrap();
        assert_eq!((host.vcpus.len(), host.exits.len(), live.disks.len()), (MAX_VCPUS, MAX_REASONS, MAX_DISKS));
        assert_eq!((host.vcpus[1].vcpu, live.disks[1].disk), (1, 1));
    }

    #[test]
    fn name_that_is_none_is_left_out() {
        let host = Watched { exits: vec![exits("x".repeat(1 << 10)), exits("hlt")], ..Watched::default() };

        let host = bounded(Live { host: Some(host), ..Live::default() }).host.unwrap();

        assert_eq!(host.exits, [exits("hlt")]);
    }
}
