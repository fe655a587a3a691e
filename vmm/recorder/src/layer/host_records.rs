//! What comes from a CPU of the host, and the layer into which it is written.

use shared_ring::event::EventDescription;
use std::path::Path;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Manifest;
use strata_recording::writer::{LayerWriter, NewLayer, Rotation, WriteError};

/// Packet size of the host-kernel layer, bytes.
const PACKET_SIZE: u64 = 64 << 10;

/// What came from a CPU of the host. In a gap, records may be missing between any two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    Record { cpu: u32, time: u64, id: u16, payload: &'a [u8] },
    Lost { cpu: u32, records: u64 },
    Rejected { cpu: u32, bytes: u64 },
    Gap { cpu: u32, begins: bool },
}

/// A layer of the host's kernel in the recording `dir`, with the event types `events`.
pub(crate) fn create(
    rotation: Option<&Rotation>,
    dir: &Path,
    manifest: &Manifest,
    events: &[EventDescription],
) -> Result<LayerWriter, WriteError> {
    let layer = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size: PACKET_SIZE };
    let mut writer = LayerWriter::create_in_progress(rotation, dir, manifest, layer)?;
    writer.add_events(events)?;
    Ok(writer)
}
