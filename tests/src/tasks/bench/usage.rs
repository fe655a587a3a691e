//! What a program took: time, processor time, memory.
#![allow(unsafe_code)] // The system says how much memory a child took at most only through `wait4`.

use std::io;
use std::process::Command;
use std::time::Instant;

/// What a program took.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// From its start to its end, seconds.
    pub wall: f64,
    /// On all processors, in user mode and in the kernel, seconds.
    pub cpu: f64,
    /// Most memory at a time, mapped files included, KiB.
    pub peak_kib: u64,
}

/// Runs `command` to its end.
///
/// # Errors
///
/// When it cannot be started or does not succeed.
pub fn measure(command: &mut Command) -> io::Result<Usage> {
    let start = Instant::now();
    let child = command.spawn()?;
    let id = i32::try_from(child.id()).map_err(io::Error::other)?;
    let mut status = 0;
    // SAFETY: `rusage` is a plain structure of integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live variables of the types asked for; nothing else waits for this child, so that
    // its id is still its own.
    let waited = unsafe { libc::wait4(id, &raw mut status, 0, &raw mut usage) };
    let wall = start.elapsed().as_secs_f64();
    if waited != id {
        return Err(io::Error::last_os_error());
    }
    if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
        return Err(io::Error::other(format!("{} failed", command.get_program().display())));
    }
    let seconds = |time: libc::timeval| {
        std::time::Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0)).as_secs_f64()
            + std::time::Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0)).as_secs_f64()
    };
    let cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    Ok(Usage { wall, cpu, peak_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_of_a_program_are_its_own() {
        let usage = measure(Command::new("sh").args(["-c", "sleep 0.05"])).unwrap();

        assert!(usage.wall >= 0.05 && usage.cpu < usage.wall, "{usage:?}");
        assert!((100..1 << 20).contains(&usage.peak_kib), "{usage:?}");
    }

    #[test]
    fn failure_is_an_error() {
        assert!(measure(Command::new("sh").args(["-c", "exit 3"])).is_err());
    }
}
