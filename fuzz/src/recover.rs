//! `strata recover` on a region file that holds anything: what comes out is a whole trace or an error.
//!
//! Inputs are those of [`crash_reader`](crate::crash_reader).

use crate::crash_reader::file;
use crate::guest_processes::check_whole;
use std::fs;
use tempfile::TempDir;

/// Most vCPUs of a region that is recovered: each takes a few files of each session.
const MAX_VCPUS: u32 = 8;

/// Gives an input to the reader and checks what must hold.
///
/// # Panics
/// When a property that the target checks does not hold, or when files cannot be written.
pub fn run(data: &[u8]) {
    let mut bytes = Vec::new();
    let memory = file(data);
    bytes.resize(memory.size(), 0);
    memory.read(0, &mut bytes);
    let Ok(region) = shared_ring::consumer::crash::CrashRegion::open(memory) else { return };
    if region.vcpus() > MAX_VCPUS || region.superblock().process_slots > MAX_VCPUS {
        return;
    }
    let dir = TempDir::new().expect("the folder for temporary files is writable");
    let path = dir.path().join("region");
    fs::write(&path, bytes).expect("the new folder is writable");
    let recovered = strata_recorder::recover::recover(&path, &dir.path().join("trace"));
    let recovered = recovered.expect("what can be opened can be recovered");
    let _ = strata_recorder::recover::text(&recovered);
    for (trace, manifest) in recovered.traces {
        check_whole(&trace, &manifest, manifest.layers.clone());
    }
}
