//! How much of `session.json` things take at most: what a recorder goes by that must not write one that nobody reads.

use shared_ring::event::EventDescription;

/// Bytes of indentation and line end by which a line of an event type is longer in the file than alone.
const INDENTATION: usize = 16;
/// Bytes of a layer without its streams and event types: names and paths are short.
const LAYER: u64 = 1280;
/// Bytes of a stream.
const STREAM: u64 = 1216;

/// Bytes that `event` takes in `session.json`, at most.
#[must_use]
pub fn event_bytes(event: &EventDescription) -> u64 {
    let text = serde_json::to_vec_pretty(event).unwrap_or_default();
    let lines = 1 + text.iter().filter(|&&byte| byte == b'\n').count();
    (text.len() + lines * INDENTATION) as u64
}

/// Bytes that a layer of `streams` streams takes in `session.json`, at most, without its event types.
#[must_use]
pub fn layer_bytes(streams: u32) -> u64 {
    LAYER + STREAM * u64::from(streams)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::MANIFEST_FILE;
    use crate::layer::LayerKind;
    use crate::layer::loss::LargestLost;
    use crate::manifest::{Dropped, Layer, Process, RecordLimit, StreamDescription};
    use crate::test_trace::manifest;
    use shared_ring::consumer::Lost;
    use shared_ring::event::{FieldDescription, FieldType, Integer, MAX_FIELDS, MAX_NAME};
    use tempfile::TempDir;
    use uuid::Uuid;

    fn stream(cpu_id: u32) -> StreamDescription {
        let most = u64::MAX;
        StreamDescription {
            file: format!("stream_{cpu_id}"),
            cpu_id,
            packets: most,
            records: most,
            lost: Lost { full: most, wrapped: most, too_large: most },
            largest_lost: Some(LargestLost { event: "n".repeat(MAX_NAME), bytes: u32::MAX }),
            rejected_bytes: most,
            corrupt: false,
            nested: Some(most),
            never_joined: true,
            overwritten: most,
            complete_until: Some(most),
            dropped: Some(Dropped {
                packets: most,
                records: most,
                bytes: most,
                until: most,
                next: most,
                lost: Lost { full: most, wrapped: most, too_large: most },
                rejected_bytes: most,
            }),
        }
    }

    fn event(id: u16, fields: usize) -> EventDescription {
        let field = |number: usize| FieldDescription {
            name: format!("{number:0width$}", width = MAX_NAME),
            ty: FieldType::Array(Integer::U64, u16::MAX),
            hex: true,
        };
        EventDescription { id, class: 63, name: "n".repeat(MAX_NAME), fields: (0..fields).map(field).collect() }
    }

    #[test]
    fn nothing_takes_more_than_its_size() {
        let dir = TempDir::new().unwrap();
        let events = vec![event(1, 0), event(u16::MAX - 1, MAX_FIELDS), event(2, 3)];
        let process = Some(Process { pid: u32::MAX, comm: "\\".repeat(16) });
        let streams: Vec<_> = (0..40).map(|number| stream(u32::MAX - number)).collect();
        let path = "v".repeat(255) + "/guest-user/4294967295-4294967295";
        let (kind, vm, uuid) = (LayerKind::GuestUser, Some("v".repeat(255)), Uuid::nil());
        let described = layer_bytes(40) + events.iter().map(event_bytes).sum::<u64>();
        let most = u64::MAX;
        let limit = Some(RecordLimit { per_second: most, burst: most, times: most, held_ns: most });
        let packet_size = most;
        let layer = Layer {
            kind,
            vm,
            host: None,
            path,
            uuid,
            packet_size,
            process,
            events,
            flag_names: Vec::new(),
            limit,
            ended: Some(false),
            another_kernel: true,
            streams,
        };
        let size = || std::fs::metadata(dir.path().join(MANIFEST_FILE)).unwrap().len();

        let mut manifest = manifest();
        manifest.save(dir.path()).unwrap();
        let before = size();
        manifest.layers.push(layer);
        manifest.save(dir.path()).unwrap();

        assert!(size() - before <= described, "{} {described}", size() - before);
    }
}
