//! A layer's streams by CPU. Records come in runs of one CPU, so that the stream used last is found at once.

use super::LayerStream;

/// The streams of a layer.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// In the order of their CPUs.
    streams: Vec<(u32, LayerStream)>,
    /// Index of the stream that was used last.
    latest: usize,
}

impl Streams {
    /// The stream of `cpu_id`, made where there is none.
    #[inline]
    pub(super) fn of(&mut self, cpu_id: u32) -> &mut LayerStream {
        if self.streams.get(self.latest).is_none_or(|(known, _)| *known != cpu_id) {
            self.latest = self.find(cpu_id);
        }
        &mut self.streams[self.latest].1
    }

    /// Index of the stream of `cpu_id`, made where there is none.
    #[cold]
    fn find(&mut self, cpu_id: u32) -> usize {
        let found = self.streams.binary_search_by_key(&cpu_id, |(known, _)| *known);
        found.unwrap_or_else(|place| {
            self.streams.insert(place, (cpu_id, LayerStream::default()));
            place
        })
    }

    /// The streams with their CPUs, in the order of these.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &LayerStream)> {
        self.streams.iter().map(|(cpu_id, stream)| (*cpu_id, stream))
    }

    /// The streams in the order of their CPUs.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut LayerStream> {
        self.streams.iter_mut().map(|(_, stream)| stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_found_again_and_listed_in_the_order_of_their_cpus() {
        let mut streams = Streams::default();

        for (cpu_id, nested) in [(7, 1), (2, 2), (9, 3), (7, 4)] {
            streams.of(cpu_id).nested = Some(nested);
        }

        let listed: Vec<_> = streams.iter().map(|(cpu_id, stream)| (cpu_id, stream.nested)).collect();
        assert_eq!(listed, [(2, Some(2)), (7, Some(4)), (9, Some(3))]);
    }
}
