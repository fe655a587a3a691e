//! `strata top`: what running VMs do now, second by second. It asks each VM's control socket, and shows the difference
//! between two answers.

mod bounds;
mod screen;
mod text;

pub use bounds::bounded;

use crate::cli::TopArgs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};
use strata_recorder::control::client::{self, ClientError};
use strata_recorder::control::directory::DirectoryError;
use strata_recorder::control::found_vm::{self, FoundVm, RuntimeFolder};
use strata_recorder::control::patience::Patience;
use strata_recorder::control::protocol::{
    Answer, BalloonStatus, Late, LayerStatus, Live, LiveDisk, LiveExits, LiveGuest, LiveVcpu, Request, Thief, Watched,
};
use strata_recording::manifest::Attached;
use strata_recording::text::terminal::foreign::Foreign;
use strata_recording::text::terminal::harmless_json;
use thiserror::Error;

/// Intervals that `--once` waits for, beyond the first one, until there is something of what the host did.
const MOST_WAITS: u32 = 20;
/// What the names of threads of strata's begin with that trace and serve, and do not run the guest.
const OWN_THREADS: &str = "strata-";
/// How long a VM of this user may take to answer: it answers nobody else while it writes a snapshot.
const OWN_LIMIT: Duration = Duration::from_secs(30);
/// How long all VMs of other users may take together.
pub const OTHERS_LIMIT: Duration = Duration::from_secs(5);

/// Why VMs cannot be watched.
#[derive(Debug, Error)]
pub enum TopError {
    /// The folders of VMs cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A VM does not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The VM answers something else.
    #[error("VM '{0}' runs under a version of strata without `strata top`: restart it with this one")]
    Unknown(String),
    /// No VM runs.
    #[error("no VM is running; start one with `strata run --trace DIR` or `strata attach`")]
    NoVm,
    /// Several VMs run, and none is named.
    #[error("several VMs run: {}; name one, or give --all", .0.join(", "))]
    Several(Vec<String>),
    /// It cannot be shown.
    #[error("cannot write to standard output")]
    Write(#[source] io::Error),
}

/// What running VMs did in a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// The VMs by name, this user's first.
    pub vms: Vec<VmPicture>,
}

/// What a VM did in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmPicture {
    /// Name of the VM.
    pub name: Foreign<String>,
    /// The user whose it is, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Foreign<String>>,
    /// Process that runs it, or records it from outside.
    pub pid: u32,
    /// The process that runs it, where `pid` only records it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
    /// Why nothing is known of it; everything else is empty then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<Foreign<String>>,
    /// Length of the period by this machine's clock, ns.
    pub period_ns: u64,
    /// What the host did for its vCPUs; `None` where the host's kernel is not recorded.
    pub host: Option<Watched>,
    /// What its tasks waited for; `None` where the guest's kernel is not recorded.
    pub guest: Option<LiveGuest>,
    /// Requests to its disks, by disk and kind.
    pub disks: Vec<LiveDisk>,
    /// Its balloon as it is now, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balloon: Option<BalloonStatus>,
    /// Records by layer in the period.
    pub layers: Vec<LayerRate>,
    /// The CPU time of strata's own threads in the period: what tracing costs beside the guest's own part.
    pub own_threads: Vec<OwnThread>,
    /// What is missing of its recording, a line each.
    pub missing: Vec<Foreign<String>>,
}

/// Records of a layer in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRate {
    /// Folder of the layer in the recording.
    pub path: Foreign<String>,
    /// Records written.
    pub records: u64,
    /// Records lost.
    pub lost: u64,
}

/// A thread of strata's.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OwnThread {
    pub name: Foreign<String>,
    /// Time on a CPU, ns.
    pub cpu_ns: u64,
}

/// A VM as it was at a request.
struct Requested {
    at: Instant,
    live: Live,
    /// CPU time of its threads, by thread, ns.
    threads: BTreeMap<u32, OwnThread>,
}

/// Shows what `args` ask for, until Ctrl-C or, with `--once`, once.
///
/// # Errors
/// When there is no such VM, or standard output cannot be written. One that closes is none.
pub fn run(args: &TopArgs) -> Result<(), TopError> {
    let mut out = io::stdout().lock();
    let vm = match &args.vm {
        None if !args.all => Some(client::address(&only(running(&found_vm::runtime_folders()?)?)?)),
        vm => vm.clone(),
    };
    let mut before = request_all(vm.as_deref())?;
    let mut waits = if args.once { MOST_WAITS } else { 0 };
    loop {
        thread::sleep(args.interval);
        let now = match request_all(vm.as_deref()) {
            // A VM that was there has ended: of it there is nothing more to show.
            Err(TopError::NoVm) if !args.once => return Ok(()),
            Err(TopError::Client(error)) if !args.once && error.is_of_ended_vm() => return Ok(()),
            other => other?,
        };
        let picture = Picture::between(&before, &now);
        if waits > 0 && picture.lacks_time() {
            waits -= 1;
            continue;
        }
        let mut shown = Vec::new();
        let written = if args.json {
            serde_json::to_string(&picture)
                .map_err(io::Error::from)
                .and_then(|json| writeln!(shown, "{}", harmless_json(&json)))
        } else {
            picture.write_text(&mut shown)
        };
        if !args.once && !args.json && out.is_terminal() {
            shown = screen::frame(&shown, screen::size(&out));
        }
        match written.and_then(|()| out.write_all(&shown)).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(TopError::Write)?,
        }
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

/// What tells VMs apart: user, where that is another, and process.
type Key = (Option<Foreign<String>>, u32);
/// The answers of VMs, or why one gave none.
type Answers = BTreeMap<Key, (String, Result<Requested, String>)>;

/// The only one of the VMs that are `running`.
fn only(mut running: Vec<FoundVm>) -> Result<FoundVm, TopError> {
    match (running.pop(), running.len()) {
        (None, _) => Err(TopError::NoVm),
        (Some(only), 0) => Ok(only),
        (Some(last), _) => {
            let named = |found: &FoundVm| format!("{} ({})", found.vm.name, client::address(found));
            Err(TopError::Several(running.iter().chain([&last]).map(named).collect()))
        }
    }
}

/// Asks the VM that is named, or all: of several, one that does not answer is shown beside the others.
fn request_all(vm: Option<&str>) -> Result<Answers, TopError> {
    let runtimes = found_vm::runtime_folders()?;
    let key = |found: &FoundVm| (found.owner.other_user(), found.vm.pid);
    let mut patience = Patience::new(OTHERS_LIMIT);
    if let Some(name) = vm {
        let found = client::find(&runtimes, name)?;
        let requested = request(&found, &mut patience)?;
        return Ok(BTreeMap::from([(key(&found), (found.vm.name, Ok(requested)))]));
    }
    let answers = running(&runtimes)?.into_iter().map(|found| {
        let requested = request(&found, &mut patience).map_err(|error| error.to_string());
        (key(&found), (found.vm.name, requested))
    });
    let answers: Answers = answers.collect();
    if answers.is_empty() { Err(TopError::NoVm) } else { Ok(answers) }
}

/// The VMs that run, of those in the folders `runtimes`; this user's first.
///
/// # Errors
/// When the folders cannot be read.
pub fn running(runtimes: &[RuntimeFolder]) -> Result<Vec<FoundVm>, DirectoryError> {
    Ok(found_vm::list_all(runtimes)?.into_iter().filter(|found| found.alive).collect())
}

/// Asks a VM what it does, and waits for `own` if it is this user's.
///
/// # Errors
/// When it does not say.
pub fn request_live(found: &FoundVm, own: Duration, patience: &mut Patience) -> Result<Live, TopError> {
    match client::call_until(&found.socket(), &Request::Live, patience.deadline(found.owner, own))? {
        // Which VM it is, its folder has said.
        Answer::Live(live) => Ok(Live { name: found.vm.name.clone().into(), pid: found.vm.pid, ..*live }),
        Answer::Status(_) | Answer::Balloon(_) | Answer::Done { .. } | Answer::Refused { .. } => {
            Err(TopError::Unknown(found.vm.name.clone()))
        }
    }
}

fn request(found: &FoundVm, patience: &mut Patience) -> Result<Requested, TopError> {
    let live = bounded(request_live(found, OWN_LIMIT, patience)?);
    Ok(Requested { at: Instant::now(), live, threads: own_threads(found.vm.pid) })
}

/// The threads of the process `pid` that are strata's own and not the guest's, with the CPU time that they have had.
/// None where they cannot be looked at.
#[must_use]
pub fn own_threads(pid: u32) -> BTreeMap<u32, OwnThread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let thread = |task: fs::DirEntry| {
        let number = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?.trim_end().to_string();
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let cpu_ns = times.split(' ').next()?.parse().ok()?;
        name.starts_with(OWN_THREADS).then_some((number, OwnThread { name: name.into(), cpu_ns }))
    };
    tasks.filter_map(thread).collect()
}

impl Picture {
    /// Whether nothing of what the host did for a VM has come yet: a recorder that is held up takes in no time.
    fn lacks_time(&self) -> bool {
        let lacks = |host: &Watched| host.until_ns <= host.since_ns;
        self.vms.iter().any(|vm| vm.host.as_ref().is_some_and(lacks))
    }

    /// What happened from `before` to `now`. A VM that was not there before has nothing to show yet.
    fn between(before: &Answers, now: &Answers) -> Self {
        let of_vm = |(key, (name, now)): (&Key, &(String, Result<Requested, String>))| {
            let picture = match (now, before.get(key)) {
                (Ok(now), Some((_, Ok(before)))) => VmPicture::between(before, now),
                (Ok(_), _) => return None,
                (Err(unknown), _) => {
                    let (name, unknown) = (name.clone().into(), Some(unknown.clone().into()));
                    VmPicture { name, pid: key.1, unknown, ..VmPicture::default() }
                }
            };
            Some(VmPicture { user: key.0.clone(), ..picture })
        };
        let mut vms: Vec<VmPicture> = now.iter().filter_map(of_vm).collect();
        vms.sort_by(|one, other| (&one.user, &one.name).cmp(&(&other.user, &other.name)));
        Self { vms }
    }
}

impl VmPicture {
    fn between(before: &Requested, now: &Requested) -> Self {
        let threads = now.threads.iter().map(|(number, thread)| {
            let had = before.threads.get(number).map_or(0, |thread| thread.cpu_ns);
            OwnThread { name: thread.name.clone(), cpu_ns: thread.cpu_ns.saturating_sub(had) }
        });
        let mut own_threads: Vec<OwnThread> = threads.collect();
        own_threads.sort();
        let Live { name, pid, attached, host, guest, disks, balloon, layers, missing } = now.live.clone();
        Self {
            name,
            user: None,
            pid,
            attached,
            unknown: None,
            period_ns: u64::try_from((now.at - before.at).as_nanos()).unwrap_or(u64::MAX),
            host: host.map(|host| since(before.live.host.as_ref(), &host)),
            guest: guest.map(|guest| guest_since(before.live.guest.as_ref(), &guest)),
            disks: disks.iter().map(|disk| disk_since(&before.live.disks, disk)).collect(),
            balloon,
            layers: layers.iter().map(|layer| LayerRate::between(&before.live.layers, layer)).collect(),
            own_threads,
            missing,
        }
    }
}

impl LayerRate {
    fn between(before: &[LayerStatus], now: &LayerStatus) -> Self {
        let had =
            before.iter().find(|layer| layer.path == now.path).map_or((0, 0), |layer| (layer.records, layer.lost));
        Self {
            path: now.path.clone(),
            records: now.records.saturating_sub(had.0),
            lost: now.lost.saturating_sub(had.1),
        }
    }
}

/// What came to `now` since `before`, an earlier state of it; thieves, exits and turns with the longest time first.
fn since(before: Option<&Watched>, now: &Watched) -> Watched {
    // What began anew meanwhile has no past.
    let none = Watched { since_ns: now.since_ns, until_ns: now.since_ns, ..Watched::default() };
    let before = before.filter(|before| before.since_ns == now.since_ns).unwrap_or(&none);
    let vcpu = |now: &LiveVcpu| {
        let had = before.vcpus.iter().find(|before| before.vcpu == now.vcpu).copied().unwrap_or_default();
        now.since(&had)
    };
    let thief = |now: &Thief| {
        let had = before.thieves.iter().find(|before| before.name == now.name).map_or(0, |thief| thief.ns);
        Thief { name: now.name.clone(), ns: now.ns.saturating_sub(had) }
    };
    let exits = |now: &LiveExits| {
        let had = before.exits.iter().find(|before| before.reason == now.reason).map(|exits| exits.times.clone());
        LiveExits { reason: now.reason.clone(), times: now.times.since(&had.unwrap_or_default()) }
    };
    let mut thieves: Vec<Thief> = now.thieves.iter().map(thief).filter(|thief| thief.ns > 0).collect();
    thieves.sort_by_key(|thief| std::cmp::Reverse(thief.ns));
    let mut exits: Vec<LiveExits> = now.exits.iter().map(exits).filter(|exits| exits.times.count > 0).collect();
    exits.sort_by_key(|exits| std::cmp::Reverse(exits.times.total_ns));
    let mut late: Vec<Late> = now.late.iter().filter(|late| late.at_ns > before.until_ns).cloned().collect();
    late.sort_by_key(|late| std::cmp::Reverse(late.ns));
    Watched {
        since_ns: before.until_ns,
        until_ns: now.until_ns,
        vcpus: now.vcpus.iter().map(vcpu).collect(),
        thieves,
        exits,
        ready: now.ready.since(&before.ready),
        late,
        records: now.records.saturating_sub(before.records),
        lost: now.lost.saturating_sub(before.lost),
    }
}

/// What came to `now` since `before`, an earlier state of it; the wake-up that took longest first.
fn guest_since(before: Option<&LiveGuest>, now: &LiveGuest) -> LiveGuest {
    // What began anew meanwhile has no past.
    let none = LiveGuest { since_ns: now.since_ns, until_ns: now.since_ns, ..LiveGuest::default() };
    let before = before.filter(|before| before.since_ns == now.since_ns).unwrap_or(&none);
    let is_new = |at_ns: u64| at_ns >= before.until_ns;
    LiveGuest {
        since_ns: before.until_ns,
        until_ns: now.until_ns,
        wakeups: now.wakeups.since(&before.wakeups),
        worst: now.worst.iter().filter(|wakeup| is_new(wakeup.at_ns)).cloned().collect(),
    }
}

/// What came to the requests `now` since `before`, an earlier state of all.
fn disk_since(before: &[LiveDisk], now: &LiveDisk) -> LiveDisk {
    let had = before.iter().find(|before| before.disk == now.disk && before.kind == now.kind);
    let times = had.map_or_else(|| now.times.clone(), |had| now.times.since(&had.times));
    LiveDisk { times, ..now.clone() }
}

#[cfg(test)]
mod tests;
