//! A private tracing instance of the kernel: made, configured and removed.
//!
//! An instance is a folder under tracefs' `instances/` with its own buffers, clock, filter and switch. Ours are named
//! `strata-PID-START`, with the time at which the process started, so that those of a process that died can be told and
//! removed, also when its number belongs to another process by now.

pub(crate) mod removal_guard;

use super::namespace::{Rights, ThreadIdError};
use super::schema::{EventName, EventSchema, SchemaError};
use super::stats::{CpuStats, parse_stats};
use removal_guard::RemovalGuard;
use rustix::mount::{MountFlags, mount};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;
use strata_clock::time_namespace;

/// Where tracefs belongs.
const MOUNT_POINT: &str = "/sys/kernel/tracing";
/// What the names of our instances start with.
const NAME_PREFIX: &str = "strata-";
/// Instances that one process may have at a time.
const MAX_INSTANCES: u32 = 64;
/// Size of the buffers' pages, KiB. Larger ones cost a recorder of many records a little less, and one that finds a few
/// on each of many CPUs more: the kernel always copies a whole page.
const PAGE_KIB: u32 = 16;
/// Whether the children of a traced thread are traced too, and dead ones taken off the list.
const FOLLOW_OPTION: &str = "options/event-fork";
/// Size of a read from a text file of tracefs; larger than most of them.
const READ_BYTES: usize = 64 << 10;
/// The same of a file that is read again and again, and is short. Such files go on where the last read ended.
const READ_AGAIN_BYTES: usize = 4 << 10;
/// Nanoseconds in a clock tick of `/proc` (`USER_HZ`, 100 on x86).
const NS_PER_TICK: i64 = 10_000_000;
/// How often, and after what time, the removal of a busy instance is tried again.
const REMOVAL_RETRIES: u32 = 20;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// Why tracefs or an instance in it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TracefsError {
    /// Threads would be traced by other numbers than their own.
    #[error(transparent)]
    ThreadIds(#[from] ThreadIdError),
    /// The kernel has no tracefs.
    #[error("this kernel has no tracefs: {MOUNT_POINT} does not exist")]
    NotSupported,
    /// tracefs is not mounted and cannot be mounted by us.
    #[error("tracefs is not mounted and mounting it at {MOUNT_POINT} failed")]
    Mount(#[source] io::Error),
    /// A file or folder of tracefs refused an operation.
    #[error("{action} {} failed", .path.display())]
    File {
        /// What was tried, such as "writing 1 to".
        action: String,
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The kernel does not offer, or did not take, the trace clock that all layers share.
    #[error("the kernel refused the trace clock {wanted}: it offers {offered}")]
    Clock {
        /// Name of the clock.
        wanted: String,
        /// Contents of `trace_clock`.
        offered: String,
    },
    /// This process has too many instances.
    #[error("all {MAX_INSTANCES} names for tracing instances of this process are taken")]
    TooManyInstances,
    /// No thread was given, so every process of the host would be traced.
    #[error("no thread to trace was given")]
    NoThreads,
    /// The description of an event could not be understood.
    #[error(transparent)]
    Schema(SchemaError),
    /// The pages of the ring buffer have another form than the one we decode.
    #[error("the kernel's trace pages have an unknown form: {0}")]
    PageFormat(String),
}

impl TracefsError {
    /// What the user can do about it, in one line.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::ThreadIds(error) => error.fix(),
            Self::NotSupported => "use a kernel with CONFIG_EVENT_TRACING",
            Self::Mount(source) | Self::File { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => fix_of_permissions(Rights::of_this_process()),
                io::ErrorKind::ReadOnlyFilesystem => {
                    "run strata outside of the container, or make tracefs writable in it"
                }
                _ => "see the kernel's log (dmesg)",
            },
            Self::Clock { .. } => "use an x86 kernel on a processor with a time stamp counter",
            Self::TooManyInstances => "end some of the virtual machines of this process",
            Self::NoThreads => "name at least one thread of the virtual machine",
            Self::Schema(_) | Self::PageFormat(_) => "report the kernel's version to the developers",
        }
    }
}

/// What helps a process with `rights` against the kernel's refusal.
const fn fix_of_permissions(rights: Rights) -> &'static str {
    match rights {
        Rights::User => "run strata as root",
        Rights::NamespaceRoot => {
            "run strata as the host's root: root is another user in a user namespace (podman: start it with sudo)"
        }
        Rights::HostRoot => {
            "give the container the right to trace (--privileged); a host in lockdown=confidentiality traces nothing"
        }
    }
}

type Result<T> = std::result::Result<T, TracefsError>;

/// A mounted tracefs.
#[derive(Clone, Debug)]
pub struct Tracefs {
    root: PathBuf,
}

impl Tracefs {
    /// Finds tracefs, and mounts it where it belongs if it is not mounted.
    ///
    /// # Errors
    /// This kernel has no tracefs, it is not mounted and this user may not mount it, or there is no `/proc`.
    pub fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|_| ThreadIdError::NoProc)?;
        if let Some(root) = mounted_tracefs(&mounts) {
            return Ok(Self { root });
        }
        if !Path::new(MOUNT_POINT).is_dir() {
            return Err(TracefsError::NotSupported);
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("tracefs", MOUNT_POINT, "tracefs", flags, None).map_err(|errno| TracefsError::Mount(errno.into()))?;
        Ok(Self { root: PathBuf::from(MOUNT_POINT) })
    }

    /// The folder that it is mounted on.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All events of this kernel.
    ///
    /// # Errors
    /// This user may not read tracefs.
    pub fn available_events(&self) -> Result<Vec<EventName>> {
        // One `group:name` per line.
        let text = read(&self.root.join("available_events"))?;
        Ok(text.lines().filter_map(EventName::parse).collect())
    }

    /// Reads the description of an event.
    ///
    /// # Errors
    /// The kernel has no such event, or describes it in a form that is not understood.
    pub fn schema(&self, event: &EventName) -> Result<EventSchema> {
        read_schema(event, &self.root.join("events").join(&event.group).join(&event.name))
    }

    /// Removes the instances of strata processes that do not exist any more; returns their names. One that cannot be
    /// removed is left: it may belong to a strata in another PID namespace, which keeps it busy by its open files.
    ///
    /// # Errors
    /// The instances cannot be listed.
    pub fn remove_leftovers(&self) -> Result<Vec<String>> {
        let instances = self.root.join("instances");
        let entries = fs::read_dir(&instances).map_err(|source| TracefsError::File {
            action: "listing".to_owned(),
            path: instances.clone(),
            source,
        })?;
        let mut removed = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let is_dead = owner(&name).is_some_and(|(pid, started)| start_of_process(pid) != Some(started));
            if is_dead && fs::remove_dir(entry.path()).is_ok() {
                removed.push(name.to_string_lossy().into_owned());
            }
        }
        Ok(removed)
    }
}

/// The mount point of tracefs according to the contents of `/proc/self/mounts`; the usual one is preferred.
fn mounted_tracefs(mounts: &str) -> Option<PathBuf> {
    let mut points = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        // A point with special characters is written with escapes; nobody mounts tracefs on one.
        (fields.next() == Some("tracefs") && !point.contains('\\')).then_some(point)
    });
    let first = points.next()?;
    let usual = points.find(|point| *point == MOUNT_POINT);
    Some(PathBuf::from(usual.unwrap_or(first)))
}

/// The process that an instance belongs to and when that started, if its name is one of ours: `strata-PID-START` or
/// `strata-PID-START-N`.
fn owner(name: &OsStr) -> Option<(u32, u64)> {
    let mut numbers = name.to_str()?.strip_prefix(NAME_PREFIX)?.split('-');
    let (pid, started) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    let number = numbers.next().unwrap_or("0").parse::<u32>();
    (number.is_ok() && numbers.next().is_none()).then_some((pid, started))
}

/// When the process started, in clock ticks since the boot; `None` if there is no such process. The same in every time
/// namespace.
fn start_of_process(pid: u32) -> Option<u64> {
    let shown = start_in_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    Some(shown.wrapping_sub_signed(time_namespace::boottime_offset_ns().div_euclid(NS_PER_TICK)))
}

/// The start time in the contents of `/proc/PID/stat`: field 22, which is the 20th after the name in parentheses.
fn start_in_stat(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A private tracing instance, off until [`Instance::start`]. A small process removes it when this is dropped, or when
/// this process ends without doing so.
///
/// The kernel keeps an instance while a file in it is open: files opened through [`Instance::path`] have to be closed
/// before the drop.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    /// `set_event_pid`. `None` if all of the host is traced, and inside of `drop`.
    threads: Option<ThreadList>,
    /// `set_event_notrace_pid`, likewise, if this kernel has it (5.8).
    left_out: Option<ThreadList>,
    /// `tracing_on`, for the same reason.
    switch: Option<File>,
    /// Removes the folder. `None` where no process could be made for it, and inside of `drop`.
    guard: Option<RemovalGuard>,
}

impl Instance {
    /// Makes an instance named after this process, with tracing off, our trace clock (read back), `buffer_kib` KiB of
    /// buffer per CPU (the oldest pages are overwritten when it is full, and the number of lost events is recorded
    /// where it happened), and only the given threads traced. Threads and processes that they start are traced too,
    /// from their first instruction on, and each until it ends.
    ///
    /// # Errors
    /// No thread was given, this user may not make instances, or the kernel does not take a setting. Nothing is left
    /// behind.
    pub fn create(tracefs: &Tracefs, clock: &str, buffer_kib: u32, threads: &[u32]) -> Result<Self> {
        if threads.is_empty() {
            return Err(TracefsError::NoThreads);
        }
        let mut instance = Self::create_for_all(tracefs, clock, buffer_kib)?;
        let left_out = instance.path("set_event_notrace_pid");
        if left_out.exists() {
            instance.left_out = Some(ThreadList::open(left_out)?);
        }
        instance.threads = Some(ThreadList::open(instance.path("set_event_pid"))?);
        for thread in threads {
            instance.add_thread(*thread)?;
        }
        write(&instance.path(FOLLOW_OPTION), "1")?;
        Ok(instance)
    }

    /// The same with all threads of the host traced.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_for_all(tracefs: &Tracefs, clock: &str, buffer_kib: u32) -> Result<Self> {
        let path = make_folder(&tracefs.root.join("instances"))?;
        let guard = RemovalGuard::spawn(&path).ok();
        // From here on dropping it removes the folder.
        let mut instance = Self { path, threads: None, left_out: None, switch: None, guard };
        let switch = open_for_writing(&instance.path("tracing_on"))?;
        instance.switch = Some(switch);
        instance.stop()?;
        instance.set_clock(clock)?;
        instance.enlarge_pages();
        // How full a buffer is to be that a wait for it ends. Linux before 5.0 lacks it.
        let _ = write(&instance.path("buffer_percent"), "25");
        write(&instance.path("buffer_size_kb"), &buffer_kib.to_string())?;
        // Options of a new instance are copied from the top level, where anyone may have changed them.
        write(&instance.path("options/overwrite"), "1")?;
        for option in [FOLLOW_OPTION, "options/stacktrace", "options/userstacktrace"] {
            let path = instance.path(option);
            if path.exists() {
                write(&path, "0")?;
            }
        }
        Ok(instance)
    }

    /// Makes the pages of the buffers larger, where the kernel can (Linux 6.8) and has memory for that: a page is what
    /// one system call reads.
    fn enlarge_pages(&self) {
        let _ = write(&self.path("buffer_subbuf_size_kb"), &PAGE_KIB.to_string());
    }

    /// A file or folder of the instance; the instance's own folder for "".
    pub fn path(&self, relative: &str) -> PathBuf {
        if relative.is_empty() { self.path.clone() } else { self.path.join(relative) }
    }

    fn set_clock(&self, wanted: &str) -> Result<()> {
        let path = self.path("trace_clock");
        let offered = read(&path)?;
        if !offered.split_whitespace().any(|clock| clock.trim_matches(['[', ']']) == wanted) {
            return Err(TracefsError::Clock { wanted: wanted.to_owned(), offered: offered.trim().to_owned() });
        }
        write(&path, wanted)?;
        let now = read(&path)?;
        if now.contains(&format!("[{wanted}]")) {
            Ok(())
        } else {
            Err(TracefsError::Clock { wanted: wanted.to_owned(), offered: now.trim().to_owned() })
        }
    }

    /// Also traces the thread with this kernel thread id (as `gettid` gives it).
    ///
    /// # Errors
    /// There is no such thread, or the instance does not take it.
    pub fn add_thread(&self, thread: u32) -> Result<()> {
        self.threads.as_ref().map_or(Ok(()), |list| list.add(thread))
    }

    /// Never traces the thread with this kernel thread id: what it does would fill the trace with its own recording.
    /// Where the kernel cannot leave threads out, it is traced like the others.
    ///
    /// # Errors
    /// The instance does not take the thread.
    pub fn leave_out_thread(&self, thread: u32) -> Result<()> {
        self.left_out.as_ref().map_or(Ok(()), |list| list.add(thread))
    }

    /// From now on no thread can be added or left out: whoever takes this process over has no other process traced.
    pub fn close_lists(&self) {
        [&self.threads, &self.left_out].into_iter().flatten().for_each(ThreadList::close);
    }

    /// The threads that are traced now, those that the kernel has followed included; none if all of the host is.
    ///
    /// # Errors
    /// The lists of threads cannot be read.
    pub fn traced_threads(&self) -> Result<Vec<u32>> {
        let [threads, left_out] =
            [&self.threads, &self.left_out].map(|list| list.as_ref().map_or(Ok(Vec::new()), ThreadList::threads));
        let left_out = left_out?;
        Ok(threads?.into_iter().filter(|thread| !left_out.contains(thread)).collect())
    }

    /// Reads the description of an event.
    ///
    /// # Errors
    /// The kernel has no such event, or describes it in a form that is not understood.
    pub fn schema(&self, event: &EventName) -> Result<EventSchema> {
        read_schema(event, &self.event_path(event))
    }

    /// Enables an event.
    ///
    /// # Errors
    /// The kernel has no such event, or refuses.
    pub fn enable(&self, event: &EventName) -> Result<()> {
        write(&self.event_path(event).join("enable"), "1")
    }

    fn event_path(&self, event: &EventName) -> PathBuf {
        self.path("events").join(&event.group).join(&event.name)
    }

    /// Starts recording.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn start(&self) -> Result<()> {
        write_open(self.switch.as_ref(), &self.path("tracing_on"), "1")
    }

    /// Stops recording; what was recorded stays in the buffers.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn stop(&self) -> Result<()> {
        write_open(self.switch.as_ref(), &self.path("tracing_on"), "0")
    }

    /// The numbers of the CPUs that have a buffer, in order.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn cpus(&self) -> Result<Vec<u32>> {
        let path = self.path("per_cpu");
        let entries = fs::read_dir(&path).map_err(|source| TracefsError::File {
            action: "listing".to_owned(),
            path: path.clone(),
            source,
        })?;
        let mut cpus: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok())
            .collect();
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// Buffer per CPU in KiB, which the kernel has rounded up to whole pages.
    ///
    /// # Errors
    /// It cannot be read, or is not a number.
    pub fn buffer_kib(&self) -> Result<usize> {
        let path = self.path("buffer_size_kb");
        let text = read(&path)?;
        text.trim().parse().map_err(|_| TracefsError::File {
            action: "understanding".to_owned(),
            path,
            source: io::Error::new(io::ErrorKind::InvalidData, text.trim().to_owned()),
        })
    }

    /// Opens the kernel's counts for one CPU's buffer.
    ///
    /// # Errors
    /// They cannot be opened.
    pub fn open_counts(&self, cpu: u32) -> Result<Counts> {
        let path = self.path(&format!("per_cpu/cpu{cpu}/stats"));
        let failed = |source| TracefsError::File { action: "opening".to_owned(), path: path.clone(), source };
        Ok(Counts { file: File::open(&path).map_err(failed)?, path })
    }

    /// A handle that adds threads as long as `instance` exists.
    pub fn thread_filter(instance: &Arc<Self>) -> ThreadFilter {
        ThreadFilter(Arc::downgrade(instance))
    }
}

/// The kernel's counts for one CPU's buffer: open, so that they can be read when privileges were dropped.
#[derive(Debug)]
pub struct Counts {
    file: File,
    path: PathBuf,
}

impl Counts {
    /// What they are now.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read(&self) -> Result<CpuStats> {
        let text = read_from(|piece, at| self.file.read_at(piece, at as u64), READ_AGAIN_BYTES, &self.path)?;
        Ok(parse_stats(&text))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Best effort: what cannot be removed is removed when strata starts the next time.
        let _ = self.stop();
        self.threads = None;
        self.left_out = None;
        self.switch = None;
        // It waits for the removal. What it has not done is tried here, which needs root.
        self.guard = None;
        for _ in 0..REMOVAL_RETRIES {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    thread::sleep(REMOVAL_PAUSE);
                }
                _ => break,
            }
        }
    }
}

/// A file of an instance that lists threads. Open from the start, since it must be read, and added to, after privileges
/// were dropped.
#[derive(Debug)]
struct ThreadList {
    path: PathBuf,
    file: File,
    /// Opened so that writing adds; `None` once it is [closed](Self::close).
    additions: Mutex<Option<File>>,
}

impl ThreadList {
    fn open(path: PathBuf) -> Result<Self> {
        let additions = Mutex::new(Some(open_for_writing(&path)?));
        let failed = |source| TracefsError::File { action: "opening".to_owned(), path: path.clone(), source };
        Ok(Self { file: File::open(&path).map_err(failed)?, additions, path })
    }

    /// Adds a thread, unless it is closed.
    fn add(&self, thread: u32) -> Result<()> {
        let additions = self.additions.lock().unwrap_or_else(PoisonError::into_inner);
        write_open(additions.as_ref(), &self.path, &thread.to_string())
    }

    fn close(&self) {
        *self.additions.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The threads in it: one number per line, or the words "no pid".
    fn threads(&self) -> Result<Vec<u32>> {
        let text = read_from(|piece, at| self.file.read_at(piece, at as u64), READ_AGAIN_BYTES, &self.path)?;
        Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }
}

/// Adds threads to those that an instance traces. Does not keep the instance alive.
#[derive(Clone, Debug)]
pub struct ThreadFilter(Weak<Instance>);

impl ThreadFilter {
    /// Also traces the thread with this kernel thread id. Without effect if the instance is gone, or takes no more.
    ///
    /// # Errors
    /// There is no such thread, or the instance does not take it.
    pub fn add(&self, thread: u32) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |instance| instance.add_thread(thread))
    }
}

/// Makes the first free folder of `strata-PID-START`, `strata-PID-START-1`, …
fn make_folder(instances: &Path) -> Result<PathBuf> {
    let pid = std::process::id();
    let name = format!("{NAME_PREFIX}{pid}-{}", start_of_process(pid).unwrap_or(0));
    for number in 0..MAX_INSTANCES {
        let path = match number {
            0 => instances.join(&name),
            _ => instances.join(format!("{name}-{number}")),
        };
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(TracefsError::File { action: "making the tracing instance".to_owned(), path, source });
            }
        }
    }
    Err(TracefsError::TooManyInstances)
}

/// Reads a whole file of tracefs.
pub(super) fn read(path: &Path) -> Result<String> {
    let failed = |source| TracefsError::File { action: "opening".to_owned(), path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    read_from(|piece, _| file.read(piece), READ_BYTES, path)
}

/// Reads all that `next` gives, from a file whose size is not known in advance, in pieces of `piece` bytes. Large ones in
/// general: `events/header_page` ends after the first read, however little that took. `path` is for the error.
fn read_from(mut next: impl FnMut(&mut [u8], usize) -> io::Result<usize>, piece: usize, path: &Path) -> Result<String> {
    let failed = |source| TracefsError::File { action: "reading".to_owned(), path: path.to_owned(), source };
    let mut text = Vec::new();
    let mut length = 0;
    loop {
        text.resize(length + piece, 0);
        match next(&mut text[length..], length).map_err(failed)? {
            0 => break,
            read => length += read,
        }
    }
    text.truncate(length);
    String::from_utf8(text).map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// The description of `event`, whose folder is `folder`.
fn read_schema(event: &EventName, folder: &Path) -> Result<EventSchema> {
    EventSchema::parse(event, &read(&folder.join("format"))?).map_err(TracefsError::Schema)
}

/// Opens a file for writing, without truncating: on `set_event_pid` that would clear what is there.
fn open_for_writing(path: &Path) -> Result<File> {
    OpenOptions::new().append(true).open(path).map_err(|source| TracefsError::File {
        action: "opening".to_owned(),
        path: path.to_owned(),
        source,
    })
}

fn write(path: &Path, value: &str) -> Result<()> {
    write_open(Some(&open_for_writing(path)?), path, value)
}

/// Writes a value to an open file of tracefs; `path` is for the error.
fn write_open(file: Option<&File>, path: &Path, value: &str) -> Result<()> {
    let Some(mut file) = file else { return Ok(()) };
    // In one write: tracefs takes each as a value of its own.
    file.write_all(format!("{value}\n").as_bytes()).map_err(|source| TracefsError::File {
        action: format!("writing {value} to"),
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_mount_point_is_preferred() {
        let mounts = "proc /proc proc rw 0 0\n\
                      tracefs /sys/kernel/debug/tracing tracefs rw 0 0\n\
                      nodev /sys/kernel/tracing tracefs rw 0 0\n";

        assert_eq!(mounted_tracefs(mounts), Some(PathBuf::from(MOUNT_POINT)));
    }

    #[test]
    fn any_other_mount_point_is_taken() {
        let mounts = "tracefs /mnt/trace tracefs rw,relatime 0 0\n";

        assert_eq!(mounted_tracefs(mounts), Some(PathBuf::from("/mnt/trace")));
    }

    #[test]
    fn device_or_folder_called_tracefs_is_none() {
        let mounts = "tracefs /tmp tmpfs rw 0 0\nnone /tracefs tmpfs rw 0 0\n\n";

        assert_eq!(mounted_tracefs(mounts), None);
    }

    #[test]
    fn instances_name_their_owner() {
        assert_eq!(owner(OsStr::new("strata-123-99")), Some((123, 99)));
        assert_eq!(owner(OsStr::new("strata-123-99-4")), Some((123, 99)));
        assert_eq!(owner(OsStr::new("strata-")), None);
        assert_eq!(owner(OsStr::new("strata-x-1")), None);
        assert_eq!(owner(OsStr::new("strata-1-x")), None);
        assert_eq!(owner(OsStr::new("strata-1-2-x")), None);
        assert_eq!(owner(OsStr::new("strata-1-2-3-4")), None);
        assert_eq!(owner(OsStr::new("other-123-99")), None);
    }

    #[test]
    fn start_of_a_process_whose_name_has_spaces_and_parentheses_is_found() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 20 1";

        assert_eq!(start_in_stat(stat), Some(987_654));
        assert_eq!(start_in_stat("42 (cut"), None);
        assert!(start_of_process(std::process::id()).is_some_and(|start| start > 0));
    }

    #[test]
    fn missing_permission_is_fixed_by_what_is_missing() {
        let [user, mapped, contained] = [Rights::User, Rights::NamespaceRoot, Rights::HostRoot].map(fix_of_permissions);

        assert_eq!(user, "run strata as root");
        assert!(mapped.contains("user namespace") && contained.contains("--privileged"), "{mapped} {contained}");
    }
}
