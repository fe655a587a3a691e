//! What carries the frames of a network device on the host.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes of the header before each frame: `virtio_net_hdr_v1` (virtio 1.x, section 5.1.6).
pub const HEADER: usize = 12;
/// Longest frame, bytes: a segment that the host has yet to cut, with an Ethernet header and a VLAN tag.
pub const FRAME_MAX: usize = 65_535 + 18;

/// One end of a network, which never waits. A packet is a header and a frame behind it.
pub trait Link: Send + Debug {
    /// Whether it reads headers: completes checksums and cuts segments as they ask for.
    fn offloads(&self) -> bool;
    /// The descriptor that becomes readable when there are packets, and writable when there is room again.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Sends a packet.
    ///
    /// # Errors
    /// It was not sent and is lost, as frames are: there is no room ([`io::ErrorKind::WouldBlock`]), or the host
    /// refuses it.
    fn send(&mut self, packet: &[u8]) -> io::Result<()>;
    /// Puts the next packet into `packet`, which has room for the longest, and returns its length in bytes, header
    /// included.
    ///
    /// # Errors
    /// There is none ([`io::ErrorKind::WouldBlock`]), or the link is broken.
    fn receive(&mut self, packet: &mut [u8]) -> io::Result<usize>;
    /// Goes on with what was sent and found only a part of the room that it needs.
    fn flush(&mut self) {}
    /// What has happened to its other end, if that is found to carry nothing any more.
    fn end(&self) -> Option<&'static str> {
        None
    }
}
