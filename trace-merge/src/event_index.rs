//! Telling events apart by number: the name of each event type is looked at once per layer, not once per record.

use crate::merge::MergedRecord;

/// What events of a merge are to somebody, by source and event id.
#[derive(Debug)]
pub struct EventIndex<K> {
    resolve: fn(&str) -> Option<K>,
    /// By source, then event id; the outer `None` is for types that were not met yet.
    known: Vec<Vec<Option<Option<K>>>>,
}

impl<K: Copy> EventIndex<K> {
    /// An index of the events whose names `resolve` gives a meaning.
    #[must_use]
    pub const fn new(resolve: fn(&str) -> Option<K>) -> Self {
        Self { resolve, known: Vec::new() }
    }

    /// What the event of `merged` is; `None` when it means nothing. All records must come from one merge.
    pub fn kind(&mut self, merged: &MergedRecord<'_>) -> Option<K> {
        let id = usize::from(merged.record.schema.description().id);
        if self.known.len() <= merged.source {
            self.known.resize_with(merged.source + 1, Vec::new);
        }
        let of_source = self.known.get_mut(merged.source)?;
        if of_source.len() <= id {
            of_source.resize(id + 1, None);
        }
        let resolve = self.resolve;
        *of_source.get_mut(id)?.get_or_insert_with(|| resolve(merged.record.schema.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::Merge;
    use crate::test_trace::TestTrace;

    #[test]
    fn event_of_the_same_id_is_told_apart_by_its_layer() {
        let (_dir, trace) = TestTrace::new()
            .host(0, 1, "host:one", &[])
            .guest(0, 2, "guest:one", &[])
            .guest(0, 3, "guest:other", &[])
            .guest(0, 4, "guest:one", &[])
            .open();
        let mut index = EventIndex::new(|name| if name.ends_with(":one") { Some(name.len()) } else { None });

        let kinds: Vec<_> = Merge::new(trace.layers(), 0).map(|merged| index.kind(&merged)).collect();

        assert_eq!(kinds, [Some(8), Some(9), None, Some(9)]);
    }
}
