//! Makes a layer of a recording out of what a guest's kernel has recorded in its ring.

use super::clock::LocalClock;
use super::records::{RingItem, decode};
use super::rejected::Rejected;
use super::ring::Rings;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use strata_host_kernel::EventSchema;
use strata_recorder::layer::host::{fields_left_out, flag_names};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Manifest, Missing};
use strata_recording::writer::{LayerWriter, NewLayer, Rotation, WriteError};

/// Why a recording has no layer of the guest's kernel until the guest has ended.
pub const READ_AT_END: &str =
    "the guest's kernel is traced without an agent: its ring is read at snapshots and when the guest has ended";
/// Bytes of a packet.
const PACKET_SIZE: u64 = 64 << 10;
/// Records that are a second outside of the run are none of it.
const SLACK_SECONDS: u64 = 1;

/// What the guest's kernel has recorded.
#[derive(Debug)]
pub struct Collected {
    pub(super) rings: Rings,
    /// Until when there is all of every ring, in ticks of the host's TSC; of a guest that ran, whose rings were copied
    /// one after the other.
    pub(super) until: Option<u64>,
    pub(super) schemas: HashMap<u16, EventSchema>,
    pub(super) clock: Result<LocalClock, Missing>,
    /// Where the kernel's function `schedule` is, if that could be read.
    pub(super) schedule_at: Option<u64>,
    /// The host's TSC at the ends of the run, and its rate.
    pub(super) run: (u64, u64, u64),
    /// What it lacks.
    pub(super) missing: Vec<Missing>,
}

pub(super) fn missing(reason: impl Into<String>, fix: impl Into<String>) -> Missing {
    Missing { layer: LayerKind::GuestKernel, reason: reason.into(), fix: fix.into() }
}

impl Collected {
    /// Where the kernel's function `schedule` is, as far as the guest's memory is right about it.
    #[must_use]
    pub const fn schedule_at(&self) -> Option<u64> {
        self.schedule_at
    }

    /// Writes the layer of the guest's kernel of `vm` into the recording `dir`, and what there is to say of it into
    /// `manifest`, which is complete but for it and then to be saved. The recording keeps within the size of `rotation`,
    /// if there is one.
    ///
    /// # Errors
    /// The layer cannot be written. The manifest then says so.
    pub fn write(
        mut self,
        dir: &Path,
        vm: &str,
        manifest: &mut Manifest,
        rotation: Option<&Rotation>,
    ) -> Result<(), WriteError> {
        manifest.missing.retain(|missing| missing.reason != READ_AT_END);
        let clock = match &self.clock {
            Ok(clock) => *clock,
            Err(lack) => {
                manifest.missing.push(lack.clone());
                return Ok(());
            }
        };
        let of_guest = |layer: &Layer| layer.kind == LayerKind::GuestKernel && layer.vm.as_deref() == Some(vm);
        let known = manifest.layers.iter().position(of_guest);
        let place = known.unwrap_or(manifest.layers.len());
        if known.is_some_and(|known| !manifest.layers[known].events.is_empty()) {
            let reason =
                "the guest has brought an agent of its own, whose records are kept in place of the kernel's ring";
            manifest.missing.push(missing(reason, "leave out --agentless"));
            return Ok(());
        }
        if known.is_some() {
            // The layer of an agent that never came. Should it stay, the new one cannot be made, and that is reported.
            let _ = fs::remove_dir_all(dir.join(manifest.layers.remove(place).path));
        }
        state_bound(manifest, vm, &clock);
        let new =
            NewLayer { kind: LayerKind::GuestKernel, vm: Some(vm.into()), process: None, packet_size: PACKET_SIZE };
        let created = match rotation {
            // Only such a layer keeps within a size.
            Some(_) => LayerWriter::create_in_progress(rotation, dir, manifest, new),
            None => LayerWriter::create(dir, manifest, new),
        };
        let written = created.and_then(|writer| self.write_layer(writer, &clock));
        manifest.missing.append(&mut self.missing);
        match written {
            Ok(layer) => manifest.layers.insert(place, layer),
            Err(error) => {
                let reason = format!("the layer could not be written: {error}");
                manifest.missing.push(missing(reason, "make room where the trace lies"));
                return Err(error);
            }
        }
        Ok(())
    }

    fn write_layer(&mut self, mut writer: LayerWriter, clock: &LocalClock) -> Result<Layer, WriteError> {
        let mut schemas: Vec<_> = self.schemas.values().collect();
        schemas.sort_unstable_by_key(|schema| schema.id());
        let descriptions: Vec<_> = schemas.iter().map(|schema| schema.description.clone()).collect();
        writer.add_events(&descriptions)?;
        let fix = "leave the events out of --agentless=EVENTS";
        self.missing.extend(fields_left_out(schemas.iter().copied(), LayerKind::GuestKernel, fix));
        let (begin, end, hz) = self.run;
        let slack = hz.saturating_mul(SLACK_SECONDS);
        let during = begin.saturating_sub(slack)..=end.saturating_add(slack);
        let (mut buffer, mut result, mut wrapped) = (Vec::new(), Ok(()), Vec::new());
        let (mut unknown, mut rejected) = (BTreeMap::<u16, u64>::new(), BTreeMap::<u32, Rejected>::new());
        decode(&self.rings, |item| match item {
            _ if result.is_err() => {}
            RingItem::Record { cpu, time, event_id, data } => {
                let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
                let of_cpu = rejected.entry(cpu).or_default();
                let Some(schema) = self.schemas.get(&event_id) else {
                    *unknown.entry(event_id).or_default() += 1;
                    result = of_cpu.add(&mut writer, cpu, bytes);
                    return;
                };
                let time = clock.ticks(time);
                // Of what comes later another CPU's ring may lack the cause.
                if time.zip(self.until).is_some_and(|(time, until)| time > until) {
                    return;
                }
                let time = time.filter(|time| during.contains(time));
                match (time, schema.encoded(data, &mut buffer)) {
                    (Some(time), Ok(payload)) => {
                        of_cpu.end_place();
                        result = writer.record(cpu, time, event_id, payload);
                    }
                    _ => result = of_cpu.add(&mut writer, cpu, bytes),
                }
            }
            // At least one.
            RingItem::Lost { cpu, count } => writer.add_lost(cpu, count.unwrap_or(1)),
            RingItem::Malformed { cpu, bytes } => {
                result = rejected.entry(cpu).or_default().add(&mut writer, cpu, bytes);
            }
            RingItem::Wrapped { cpu } => {
                // Nobody has counted how much it was.
                writer.set_overwritten(cpu, 1);
                wrapped.push(cpu.to_string());
            }
        });
        result?;
        for (cpu, of_cpu) in rejected {
            of_cpu.finish(&mut writer, cpu)?;
        }
        writer.flush()?;
        if let Some(problem) = self.rings.problem {
            self.missing.push(missing(problem.to_string(), "see the guest's console for 'trace' and 'memmap'"));
            writer.set_corrupt();
        }
        if !wrapped.is_empty() {
            let reason =
                format!("the rings of the vCPUs {} are full: older records were overwritten", wrapped.join(", "));
            self.missing.push(missing(reason, "give a larger --agentless-size, or fewer events"));
        }
        if !unknown.is_empty() {
            let count: u64 = unknown.values().sum();
            let ids: Vec<_> = unknown.keys().take(8).map(ToString::to_string).collect();
            let reason = format!("{count} records of events that are not known (numbers {})", ids.join(", "));
            self.missing.push(missing(reason, "name the events that the guest records in --agentless=EVENTS"));
        }
        Ok(Layer { flag_names: flag_names(schemas.into_iter()), ..writer.layer() })
    }
}

/// Widens the bounds of the clock in `manifest` by that of the ring's.
fn state_bound(manifest: &mut Manifest, vm: &str, clock: &LocalClock) {
    let extra = clock.bound_ns();
    let derivation = format!(
        "; the guest's kernel is traced without an agent, in kvm-clock's time: {extra} ns more, by which the host's \
         TSC and its monotonic clock drifted apart during the run, and rounding"
    );
    manifest.clock.error_bound_ns = manifest.clock.error_bound_ns.saturating_add(extra);
    manifest.clock.bound_derivation.push_str(&derivation);
    for epoch in manifest.clock.epochs.iter_mut().filter(|epoch| epoch.vm == vm) {
        epoch.bound_ns = epoch.bound_ns.saturating_add(extra);
        epoch.derivation.push_str(&derivation);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::events;
    use super::super::ring::sample;
    use super::*;
    use strata_clock::guest_tsc::KvmClock;
    use strata_recording::files::reserve::Reserve;
    use strata_recording::manifest::{Host, Started, Vm};
    use strata_recording::writer::MIN_ROTATED_SIZE;

    /// A recording in which the layer of the guest's kernel is yet to come.
    pub(in super::super) fn manifest() -> Manifest {
        serde_json::from_value(serde_json::json!({
            "format": strata_recording::manifest::FORMAT_VERSION, "strata": "test", "started": Started::at(0),
            "clock": {
                "uuid": uuid::Uuid::from_u128(1), "frequency_hz": 1_000_000_000, "source": "x86-tsc",
                "utc": {"ticks": 0, "utc_ns": 0, "uncertainty_ns": 0}, "error_bound_ns": 10, "bound_derivation": "none"
            },
            "host": Host::default(), "vms": [Vm { name: "vm0".into(), vcpus: 1, ..Vm::default() }], "layers": [],
            "missing": [missing(READ_AT_END, "")]
        }))
        .unwrap()
    }

    /// A ring whose pages go from `head` on, with one record at 5000 ticks.
    fn collected(head: u64) -> Collected {
        let event = events::tests::kernel_event("sched:sched_switch").schema(77).unwrap();
        let mut memory = sample::memory(&sample::LINUX_6_12, &[0, 1, 2, 3], head, 1);
        memory[8192..8200].copy_from_slice(&1000_u64.to_le_bytes());
        memory[8200..8208].copy_from_slice(&28_u64.to_le_bytes());
        memory[8208..8212].copy_from_slice(&6_u32.to_le_bytes());
        memory[8212..8214].copy_from_slice(&77_u16.to_le_bytes());
        let kvm = KvmClock { ns: 1000, tsc: 5000 };
        Collected {
            rings: Rings::of_stopped(memory, &sample::LINUX_6_12, 1),
            until: None,
            schemas: HashMap::from([(77, event)]),
            clock: Ok(LocalClock { offset_ns: 0, kvm, hz: 1_000_000_000, drift_ns: 7 }),
            schedule_at: None,
            run: (4000, 6000, 1_000_000_000),
            missing: Vec::new(),
        }
    }

    /// The guest kernel's streams of the recording to which `collected` was added.
    fn streams(collected: Collected) -> Vec<strata_recording::manifest::StreamDescription> {
        let (folder, mut manifest) = (tempfile::TempDir::new().unwrap(), manifest());
        collected.write(folder.path(), "vm0", &mut manifest, None).unwrap();
        manifest.layers.into_iter().flat_map(|layer| layer.streams).collect()
    }

    #[test]
    fn ring_takes_the_place_of_the_layer_of_an_agent_that_never_came() {
        let folder = tempfile::TempDir::new().unwrap();
        let mut manifest = manifest();
        let new =
            NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size: PACKET_SIZE };
        let empty = LayerWriter::create(folder.path(), &manifest, new).unwrap();
        manifest.layers.push(empty.layer());

        collected(1).write(folder.path(), "vm0", &mut manifest, None).unwrap();

        manifest.save(folder.path()).unwrap();
        let trace = strata_recording::reader::Trace::open(folder.path()).unwrap();
        let records: u64 = trace.manifest().layers.iter().flat_map(|layer| &layer.streams).map(|s| s.records).sum();
        assert_eq!((manifest.layers.len(), records, manifest.clock.error_bound_ns), (1, 1, 20));
        assert_eq!(manifest.missing, []);
    }

    #[test]
    fn layer_has_the_names_of_flags_and_says_which_fields_are_left_out() {
        let fields = "\tfield:u64 flags;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:char names[2][4];\toffset:16;\tsize:8;\tsigned:0;\n";
        let print = r#"print fmt: "%s", __print_flags(REC->flags, "|", { 1, "ONE" })"#;
        let event = events::tests::kernel_event_of("kmem:alloc", &format!("{fields}\n{print}\n")).schema(77).unwrap();
        let (folder, mut manifest) = (tempfile::TempDir::new().unwrap(), manifest());

        let collected = Collected { schemas: HashMap::from([(77, event)]), ..collected(1) };
        collected.write(folder.path(), "vm0", &mut manifest, None).unwrap();

        assert_eq!(manifest.layers[0].flag_names[0].text(1).as_deref(), Some("ONE"));
        let reasons: Vec<_> = manifest.missing.iter().map(|missing| missing.reason.as_str()).collect();
        assert_eq!(reasons, ["fields that have no form in a trace are left out: kmem:alloc (char names[2][4])"]);
    }

    #[test]
    fn layer_counts_to_the_size_that_its_recording_keeps_within() {
        let (folder, mut manifest) = (tempfile::TempDir::new().unwrap(), manifest());
        let rotation = Rotation::new(MIN_ROTATED_SIZE);

        collected(1).write(folder.path(), "vm0", &mut manifest, Some(&rotation)).unwrap();
        rotation.save(folder.path(), &mut manifest, &mut Reserve::default()).unwrap();

        let trace = strata_recording::reader::Trace::open(folder.path()).unwrap();
        let stream = &trace.manifest().layers[0].streams[0];
        assert_eq!((stream.records, stream.dropped.map(|dropped| dropped.records)), (1, Some(0)));
    }

    #[test]
    fn record_from_after_the_copying_began_is_left_out_and_not_rejected() {
        let streams = [4999, 5000].map(|until| streams(Collected { until: Some(until), ..collected(1) }));

        let reported = streams.map(|streams| streams.iter().map(|it| it.records + it.rejected_bytes).sum::<u64>());
        assert_eq!(reported, [0, 1]);
    }

    #[test]
    fn records_among_as_many_rejected_ones_take_few_packets() {
        let known = [&6_u32.to_le_bytes()[..], &77_u16.to_le_bytes(), &[0; 22]].concat();
        let rejected = [&1_u32.to_le_bytes()[..], &78_u32.to_le_bytes()].concat();
        let records = [known, rejected].concat().repeat(100);
        let mut memory = sample::memory(&sample::LINUX_6_12, &[0, 1, 2, 3, 4], 1, 4);
        for page in memory.chunks_mut(4096).skip(2) {
            page[..8].copy_from_slice(&1000_u64.to_le_bytes());
            page[8..16].copy_from_slice(&(records.len() as u64).to_le_bytes());
            page[16..16 + records.len()].copy_from_slice(&records);
        }

        let streams = streams(Collected { rings: Rings::of_stopped(memory, &sample::LINUX_6_12, 1), ..collected(1) });

        assert_eq!((streams[0].records, streams[0].rejected_bytes), (400, 1600));
        assert!(streams[0].packets < 270, "{} packets", streams[0].packets);
    }

    #[test]
    fn stream_of_a_ring_that_has_gone_round_begins_late() {
        let begins_late = |head| streams(collected(head)).iter().any(|stream| stream.overwritten > 0);

        assert!(begins_late(2) && !begins_late(1));
    }
}
