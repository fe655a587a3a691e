//! Recording events from applications in a traced guest.
//!
//! An application declares its event types and records values; the events land, with the time of the trace clock, in
//! rings that the guest kernel maps into this process alone and the host drains. Recording never enters a kernel, the
//! guest's or the host's.
//!
//! ```
//! use guest_agent::{EventType, Hex, Text, event};
//!
//! // declared where it happens
//! event!("shop:opened", name: Text = "front door", flags: Hex<u64> = 0x10);
//!
//! // declared once, recorded from several places
//! static SOLD: EventType<(Text, u32)> = EventType::new("shop:sold", &["what", "pieces"]);
//! SOLD.record(("bread", 2));
//! ```
//!
//! Where nothing traces (no `/dev/strata`, no session that wants applications' events) recording does nothing and costs
//! next to nothing; it never fails the application. [`tracer()`] says what is connected.
//!
//! A child made by `fork` has rings of its own from its first event on; so does the program that it executes. What
//! cannot be recorded for want of a process slot is counted and shows up as lost in the trace.
//!
//! Signal handlers may record. Nothing that connects, registers an event type or records takes a lock that a handler could
//! wait for, or memory of the allocator.

mod connection;
mod describe;
mod device;
mod event_type;
mod fields;
mod offer;
mod permanent;
mod process_rings;
mod process_state;
mod restartable_thread;
mod rseq_area;
mod runtime_event;
pub mod status;
mod tracer;

pub use device::{DEVICE, DeviceError};
pub use event_type::{EventType, MAX_STATIC_FIELDS};
pub use fields::{Fields, Hex, Kind, MAX_TEXT, Payload, Text};
pub use runtime_event::{RuntimeEventType, cut_text, put_text};
pub use shared_ring::event::{FieldType, MAX_FIELDS, MAX_NAME};
pub use shared_ring::view::ViewError;
pub use tracer::{Error, Tracer, tracer};
