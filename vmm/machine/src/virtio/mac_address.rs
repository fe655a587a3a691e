//! The address of a network device.

use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::str::FromStr;

/// An Ethernet address of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
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
