//! Recording events from applications in a traced guest.
//!
//! An application declares its event types as statics and records values; the events land, with the time of the trace
//! clock, in rings that the guest kernel maps into this process alone and the host drains. Recording never enters a
//! kernel, the guest's or the host's.
//!
//! ```
//! use guest_agent::{EventType, Hex, Text};
//!
//! static OPENED: EventType<(Text, Hex<u64>)> = EventType::new("shop:opened", &["name", "flags"]);
//!
//! OPENED.record(("front door", 0x10));
//! ```
//!
//! Where nothing traces (no `/dev/strata`, no session that wants applications' events) recording does nothing and costs
//! next to nothing; it never fails the application. [`tracer()`] says what is connected.
//!
//! A child made by `fork` records nothing, since the rings belong to its parent; the program that it then executes
//! connects by itself.

mod device;
mod event_type;
mod process_rings;
mod rseq_area;
mod tracer;

pub use device::{DEVICE, DeviceError};
pub use event_type::{EventType, Fields, Hex, Kind, Payload, Text};
pub use process_rings::RingsError;
pub use tracer::{Error, Status, Tracer, tracer};
