//! What a session says about itself while the VM runs.

use super::Session;
use crate::control::protocol::{LayerStatus, Live, LossStatus, SessionStatus, TraceStatus};
use crate::layer::kernel_rings::KernelRings;
use crate::session::recording::Recording;
use crate::trigger::Triggers;
use crate::vmm_events::VmmTracer;
use shared_ring::consumer::Lost;
use shared_ring::layout::AGENT_ABSENT;
use strata_recording::layer::loss::{Cause, Setting, causes};
use strata_recording::manifest::{Layer, StreamDescription};
use strata_recording::text::terminal::foreign::Foreign;

impl Session {
    /// What `strata ctl VM status` says about it.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        let guest = self.recording.guest.as_ref();
        let has_agent = guest.is_some_and(|guest| guest.region.parts().agent().state != AGENT_ABSENT);
        let geometry = guest.map(|guest| guest.rings.geometry);
        SessionStatus {
            name: self.name.clone().into(),
            mode: self.mode.into(),
            active: self.active,
            sub_buffer_size: geometry.map_or(0, |geometry| geometry.sub_buffer_size()),
            sub_buffers: geometry.map_or(0, |geometry| geometry.sub_buffers()),
            events: self.events.clone().into(),
            trace: self.recording.dir.clone().map(Foreign::from),
            not_joined: self.not_joined().filter(|_| has_agent).unwrap_or_default(),
            nested: self.kernel.as_ref().and_then(KernelRings::nested),
        }
    }

    /// The vCPUs that have not begun to record, those without a ring among them; `None` where nothing of a guest is recorded.
    fn not_joined(&self) -> Option<Vec<u32>> {
        let of_rings = self.kernel.as_ref().map(KernelRings::not_joined)?;
        Some(of_rings.into_iter().chain(self.recording.vcpus_without_ring()).collect())
    }

    /// What `strata ctl VM status` says about its recording, beside `sessions`.
    #[must_use]
    pub fn trace_status(&mut self, sessions: Vec<SessionStatus>) -> TraceStatus {
        let triggers = self.triggers.as_ref().map(Triggers::status);
        let Recording { dir, manifest, guest, vm, rotation, .. } = &self.recording;
        let mut layers = self.layers.written();
        if let (Some(dir), Some(rotation)) = (dir, rotation) {
            rotation.describe(dir, &mut layers);
        }
        let vm = manifest.vm(vm);
        let missing_processes = self.recording.missing_processes();
        let missing = manifest.missing.iter().chain(&missing_processes);
        TraceStatus {
            dir: dir.clone().unwrap_or_default().into(),
            region: vm.and_then(|vm| vm.region.clone()).unwrap_or_default().into(),
            region_size: guest.as_ref().map_or(0, |guest| guest.region.layout().size as u64),
            guest_kernel: vm.and_then(|vm| vm.guest.as_ref()).map(|guest| guest.kernel.clone().into()),
            restored_words: self.recording.restored_words(),
            sessions,
            triggers: triggers.unwrap_or_default(),
            layers: layers.iter().map(layer_status).collect(),
            missing: missing
                .map(|missing| format!("{}: {} ({})", missing.layer, missing.reason, missing.fix).into())
                .collect(),
        }
    }

    /// What the VM does now, and what is recorded of it.
    pub fn live(&mut self) -> Live {
        let host = self.layers.watch(&self.recording);
        let guest = self.layers.watch_guest(&self.recording);
        let vmm = self.recording.guest.as_ref().and_then(|guest| guest.vmm.as_deref());
        let disks = vmm.map(VmmTracer::disk_times).unwrap_or_default();
        let TraceStatus { layers, missing, .. } = self.trace_status(Vec::new());
        Live { host, guest, disks, layers, missing, ..Live::default() }
    }
}

fn layer_status(layer: &Layer) -> LayerStatus {
    // The guest has a say in what it lost: no sum of it may overflow.
    let sum = |count: fn(&StreamDescription) -> u64| layer.streams.iter().map(count).fold(0, u64::saturating_add);
    let lost = layer.streams.iter().fold(Lost::default(), |sum, stream| sum.plus(&stream.lost));
    let largest = layer.streams.iter().filter_map(|stream| stream.largest_lost.as_ref()).max_by_key(|lost| lost.bytes);
    let setting = Setting { is_limited: layer.limit.is_some_and(|limit| limit.times > 0), ..Setting::default() };
    let loss = |Cause { count, cause, next }| LossStatus { count, cause: cause.into_owned().into(), next: next.into() };
    LayerStatus {
        path: layer.path.clone().into(),
        records: sum(|stream| stream.records),
        lost: lost.total(),
        losses: causes(layer.kind, &lost, largest, setting).map(loss).collect(),
        overwritten: sum(|stream| stream.overwritten),
        dropped: sum(|stream| stream.dropped.map_or(0, |dropped| dropped.records)),
        limit: layer.limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::MAX_ANSWER;
    use crate::layer::guest_processes::MAX_PROCESSES;
    use serde_json::json;
    use shared_ring::event::MAX_NAME;

    #[test]
    fn answer_about_processes_that_lost_records_in_all_ways_is_read() {
        let lost = json!({ "full": u64::MAX, "wrapped": u64::MAX, "too_large": u64::MAX });
        let largest = json!({ "event": "e".repeat(MAX_NAME), "bytes": u32::MAX });
        let stream = json!({
            "file": "stream_0", "cpu_id": 0, "records": u64::MAX, "lost": lost, "largest_lost": largest,
            "overwritten": u64::MAX, "nested": null, "never_joined": false, "corrupt": false, "rejected_bytes": 0,
        });
        let layer = json!({
            "kind": "guest-user", "vm": "vm0", "path": format!("{}/user-4194304-99", "v".repeat(255)), "packet_size": 4096,
            "uuid": uuid::Uuid::nil(), "events": [], "streams": [stream],
            "limit": { "per_second": u64::MAX, "burst": u64::MAX, "times": u64::MAX, "held_ns": u64::MAX },
        });
        let layer: Layer = serde_json::from_value(layer).unwrap();

        let status = layer_status(&layer);
        let bytes = serde_json::to_vec(&status).unwrap().len();

        assert_eq!(status.losses.len(), 3);
        assert!(bytes * (MAX_PROCESSES + 8) < MAX_ANSWER, "{bytes} bytes a layer");
    }
}
