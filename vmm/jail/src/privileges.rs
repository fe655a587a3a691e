//! Capabilities, limits and what a process can never get again.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// Gives up getting capabilities by running a program. For as long as there are capabilities to do this with.
pub fn empty_bounding_set() {
    for capability in CapabilitySet::all().iter() {
        // Refused to a user who is not root, and of no meaning then; unknown to older kernels.
        let _ = remove_capability_from_bounding_set(capability);
    }
    // A kernel without ambient capabilities has none to clear.
    let _ = clear_ambient_capability_set();
}

/// Gives up all capabilities but `kept`.
///
/// # Errors
/// `kept` are more than there are.
pub fn keep_only(kept: CapabilitySet) -> Result<(), Errno> {
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}

/// Suspends all capabilities while `deed` is done: does it work without?
///
/// # Errors
/// The kernel refuses.
pub fn without<T>(deed: impl FnOnce() -> T) -> Result<T, Errno> {
    let before = rustix::thread::capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..before })?;
    let done = deed();
    set_capabilities(None, before)?;
    Ok(done)
}

/// From now on no program that is run gives more rights.
///
/// # Errors
/// A kernel before 3.5.
pub fn no_new() -> Result<(), Errno> {
    set_no_new_privs(true)
}

/// Makes limits final: no core dumps, and no more descriptors than now.
pub fn limit() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let Rlimit { current, .. } = getrlimit(Resource::Nofile);
    // Lowering a limit is not refused.
    let _ = setrlimit(Resource::Core, none);
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: current });
}
