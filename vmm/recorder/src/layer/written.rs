//! A layer of rings that is written while its producers run. When it cannot be written any more, it ends there, and the
//! others go on.

use crate::control::protocol::LiveGuest;
use crate::latest::Latest;
use crate::layer::ring::{Drained, Producers, RingLayer};
use crate::trigger::watch::Watch;
use rustix::io::Errno;
use shared_ring::event::EventDescription;
use std::error::Error;
use std::io;
use std::time::Instant;
use strata_clock::HostTime;
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Missing};
use strata_recording::writer::WriteError;

/// A layer of rings, until it cannot be written.
#[derive(Debug)]
pub struct WrittenLayer {
    layer: RingLayer,
    end: LayerEnd,
}

/// Whether and why a layer ended before its producers did, and whether that was reported.
#[derive(Debug, Default)]
pub struct LayerEnd {
    failure: Option<WriteError>,
    is_reported: bool,
}

impl LayerEnd {
    /// The value of `result`; with an error the layer has ended.
    pub fn take<T: Default>(&mut self, result: Result<T, WriteError>) -> T {
        result.unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            T::default()
        })
    }

    /// Whether the layer has ended.
    #[must_use]
    pub const fn has_come(&self) -> bool {
        self.failure.is_some()
    }

    /// What is missing of the layer of kind `layer` since it ended; once.
    pub fn report(&mut self, layer: LayerKind) -> Option<Missing> {
        let failure = self.failure.as_ref().filter(|_| !self.is_reported)?;
        self.is_reported = true;
        Some(ends_early(layer, failure))
    }
}

impl WrittenLayer {
    /// `layer`, before anything of it is written.
    #[must_use]
    pub fn new(layer: RingLayer) -> Self {
        Self { layer, end: LayerEnd::default() }
    }

    /// Moves what is ready from the rings to the layer; all that is left, when the producers have stopped.
    /// `watch` is shown what is moved and what is not complete.
    pub fn drain(&mut self, producers: Producers, latest: Latest<'_>, watch: Option<&mut Watch>) -> Drained {
        if self.end.has_come() {
            return Drained::default();
        }
        self.end.take(match producers {
            Producers::Running => self.layer.drain(producers, latest, watch),
            Producers::Stopped => self.layer.finish(latest, watch),
        })
    }

    /// The layer's event types.
    #[must_use]
    pub fn events(&self) -> &[EventDescription] {
        self.layer.writer().events()
    }

    /// Moves what is ready until `deadline` at most; says whether that was all. See [`RingLayer::drain_until`].
    pub fn drain_until(
        &mut self,
        producers: Producers,
        has_news: impl Fn(usize) -> bool,
        latest: Latest<'_>,
        deadline: Instant,
        watch: Option<&mut Watch>,
    ) -> (Drained, bool) {
        if self.end.has_come() {
            return (Drained::default(), true);
        }
        let drained = self.end.take(self.layer.drain_until(producers, has_news, latest, deadline, watch));
        (drained.0, drained.1 || self.end.has_come())
    }

    /// What the records of the guest's kernel say of its tasks; see [`RingLayer::watch`].
    pub fn watch(&mut self, clock: &Clock, time: HostTime) -> LiveGuest {
        self.layer.watch(clock, time)
    }

    /// Other records of the guest's kernel are made from now on than so far.
    pub fn forget_guest(&mut self) {
        self.layer.forget_guest();
    }

    /// The VM has `vcpus` vCPUs; see [`RingLayer::set_vcpus`].
    pub const fn set_vcpus(&mut self, vcpus: u32) {
        self.layer.set_vcpus(vcpus);
    }

    /// What is missing since the layer ended early; once.
    pub fn report_end(&mut self) -> Option<Missing> {
        self.end.report(self.layer.writer().kind())
    }

    /// The next look takes what is ready whatever the layer's limit says.
    pub const fn lift_limit(&mut self) {
        self.layer.lift_limit();
    }

    /// That the layer has met its limit; once.
    pub fn report_limit(&mut self) -> Option<String> {
        self.layer.report_limit()
    }

    /// Whether a drain can wait: see [`RingLayer::can_wait`].
    #[must_use]
    pub fn can_wait(&self) -> bool {
        self.end.has_come() || self.layer.can_wait()
    }

    /// Asks the producers of all rings to deliver what they have; returns the requests' numbers.
    pub fn request_flush(&mut self) -> Vec<u64> {
        self.layer.request_flush()
    }

    /// Whether all producers say that they have honoured `requests`. A layer that has ended waits for nobody.
    #[must_use]
    pub fn is_flushed(&self, requests: &[u64]) -> bool {
        self.end.has_come() || self.layer.is_flushed(requests)
    }

    /// From now on event types are taken up to `bytes` of the manifest altogether.
    pub const fn limit_descriptions(&mut self, bytes: u64) {
        self.layer.limit_descriptions(bytes);
    }

    /// Writes the `symbols` of the kernel, compressed, beside the layer. Without them addresses are shown as numbers. In a
    /// recording that keeps within a size, they take the room of its oldest records.
    pub fn save_symbols(&self, symbols: &[u8]) {
        if !self.end.has_come() {
            let _ = self.layer.writer().save_compressed_kallsyms(symbols);
        }
    }

    /// The layer and its rings.
    #[must_use]
    pub const fn rings(&self) -> &RingLayer {
        &self.layer
    }

    /// The layer as the manifest describes it. When it has ended early, records are missing behind the last of each of
    /// its streams.
    #[must_use]
    pub fn layer(&self) -> Layer {
        let mut layer = self.layer.layer();
        layer.streams.iter_mut().for_each(|stream| stream.corrupt |= self.end.has_come());
        layer
    }
}

/// What is missing of `layer` because of `error`, and what to do about it.
#[must_use]
pub fn ends_early(layer: LayerKind, error: &WriteError) -> Missing {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let errno = source.and_then(Errno::from_io_error);
    let fix = match errno {
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (ulimit -Hn)",
        Some(Errno::NOSPC | Errno::DQUOT) => {
            "make room on the disk of the trace, or give --trace a folder on a larger one"
        }
        _ => "look after the disk of the trace, and trace again",
    };
    let why = source.map_or_else(String::new, |source| format!(": {source}"));
    Missing { layer, reason: format!("the layer ends early: {error}{why}"), fix: fix.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(errno: Errno) -> WriteError {
        WriteError::Write { path: "trace/vm0/vmm/stream_0".into(), source: errno.into() }
    }

    #[test]
    fn end_is_reported_once_with_its_reason_and_what_to_do() {
        let mut end = LayerEnd::default();

        let before = end.report(LayerKind::Vmm);
        let taken = end.take(Err::<u64, _>(failure(Errno::NOSPC)));
        end.take(Err::<u64, _>(failure(Errno::IO)));
        let reported = end.report(LayerKind::Vmm).unwrap();

        assert_eq!((before, taken, end.report(LayerKind::Vmm)), (None, 0, None));
        assert!(
            reported.reason.contains("stream_0") && reported.reason.contains("No space left"),
            "{}",
            reported.reason
        );
        assert!(reported.fix.contains("make room"), "{}", reported.fix);
    }

    #[test]
    fn lack_of_descriptors_names_the_limit() {
        assert!(ends_early(LayerKind::GuestUser, &failure(Errno::MFILE)).fix.contains("ulimit -Hn"));
    }
}
