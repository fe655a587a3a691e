//! Heads of requests to `strata metrics` and `strata open`, of whatever page or program connects.

use std::net::IpAddr;
use vmm::http::Head;

/// A name that this machine has, and one that a page elsewhere could have made mean this machine.
const OWN: &str = "web";

/// Runs an input: the head.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let Some(head) = Head::of(data) else { return };
    assert!(![&head.method, &head.path].iter().any(|word| word.contains(char::is_whitespace)), "{head:?}");
    if head.is_for(&[OWN.into()]) {
        let host = head.host.as_deref().expect("without one it is for nobody");
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next(),
            None => host.split(':').next(),
        };
        let name = name.expect("there is a first part");
        assert!(
            name.parse::<IpAddr>().is_ok() || ["localhost", OWN].iter().any(|own| name.eq_ignore_ascii_case(own)),
            "{host} is not a name of this machine"
        );
    }
}
