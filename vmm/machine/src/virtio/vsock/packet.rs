//! Headers of packets of the virtio socket device (virtio 1.2, section 5.10.6).

use std::io::{self, Read};
use virtio_vsock::packet::{PKT_HEADER_SIZE, VsockPacket};
use vm_memory::bitmap::BitmapSlice;

/// The host's address.
pub const HOST_CID: u64 = 2;
/// Streams are the one kind of sockets here.
const TYPE_STREAM: u16 = 1;
/// Flag of [`Operation::Shutdown`]: whoever sends it takes no more data.
pub const TAKES_NO_MORE: u32 = 1;
/// Flag of [`Operation::Shutdown`]: whoever sends it has no more data.
pub const SENDS_NO_MORE: u32 = 2;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// Asks for a connection.
    Request = 1,
    /// Accepts it.
    Response = 2,
    /// Refuses it, or ends it at once.
    Reset = 3,
    /// Half of it ends, or both.
    Shutdown = 4,
    /// Carries data.
    Data = 5,
    /// Tells how much room there is.
    CreditUpdate = 6,
    /// Asks for that.
    CreditRequest = 7,
}

impl Operation {
    fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Reset,
            4 => Self::Shutdown,
            5 => Self::Data,
            6 => Self::CreditUpdate,
            7 => Self::CreditRequest,
            _ => return None,
        })
    }
}

/// What names a connection: its port in the guest and its port on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// In the guest.
    pub guest: u32,
    /// On the host.
    pub host: u32,
}

/// A header as the guest has written it.
pub struct RawHeader([u8; PKT_HEADER_SIZE]);

impl RawHeader {
    /// Reads it from the beginning of a packet.
    ///
    /// # Errors
    /// The packet is shorter than a header.
    pub fn read(packet: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; PKT_HEADER_SIZE];
        packet.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    fn address(&self, at: usize) -> u64 {
        self.0[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn word(&self, at: usize) -> u32 {
        self.0[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn half(&self, at: usize) -> u16 {
        self.0[at..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
    }

    /// Its ports.
    #[must_use]
    pub fn ports(&self) -> Ports {
        Ports { guest: self.word(16), host: self.word(20) }
    }

    /// Bytes of data that it says are behind it.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.word(24)
    }

    /// Number of the operation, which need not be one.
    #[must_use]
    pub fn operation(&self) -> u16 {
        self.half(30)
    }
}

/// What a header says beside the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which connection it is about.
    pub ports: Ports,
    /// What it is for.
    pub operation: Operation,
    /// Bytes of data behind it.
    pub length: u32,
    /// Flags of the operation.
    pub flags: u32,
    /// Bytes that the sender's buffer has room for.
    pub buf_alloc: u32,
    /// Bytes that have left the sender's buffer so far, modulo 2^32.
    pub fwd_cnt: u32,
}

impl Header {
    /// A header that says nothing but this.
    #[must_use]
    pub fn plain(ports: Ports, operation: Operation) -> Self {
        Self { ports, operation, length: 0, flags: 0, buf_alloc: 0, fwd_cnt: 0 }
    }

    /// The header of what the guest with the address `cid` sends.
    ///
    /// # Errors
    /// It is not a packet of a stream: then the ports that are to be reset, unless the addresses are wrong, too.
    pub fn from_guest(raw: &RawHeader, cid: u64) -> Result<Self, Option<Ports>> {
        if raw.address(0) != cid || raw.address(8) != HOST_CID {
            return Err(None);
        }
        let ports = raw.ports();
        let operation = Operation::of(raw.operation()).filter(|_| raw.half(28) == TYPE_STREAM).ok_or(Some(ports))?;
        Ok(Self {
            ports,
            operation,
            length: raw.length(),
            flags: raw.word(32),
            buf_alloc: raw.word(36),
            fwd_cnt: raw.word(40),
        })
    }

    /// Writes it into `packet`, to the guest with the address `cid`.
    pub fn write_to<B: BitmapSlice>(&self, packet: &mut VsockPacket<'_, B>, cid: u64) {
        packet.set_src_cid(HOST_CID).set_dst_cid(cid);
        packet.set_src_port(self.ports.host).set_dst_port(self.ports.guest);
        packet.set_len(self.length).set_type(TYPE_STREAM).set_op(self.operation as u16).set_flags(self.flags);
        packet.set_buf_alloc(self.buf_alloc).set_fwd_cnt(self.fwd_cnt);
    }
}
