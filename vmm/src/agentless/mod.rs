//! Guests without our module: the kernel's own ring, in memory that the host reads when the guest has ended, and at
//! snapshots of a flight recorder while it runs.
//!
//! Linux 6.12 and later put the ring of a tracing instance where the command line says (`trace_instance=NAME@ADDRESS`)
//! and never free it. [`Agentless::plan`] looks into the kernel's image before the guest runs, [`Agentless::collect`]
//! copies the ring and a few numbers out of the guest's memory, and [`Collected::write`] makes them the layer of the
//! guest's kernel.
//!
//! - `plan`: where the ring lies, and what is needed of the kernel's image; `btf`: its types; `events`: its events.
//! - `ring`: which pages of the ring count; `running`: which do of one that is being written; `records`: what is in
//!   them; `rejected`: what of that is not understood; `clock`: their times.
//! - `collect`: what is read of the guest's memory; `layer`: what it becomes.

mod btf;
mod clock;
mod collect;
mod events;
mod layer;
mod plan;
mod records;
mod rejected;
mod ring;
mod running;

pub use clock::{HostReading, LocalClock};
pub use collect::Guest;
pub use events::EventsError;
pub use layer::{Collected, READ_AT_END};
pub use plan::{Agentless, AgentlessError, AgentlessRequest, DEFAULT_EVENTS, SIZES};
pub use records::{RingItem, decode};
#[doc(hidden)]
pub use ring::sample;
pub use ring::{CpuRing, RingError, RingLayout, Rings};
pub use running::{RingSource, copy_running};
