//! The writers of all layers, and records as lists of values.

use super::event_types::{self, EventType};
use shared_ring::event::FieldType;
use std::error::Error;
use std::path::Path;
use strata_recording::files::reserve::Reserve;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, Process};
use strata_recording::writer::{LayerWriter, NewLayer, Rotation};

/// Value of a field.
pub(super) enum Value<'v> {
    Number(i64),
    Text(&'v str),
    Numbers(&'v [u64]),
}

/// The layers of a recording in the making: the kernels', the VMM's, and one for each process of the guest.
pub(super) struct Recorder {
    layers: Vec<(LayerKind, Option<u32>, LayerWriter)>,
    rotation: Option<Rotation>,
    records: u64,
    payload: Vec<u8>,
    /// What follows the last field.
    behind: Vec<u8>,
}

impl Recorder {
    pub(super) fn new(
        dir: &Path,
        manifest: &Manifest,
        processes: &[(u32, String)],
        rotation: Option<Rotation>,
    ) -> Result<Self, Box<dyn Error>> {
        let kernels = [LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestKernel].map(|kind| (kind, None));
        let user =
            processes.iter().map(|(pid, comm)| (LayerKind::GuestUser, Some(Process { pid: *pid, comm: comm.clone() })));
        let mut layers = Vec::new();
        for (kind, process) in kernels.into_iter().chain(user) {
            let packet_size = if kind == LayerKind::GuestKernel { 128 << 10 } else { 64 << 10 };
            let pid = process.as_ref().map(|process| process.pid);
            let vm = (kind != LayerKind::HostKernel).then(|| "vm0".into());
            let mut layer = LayerWriter::create_in_progress(
                rotation.as_ref(),
                dir,
                manifest,
                NewLayer { kind, vm, process, packet_size },
            )?;
            layer.add_events(&event_types::of_layer(kind))?;
            layers.push((kind, pid, layer));
        }
        Ok(Self { layers, rotation, records: 0, payload: Vec::new(), behind: Vec::new() })
    }

    /// Number of records so far.
    pub(super) const fn records(&self) -> u64 {
        self.records
    }

    /// Records `event` with `values` for its fields, on `stream` of its layer; of process `pid` if it is one's.
    pub(super) fn record(
        &mut self,
        pid: Option<u32>,
        stream: u32,
        time: u64,
        event: &EventType,
        values: &[Value<'_>],
    ) -> Result<(), Box<dyn Error>> {
        assert_eq!(values.len(), event.fields.len(), "a value for each field of event {}", event.id);
        self.payload.clear();
        self.behind.clear();
        for (value, &(_, ty, _)) in values.iter().zip(event.fields) {
            self.put(value, ty)?;
        }
        self.payload.extend_from_slice(&self.behind);
        let layer = self.layers.iter_mut().find(|(kind, of, _)| (*kind, *of) == (event.layer, pid));
        let (_, _, layer) = layer.ok_or("there is no such process")?;
        layer.record(stream, time, event.id, &self.payload)?;
        self.records += 1;
        Ok(())
    }

    fn put(&mut self, value: &Value<'_>, ty: FieldType) -> Result<(), Box<dyn Error>> {
        match (value, ty) {
            (Value::Number(number), _) => {
                let size = ty.fixed_size().filter(|&size| size <= 8).ok_or("a number for a field that holds none")?;
                self.payload.extend_from_slice(&number.to_le_bytes()[..size]);
            }
            (Value::Text(text), FieldType::CharArray(size)) => {
                let end = self.payload.len() + usize::from(size);
                self.payload.extend_from_slice(text.as_bytes());
                self.payload.resize(end, 0);
            }
            (Value::Text(text), FieldType::String) => {
                self.payload.extend_from_slice(text.as_bytes());
                self.payload.push(0);
            }
            (Value::Text(text), FieldType::Text) => {
                self.payload.extend_from_slice(&u16::try_from(text.len() + 1)?.to_le_bytes());
                self.behind.extend_from_slice(text.as_bytes());
                self.behind.push(0);
            }
            (Value::Numbers(numbers), FieldType::Array(..)) => {
                self.payload.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
            (Value::Numbers(numbers), FieldType::Sequence(_)) => {
                self.payload.extend_from_slice(&u16::try_from(numbers.len())?.to_le_bytes());
                self.behind.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
            _ => return Err("a value that does not fit its field".into()),
        }
        Ok(())
    }

    /// Writes what is left, and the description of the recording.
    pub(super) fn finish(mut self, mut manifest: Manifest, dir: &Path) -> Result<(), Box<dyn Error>> {
        for (_, _, layer) in &mut self.layers {
            layer.flush()?;
            manifest.layers.push(layer.layer());
        }
        match self.rotation {
            Some(rotation) => Ok(rotation.save(dir, &mut manifest, &mut Reserve::default())?),
            None => Ok(manifest.save(dir)?),
        }
    }
}
