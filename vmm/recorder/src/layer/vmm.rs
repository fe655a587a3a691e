//! The VMM's layer, drained from the rings of its tracer.

use crate::layer::ring::RingLayer;
use crate::trigger::tail::Tail;
use crate::vmm_events::{EVENTS, VmmTracer};
use shared_ring::consumer::Consumer;
use shared_ring::event::EventDescription;
use shared_ring::region::Rings;
use std::path::Path;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Manifest;
use strata_recording::writer::{LayerWriter, NewLayer, Rotation, WriteError};

/// The layer of `tracer`'s rings, new in the recording `dir` of the VM called `vm`; it keeps within the size of
/// `rotation`, if there is one.
///
/// # Errors
/// When it cannot be written.
pub fn vmm_layer(
    tracer: &VmmTracer,
    vm: &str,
    rotation: Option<&Rotation>,
    dir: &Path,
    manifest: &Manifest,
) -> Result<RingLayer, WriteError> {
    let rings = tracer.ring_set();
    let consumer = |(number, ring)| Consumer::new(ring, rings.geometry, rings.mode, number);
    vmm_layer_of((0..).zip(tracer.rings()).map(consumer).collect(), rings, vm, rotation, dir, manifest)
}

/// What is new in the rings of `tracer`, which are in flight-recorder mode.
#[must_use]
pub fn vmm_tail(tracer: &VmmTracer) -> Tail {
    let events: Vec<_> = EVENTS.iter().map(EventDescription::from).collect();
    Tail::new(LayerKind::Vmm, tracer.ring_set(), tracer.rings().collect(), 0, &events, None)
}

/// The layer of `consumers`, whose rings have the geometry and mode `rings`.
///
/// # Errors
/// When it cannot be written.
pub fn vmm_layer_of(
    consumers: Vec<Consumer>,
    rings: Rings,
    vm: &str,
    rotation: Option<&Rotation>,
    dir: &Path,
    manifest: &Manifest,
) -> Result<RingLayer, WriteError> {
    let packet_size = rings.geometry.sub_buffer_size();
    let layer = NewLayer { kind: LayerKind::Vmm, vm: Some(vm.into()), process: None, packet_size };
    let mut writer = LayerWriter::create_in_progress(rotation, dir, manifest, layer)?;
    let events: Vec<EventDescription> = EVENTS.iter().map(EventDescription::from).collect();
    writer.add_events(&events)?;
    Ok(RingLayer::new(writer, None, consumers))
}
