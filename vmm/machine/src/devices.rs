//! Devices that are not virtio devices: the serial console and the ports for power.

pub(crate) mod power;
pub(crate) mod serial;
