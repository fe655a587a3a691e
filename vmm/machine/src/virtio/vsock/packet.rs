//! Headers of packets of the virtio socket device (virtio 1.2, section 5.10.6).

use virtio_vsock::packet::VsockPacket;
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
    pub fn from_guest<B: BitmapSlice>(packet: &VsockPacket<'_, B>, cid: u64) -> Result<Self, Option<Ports>> {
        if packet.src_cid() != cid || packet.dst_cid() != HOST_CID {
            return Err(None);
        }
        let ports = Ports { guest: packet.src_port(), host: packet.dst_port() };
        let operation = Operation::of(packet.op()).filter(|_| packet.type_() == TYPE_STREAM).ok_or(Some(ports))?;
        Ok(Self {
            ports,
            operation,
            length: packet.len(),
            flags: packet.flags(),
            buf_alloc: packet.buf_alloc(),
            fwd_cnt: packet.fwd_cnt(),
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
