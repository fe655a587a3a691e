//! File descriptors: how many this process may have, and how many of them guest processes get.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::thread::available_parallelism;
use strata_machine::VSOCK_CONNECTIONS_MAX;

/// What everything takes that does not grow with vCPUs and CPUs: disks, sockets, the region, files being replaced.
const FIXED: usize = 256;
/// What each vCPU takes: its thread, interrupts, and its streams of the VMM and of four sessions.
const PER_VCPU: usize = 8;
/// What each CPU of the host takes: buffers of the kernel's tracers, and a stream.
const PER_CPU: usize = 8;
/// What a socket device takes: its connections, the socket, and what waits for them.
const VSOCK: usize = VSOCK_CONNECTIONS_MAX + 4;
/// Descriptors where there is no limit.
const NO_LIMIT: u64 = 1 << 20;

/// Raises the number of descriptors that this process may have as far as it may itself: each stream of a recording takes one.
pub(crate) fn raise_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where it cannot be, there are fewer streams, and what they are too few for is counted.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// How many descriptors the streams of guest processes may take, beside `vcpus` vCPUs and a socket device
/// if there is one.
pub(crate) fn for_processes(vcpus: u32, has_vsock: bool) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(NO_LIMIT);
    let cpus = available_parallelism().map_or(1, usize::from);
    left(usize::try_from(limit).unwrap_or(usize::MAX), vcpus as usize, cpus).saturating_sub(if has_vsock {
        VSOCK
    } else {
        0
    })
}

fn left(limit: usize, vcpus: usize, cpus: usize) -> usize {
    limit.saturating_sub(FIXED + PER_VCPU * vcpus + PER_CPU * cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_raised_as_far_as_it_may_be() {
        raise_limit();

        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);

        assert_eq!(current, maximum);
    }

    #[test]
    fn processes_get_what_the_rest_leaves() {
        assert_eq!(left(1024, 64, 16), 1024 - 256 - 512 - 128);
        assert_eq!(left(256, 4, 4), 0);
    }
}
