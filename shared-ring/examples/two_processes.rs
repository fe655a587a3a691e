//! Two processes, one region: one records, the other drains and prints. A second monitor needs no more than this, and a
//! mapping of memory that its guest sees. Run it: `cargo run -p shared-ring --example two_processes`
//!
//! Here the memory is a file that both processes map, and the guest is a child process with one vCPU. A virtual machine
//! monitor puts the same mapping behind a memslot, makes what lies below `RegionLayout::guest_writable` read-only for the
//! guest, and tells the guest where the region lies.
#![allow(unsafe_code)] // Two processes share memory: mappings, and what is made of them.

use clock_sync::entry::{Reader, Writer};
use clock_sync::{calibration, relation::Relation, tsc};
use memmap2::MmapRaw;
use shared_ring::consumer::Consumer;
use shared_ring::event::{Event, EventDescription, Field, FieldType};
use shared_ring::guest::{self, SessionRings};
use shared_ring::host::memory::HostMemory;
use shared_ring::host::{self, EnabledEvents, Parts};
use shared_ring::layout::{AGENT_ALIVE, AGENT_GONE, Geometry, Mode};
use shared_ring::packet::read_word;
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use shared_ring::storage::Smp;
use std::error::Error;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The event that the guest records.
const STEP: Event = Event {
    id: 1,
    class: 0,
    name: "example:step",
    fields: &[Field::new("number", FieldType::U64), Field::new("square", FieldType::U64)],
};
const SESSION: usize = 0;
const VCPU: u32 = 0;

fn map(path: &Path) -> Outcome<MmapRaw> {
    Ok(MmapRaw::map_raw(&File::options().read(true).write(true).open(path)?)?)
}

/// The monitor: lays out the region, starts the guest, prints what it records.
fn host(path: &Path) -> Outcome<()> {
    // Where everything lies: one vCPU, one session with four sub-buffers of 4 KiB, no slots for processes of the guest.
    let rings = Rings { geometry: Geometry::new(4096, 4)?, mode: Mode::Discard };
    let layout = RegionLayout::new(RegionConfig {
        vcpus: 1,
        sessions: [Some(rings), None, None, None],
        process_rings: rings,
        process_slots: 0,
        registry_size: 4096,
        process_registry_size: 4096,
    })?;
    File::create(path)?.set_len(layout.size as u64)?;
    let mapping = Arc::new(map(path)?);
    // SAFETY: the mapping is page-aligned, that long, and is kept by the memory.
    let memory = unsafe { HostMemory::new(mapping.as_mut_ptr(), layout.size, mapping) };

    // The clock: this host's TSC, which is the guest's counter too. A monitor gives the offset that its guest's TSC has.
    let frequency = calibration::measure_frequency(tsc::read_ordered, Duration::from_millis(20)).ok_or("no TSC")?;
    let start = tsc::read_ordered();
    // SAFETY: the entry lies inside the memory, which outlives the writer; nobody else writes it.
    unsafe { Writer::new(memory.base().add(layout.clock_entry(VCPU))) }.publish(&Relation::from_tsc_offset(0, start));

    // The session: the guest may record the event from now on.
    let mut region = host::Region::create(memory.clone(), layout, [7; 16], frequency)?;
    region.open_session(SESSION, "example", rings, |_, _| ())?;
    let mut enabled = EnabledEvents::NONE;
    enabled.enable(STEP.id, STEP.class);
    region.enable(SESSION, &enabled)?;
    region.set_alive(true);

    let mut guest = Command::new(std::env::current_exe()?).arg(path).spawn()?;
    let ring = memory.part(layout.kernel_ring(SESSION, VCPU), rings.ring_size());
    let mut consumer = Consumer::new(ring, rings.geometry, rings.mode, VCPU);
    let mut registry = Parts::of(memory, &layout)?.kernel_registry();
    let (mut known, mut buffer, mut printed) = (Vec::new(), Vec::new(), 0);
    loop {
        let ended = guest.try_wait()?;
        loop {
            // What the guest did not complete is wanted too, once it is gone.
            let polled = if ended.is_some() { consumer.poll_stopped(&mut buffer) } else { consumer.poll(&mut buffer) };
            let Some(delivered) = polled.ready() else { break };
            // The guest has named its events before it recorded them.
            known.extend(registry.poll());
            let find = |id| known.iter().find(|event: &&EventDescription| event.id == id);
            let Some(packet) = delivered.accept([7; 16], tsc::read_ordered(), find) else { continue };
            for record in packet.records() {
                let ns = calibration::ticks_to_ns(record.time.saturating_sub(start), frequency);
                let name = find(record.id).map_or("", |event| &event.name);
                let value = |at| read_word(record.payload, at).unwrap_or_default();
                println!("{ns} ns: {name} number={} square={}", value(0), value(8));
                printed += 1;
            }
        }
        if let Some(status) = ended {
            consumer.finish();
            let (lost, rejected) = (consumer.lost().total(), consumer.rejected_bytes());
            println!("{printed} records, {lost} lost, {rejected} bytes rejected");
            return if status.success() { Ok(()) } else { Err("the guest failed".into()) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The guest: finds its session in the region and records 500 events.
fn guest(path: &Path) -> Outcome<()> {
    let mapping = map(path)?;
    // SAFETY: the mapping is page-aligned, that long, and outlives what is made from it.
    let region = unsafe { guest::Region::open(mapping.as_mut_ptr(), mapping.len() as u64) }?;
    // SAFETY: this process is the only agent, and the entry lies in the region (the view was checked).
    let (registry, clock) = unsafe {
        let entry = region.view().clock_entry(VCPU).ok_or("no clock entry")?;
        (region.registry(), Reader::new(region.pointer(entry)))
    };
    registry.append(&STEP);
    region.announce(b"two_processes", 0, AGENT_ALIVE);
    let own = SessionRings::new();
    // SAFETY: this thread is the only one that records; rings lie in the region, which stays mapped.
    unsafe { own.follow(region.area(), VCPU, |ring| Smp::new(region.pointer(ring))) };
    for number in 0..500_u64 {
        let producer = own.producer(SESSION).ok_or("no session")?;
        if region.area().is_enabled(SESSION, STEP.class, STEP.id) {
            let mut payload = [0; 16];
            payload[..8].copy_from_slice(&number.to_le_bytes());
            payload[8..].copy_from_slice(&(number * number).to_le_bytes());
            producer.record(|| clock.now(tsc::read_ordered), STEP.id, &payload);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    // SAFETY: as above; nothing is recorded any more.
    unsafe { own.release() };
    region.set_state(AGENT_GONE);
    Ok(())
}

fn main() -> Outcome<()> {
    if let Some(path) = std::env::args_os().nth(1) {
        return guest(Path::new(&path));
    }
    let path = std::env::temp_dir().join(format!("two_processes-{}", std::process::id()));
    let outcome = host(&path);
    fs::remove_file(&path)?;
    outcome
}
