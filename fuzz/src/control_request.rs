//! Requests to a running VM, as its control thread reads them.

use strata_recorder::control::protocol::Request;

/// Runs an input: a line.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(data) {
        let text = serde_json::to_vec(&request).expect("a request is text");
        assert!(!text.contains(&b'\n'), "a request is one line");
        assert_eq!(serde_json::from_slice::<Request>(&text).expect("a request is understood"), request);
        // What the recorder makes of it first.
        if let Request::TriggerAdd { trigger, .. } = &request {
            super::trigger::run(trigger.as_bytes());
        }
    }
}
