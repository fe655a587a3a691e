//! What the addresses of processes mean: the files that are mapped there.

use foldhash::HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use strata_analysis::event::{self, Tid};

/// Most mappings of a process that are kept: a guest must not make its reader grow without bound.
const MAX_MAPPINGS: usize = 1 << 16;

/// Where an address lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// In no file that is known.
    Address(u64),
    /// In a file.
    File {
        /// Its path in the guest.
        path: Arc<str>,
        /// Where in it, bytes.
        offset: u64,
        /// Whether no records are missing since that was recorded: in those, something else may have come to lie there.
        is_certain: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    end: u64,
    offset: u64,
    path: Arc<str>,
    /// How many gaps had begun when it was recorded; `None` when one was open.
    reported: Option<u64>,
}

/// The mappings of processes, as they are recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct Mappings {
    /// By process, then first address; they do not overlap.
    processes: HashMap<Tid, BTreeMap<u64, Mapping>>,
    /// How many gaps have begun.
    gaps: u64,
}

impl Mappings {
    /// Records are missing from now on: what was recorded before is certain no more.
    pub(super) const fn begin_gap(&mut self) {
        self.gaps += 1;
    }

    /// What `told` tells. What its process had there before is gone. It is not certain while records of a CPU are missing
    /// (`has_gap`).
    pub(super) fn map(&mut self, reported: &event::Mapping<'_>, has_gap: bool) {
        let &event::Mapping { process: pid, begin, end, offset, ref file } = reported;
        let reported = (!has_gap).then_some(self.gaps);
        let mappings = self.processes.entry(pid).or_default();
        if begin >= end || mappings.len() >= MAX_MAPPINGS {
            return;
        }
        // Before the new one there is at most one that reaches into it; it may also reach beyond.
        let before = mappings.range(..begin).next_back().map(|(&at, mapping)| (at, mapping.clone()));
        if let Some((at, old)) = before.filter(|(_, old)| old.end > begin) {
            mappings.insert(at, Mapping { end: begin, ..old.clone() });
            if old.end > end {
                mappings.insert(end, Mapping { offset: old.offset.wrapping_add(end - at), ..old });
            }
        }
        let inside: Vec<u64> = mappings.range(begin..end).map(|(&at, _)| at).collect();
        for at in inside {
            if let Some(old) = mappings.remove(&at).filter(|old| old.end > end) {
                mappings.insert(end, Mapping { offset: old.offset.wrapping_add(end - at), ..old });
            }
        }
        mappings.insert(begin, Mapping { end, offset, path: Arc::from(&**file), reported });
    }

    /// Process `pid` runs another program: it has no mappings any more.
    pub(super) fn exec(&mut self, pid: Tid) {
        self.processes.remove(&pid);
    }

    /// Process `child` begins with the mappings of `parent`.
    pub(super) fn fork(&mut self, parent: Tid, child: Tid) {
        match self.processes.get(&parent).cloned() {
            Some(mappings) => self.processes.insert(child, mappings),
            None => self.processes.remove(&child),
        };
    }

    /// Where `address` of process `pid` lies.
    pub(super) fn place(&self, pid: Tid, address: u64) -> Place {
        let mapping = self.processes.get(&pid).and_then(|mappings| mappings.range(..=address).next_back());
        match mapping.filter(|(_, mapping)| address < mapping.end) {
            Some((begin, mapping)) => Place::File {
                path: Arc::clone(&mapping.path),
                offset: mapping.offset.wrapping_add(address - begin),
                is_certain: mapping.reported == Some(self.gaps),
            },
            None => Place::Address(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, offset: u64) -> Place {
        Place::File { path: path.into(), offset, is_certain: true }
    }

    fn map(mappings: &mut Mappings, process: Tid, begin: u64, end: u64, offset: u64, file: &str) {
        mappings.map(&event::Mapping { process, begin, end, offset, file: file.into() }, false);
    }

    #[test]
    fn later_mapping_hides_what_it_overlaps_and_no_more() {
        let mut mappings = Mappings::default();
        map(&mut mappings, 1, 0x1000, 0x5000, 0x100, "/old");
        map(&mut mappings, 1, 0x2000, 0x3000, 0, "/new");

        let places = [0x1fff, 0x2000, 0x2fff, 0x3000, 0x5000].map(|address| mappings.place(1, address));

        let expected =
            [file("/old", 0x10ff), file("/new", 0), file("/new", 0xfff), file("/old", 0x2100), Place::Address(0x5000)];
        assert_eq!(places, expected);
    }

    #[test]
    fn mapping_over_several_replaces_them_and_leaves_the_rest_of_the_last() {
        let mut mappings = Mappings::default();
        map(&mut mappings, 1, 0x1000, 0x2000, 0, "/a");
        map(&mut mappings, 1, 0x2000, 0x4000, 0, "/b");
        map(&mut mappings, 1, 0x800, 0x3000, 0, "/c");

        assert_eq!(mappings.place(1, 0x1000), file("/c", 0x800));
        assert_eq!(mappings.place(1, 0x3000), file("/b", 0x1000));
    }

    #[test]
    fn children_have_their_parents_mappings_until_they_run_another_program() {
        let mut mappings = Mappings::default();
        map(&mut mappings, 1, 0x1000, 0x2000, 0, "/a");
        mappings.fork(1, 2);
        let forked = mappings.place(2, 0x1000);
        mappings.exec(2);

        assert_eq!((forked, mappings.place(2, 0x1000)), (file("/a", 0), Place::Address(0x1000)));
        assert_eq!(mappings.place(1, 0x1000), file("/a", 0));
    }

    #[test]
    fn mapping_is_certain_until_records_are_missing() {
        let reported = |file| event::Mapping { process: 1, begin: 0x1000, end: 0x2000, offset: 0, file };
        let is_certain =
            |mappings: &Mappings| matches!(mappings.place(1, 0x1000), Place::File { is_certain: true, .. });
        let mut mappings = Mappings::default();
        mappings.map(&reported("/a".into()), false);
        let before = is_certain(&mappings);
        mappings.begin_gap();
        let behind = is_certain(&mappings);
        mappings.map(&reported("/b".into()), true);
        let inside = is_certain(&mappings);
        mappings.map(&reported("/c".into()), false);

        assert_eq!([before, behind, inside, is_certain(&mappings)], [true, false, false, true]);
    }
}
