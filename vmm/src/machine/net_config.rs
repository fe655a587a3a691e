//! Network devices as a machine is given them.

use super::rate_limit::RateLimit;
use super::virtio::link::Link;
use super::virtio::passt::{Passt, PasstError};
use super::virtio::tap::{Tap, TapError};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

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
}

impl NetConfig {
    /// A device on `link`, with an address by chance, as fast as it is.
    #[must_use]
    pub fn new(link: LinkConfig) -> Self {
        Self { link, mac: None, limits: NetLimits::default() }
    }

    /// Opens what carries its frames.
    ///
    /// # Errors
    /// It is not there, or cannot be had; nothing was changed.
    pub(super) fn open(&self) -> Result<Box<dyn Link>, LinkError> {
        match &self.link {
            LinkConfig::Tap(name) => Ok(Box::new(Tap::open(name)?)),
            LinkConfig::Passt(Some(socket)) => Ok(Box::new(Passt::connect(socket)?)),
            LinkConfig::Passt(None) => Ok(Box::new(Passt::start()?)),
        }
    }

    /// Tries what can be tried of [`open`](Self::open) without an effect on others.
    ///
    /// # Errors
    /// As for `open`.
    pub(super) fn check(&self) -> Result<(), LinkError> {
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
