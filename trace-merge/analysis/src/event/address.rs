//! Which fields of the kernels' events hold addresses that have a symbol: the only list of them.

use shared_ring::event::{FieldDescription, FieldType};
use strata_recording::layer::LayerKind;

/// Fields with the address of a function, which is where it begins.
const FUNCTIONS: [&str; 6] = ["function", "func", "fn", "fun", "cb", "callback"];
/// Fields with the address of an instruction, or of a variable.
const OTHERS: [&str; 20] = [
    "__probe_func",
    "__probe_ip",
    "__probe_ret_ip",
    "address",
    "call_site",
    "caller",
    "callsite",
    "guest_rip",
    "hrtimer",
    "ip",
    "location",
    "lock_addr",
    "parent_ip",
    "pc",
    "ret_ip",
    "rip",
    "stack",
    "tasklet",
    "timer",
    "work",
];
/// Of KVM's events, these have an address of the guest that the vCPU runs.
const OF_GUEST: [&str; 2] = ["guest_rip", "rip"];

/// Whose address a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressOf {
    /// The kernel's that records it.
    Recorder,
    /// The guest's, whose vCPU's thread records it.
    Guest,
}

/// Whose address the numbers of `field` of the event `event` are, which a layer of this `kind` has; `None` when they are no
/// addresses that can have a symbol.
#[must_use]
pub fn address_of(kind: LayerKind, event: &str, field: &FieldDescription) -> Option<AddressOf> {
    let name = field.name.as_str();
    if !has_addresses(field.ty) || !(is_function(name) || OTHERS.contains(&name)) {
        return None;
    }
    match kind {
        LayerKind::GuestKernel => Some(AddressOf::Recorder),
        LayerKind::HostKernel if event.starts_with("kvm:") && OF_GUEST.contains(&name) => Some(AddressOf::Guest),
        LayerKind::HostKernel => Some(AddressOf::Recorder),
        LayerKind::Vmm | LayerKind::GuestUser => None,
    }
}

/// Whether a field called `name` that holds an address holds that of a function's beginning.
#[must_use]
pub fn is_function(name: &str) -> bool {
    FUNCTIONS.contains(&name)
}

/// Whether numbers of this type, or those in it, have the size of an address.
fn has_addresses(ty: FieldType) -> bool {
    let integer = match ty {
        FieldType::Array(element, _) | FieldType::Sequence(element) => Some(element),
        ty => ty.integer(),
    };
    integer.is_some_and(|integer| integer.size() == 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: LayerKind, event: &str, name: &str, ty: FieldType) -> Option<AddressOf> {
        address_of(kind, event, &FieldDescription { name: name.into(), ty, hex: true })
    }

    #[test]
    fn addresses_are_of_who_records_them_but_for_those_where_a_guest_left_off() {
        let host = |event, name| of(LayerKind::HostKernel, event, name, FieldType::U64);

        assert_eq!(host("timer:hrtimer_start", "function"), Some(AddressOf::Recorder));
        assert_eq!(host("kvm:kvm_exit", "guest_rip"), Some(AddressOf::Guest));
        assert_eq!(host("exceptions:page_fault_kernel", "ip"), Some(AddressOf::Recorder));
        assert_eq!(host("kvm:kvm_exit", "info1"), None);
    }

    #[test]
    fn what_is_smaller_than_an_address_is_none() {
        let guest = |name, ty| of(LayerKind::GuestKernel, "strata:stack", name, ty);

        assert_eq!(guest("function", FieldType::U32), None);
        assert_eq!(guest("stack", FieldType::Sequence(shared_ring::event::Integer::U64)), Some(AddressOf::Recorder));
    }
}
