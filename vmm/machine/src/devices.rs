//! Devices that are no virtio devices: the serial console and the ports for power.

pub(crate) mod power;
pub(crate) mod serial;
