//! Network devices as a machine is given them.

use super::virtio::link::Link;
use super::virtio::passt::{Passt, PasstError};
use super::virtio::tap::{Tap, TapError};
use super::virtio::vhost_net::{self, KernelMover, VhostError};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use strata_rate_limit::RateLimit;
use vm_memory::GuestMemoryMmap;

/// An Ethernet address of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// An address by chance, of those that nobody assigns. If the kernel gives no random bytes, the first of them.
    #[must_use]
    pub fn by_chance() -> Self {
        let mut address = [0; 6];
        let _ = getrandom(&mut address, GetRandomFlags::empty());
        // Of one device, and locally administered.
        address[0] = address[0] & 0xfc | 2;
        Self(address)
    }

    /// Copies it, as a network device's configuration begins with it, from `offset` on.
    pub(super) fn read_config(&self, offset: u64, data: &mut [u8]) {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..));
        for (to, from) in data.iter_mut().zip(rest.unwrap_or_default()) {
            *to = *from;
        }
    }
}

/// Not an address of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write an Ethernet address of one device, as in 'mac=52:54:00:12:34:56'")]
pub struct NotAMacAddress;

impl FromStr for MacAddress {
    type Err = NotAMacAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let byte = |part: &str| u8::from_str_radix(part, 16).ok().filter(|_| digits(part)).ok_or(NotAMacAddress);
        let bytes = text.split(':').map(byte).collect::<Result<Vec<_>, _>>()?;
        let address = <[u8; 6]>::try_from(bytes).map_err(|_| NotAMacAddress)?;
        // The lowest bit of the first byte means a group of devices.
        if address[0] & 1 == 0 && address != [0; 6] { Ok(Self(address)) } else { Err(NotAMacAddress) }
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Limits of what a guest does with a network device, in each direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetLimits {
    /// Packets.
    pub packets: Option<RateLimit>,
    /// Bytes of frames.
    pub bytes: Option<RateLimit>,
}

/// What carries the frames on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkConfig {
    /// The tap of this name, which is there.
    Tap(String),
    /// The passt that listens at this socket, or one that is started for the guest.
    Passt(Option<PathBuf>),
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetConfig {
    /// What carries its frames.
    pub link: LinkConfig,
    /// Its address; one by chance if there is none.
    pub mac: Option<MacAddress>,
    /// What the guest may do with it in a time.
    pub limits: NetLimits,
    /// Whether the host's kernel moves the packets (vhost-net): of a tap only, and without limits.
    pub vhost: bool,
}

/// Who moves the packets of a network device.
pub enum NetBackend {
    /// The event loop, over this link.
    Link(Box<dyn Link>),
    /// The host's kernel.
    HostKernel(KernelMover),
}

impl NetConfig {
    /// A device on `link`, with an address by chance, as fast as it is.
    #[must_use]
    pub fn new(link: LinkConfig) -> Self {
        Self { link, mac: None, limits: NetLimits::default(), vhost: false }
    }

    /// Opens what carries its frames, and has the host's kernel prepared to move them from and to `memory` if it is to.
    ///
    /// # Errors
    /// It is not there, or cannot be had; nothing was changed.
    pub(super) fn open(&self, memory: &GuestMemoryMmap) -> Result<NetBackend, LinkError> {
        self.check_mover()?;
        Ok(match &self.link {
            LinkConfig::Tap(name) if self.vhost => NetBackend::HostKernel(KernelMover::new(Tap::open(name)?, memory)?),
            LinkConfig::Tap(name) => NetBackend::Link(Box::new(Tap::open(name)?)),
            LinkConfig::Passt(Some(socket)) => NetBackend::Link(Box::new(Passt::connect(socket)?)),
            LinkConfig::Passt(None) => NetBackend::Link(Box::new(Passt::start()?)),
        })
    }

    /// Checks that the host's kernel is to move only what it can.
    ///
    /// # Errors
    /// It is to move frames that no tap carries, or within limits.
    pub fn check_mover(&self) -> Result<(), LinkError> {
        match (&self.link, self.limits == NetLimits::default()) {
            _ if !self.vhost => Ok(()),
            (LinkConfig::Passt(_), _) => Err(LinkError::VhostWithoutTap),
            (LinkConfig::Tap(_), false) => Err(LinkError::VhostWithLimits),
            (LinkConfig::Tap(_), true) => Ok(()),
        }
    }

    /// Tries what can be tried of [`open`](Self::open) without an effect on others.
    ///
    /// # Errors
    /// As for `open`.
    pub(super) fn check(&self) -> Result<(), LinkError> {
        self.check_mover()?;
        if self.vhost {
            vhost_net::check()?;
        }
        match &self.link {
            LinkConfig::Tap(name) => Ok(Tap::open(name).map(drop)?),
            LinkConfig::Passt(Some(socket)) => Ok(Passt::check_socket(socket)?),
            LinkConfig::Passt(None) => Ok(Passt::check_program()?),
        }
    }
}

/// Why a network device has no link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The tap cannot be had.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// There is no link to a passt.
    #[error(transparent)]
    Passt(#[from] PasstError),
    /// The host's kernel does not move packets.
    #[error(transparent)]
    Vhost(#[from] VhostError),
    /// It is to move what no tap carries.
    #[error("vhost=on is for taps: write tap=NAME,vhost=on, or leave it out")]
    VhostWithoutTap,
    /// It is to move packets within limits.
    #[error(
        "vhost=on and limits exclude each other, as the host's kernel has none: leave out pps= and bandwidth=, or vhost=on"
    )]
    VhostWithLimits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_read_as_it_is_written() {
        let address: MacAddress = "52:54:00:12:aB:56".parse().unwrap();

        assert_eq!(address, MacAddress([0x52, 0x54, 0, 0x12, 0xab, 0x56]));
        assert_eq!(address.to_string(), "52:54:00:12:ab:56");
    }

    #[test]
    fn address_of_a_group_or_of_nobody_is_refused() {
        let texts =
            ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00", "52:54:00:12:34", "+2:54:00:12:34:56", ""];

        assert!(texts.iter().all(|text| text.parse::<MacAddress>() == Err(NotAMacAddress)));
    }

    #[test]
    fn address_by_chance_is_of_one_device_and_nobodys() {
        let addresses = [MacAddress::by_chance(), MacAddress::by_chance()];

        assert!(addresses.iter().all(|address| address.0[0] & 3 == 2));
        assert_ne!(addresses[0], addresses[1]);
    }
}
