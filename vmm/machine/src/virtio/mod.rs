//! Virtio devices on the MMIO transport.

pub mod balloon;
pub mod block;
pub mod entropy;
pub mod link;
pub mod mac_address;
pub mod mmio;
pub mod net;
pub mod passt;
pub mod tap;
pub mod vhost_net;
pub mod vsock;
mod work;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use virtio_queue::Queue;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

/// Gets what the user should know, a line each, on any thread.
pub type Notify = Arc<dyn Fn(&str) + Send + Sync>;

/// What a transport needs of a device. Everything the guest wrote is to be distrusted.
pub trait VirtioDevice: Send {
    /// Virtio device type.
    fn device_type(&self) -> u32;
    /// Device-specific feature bits offered, and those of the queues that the device handles.
    fn features(&self) -> u64;
    /// Largest size of each queue.
    fn queue_sizes(&self) -> &[u16];
    /// Copies the device's configuration from `offset` on; bytes beyond it are left as they are.
    fn read_config(&self, offset: u64, data: &mut [u8]);
    /// Takes what the driver writes into the device's configuration from `offset` on. Bytes that are not the driver's
    /// to write, and those beyond the configuration, are ignored.
    fn write_config(&mut self, offset: u64, data: &[u8]) {
        let _ = (offset, data);
    }
    /// Where the host has something for the guest, if the device has such a place.
    ///
    /// # Errors
    /// No file descriptor is left.
    fn source(&self) -> io::Result<Option<HostSource>> {
        Ok(None)
    }
    /// Whether the host's kernel serves the queues from [`start`](Self::start) on until [`stop`](Self::stop): it is
    /// notified and interrupts past the transport, and [`serve`](Self::serve) is not asked to.
    fn is_served_by_host_kernel(&self) -> bool {
        false
    }
    /// The driver is ready, and what it has set up is valid.
    ///
    /// # Errors
    /// The queues cannot be served; the device cannot go on until the driver resets it.
    fn start(&mut self, _: &Activation<'_>) -> io::Result<()> {
        Ok(())
    }
    /// The driver has reset the device, or it is broken: nothing touches the queues on return, and what was agreed on
    /// with the guest is void.
    fn stop(&mut self) {}
    /// Serves what lies in queue `index`, as far as the device's limits allow at `now`.
    ///
    /// # Errors
    /// The queue is damaged; the device cannot go on until the driver resets it.
    fn serve(
        &mut self,
        index: usize,
        queue: &mut Queue,
        memory: &GuestMemoryMmap,
        now: Instant,
    ) -> Result<Served, virtio_queue::Error>;
}

/// What a driver has set up, and how the device hears of buffers and tells of them.
#[derive(Clone, Copy)]
pub struct Activation<'t> {
    /// The features that it has accepted.
    pub features: u64,
    /// All queues, those included that it has not made ready.
    pub queues: &'t [Queue],
    /// What its notifications of each queue signal.
    pub notify: &'t [EventFd],
    /// Interrupts the guest for buffers of any queue.
    pub interrupt: &'t EventFd,
    /// To be signalled when a queue is damaged.
    pub broken: &'t EventFd,
}

/// Where the host has something for the guest.
#[derive(Debug)]
pub struct HostSource {
    /// Becomes readable when there is something, and writable when there is room again.
    pub descriptor: OwnedFd,
    /// Index of the queue that is to be served then. A call that leaves something in the descriptor has found no
    /// buffers in the queue, or says so by [`Served::more`] or [`Served::resume_after`]: it is not told again.
    pub queue: usize,
}

/// The result of serving a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The driver wants an interrupt.
    pub interrupt: bool,
    /// The bound on the work of one call was reached and more is waiting.
    pub more: bool,
    /// A limit of the device was reached and more is waiting: serve it again after this time, whether or not the driver
    /// notifies.
    pub resume_after: Option<Duration>,
    /// The queue of this index, another one, is to be served now: there is something in it because of this call.
    pub wake: Option<usize>,
}
