//! Names of block devices.

/// Bits of a kernel's `dev_t` that are its minor number.
const MINOR_BITS: u32 = 20;

/// The minor number of the `dev_t` that a kernel recorded.
#[must_use]
pub const fn minor(device: u64) -> u64 {
    device & ((1 << MINOR_BITS) - 1)
}

/// `MAJOR:MINOR` of the `dev_t` that a kernel recorded, as `lsblk` prints them and sysfs calls them (`/sys/dev/block`).
#[must_use]
pub fn name(device: u64) -> String {
    format!("{}:{}", device >> MINOR_BITS, minor(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_a_major_and_a_minor_number() {
        assert_eq!([0x0fe0_0010, 0x0080_0001].map(name), ["254:16", "8:1"]);
    }
}
