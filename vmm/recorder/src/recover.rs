//! `strata recover`: a trace of the trace region of a VM whose process died, from the bytes of the file.
//!
//! The file is mapped privately: it stays as it is, and can be recovered again. What was known of the recording lies
//! beside it (`session.json`, see [`crate::control::directory`]); without that, times are ticks without a date.
#![allow(unsafe_code)] // The region is a memory-mapped file.

use crate::control::directory::{self, HOST_HISTORY_FILE, REGION_FILE, VMM_RINGS_FILE, VmmRings};
use crate::control::found_vm::{self, FoundVm};
use crate::layer::host_history;
use crate::layer::ring::RingLayer;
use crate::layer::vmm::vmm_layer_of;
use crate::region::guest_text;
use memmap2::MmapOptions;
use shared_ring::consumer::crash::CrashRegion;
use shared_ring::consumer::{Consumer, Lost};
use shared_ring::host::ProcessOwner;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{AGENT_ABSENT, Mode, SESSION_SLOTS};
use shared_ring::view::{Session, ViewError};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use strata_recording::clock::{Clock, MAX_FREQUENCY, UtcAnchor};
use strata_recording::clock_snapshots::{self, ClockSnapshot};
use strata_recording::files::access::Readers;
use strata_recording::files::packed;
use strata_recording::files::trace_folder::{TraceFolder, TraceFolderError};
use strata_recording::files::{CLOCKS_FILE, open_regular};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{
    FORMAT_VERSION, Guest, Host, Layer, Manifest, ManifestError, Missing, Process, Started, Vm, is_vm_name,
};
use strata_recording::one_file::{OneFile, OneFileError};
use strata_recording::reader::Trace;
use strata_recording::text::terminal::foreign::Foreign;
use strata_recording::writer::{LayerWriter, NewLayer, WriteError};
use thiserror::Error;
use uuid::Uuid;

/// Name of a VM that left nothing but its region.
const UNKNOWN_VM: &str = "vm0";

/// Why no trace can be recovered.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// The file cannot be read.
    #[error("cannot read the trace region '{}': give the region file that `strata ps` names", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The VM is running.
    #[error("VM '{name}' is still running: use `strata ctl {pid} snapshot DIR`, or stop it")]
    Running {
        /// Its name.
        name: String,
        /// Its process.
        pid: u32,
    },
    /// The file is not a trace region.
    #[error("'{}' cannot be recovered", path.display())]
    NotARegion {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: ViewError,
    },
    /// The trace folder cannot be used.
    #[error(transparent)]
    TraceFolder(#[from] TraceFolderError),
    /// The one file cannot be made.
    #[error(transparent)]
    OneFile(#[from] OneFileError),
    /// A layer cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The description cannot be written.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// What was recovered.
#[derive(Debug)]
pub struct Recovered {
    /// The trace, and where it lies, in a folder or in one file: one for each session that the VM had, the one that it was
    /// started with first.
    pub traces: Vec<(PathBuf, Manifest)>,
    /// What of the region could not be read, a line each.
    pub damage: Vec<String>,
    /// Where the recording went that was written while the VM ran.
    pub written_before: Option<Foreign<PathBuf>>,
}

/// Makes traces of the region in the file (or VM's folder) `path`: of the session that the VM was started with in the new
/// folder `out`, of each other session in a folder beside it, `out-NAME`. Where the name of `out`
/// [is that of one file](packed::is_name), each becomes a file: `out.strata`, `out-NAME.strata`.
///
/// # Errors
/// When `path` is not a trace region, its VM is running, or a folder cannot be written. What was made is removed then.
pub fn recover(path: &Path, out: &Path) -> Result<Recovered, RecoverError> {
    let path = if path.is_dir() { path.join(REGION_FILE) } else { path.to_path_buf() };
    // What somebody else may have laid there is not believed.
    let folder = path.parent().filter(|folder| directory::is_private(folder).unwrap_or(false));
    let found = folder.map(Path::to_path_buf).and_then(found_vm::look_at);
    if let Some(vm) = found.as_ref().filter(|found| found.alive).map(|found| &found.vm) {
        return Err(RecoverError::Running { name: vm.name.clone(), pid: vm.pid });
    }
    let memory = map(&path).map_err(|source| RecoverError::Read { path: path.clone(), source })?;
    let region = CrashRegion::open(memory).map_err(|source| RecoverError::NotARegion { path: path.clone(), source })?;
    let manifest = describe(&region, &path, folder);
    // What lies there of another recording has another clock.
    let is_beside =
        |folder: &&Path| Manifest::load(folder).is_ok_and(|beside| beside.clock.uuid == manifest.clock.uuid);
    let clocks = folder.filter(is_beside).map(clock_snapshots::beside).unwrap_or_default();
    let mut recovered = Recovered { traces: Vec::new(), damage: Vec::new(), written_before: None };
    if folder.is_none() {
        recovered
            .damage
            .push("what lies beside the region is not used: its folder is not yours alone (chmod 700)".into());
    }
    let (mut folders, mut files, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for slot in 0..SESSION_SLOTS {
        let crashed = match region.session(slot) {
            Ok(Some(crashed)) => crashed,
            Ok(None) => continue,
            Err(error) => {
                recovered.damage.push(format!("session slot {slot}: {error}"));
                continue;
            }
        };
        if slot == 0 && crashed.rings.mode == Mode::Discard {
            recovered.written_before = found.as_ref().and_then(|found| found.vm.trace.clone());
        }
        let mut name = session_name(&crashed);
        if names.contains(&name) {
            recovered.damage.push(format!("session slot {slot}: an earlier session has its name, \"{name}\""));
        }
        while names.contains(&name) {
            name.push_str(&format!("-{slot}"));
        }
        let dir = if slot == 0 { out.to_path_buf() } else { beside(out, &name) };
        names.push(name);
        let file = packed::is_name(&dir).then(|| OneFile::begin(&dir)).transpose()?;
        let folder = file.as_ref().map_or_else(|| dir.clone(), OneFile::folder);
        let folder = TraceFolder::create(&folder, Readers::Owner)?;
        let described = found.as_ref().filter(|_| slot == 0);
        let trace = write(&region, &crashed, described, folder.path(), manifest.clone())?;
        write_clocks(&clocks, folder.path())?;
        if let Some(file) = file {
            file.pack_folder()?;
            files.push(file);
        }
        folders.push(folder);
        recovered.traces.push((dir, trace));
    }
    folders.iter_mut().for_each(TraceFolder::keep);
    files.into_iter().try_for_each(OneFile::keep)?;
    Ok(recovered)
}

/// `recovered` as text for the user.
#[must_use]
pub fn text(recovered: &Recovered) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    for (dir, manifest) in &recovered.traces {
        let streams = || manifest.layers.iter().flat_map(|layer| &layer.streams);
        let _ = writeln!(
            out,
            "{}: {} records in {} layers, {} lost, {} bytes not committed or not readable",
            dir.display(),
            streams().map(|stream| stream.records).sum::<u64>(),
            manifest.layers.len(),
            streams().map(|stream| stream.lost).sum::<Lost>().total(),
            streams().map(|stream| stream.rejected_bytes).fold(0, u64::saturating_add)
        );
    }
    for line in &recovered.damage {
        let _ = writeln!(out, "damaged: {line}");
    }
    if let Some(trace) = &recovered.written_before {
        let _ = writeln!(out, "what had been written before the process died is in {trace}");
    }
    out
}

/// The bytes of the file, privately.
fn map(path: &Path) -> io::Result<HostMemory> {
    let file = open_regular(path)?;
    // An empty file cannot be mapped.
    if file.metadata()?.len() < 8 {
        return Ok(HostMemory::private(0));
    }
    // SAFETY: the mapping is private, so that what is written to it stays here. The file's process is dead (its lock was
    // looked at); someone who truncates the file meanwhile ends this process with SIGBUS, nothing else.
    let mut mapping = unsafe { MmapOptions::new().map_copy(&file) }?;
    let (base, size) = (mapping.as_mut_ptr(), mapping.len() / 8 * 8);
    // SAFETY: the mapping is page-aligned, at least `size` bytes long and lives as long as the owner, which nobody else
    // looks into: all access goes through this view.
    Ok(unsafe { HostMemory::new(base, size, Arc::new(mapping)) })
}

/// What is known of the recording: what lies beside the region in its `folder` and belongs to it, else what the region says.
fn describe(region: &CrashRegion, path: &Path, folder: Option<&Path>) -> Manifest {
    let superblock = region.superblock();
    let uuid = Uuid::from_bytes(superblock.clock_uuid);
    let beside = folder.and_then(|folder| Manifest::load(folder).ok());
    let mut manifest = beside.filter(|manifest| manifest.clock.uuid == uuid).unwrap_or_else(|| Manifest {
        format: FORMAT_VERSION,
        strata: env!("CARGO_PKG_VERSION").into(),
        started: Started::at(0),
        clock: Clock {
            uuid,
            frequency_hz: superblock.clock_frequency.clamp(1, MAX_FREQUENCY),
            utc: UtcAnchor { ticks: 0, utc_ns: 0, uncertainty_ns: u64::MAX },
            source: "x86-tsc".into(),
            vcpus: Vec::new(),
            error_bound_ns: 0,
            bound_derivation: "nothing but the trace region was left: the clock's error is not known".into(),
            given_up_ticks: None,
            epochs: Vec::new(),
        },
        host: Host::default(),
        vms: Vec::new(),
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: None,
    });
    if manifest.vms.is_empty() {
        manifest.vms.push(Vm { name: UNKNOWN_VM.into(), vcpus: region.vcpus(), ..Vm::default() });
    }
    let agent = region.agent();
    for vm in &mut manifest.vms {
        if agent.state != AGENT_ABSENT {
            vm.guest = Some(Guest {
                kernel: guest_text(&agent.kernel_release),
                agent_abi: agent.abi_version,
                processes_refused: agent.processes_refused,
                processes_over_quota: agent.processes_over_quota,
            });
        }
        vm.region = Some(path.into());
    }
    manifest.layers.clear();
    manifest.missing.retain(|missing| !matches!(missing.layer, LayerKind::HostKernel | LayerKind::Vmm));
    manifest.missing.extend(manifest.vms.iter().filter_map(|vm| vm.guest.as_ref()?.missing_processes()));
    manifest.outcome = Some("strata's process died; recovered from the trace region".into());
    manifest
}

fn missing(layer: LayerKind) -> Missing {
    Missing {
        layer,
        reason: "recovered from what is left of a VM whose process died".into(),
        fix: "none: these records died with it".into(),
    }
}

/// Writes what the rings of the VMM layer of `found` hold into `dir`; `None` when nothing of them is left. What is said about
/// them is as little to be trusted as they are.
fn write_vmm(
    found: &FoundVm,
    vcpus: u32,
    vm: &str,
    dir: &Path,
    manifest: &Manifest,
) -> Result<Option<Layer>, WriteError> {
    let rings = found.vm.vmm_rings.and_then(VmmRings::rings);
    let memory = map(&found.path.raw().join(VMM_RINGS_FILE)).ok();
    let (Some(rings), Some(memory)) = (rings, memory) else { return Ok(None) };
    let size = rings.ring_size();
    let parts = (0..=vcpus).zip(0..memory.size() / size);
    let consumer =
        |(number, index)| Consumer::resume(memory.part(index * size, size), rings.geometry, rings.mode, number);
    let layer = finish(vmm_layer_of(parts.map(consumer).collect(), rings, vm, None, dir, manifest)?, &manifest.clock)?;
    Ok(Some(layer).filter(|layer| layer.streams.iter().any(|stream| stream.records > 0)))
}

/// Writes what the VM of `found` kept of the host's kernel, if it was a flight recorder, into `dir`. A file that is not
/// that holds nothing.
fn write_host(found: &FoundVm, dir: &Path, manifest: &Manifest) -> Result<Vec<Layer>, WriteError> {
    let file = open_regular(&found.path.raw().join(HOST_HISTORY_FILE)).ok();
    let layers = file.and_then(|file| host_history::recovered(&file, dir, manifest).ok());
    layers.into_iter().flatten().collect()
}

/// Writes what the rings of `crashed` hold into `dir`; the first session has the processes and the VMM too.
fn write(
    region: &CrashRegion,
    crashed: &Session,
    found: Option<&FoundVm>,
    dir: &Path,
    mut manifest: Manifest,
) -> Result<Manifest, RecoverError> {
    let vm = manifest.vms.first().map_or_else(|| UNKNOWN_VM.into(), |vm| vm.name.clone());
    let new = |kind, process, packet_size| NewLayer { kind, vm: Some(vm.clone()), process, packet_size };
    let size = crashed.rings.geometry.sub_buffer_size();
    let rings = (0..region.vcpus()).filter_map(|vcpu| region.kernel_ring(crashed, vcpu)).collect();
    let writer = LayerWriter::create(dir, &manifest, new(LayerKind::GuestKernel, None, size))?;
    let mut layers = vec![finish(RingLayer::new(writer, Some(region.kernel_registry()), rings), &manifest.clock)?];
    let processes = if crashed.slot == 0 { region.processes() } else { Vec::new() };
    let size = region.process_rings().geometry.sub_buffer_size();
    for ProcessOwner { slot, pid, comm, .. } in processes {
        let rings: Vec<Consumer> = (0..region.vcpus()).filter_map(|vcpu| region.process_ring(slot, vcpu)).collect();
        let process = Process { pid, comm: guest_text(&comm) };
        let writer = LayerWriter::create(dir, &manifest, new(LayerKind::GuestUser, Some(process), size))?;
        layers.push(finish(RingLayer::new(writer, region.process_registry(slot), rings), &manifest.clock)?);
    }
    Layer::note_crash_kernel(&mut layers, region.agent().crash_kernel_at);
    let mut of_host = found.map_or(Ok(Vec::new()), |found| write_host(found, dir, &manifest))?;
    // What the kernel recorded last was not taken in any more.
    of_host.iter_mut().for_each(|layer| layer.ended = Some(false));
    if of_host.is_empty() {
        manifest.missing.push(missing(LayerKind::HostKernel));
    }
    layers.extend(of_host);
    match found.map_or(Ok(None), |found| write_vmm(found, region.vcpus(), &vm, dir, &manifest))? {
        Some(layer) => layers.push(layer),
        None => manifest.missing.push(missing(LayerKind::Vmm)),
    }
    manifest.layers = layers;
    manifest.save(dir)?;
    Ok(manifest)
}

/// Writes those of `clocks` that belong to the trace in `dir`.
fn write_clocks(clocks: &[ClockSnapshot], dir: &Path) -> Result<(), WriteError> {
    let Some((begin, end)) = Trace::open(dir).ok().and_then(|trace| Some((trace.start()?, trace.end()?))) else {
        return Ok(());
    };
    clock_snapshots::write(clock_snapshots::within(clocks, begin, end), dir)
        .map_err(|source| WriteError::Write { path: dir.join(CLOCKS_FILE), source })
}

/// Takes what `layer`'s rings hold. Nobody knows how late it was when the process died: only a time that no trace on
/// `clock` can tell is too late for a record.
fn finish(mut layer: RingLayer, clock: &Clock) -> Result<Layer, WriteError> {
    layer.finish(&|| clock.last_ticks(), None)?;
    Ok(layer.layer())
}

/// The session's name, if it can be part of a file name, else one by its slot.
fn session_name(crashed: &Session) -> String {
    let name = guest_text(&crashed.name);
    if is_vm_name(&name) { name } else { format!("session{}", crashed.slot) }
}

/// The folder `out-NAME`, or the file `out-NAME.strata`.
fn beside(out: &Path, name: &str) -> PathBuf {
    let is_file = packed::is_name(out);
    let stem = if is_file { out.file_stem() } else { out.file_name() };
    let mut file_name = stem.unwrap_or_default().to_os_string();
    file_name.push(format!("-{name}"));
    if is_file {
        file_name.push(format!(".{}", packed::EXTENSION));
    }
    out.with_file_name(file_name)
}

#[cfg(test)]
mod tests;
