//! The monitor of docs/embedding.md, run on this machine's KVM, and what it has recorded, read by babeltrace2.
//!
//! Shows: A foreign monitor's VM is recorded by `strata-recorder`; babeltrace2 reads it (this KVM).
#![allow(unsafe_code, reason = "the test records as the guest's agent does")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up fails")]

use clock_sync::tsc;
use shared_ring::event::{Event, Field, FieldType};
use shared_ring::layout::MAGIC;
use shared_ring::producer::Producer;
use shared_ring::registry::Registry;
use shared_ring::storage::{CpuLocal, Smp};
use std::fs;
use std::path::Path;
use std::process::Command;
use strata_recorder::control::client;
use strata_recorder::control::protocol::{Answer, Request};
use strata_recorder::control::socket::ControlSocket;
use strata_recorder::region::TraceRegion;
use tempfile::TempDir;

#[path = "../examples/embedding.rs"]
mod embedding;

const EVENT: Event = Event { id: 1, class: 0, name: "test:number", fields: &[Field::new("number", FieldType::U64)] };

/// Registers an event and records it three times, as the guest's kernel does.
fn record(region: &TraceRegion) {
    let (layout, memory) = (region.layout(), region.memory());
    let rings = layout.config.sessions[0].unwrap();
    let (registry, ring) =
        (memory.part(layout.registry, layout.registry_size), memory.part(layout.kernel_ring(0, 0), rings.ring_size()));
    // SAFETY: the storages cover their parts, which the region keeps mapped; the guest has no agent that writes there.
    let (registry, producer) = unsafe {
        let registry = Registry::new(Smp::new(registry.base()), layout.registry_size);
        (registry, Producer::new(CpuLocal::new(ring.base()), rings.geometry, rings.mode))
    };
    registry.append(&EVENT);
    for number in 0..3_u64 {
        producer.record(tsc::read_ordered, EVENT.id, &number.to_le_bytes());
    }
}

/// What babeltrace2 reads in `trace`, which it has no complaint about.
fn babeltrace2(trace: &Path) -> String {
    let output = Command::new("babeltrace2").arg(trace).output().expect("babeltrace2 must be installed");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn monitor_records_itself_and_its_guest_and_answers_meanwhile() {
    let folder = TempDir::new().unwrap();
    let (trace, runtime) = (folder.path().join("trace"), folder.path().join("runtime"));
    let mut status = None;
    let meanwhile = |region: &TraceRegion, socket: &Path| {
        record(region);
        status = Some(client::call(&ControlSocket::of_this_user(socket), &Request::Status)?);
        Ok(())
    };

    let (printed, manifest) = embedding::run(&trace, &runtime, meanwhile).unwrap();

    let lines = babeltrace2(&trace);
    let of_event = |name: &str| lines.lines().filter(|line| line.contains(name)).count();
    assert_eq!(printed, MAGIC.to_le_bytes());
    assert!(matches!(status, Some(Answer::Status(status)) if status.name == "embedded" && status.trace.is_some()));
    // It leaves the guest for each byte that it prints, and to halt.
    assert_eq!([of_event("vmm:vcpu_exit"), of_event("test:number")], [MAGIC.to_le_bytes().len() + 1, 3]);
    assert_eq!(manifest.outcome.as_deref(), Some("the guest halted"));
    // The VM's folder has gone with it.
    assert_eq!(fs::read_dir(&runtime).unwrap().count(), 0);
}
