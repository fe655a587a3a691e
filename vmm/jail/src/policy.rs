//! What each kind of thread may ask of the kernel: a table of groups of system calls, as `docs/jail.md` shows it.
//!
//! The lists are those of real runs, with what the C library, a panic and a full disk add. A group is as wide as its
//! purpose; what no group names, such as `execve`, `ptrace` or `bpf`, no thread can ask for.

/// A kind of thread of a running VM, or of a recording of another VMM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The main thread of a VM while it starts the others.
    Start,
    /// The main thread afterwards: the event loop, which serves all devices but disks, and the end of the run.
    EventLoop,
    /// The same where a socket device is among them.
    SocketEventLoop,
    /// A virtual processor.
    Vcpu,
    /// Serves a disk.
    Disk,
    /// Drains every layer into files.
    Recorder,
    /// Answers clients of the control socket.
    Control,
    /// Has the clocks of the vCPUs renewed.
    Clock,
    /// Reads the symbols of the guest's kernel out of its image, which is open.
    Symbols,
    /// Has the recorder run at normal priority when it is late.
    Watchdog,
    /// Waits for signals.
    Signals,
    /// Writes the guest's console to standard output.
    Console,
    /// A process of its own: removes a tracing instance of the kernel when the VM's process has ended.
    Guard,
    /// The main thread of a recording of another VMM's VM while it starts the others.
    AttachStart,
    /// The same afterwards: waits for the end, and completes the recording.
    Attached,
    /// Follows the VM of another VMM.
    Follower,
    /// A process of its own: takes the region away from a QEMU that was given it.
    Unplug,
}

/// System calls that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// What every thread does, beginning, end and panic included.
    Runtime,
    /// Confining itself further.
    Confine,
    /// Making threads, signal handlers and pipes.
    Threads,
    /// KVM.
    Kvm,
    /// Asking KVM what the guest's kvm-clock shows.
    KvmClock,
    /// Having the host's kernel begin and end to move packets.
    Vhost,
    /// The state of a terminal.
    Terminal,
    /// POSIX timers.
    Timers,
    /// Waiting for many descriptors.
    Events,
    /// Reading and writing open files at a position.
    Disks,
    /// Opening files for reading, and asking about them.
    Look,
    /// Making, writing and renaming files and folders.
    Files,
    /// Removing files and folders.
    Remove,
    /// Making a socket of this host.
    LocalSockets,
    /// Clients of a socket that is there.
    Clients,
    /// Taking and making connections of a socket device.
    Connections,
    /// Waiting for the guard.
    Children,
    /// Switching a tracing instance off.
    Instance,
    /// Giving a thread the priority of idle times, or its normal one.
    Priority,
    /// The same for the thread that asks.
    OwnPriority,
    /// The same for the thread that it watches.
    WatchedPriority,
}

/// A value of an argument, with its name in the manual.
pub type Named = (&'static str, u32);

/// What an argument of a call must be. The lower 32 bits count, as they do for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// The argument of this number is one of these.
    OneOf(u8, &'static [Named]),
    /// The argument of this number has no bit of these.
    Without(u8, &'static [Named]),
    /// The second byte of the argument of this number is this one, as that of a driver's `ioctl`s.
    Letter(u8, u8),
    /// The argument of this number is the process that asks.
    ThisProcess(u8),
    /// The argument of this number is the thread that the asking one watches.
    WatchedThread(u8),
    /// The argument of this number is anything but the value.
    Not(u8, Named),
}

/// A system call that is allowed if its arguments are as they must be. A call that is named twice is allowed in both
/// forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    name: &'static str,
    /// Its number.
    pub number: libc::c_long,
    /// What must hold of its arguments: all of it.
    pub only: &'static [Only],
}

impl Call {
    /// Its name, as in the manual.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name.trim_start_matches("SYS_")
    }
}

macro_rules! calls {
    ($($name:ident $(: [$($only:expr),+])?),* $(,)?) => {
        const { &[$(Call { name: stringify!($name), number: libc::$name, only: &[$($($only),+)?] }),*] }
    };
}
/// Constants of the C library by their names.
macro_rules! named {
    ($($name:ident),+ $(,)?) => {
        &[$((stringify!($name), libc::$name as u32)),+]
    };
}

/// Memory that is mapped or changed never becomes executable.
const NOT_EXECUTABLE: Only = Only::Without(2, named![PROT_EXEC]);
/// A file that is opened, by the flags in argument 1 or 2, is neither written nor made.
const WRITING: &[Named] = named![O_WRONLY, O_RDWR, O_CREAT, O_TRUNC];
/// What descriptors are used for: another one, and what the C library does with the one of a folder that it lists.
/// Not whom a signal tells that they are ready (`F_SETOWN`, `F_SETSIG`, `O_ASYNC`): that can be any process that this
/// one's user may send signals to.
const DESCRIPTOR_COMMANDS: &[Named] = named![F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL];
/// What pipes are like that are made for signals: they do not block.
const FLAGS_OF_FILE: &[Named] = named![F_SETFL];
/// A descriptor that signals its readiness.
const TOLD_BY_SIGNAL: &[Named] = named![O_ASYNC];
/// What `prctl` does for names of threads and of memory (the C library's).
const NAMING: &[Named] = &[
    ("PR_SET_NAME", libc::PR_SET_NAME.cast_unsigned()),
    ("PR_GET_NAME", libc::PR_GET_NAME.cast_unsigned()),
    ("PR_SET_VMA", 0x5356_4d41),
];
/// What it does for a thread that confines itself.
const CONFINING: &[Named] = named![PR_SET_NO_NEW_PRIVS];
/// What `seccomp` does for it.
const FILTERING: &[Named] = named![SECCOMP_SET_MODE_FILTER];
/// Sockets of this host only.
const LOCAL: &[Named] = named![AF_UNIX];
/// The letter of KVM's `ioctl`s.
const KVM_LETTER: u8 = 0xae;
const KVM_CLOCK: &[Named] = &[("KVM_GET_CLOCK", 0x8030_ae7c)];
/// What a driver that begins, ends or breaks asks of vhost. Owner and memory are settled before.
const VHOST: &[Named] = &[
    ("VHOST_SET_FEATURES", 0x4008_af00),
    ("VHOST_SET_VRING_NUM", 0x4008_af10),
    ("VHOST_SET_VRING_ADDR", 0x4028_af11),
    ("VHOST_SET_VRING_BASE", 0x4008_af12),
    ("VHOST_SET_VRING_KICK", 0x4008_af20),
    ("VHOST_SET_VRING_CALL", 0x4008_af21),
    ("VHOST_SET_VRING_ERR", 0x4008_af22),
    ("VHOST_NET_SET_BACKEND", 0x4008_af30),
];
/// Calls of terminals that ask for or set their modes or size. `TIOCSTI`, which types, is not among them.
#[allow(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
const TERMINAL: &[Named] = named![TCGETS, TCSETS, TCSETSW, TCSETSF, TIOCGWINSZ, TCGETS2, TCSETS2, TCSETSW2, TCSETSF2];
/// Calls of descriptors. Those that name who gets their signals (`FIOSETOWN`, `SIOCSPGRP`, `FIOASYNC`) are not among
/// them.
#[allow(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
const DESCRIPTOR: &[Named] = named![FIONREAD, FIONBIO, FIONCLEX, FIOCLEX];
/// The kernel takes this number for who asks.
const ITSELF: &[Named] = &[("0", 0)];
/// Policies that are not of real time.
const ORDINARY: &[Named] = named![SCHED_OTHER, SCHED_IDLE];
/// Permissions that let others write a file, or run it with its owner's rights.
const OPEN_TO_OTHERS: &[Named] = named![S_ISUID, S_ISGID, S_ISVTX, S_IWGRP, S_IWOTH];

impl Group {
    /// All groups.
    pub const ALL: [Self; 21] = [
        Self::Runtime,
        Self::Confine,
        Self::Threads,
        Self::Kvm,
        Self::KvmClock,
        Self::Vhost,
        Self::Terminal,
        Self::Timers,
        Self::Events,
        Self::Disks,
        Self::Look,
        Self::Files,
        Self::Remove,
        Self::LocalSockets,
        Self::Clients,
        Self::Connections,
        Self::Children,
        Self::Instance,
        Self::Priority,
        Self::OwnPriority,
        Self::WatchedPriority,
    ];

    /// Its name in the document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Confine => "confine",
            Self::Threads => "threads",
            Self::Kvm => "kvm",
            Self::KvmClock => "kvm clock",
            Self::Vhost => "vhost",
            Self::Terminal => "terminal",
            Self::Timers => "timers",
            Self::Events => "events",
            Self::Disks => "disks",
            Self::Look => "look",
            Self::Files => "files",
            Self::Remove => "remove",
            Self::LocalSockets => "local sockets",
            Self::Clients => "clients",
            Self::Connections => "connections",
            Self::Children => "children",
            Self::Instance => "instance",
            Self::Priority => "priority",
            Self::OwnPriority => "own priority",
            Self::WatchedPriority => "recorder's priority",
        }
    }

    /// The calls in it.
    #[must_use]
    pub const fn calls(self) -> &'static [Call] {
        match self {
            Self::Runtime => calls![
                SYS_read,
                SYS_write,
                SYS_readv,
                SYS_writev,
                SYS_close,
                SYS_fcntl: [Only::OneOf(1, DESCRIPTOR_COMMANDS)],
                SYS_dup,
                SYS_fstat,
                SYS_lseek,
                SYS_ioctl: [Only::OneOf(1, DESCRIPTOR)],
                SYS_poll,
                SYS_ppoll,
                SYS_sendto,
                SYS_recvfrom,
                SYS_sendmsg,
                SYS_recvmsg,
                SYS_mmap: [NOT_EXECUTABLE],
                SYS_mprotect: [NOT_EXECUTABLE],
                SYS_munmap,
                SYS_mremap,
                SYS_madvise,
                SYS_msync,
                SYS_brk,
                SYS_futex,
                SYS_futex_waitv,
                SYS_set_robust_list,
                SYS_set_tid_address,
                SYS_rseq,
                SYS_membarrier,
                SYS_sched_yield,
                SYS_sched_getaffinity,
                SYS_getcpu,
                SYS_getpid,
                SYS_gettid,
                SYS_getuid,
                SYS_geteuid,
                SYS_getgid,
                SYS_getegid,
                SYS_getrandom,
                SYS_uname,
                SYS_sysinfo,
                SYS_getrlimit,
                SYS_prlimit64: [Only::OneOf(0, ITSELF)],
                SYS_getrusage,
                SYS_clock_gettime,
                SYS_clock_getres,
                SYS_clock_nanosleep,
                SYS_nanosleep,
                SYS_gettimeofday,
                SYS_time,
                SYS_rt_sigaction: [Only::Not(0, ("SIGSYS", libc::SIGSYS.cast_unsigned()))],
                SYS_rt_sigprocmask,
                SYS_rt_sigreturn,
                SYS_rt_sigpending,
                SYS_sigaltstack,
                SYS_restart_syscall,
                SYS_tgkill: [Only::ThisProcess(0)],
                SYS_prctl: [Only::OneOf(0, NAMING)],
                SYS_exit,
                SYS_exit_group,
            ],
            Self::Confine => calls![
                SYS_seccomp: [Only::OneOf(0, FILTERING)],
                SYS_prctl: [Only::OneOf(0, CONFINING)],
            ],
            Self::Threads => calls![
                SYS_clone,
                SYS_clone3,
                SYS_pipe2,
                SYS_eventfd2,
                SYS_dup2,
                SYS_dup3,
                SYS_sched_setaffinity: [Only::OneOf(0, ITSELF)],
                SYS_fcntl: [Only::OneOf(1, FLAGS_OF_FILE), Only::Without(2, TOLD_BY_SIGNAL)],
            ],
            Self::Kvm => calls![SYS_ioctl: [Only::Letter(1, KVM_LETTER)]],
            Self::KvmClock => calls![SYS_ioctl: [Only::OneOf(1, KVM_CLOCK)]],
            Self::Vhost => calls![SYS_ioctl: [Only::OneOf(1, VHOST)]],
            Self::Terminal => calls![SYS_ioctl: [Only::OneOf(1, TERMINAL)]],
            Self::Timers => {
                calls![SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,]
            }
            Self::Events => calls![
                SYS_epoll_create1,
                SYS_epoll_ctl,
                SYS_epoll_wait,
                SYS_epoll_pwait,
                SYS_epoll_pwait2,
                SYS_timerfd_create,
                SYS_timerfd_settime,
                SYS_timerfd_gettime,
                SYS_select,
                SYS_pselect6,
            ],
            Self::Disks => calls![
                SYS_pread64,
                SYS_pwrite64,
                SYS_preadv,
                SYS_pwritev,
                SYS_preadv2,
                SYS_pwritev2,
                SYS_fsync,
                SYS_fdatasync,
                SYS_sync_file_range,
                SYS_fallocate,
                SYS_fadvise64,
            ],
            Self::Look => calls![
                SYS_openat: [Only::Without(2, WRITING)],
                SYS_open: [Only::Without(1, WRITING)],
                SYS_stat,
                SYS_lstat,
                SYS_newfstatat,
                SYS_statx,
                SYS_access,
                SYS_faccessat,
                SYS_faccessat2,
                SYS_readlink,
                SYS_readlinkat,
                SYS_getcwd,
                SYS_getdents64,
                SYS_statfs,
                SYS_fstatfs,
            ],
            Self::Files => calls![
                SYS_openat,
                SYS_open,
                SYS_creat,
                SYS_mkdir,
                SYS_mkdirat,
                SYS_rename,
                SYS_renameat,
                SYS_renameat2,
                SYS_link,
                SYS_linkat,
                SYS_ftruncate,
                SYS_truncate,
                SYS_fchmod: [Only::Without(1, OPEN_TO_OTHERS)],
                SYS_flock,
                SYS_copy_file_range,
                SYS_sendfile,
                SYS_syncfs,
            ],
            Self::Remove => calls![SYS_unlink, SYS_unlinkat, SYS_rmdir],
            Self::LocalSockets => calls![
                SYS_socket: [Only::OneOf(0, LOCAL)],
                SYS_socketpair: [Only::OneOf(0, LOCAL)],
                SYS_bind,
                SYS_listen,
                SYS_chmod,
            ],
            Self::Clients => calls![
                SYS_accept,
                SYS_accept4,
                SYS_getsockopt,
                SYS_setsockopt,
                SYS_getsockname,
                SYS_getpeername,
                SYS_shutdown,
            ],
            Self::Connections => calls![SYS_socket: [Only::OneOf(0, LOCAL)], SYS_connect, SYS_accept4, SYS_shutdown],
            Self::Children => calls![SYS_wait4, SYS_waitid],
            Self::Instance => calls![SYS_openat, SYS_open],
            Self::Priority => calls![SYS_sched_setscheduler: [Only::OneOf(1, ORDINARY)]],
            Self::OwnPriority => {
                calls![SYS_sched_setscheduler: [Only::OneOf(0, ITSELF), Only::OneOf(1, ORDINARY)]]
            }
            Self::WatchedPriority => {
                calls![SYS_sched_setscheduler: [Only::WatchedThread(0), Only::OneOf(1, ORDINARY)]]
            }
        }
    }
}

impl Thread {
    /// All kinds.
    pub const ALL: [Self; 17] = [
        Self::Start,
        Self::EventLoop,
        Self::SocketEventLoop,
        Self::Vcpu,
        Self::Disk,
        Self::Recorder,
        Self::Control,
        Self::Clock,
        Self::Symbols,
        Self::Watchdog,
        Self::Signals,
        Self::Console,
        Self::Guard,
        Self::AttachStart,
        Self::Attached,
        Self::Follower,
        Self::Unplug,
    ];

    /// Its name in the document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "main, starting",
            Self::EventLoop => "main, event loop",
            Self::SocketEventLoop => "main, event loop with sockets",
            Self::Vcpu => "vCPU",
            Self::Disk => "disk",
            Self::Recorder => "recorder",
            Self::Control => "control",
            Self::Clock => "clock",
            Self::Symbols => "symbols",
            Self::Watchdog => "watchdog",
            Self::Signals => "signals",
            Self::Console => "console",
            Self::Guard => "guard",
            Self::AttachStart => "main, attaching",
            Self::Attached => "main, attached",
            Self::Follower => "follower",
            Self::Unplug => "unplug",
        }
    }

    /// What it may do. Filters add up: each thread is also under that of [`Thread::Start`] or [`Thread::AttachStart`],
    /// which made it. Processes of their own are not, since they are made before.
    #[must_use]
    pub const fn groups(self) -> &'static [Group] {
        match self {
            Self::Start => &[
                Group::Runtime,
                Group::Confine,
                Group::Threads,
                Group::Kvm,
                Group::KvmClock,
                Group::Vhost,
                Group::Terminal,
                Group::Timers,
                Group::Events,
                Group::Disks,
                Group::Look,
                Group::Files,
                Group::Remove,
                Group::LocalSockets,
                Group::Clients,
                Group::Connections,
                Group::Children,
                Group::Priority,
            ],
            Self::EventLoop => &[
                Group::Runtime,
                Group::Kvm,
                Group::Vhost,
                Group::Terminal,
                Group::Events,
                Group::Look,
                Group::Remove,
                Group::Children,
            ],
            Self::SocketEventLoop => &[
                Group::Runtime,
                Group::Kvm,
                Group::Vhost,
                Group::Terminal,
                Group::Events,
                Group::Look,
                Group::Remove,
                Group::Connections,
                Group::Children,
            ],
            Self::Vcpu => &[Group::Runtime, Group::Kvm, Group::Vhost, Group::Timers],
            Self::Disk => &[Group::Runtime, Group::Events, Group::Disks],
            Self::Recorder => &[
                Group::Runtime,
                Group::KvmClock,
                Group::Timers,
                Group::Disks,
                Group::Look,
                Group::Files,
                Group::Remove,
                Group::Children,
                Group::OwnPriority,
            ],
            Self::Control => &[Group::Runtime, Group::Look, Group::Clients],
            Self::Clock | Self::Symbols | Self::Signals | Self::Console => &[Group::Runtime],
            Self::Watchdog => &[Group::Runtime, Group::WatchedPriority],
            Self::Guard => &[Group::Runtime, Group::Remove, Group::Instance],
            Self::AttachStart => &[
                Group::Runtime,
                Group::Confine,
                Group::Threads,
                Group::Timers,
                Group::Disks,
                Group::Look,
                Group::Files,
                Group::Remove,
                Group::LocalSockets,
                Group::Clients,
                Group::Children,
                Group::Priority,
            ],
            Self::Attached => &[Group::Runtime, Group::Look, Group::Remove, Group::Children],
            Self::Follower => &[Group::Runtime, Group::Look],
            Self::Unplug => &[Group::Runtime, Group::Remove, Group::Clients, Group::Connections],
        }
    }

    /// Whether it may open files. To one that may not the kernel says that it has no permission, which is not an
    /// offence: a panic looks for the program's symbols.
    #[must_use]
    pub fn looks(self) -> bool {
        self.groups().iter().any(|group| matches!(group, Group::Look | Group::Instance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// `only` as the document says it.
    fn reported(only: Only) -> String {
        let names =
            |values: &[Named]| values.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let argument = |number: u8| ["first", "second", "third"][usize::from(number)];
        match only {
            Only::OneOf(number, values) => format!("{} argument: {}", argument(number), names(values)),
            Only::Without(number, bits) => format!("{} argument without {}", argument(number), names(bits)),
            Only::Letter(number, letter) => format!("{} argument with the letter {letter:#x}", argument(number)),
            Only::ThisProcess(number) => format!("{} argument: this process", argument(number)),
            Only::WatchedThread(number) => format!("{} argument: the recorder's thread", argument(number)),
            Only::Not(number, value) => format!("{} argument: not {}", argument(number), names(&[value])),
        }
    }

    #[test]
    fn document_shows_the_tables_and_nothing_else() {
        let document = include_str!("../../../docs/jail.md");
        let shown: BTreeSet<&str> = document.lines().filter(|line| line.starts_with("| ")).collect();

        let threads = Thread::ALL.map(|thread| {
            let groups: Vec<_> = thread.groups().iter().map(|group| group.name()).collect();
            format!("| {} | {} |", thread.name(), groups.join(", "))
        });
        let groups = Group::ALL.map(|group| {
            let mut calls: Vec<_> = group.calls().iter().map(|call| format!("`{}`", call.name())).collect();
            calls.dedup();
            format!("| {} | {} |", group.name(), calls.join(" "))
        });
        let limited = Group::ALL.into_iter().flat_map(|group| group.calls().iter().map(move |call| (group, call)));
        let limited = limited.filter(|(_, call)| !call.only.is_empty()).map(|(group, call)| {
            let only: Vec<_> = call.only.iter().map(|only| reported(*only)).collect();
            format!("| `{}` | {} | {} |", call.name(), group.name(), only.join("; "))
        });
        let heads = ["| thread | groups |", "| group | system calls |", "| system call | in group | only with |"];
        let rows: Vec<_> = heads.map(String::from).into_iter().chain(threads).chain(groups).chain(limited).collect();

        let missing: Vec<_> = rows.iter().filter(|row| !shown.contains(row.as_str())).cloned().collect();
        let stale: Vec<_> = shown.iter().filter(|shown| !rows.iter().any(|row| row == *shown)).collect();
        assert!(missing.is_empty(), "docs/jail.md lacks the rows:\n{}", missing.join("\n"));
        assert_eq!(stale, Vec::<&&str>::new());
    }

    #[test]
    fn no_thread_runs_programs_looks_into_processes_or_reaches_a_network() {
        let named = |name: &str| Group::ALL.iter().flat_map(|group| group.calls()).any(|call| call.name() == name);

        let forbidden =
            ["execve", "execveat", "ptrace", "process_vm_readv", "bpf", "mount", "setuid", "kill", "open_by_handle_at"];

        assert_eq!(forbidden.into_iter().filter(|name| named(name)).collect::<Vec<_>>(), Vec::<&str>::new());
        assert!(named("read"));
    }

    #[test]
    fn sockets_of_the_host_are_reached_for_a_socket_device_and_to_unplug_one_only() {
        let named = |group: &&Group| group.calls().iter().any(|call| call.name() == "connect");

        let groups: Vec<_> = Group::ALL.iter().filter(named).collect();
        let threads = Thread::ALL.into_iter().filter(|thread| thread.groups().contains(&Group::Connections));

        assert_eq!(groups, [&Group::Connections]);
        // The last one is a process without guest memory.
        assert_eq!(threads.collect::<Vec<_>>(), [Thread::Start, Thread::SocketEventLoop, Thread::Unplug]);
    }

    #[test]
    fn what_a_thread_may_do_the_one_that_made_it_may() {
        // The forms of one call; it has the widest.
        let covered = |group: &Group| match group {
            Group::OwnPriority | Group::WatchedPriority => Group::Priority,
            other => *other,
        };
        let missing = |of: &[Thread], starter: Thread| {
            let all = of.iter().flat_map(|thread| thread.groups().iter().map(move |group| (*thread, *group)));
            all.filter(|(_, group)| !starter.groups().contains(&covered(group))).collect::<Vec<_>>()
        };
        let (attached, others) =
            ([Thread::AttachStart, Thread::Attached, Thread::Follower], [Thread::Guard, Thread::Unplug]);
        let of_vms = |thread: &Thread| !attached.contains(thread) && !others.contains(thread);
        let of_vms: Vec<_> = Thread::ALL.into_iter().filter(of_vms).collect();
        let shared = [Thread::Recorder, Thread::Control, Thread::Watchdog, Thread::Signals];

        assert_eq!((missing(&of_vms, Thread::Start), missing(&attached, Thread::AttachStart)), (vec![], vec![]));
        // There is no KVM to ask.
        assert_eq!(missing(&shared, Thread::AttachStart), [(Thread::Recorder, Group::KvmClock)]);
    }
}
