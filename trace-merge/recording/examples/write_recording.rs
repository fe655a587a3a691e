//! Writes a recording of a guest's kernel of any size, for measurements: five event types in the proportions of a busy
//! guest, spread over a number of vCPUs.
//!
//! `cargo run --release -p strata-recording --example write_recording -- DIR EVENTS STREAMS`

use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use std::error::Error;
use std::path::Path;
use strata_recording::clock::{Clock, UtcAnchor};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{FORMAT_VERSION, Host, Manifest, Started, Vm};
use strata_recording::writer::{LayerWriter, NewLayer};
use uuid::Uuid;

const PACKET_SIZE: u64 = 128 << 10;
const BEGIN_NS: u64 = 1_795_169_710_000_000_000;

const SCHED_SWITCH: u16 = 1;
const SYS_ENTER: u16 = 2;
const SYS_EXIT: u16 = 3;
const IRQ_ENTRY: u16 = 4;
const IRQ_EXIT: u16 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, events, streams] = &arguments[..] else { return Err("give DIR EVENTS STREAMS".into()) };
    write(Path::new(dir), events.parse()?, streams.parse()?)
}

fn write(dir: &Path, events: u64, streams: u32) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir(dir)?;
    let mut manifest = manifest(streams);
    let new =
        NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size: PACKET_SIZE };
    let mut layer = LayerWriter::create(dir, &manifest, new)?;
    layer.add_events(&event_types())?;
    let mut draws = Draws(1);
    let mut time = 1_000_000;
    let mut payload = Vec::new();
    for number in 0..events {
        time += 1 + draws.below(400);
        payload.clear();
        let id = fill(&mut payload, &mut draws, number);
        let stream = u32::try_from(draws.below(u64::from(streams)))?;
        layer.record(stream, time, id, &payload)?;
    }
    layer.flush()?;
    manifest.layers.push(layer.layer());
    manifest.save(dir)?;
    Ok(())
}

/// Puts the fields of the next event into `payload`; its type.
fn fill(payload: &mut Vec<u8>, draws: &mut Draws, number: u64) -> u16 {
    let task = |payload: &mut Vec<u8>, pid: u64| {
        let mut comm = [0; 16];
        let name = format!("worker/{}", pid % 40);
        comm[..name.len()].copy_from_slice(name.as_bytes());
        payload.extend(comm);
        payload.extend(&pid.to_le_bytes()[..4]);
        payload.extend(120_i32.to_le_bytes());
    };
    match number % 10 {
        0 => {
            task(payload, 1000 + draws.below(400));
            payload.extend(draws.below(3).to_le_bytes());
            task(payload, 1000 + draws.below(400));
            SCHED_SWITCH
        }
        1 => {
            payload.extend(&draws.below(64).to_le_bytes()[..4]);
            payload.extend(b"virtio0-input.0\0");
            IRQ_ENTRY
        }
        2 => {
            payload.extend(&draws.below(64).to_le_bytes()[..4]);
            payload.extend(1_i32.to_le_bytes());
            IRQ_EXIT
        }
        3 | 5 | 7 | 9 => {
            payload.extend(draws.below(330).to_le_bytes());
            payload.extend(draws.below(1 << 20).wrapping_sub(2).to_le_bytes());
            SYS_EXIT
        }
        _ => {
            payload.extend(draws.below(330).to_le_bytes());
            payload.extend((0x7f00_0000_0000 + draws.below(1 << 30)).to_le_bytes());
            payload.extend(draws.below(1 << 16).to_le_bytes());
            SYS_ENTER
        }
    }
}

fn event_types() -> Vec<EventDescription> {
    use FieldType::{CharArray, I32, I64, String, U64};
    let event = |id, name: &str, fields: &[(&str, FieldType, bool)]| {
        let field = |&(name, ty, hex): &(&str, FieldType, bool)| FieldDescription { name: name.into(), ty, hex };
        EventDescription { id, class: 0, name: name.into(), fields: fields.iter().map(field).collect() }
    };
    let comm = CharArray(16);
    let switch = [
        ("prev_comm", comm, false),
        ("prev_pid", I32, false),
        ("prev_prio", I32, false),
        ("prev_state", I64, false),
        ("next_comm", comm, false),
        ("next_pid", I32, false),
        ("next_prio", I32, false),
    ];
    vec![
        event(SCHED_SWITCH, "sched:sched_switch", &switch),
        event(SYS_ENTER, "raw_syscalls:sys_enter", &[("id", I64, false), ("arg0", U64, true), ("arg1", U64, true)]),
        event(SYS_EXIT, "raw_syscalls:sys_exit", &[("id", I64, false), ("ret", I64, false)]),
        event(IRQ_ENTRY, "irq:irq_handler_entry", &[("irq", I32, false), ("name", String, false)]),
        event(IRQ_EXIT, "irq:irq_handler_exit", &[("irq", I32, false), ("ret", I32, false)]),
    ]
}

/// The same numbers in every run, spread evenly.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn manifest(vcpus: u32) -> Manifest {
    Manifest {
        format: FORMAT_VERSION,
        strata: env!("CARGO_PKG_VERSION").into(),
        started: Started::at(BEGIN_NS),
        clock: Clock {
            uuid: Uuid::new_v4(),
            frequency_hz: 2_450_000_000,
            utc: UtcAnchor { ticks: 0, utc_ns: BEGIN_NS, uncertainty_ns: 0 },
            source: "x86-tsc".into(),
            vcpus: Vec::new(),
            error_bound_ns: 0,
            bound_derivation: "made up".into(),
            given_up_ticks: None,
            epochs: Vec::new(),
        },
        host: Host::default(),
        vms: vec![Vm { name: "vm0".into(), vcpus, ..Vm::default() }],
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: Some("made up".into()),
    }
}
