//! The manifest, `session.json`: what a recording holds. It is the truth that the reading side goes by, event types
//! included, so that nothing but this file and the streams is needed to decode a recording.

use crate::clock::{Clock, MAX_FREQUENCY, rfc3339};
use crate::files::access::Readers;
use crate::files::compression::Compression;
use crate::files::reserve::Reserve;
use crate::files::{Files, MANIFEST_FILE, MAX_MANIFEST_BYTES};
use crate::layer::LayerKind;
use crate::layer::loss::LargestLost;
use crate::text::counted::counted;
use crate::text::terminal::foreign::Foreign;
pub use flag_names::FlagNames;
pub use foreign::is_perfetto_file;
pub use limit::RecordLimit;
use serde::{Deserialize, Serialize};
use shared_ring::consumer::Lost;
use shared_ring::event::EventDescription;
pub use size::{event_bytes, layer_bytes};
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use thiserror::Error;
use uuid::Uuid;

mod flag_names;
mod foreign;
pub(crate) mod journal;
mod limit;
mod size;

/// Version of the recording format that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// How the outcome of a snapshot begins: what it was taken of went on.
pub const SNAPSHOT: &str = "snapshot of a running VM";
/// Smallest packet of a stream, bytes: a packet header and something in it.
pub const MIN_PACKET_SIZE: u64 = 256;
/// Largest packet of a stream, bytes.
pub const MAX_PACKET_SIZE: u64 = 64 << 20;
/// Most streams that a layer is taken to have which none of its files shows.
const MAX_STREAMS_UNSEEN: u32 = 1024;

/// Why a manifest cannot be read or written.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// There is no such folder.
    #[error("{}: no such trace; give the folder that `strata run --trace` or `strata attach` made, or a file", .path.display())]
    NoFolder {
        /// What was given.
        path: PathBuf,
    },
    /// It is something else that is known.
    #[error("{}: {what}", .path.display())]
    Foreign {
        /// What was given.
        path: PathBuf,
        /// What it is, and what to do.
        what: String,
    },
    /// The folder has no `session.json`.
    #[error("{}: not a trace folder (no {MANIFEST_FILE}); give the folder that `strata run --trace` wrote", .path.display())]
    NotATrace {
        /// What was given.
        path: PathBuf,
    },
    /// `session.json` cannot be read.
    #[error("{}: cannot be read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `session.json` is truncated or not what it should be.
    #[error("{}: damaged or truncated; the streams beside it can still be read with babeltrace2", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// `session.json` says something that no recording says.
    #[error("{}: {problem}; the file was damaged or edited", .path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What it says.
        problem: String,
    },
    /// The recording was made by a later version.
    #[error("{}: format {found} is newer than this strata reads ({FORMAT_VERSION}); use the strata that recorded it", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u32,
    },
    /// `session.json` would be larger than what is read.
    #[error("{}: would be {bytes} bytes, more than are read ({MAX_MANIFEST_BYTES}): record fewer processes, or fewer types of events", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// How large it would be.
        bytes: usize,
    },
    /// `session.json` cannot be written.
    #[error("{}: cannot be written; check the space and the permissions of its folder", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What a recording holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version: [`FORMAT_VERSION`].
    pub format: u32,
    /// Version of Strata that recorded.
    pub strata: String,
    /// When the recording began.
    pub started: Started,
    /// The clock that all layers share.
    pub clock: Clock,
    /// The machine that recorded.
    pub host: Host,
    /// The virtual machines that were recorded.
    pub vms: Vec<Vm>,
    /// The layers that were recorded.
    pub layers: Vec<Layer>,
    /// The layers that were not, or not completely, and why.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// The size that the recording keeps within, bytes: of all layers, the oldest packets give way to new ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u64>,
    /// How its streams are compressed, if they are. Then their files are called so, too: `stream_0.zst` in place of
    /// `stream_0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// How the recording ended; `None` while it runs, or when its recorder was killed. That of a snapshot begins with
    /// [`SNAPSHOT`].
    #[serde(default)]
    pub outcome: Option<String>,
}

/// When a recording began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// RFC 3339, UTC.
    pub utc: String,
    /// Nanoseconds since 1970-01-01T00:00:00Z.
    pub utc_ns: u64,
}

impl Started {
    /// The moment `utc_ns` nanoseconds after 1970-01-01T00:00:00Z.
    #[must_use]
    pub fn at(utc_ns: u64) -> Self {
        Self { utc: rfc3339(i128::from(utc_ns)), utc_ns }
    }
}

/// The machine that recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Name of the machine.
    pub hostname: String,
    /// Release of its kernel.
    pub kernel: String,
    /// Model of its CPUs.
    pub cpu: String,
    /// Kind of its KVM: hardware or emulating.
    pub kvm: String,
    /// The kernel's identity of the boot in which it recorded; empty when that is not known. Since one boot, counters
    /// of one kind are one clock, whatever process reads them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
}

/// A virtual machine that was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Name, also of its folder.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Host thread id of each vCPU, in vCPU order, -1 where it is not known: it distinguishes host-kernel events.
    /// Below -1 where the VM's process is in a PID namespace: no thread of the host's records.
    #[serde(default)]
    pub vcpu_threads: Vec<i32>,
    /// Host threads that ran a vCPU before the one in `vcpu_threads` did, each once, in the order in which they were last
    /// seen: of a vCPU that was taken away and added again, or that its VMM handed to another thread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_vcpu_threads: Vec<VcpuThread>,
    /// What runs in it, once its agent said so.
    #[serde(default)]
    pub guest: Option<Guest>,
    /// The process that runs it, where the recording was attached to that from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
    /// In a recording merged from those of several hosts: the host it ran on, when that is not the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// In a recording merged from those of several runs on one host: whether its own run had no host-kernel layer, so
    /// that the layer of the others holds nothing of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside_host_kernel: bool,
    /// File of its trace region, which outlives a recorder that is killed.
    #[serde(default)]
    pub region: Option<PathBuf>,
    /// Words of the trace region that are the host's and that the guest had changed; restored each time they were
    /// looked at.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restored_words: u64,
    /// The threads of the strata process that recorded it, and what each had used when this was written; empty where
    /// that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strata_threads: Vec<StrataThread>,
    /// The host's control groups that its threads were in, and those above; empty where none can limit its CPU time, or
    /// that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_limits: Vec<CpuLimit>,
}

/// A control group of the host, and what its CPU limit kept from its threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuLimit {
    /// Its path in the hierarchy, as the recorder saw it.
    pub cgroup: String,
    /// CPU time in a period, µs; `None` without a limit. The last one that was read.
    pub quota_us: Option<u64>,
    /// The period, µs.
    pub period_us: u64,
    /// What it had counted when it was seen first.
    pub begin: Throttled,
    /// What it had counted when it was seen last.
    pub end: Throttled,
}

impl CpuLimit {
    /// What it counted meanwhile.
    #[must_use]
    pub const fn counted(&self) -> Throttled {
        let Self { begin, end, .. } = self;
        Throttled {
            periods: end.periods.saturating_sub(begin.periods),
            throttled: end.throttled.saturating_sub(begin.throttled),
            throttled_ns: end.throttled_ns.saturating_sub(begin.throttled_ns),
        }
    }
}

/// The kernel's account of a control group's CPU limit (`cpu.stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttled {
    /// Periods in which its threads ran.
    pub periods: u64,
    /// Those in which they had used up their time.
    pub throttled: u64,
    /// Time for which they were kept from running, that of each CPU added up, ns.
    pub throttled_ns: u64,
}

impl Throttled {
    /// What the contents of `cpu.stat` say, of either version of cgroups; `None` where they say nothing of limits.
    #[must_use]
    pub fn parse(stat: &str) -> Option<Self> {
        let of = |key: &str| {
            let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse::<u64>().ok();
            stat.lines().find_map(value)
        };
        let in_us = || Some(of("throttled_usec")?.saturating_mul(1_000));
        let throttled_ns = in_us().or_else(|| of("throttled_time"))?;
        Some(Self { periods: of("nr_periods")?, throttled: of("nr_throttled")?, throttled_ns })
    }
}

/// What the name of a thread of the strata process begins with that serves a disk, before the disk's number.
pub const DISK_THREAD: &str = "strata-disk";

/// The threads of a strata process that runs a VM which are there for its recording: without one the process lacks them.
/// All others serve the VM, or the user's requests.
pub const RECORDING_THREADS: [&str; 4] = ["strata-recorder", "strata-watchdog", "strata-clock", "strata-symbols"];

/// A host thread that ran a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuThread {
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Number of the thread, as in [`Vm::vcpu_threads`].
    pub tid: i32,
}

impl Vm {
    /// Each vCPU with each host thread that ran it, as far as they are known: earlier ones first.
    pub fn all_vcpu_threads(&self) -> impl Iterator<Item = (u32, i32)> {
        let last = (0..).zip(&self.vcpu_threads).map(|(vcpu, &tid)| (vcpu, tid)).filter(|&(_, tid)| tid != -1);
        self.earlier_vcpu_threads.iter().map(|&VcpuThread { vcpu, tid }| (vcpu, tid)).chain(last)
    }

    /// The vCPU that the host thread `tid` runs, or ran last.
    #[must_use]
    pub fn vcpu_of_thread(&self, tid: i32) -> Option<u32> {
        let runs = self.vcpu_threads.iter().position(|&known| known == tid).and_then(|vcpu| u32::try_from(vcpu).ok());
        let ran = || self.earlier_vcpu_threads.iter().rev().find(|thread| thread.tid == tid).map(|thread| thread.vcpu);
        runs.or_else(ran)
    }
}

/// A thread of the strata process, by the kernel's own account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrataThread {
    /// Its number on the host; below -1 where its process is in a PID namespace.
    pub tid: i32,
    /// Its name, which says what it does.
    pub name: String,
    /// Time that it has been running on a CPU since it began, ns.
    pub cpu_ns: u64,
}

/// A process that runs a virtual machine and to which a recording was attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub comm: Foreign<String>,
}

/// What runs in a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// Release of the guest kernel.
    pub kernel: String,
    /// ABI version of the agent.
    pub agent_abi: u64,
    /// Processes that found no free slot to record into: what they did is missing, or begins late.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub processes_refused: u64,
    /// Processes whose user had as many slots as one user gets.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub processes_over_quota: u64,
}

impl Guest {
    /// Whether the kernel's release says that it is a preemptible-RT one, as distributions' do (`6.1.0-56-rt-amd64`,
    /// `6.8.1-1015-realtime`).
    #[must_use]
    pub fn is_preemptible_rt(&self) -> bool {
        self.kernel.split(['-', '+', '.', '_']).any(|part| {
            let number = part.strip_prefix("rt").is_some_and(|rest| rest.chars().all(|digit| digit.is_ascii_digit()));
            number || part == "realtime"
        })
    }

    /// What applications' layers lack because not every process had a slot to record into.
    #[must_use]
    pub fn missing_processes(&self) -> Option<Missing> {
        let counts = [
            (self.processes_refused, "found no free process slot"),
            (self.processes_over_quota, "had a user whose other processes had as many slots as one user gets"),
        ];
        let parts: Vec<String> = counts
            .iter()
            .filter(|(processes, _)| *processes > 0)
            .map(|(processes, what)| format!("{} {what}", counted(*processes, "process", "processes")))
            .collect();
        (!parts.is_empty()).then(|| Missing {
            layer: LayerKind::GuestUser,
            reason: format!(
                "{}: their events are missing, or counted as lost up to when they got one",
                parts.join("; ")
            ),
            fix: "give `strata run` more --process-slots, or the guest's module a larger slots_per_user".into(),
        })
    }
}

/// A process of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id in the guest's initial namespace.
    pub pid: u32,
    /// Its name when it began to record.
    pub comm: String,
}

/// A layer that was recorded: one CTF trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Kind.
    pub kind: LayerKind,
    /// Name of the VM; `None` for the host's kernel.
    #[serde(default)]
    pub vm: Option<String>,
    /// In a recording merged from those of several hosts: the host, when that is not the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Folder, relative to the recording's.
    pub path: String,
    /// UUID of the CTF trace, repeated in each packet.
    pub uuid: Uuid,
    /// Bytes of each packet.
    pub packet_size: u64,
    /// The process, for [`LayerKind::GuestUser`].
    #[serde(default)]
    pub process: Option<Process>,
    /// Event types.
    pub events: Vec<EventDescription>,
    /// Names of flags in fields of its events, where its kernel tells them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flag_names: Vec<FlagNames>,
    /// The limit of its records, if it had one, and how often it met that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<RecordLimit>,
    /// Whether it came to its end, where that is not what the recording's outcome says: that of a process did which ended
    /// while its VM goes on; that of the host's kernel did not in a trace that was recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<bool>,
    /// Of a guest: whether its crash kernel, which records nothing, took over from its kernel. It has not ended then, and
    /// its streams are complete until that moment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub another_kernel: bool,
    /// Streams.
    pub streams: Vec<StreamDescription>,
}

/// A stream of a layer: the packets of one CPU, vCPU or thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDescription {
    /// File in the layer's folder.
    pub file: String,
    /// The CPU, vCPU or thread.
    pub cpu_id: u32,
    /// Packets written; 0 also where a recorder did not count them.
    #[serde(default)]
    pub packets: u64,
    /// Records written.
    pub records: u64,
    /// Records lost, by reason, also those after the last packet.
    #[serde(default)]
    pub lost: Lost,
    /// The largest of the records lost as larger than a sub-buffer, where their producer has noted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_lost: Option<LargestLost>,
    /// Bytes that the recorder could not accept: corrupt or never committed.
    #[serde(default)]
    pub rejected_bytes: u64,
    /// Whether the ring was given up: it was found corrupt, or could not be read or written down any more.
    #[serde(default)]
    pub corrupt: bool,
    /// Of a guest's kernel: records that were not made because the CPU was making another one in the same context.
    /// `None` where nobody counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested: Option<u64>,
    /// Of a guest's kernel: whether the vCPU never began to record, though the agent was there. What it did is not
    /// known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_joined: bool,
    /// How much a flight recorder overwrote of the stream's beginning before this was written: sub-buffers of a ring,
    /// records of the host's kernel. In a recovered trace also the sub-buffers that had been written elsewhere. When it
    /// is not 0, the stream begins later than what it records did; of a guest's own ring it is 1 then, since its kernel
    /// does not count.
    #[serde(default)]
    pub overwritten: u64,
    /// Of a layer that goes on: up to when all records of the stream are in its packets, ticks, where somebody has looked.
    /// The end of the last packet may tell of a later moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_until: Option<u64>,
    /// In a recording that keeps within a size: what was dropped of the stream's beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<Dropped>,
}

/// What was dropped of a stream's beginning, so that its recording keeps within its size. `packets`, `records` and the
/// other counts of the stream include it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Packets.
    pub packets: u64,
    /// Records.
    pub records: u64,
    /// Bytes of the disk.
    pub bytes: u64,
    /// From when on the stream is there, ticks: the end of what was dropped.
    pub until: u64,
    /// Number of the first packet that is there, or will be.
    pub next: u64,
    /// Records that were lost up to there.
    pub lost: Lost,
    /// Bytes that were rejected up to there.
    pub rejected_bytes: u64,
}

/// A layer that was not, or not completely, recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Which.
    pub layer: LayerKind,
    /// Why, one line.
    pub reason: String,
    /// What to do about it, one line.
    pub fix: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// The part of `session.json` that every version has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Manifest {
    /// Reads and validates `session.json` of the recording in `dir`. Where that says of no end, the event types are added that
    /// came since it was saved.
    ///
    /// # Errors
    /// One line that names the file and what to do.
    pub fn load(dir: &Path) -> Result<Self, ManifestError> {
        let foreign = |error| match foreign::recognised(dir) {
            Some(what) => ManifestError::Foreign { path: dir.into(), what },
            None => error,
        };
        if !dir.is_dir() {
            return Err(foreign(ManifestError::NoFolder { path: dir.into() }));
        }
        match Self::of(&Files::Folder(dir.into())) {
            Err(ManifestError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(foreign(ManifestError::NotATrace { path: dir.into() }))
            }
            loaded => loaded,
        }
    }

    /// The same of a recording's `files`.
    pub(crate) fn of(files: &Files) -> Result<Self, ManifestError> {
        let path = files.place(MANIFEST_FILE);
        let journal = journal::read(files);
        let text = match files.read(MANIFEST_FILE) {
            Ok(text) => text,
            Err(source) => return Err(ManifestError::Read { path, source }),
        };
        let damaged = |source| ManifestError::Damaged { path: path.clone(), source };
        let Format { format } = serde_json::from_slice(&text).map_err(damaged)?;
        if format > FORMAT_VERSION {
            return Err(ManifestError::Newer { path, found: format });
        }
        let manifest: Self = serde_json::from_slice(&text).map_err(damaged)?;
        match manifest.problem() {
            Some(problem) => Err(ManifestError::Invalid { path, problem }),
            None if manifest.outcome.is_none() && !journal.is_empty() => Ok(journal::complete(manifest, &journal)),
            None => Ok(manifest),
        }
    }

    /// Writes `session.json` into `dir`, replacing an older one in one step: a reader sees the one or the other.
    ///
    /// # Errors
    /// When the file cannot be written, or would be larger than [`MAX_MANIFEST_BYTES`].
    pub fn save(&self, dir: &Path) -> Result<(), ManifestError> {
        self.save_within(dir, MAX_MANIFEST_BYTES)
    }

    /// The same, with room for the last one in `reserve`.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_reserving(&self, dir: &Path, reserve: &mut Reserve) -> Result<(), ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        replace_text(&path, &self.text(&path, MAX_MANIFEST_BYTES)?, reserve)
    }

    fn save_within(&self, dir: &Path, limit: u64) -> Result<(), ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        let text = self.text(&path, limit)?;
        let written = Readers::of(dir).and_then(|readers| readers.write_atomically(&path, &text));
        written.inspect(|()| journal::remove_beside(&path)).map_err(|source| ManifestError::Write { path, source })
    }

    /// The text of `session.json`, `path`, of `limit` bytes at most.
    pub(crate) fn text(&self, path: &Path, limit: u64) -> Result<Vec<u8>, ManifestError> {
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|source| ManifestError::Write { path: path.into(), source: source.into() })?;
        text.push(b'\n');
        if text.len() as u64 > limit {
            return Err(ManifestError::TooLarge { path: path.into(), bytes: text.len() });
        }
        Ok(text)
    }

    /// The VM of that name.
    #[must_use]
    pub fn vm(&self, name: &str) -> Option<&Vm> {
        self.vms.iter().find(|vm| vm.name == name)
    }

    /// Whether the times of both recordings can be compared tick by tick: they have one clock, or their clocks are the
    /// same counter since the same boot of the same host.
    #[must_use]
    pub fn shares_clock_with(&self, other: &Self) -> bool {
        let one_boot = !self.host.boot_id.is_empty() && self.host.boot_id == other.host.boot_id;
        self.clock.uuid == other.clock.uuid || (one_boot && self.clock.source == other.clock.source)
    }

    /// Whether `layer` came to its end, so that no record is missing behind the last of each stream. A layer that did not
    /// goes on, or its recorder was killed.
    #[must_use]
    pub fn has_ended(&self, layer: &Layer) -> bool {
        // A merged recording has the outcomes of all.
        let is_snapshot = |outcome: &str| outcome.split("; ").any(|part| part.starts_with(SNAPSHOT));
        layer.ended.unwrap_or_else(|| self.outcome.as_deref().is_some_and(|outcome| !is_snapshot(outcome)))
    }

    /// The streams that `layer` has, be there a record of each or not: one for each vCPU, and one for all other threads of
    /// a VMM. Of the host's CPUs, and those that a process ran on, only its streams themselves tell.
    pub(crate) fn streams_of(&self, layer: &Layer) -> Range<u32> {
        let vcpus = layer.vm.as_deref().and_then(|vm| self.vm(vm)).map_or(0, |vm| vm.vcpus.min(MAX_STREAMS_UNSEEN));
        match layer.kind {
            LayerKind::GuestKernel => 0..vcpus,
            LayerKind::Vmm => 0..vcpus + 1,
            LayerKind::HostKernel | LayerKind::GuestUser => 0..0,
        }
    }

    /// How the recording ended, in words.
    #[must_use]
    pub fn outcome_text(&self) -> &str {
        self.outcome.as_deref().unwrap_or("still running, or its recorder was killed")
    }

    /// What no recording says, if this one does.
    fn problem(&self) -> Option<String> {
        let frequency = self.clock.frequency_hz;
        if frequency == 0 || frequency > MAX_FREQUENCY {
            return Some(format!("its clock has an impossible frequency of {frequency} Hz"));
        }
        self.layers.iter().find_map(Layer::problem).or_else(|| self.contradiction())
    }

    /// Two statements that cannot both be true, if there are such.
    fn contradiction(&self) -> Option<String> {
        let mut names = HashSet::new();
        if let Some(vm) = self.vms.iter().find(|vm| !names.insert(&vm.name)) {
            return Some(format!("VM {:?} is listed twice", vm.name));
        }
        let mut paths: Vec<&Path> = self.layers.iter().map(|layer| Path::new(&layer.path)).collect();
        // By components: what lies in a folder follows right after it.
        paths.sort_unstable();
        paths.windows(2).find_map(|pair| match pair {
            [one, other] if one == other => Some(format!("layer {one:?} is listed twice")),
            [one, other] if other.starts_with(one) => Some(format!("layer {other:?} lies inside layer {one:?}")),
            _ => None,
        })
    }
}

impl Layer {
    /// Notes in `layers` that the guest's kernel was left for its crash kernel at `time`, ticks, if it was. All that the guest
    /// recorded before is in the streams. Other layers than the guest's, and those of processes that had ended, stay as
    /// they are.
    pub fn note_crash_kernel(layers: &mut [Self], time: Option<u64>) {
        time.iter().for_each(|&time| layers.iter_mut().for_each(|layer| layer.end_for_crash_kernel(time)));
    }

    fn end_for_crash_kernel(&mut self, time: u64) {
        let is_guests = matches!(self.kind, LayerKind::GuestKernel | LayerKind::GuestUser);
        if !is_guests || self.ended == Some(true) {
            return;
        }
        (self.ended, self.another_kernel) = (Some(false), true);
        for stream in &mut self.streams {
            stream.complete_until = Some(stream.complete_until.map_or(time, |until| until.min(time)));
        }
    }

    fn problem(&self) -> Option<String> {
        let path = &self.path;
        if !is_relative_path(path) {
            return Some(format!("layer path {path:?} leads out of the trace folder"));
        }
        if let Some(stream) = self.streams.iter().find(|stream| !is_file_name(&stream.file)) {
            return Some(format!("stream file {:?} of layer {path:?} leads out of its folder", stream.file));
        }
        let (mut files, mut cpus) = (HashSet::new(), HashSet::new());
        if let Some(stream) = self.streams.iter().find(|stream| !files.insert(&stream.file)) {
            return Some(format!("stream file {:?} of layer {path:?} is listed twice", stream.file));
        }
        if let Some(stream) = self.streams.iter().find(|stream| !cpus.insert(stream.cpu_id)) {
            return Some(format!("layer {path:?} has two streams of {} {}", self.kind.stream_of(), stream.cpu_id));
        }
        if (self.kind == LayerKind::HostKernel) != self.vm.is_none() {
            return Some(match &self.vm {
                Some(vm) => format!("layer {path:?} is the host kernel's, but belongs to VM {vm:?}"),
                None => format!("layer {path:?} belongs to no VM, but is a {} layer", self.kind),
            });
        }
        let size = self.packet_size;
        let possible = (MIN_PACKET_SIZE..=MAX_PACKET_SIZE).contains(&size) && size.is_multiple_of(8);
        (!possible).then(|| format!("layer {path:?} has an impossible packet size of {size} bytes"))
    }
}

/// Whether `name` can be a VM's name: a plain file name of letters, digits, `.`, `_` and `-`.
#[must_use]
pub fn is_vm_name(name: &str) -> bool {
    is_file_name(name)
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn is_relative_path(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

fn is_file_name(name: &str) -> bool {
    is_relative_path(name) && !name.contains('/')
}

/// Replaces `session.json`, `path`, by `text` in one step, with room for the last one in `reserve`.
pub(crate) fn replace_text(path: &Path, text: &[u8], reserve: &mut Reserve) -> Result<(), ManifestError> {
    let replaced = reserve.replace(path, text).inspect(|()| journal::remove_beside(path));
    replaced.map_err(|source| ManifestError::Write { path: path.into(), source })
}

#[cfg(test)]
mod tests;
