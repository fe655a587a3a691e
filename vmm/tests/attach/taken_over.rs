//! Shows: A thread of a recording that makes a forbidden system call ends the whole recording, whichever thread it is.
#![allow(unsafe_code)] // ptrace(2), with which a thread is taken over as by an attacker

use super::jail::comes;
use super::stand_in::QMP_VARIABLE;
use super::*;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::ptr;

/// What no thread may do, and which call of the processor's enters the kernel.
const FORBIDDEN: i64 = libc::SYS_execve;
const SYSCALL: [u8; 2] = [0x0f, 0x05];

fn ptrace(request: libc::c_uint, thread: i32, data: *mut libc::c_void) -> bool {
    // SAFETY: `data` is null, a number, or a structure of the size that the request writes or reads.
    unsafe { libc::ptrace(request, thread, ptr::null_mut::<libc::c_void>(), data) >= 0 }
}

/// Has `thread`, which is not this process's, make [`FORBIDDEN`] as soon as it waits in the kernel.
fn make_forbidden_call(thread: i32) {
    assert!(ptrace(libc::PTRACE_SEIZE, thread, ptr::null_mut()), "{}", std::io::Error::last_os_error());
    let code = fs::File::open(format!("/proc/{thread}/mem")).unwrap();
    loop {
        assert!(ptrace(libc::PTRACE_INTERRUPT, thread, ptr::null_mut()));
        // SAFETY: the thread is this process's to wait for.
        assert_eq!(unsafe { libc::waitpid(thread, ptr::null_mut(), libc::__WALL) }, thread);
        // SAFETY: every bit pattern of the structure is valid.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        assert!(ptrace(libc::PTRACE_GETREGS, thread, (&raw mut registers).cast()));
        let mut call = [0; 2];
        registers.rip -= 2;
        code.read_exact_at(&mut call, registers.rip).unwrap();
        if call == SYSCALL {
            registers.rax = FORBIDDEN.cast_unsigned();
            // The call that was interrupted is not to be begun again.
            registers.orig_rax = u64::MAX;
            assert!(ptrace(libc::PTRACE_SETREGS, thread, (&raw mut registers).cast()));
            assert!(ptrace(libc::PTRACE_DETACH, thread, ptr::null_mut()));
            return;
        }
        assert!(ptrace(libc::PTRACE_CONT, thread, ptr::null_mut()));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The thread of `process` that is called `name`, once it is there.
fn thread_called(process: u32, name: &str) -> i32 {
    assert!(comes(|| find_thread(process, name).is_some()), "{name}");
    find_thread(process, name).unwrap()
}

fn find_thread(process: u32, name: &str) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let is_called =
        |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    tasks.filter(is_called).find_map(|task| task.file_name().to_str()?.parse().ok())
}

#[test]
fn forbidden_call_of_any_thread_ends_a_recording_that_runs() {
    let names = recording_threads();
    let bench = Bench::new();
    let vmm = Vmm::start(60);

    let end = |name: &&str| {
        let recording = bench.attach_into(name, &vmm, &["--drain", "idle"]);
        make_forbidden_call(thread_called(recording.id(), name));
        recording.wait_with_output().unwrap()
    };
    let ends: Vec<Output> = names.iter().map(end).collect();

    for (name, end) in names.iter().zip(&ends) {
        let printed = text(end);
        assert_eq!(end.status.signal(), Some(libc::SIGSYS), "{name}: {printed}");
        assert!(
            printed.contains(&format!("the thread '{name}' may not make the system call 59 (execve)")),
            "{printed}"
        );
    }
    assert_eq!(vmm.descriptors(), 3);
}

#[test]
fn forbidden_call_of_the_process_that_unplugs_ends_it_and_nothing_else() {
    let bench = Bench::new();
    let socket = bench.path("qmp");
    let mut command = Command::new(std::env::current_exe().unwrap());
    let vmm = Vmm::start_with(60, VCPUS, command.env(QMP_VARIABLE, &socket));
    let recording = bench.attach(&vmm, &["--qmp", socket.to_str().unwrap()]);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", recording.id())).unwrap();
    let process = children
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .find_map(|child| find_thread(child, "strata-unplug"));

    make_forbidden_call(process.unwrap());
    text(&bench.strata(&["ctl", "tiny", "detach"]));
    let recorded = recording.wait_with_output().unwrap();

    let printed = text(&recorded);
    assert!(printed.contains("the thread 'strata-unplug' may not make the system call 59 (execve)"), "{printed}");
    assert_eq!(recorded.status.code(), Some(1), "{printed}");
    assert!(Trace::open(&bench.path("trace")).is_ok());
}
