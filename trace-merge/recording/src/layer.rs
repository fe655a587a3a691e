//! The layers of a recording, and the names that users read and type for them.

pub mod loss;

use crate::text::nearest::nearest;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Kind of a layer; the order is the one in which records of the same time are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerKind {
    /// The host's kernel.
    HostKernel,
    /// The virtual machine monitor.
    Vmm,
    /// The guest's kernel.
    GuestKernel,
    /// A process of the guest.
    GuestUser,
}

impl LayerKind {
    /// All kinds, in order.
    pub const ALL: [Self; 4] = [Self::HostKernel, Self::Vmm, Self::GuestKernel, Self::GuestUser];

    /// The name that users read and type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostKernel => "host-kernel",
            Self::Vmm => "vmm",
            Self::GuestKernel => "guest-kernel",
            Self::GuestUser => "guest-user",
        }
    }

    /// The short form that is understood in place of the name.
    #[must_use]
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::HostKernel => "host",
            Self::Vmm => "vmm",
            Self::GuestKernel => "guest",
            Self::GuestUser => "user",
        }
    }

    /// The layer with this name or short form.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| name == kind.name() || name == kind.short_name())
    }

    /// What a stream of this layer belongs to, in one word.
    #[must_use]
    pub const fn stream_of(self) -> &'static str {
        match self {
            Self::HostKernel => "cpu",
            Self::Vmm => "thread",
            Self::GuestKernel | Self::GuestUser => "vcpu",
        }
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A name that is not a layer's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("layers are host-kernel, vmm, guest-kernel and guest-user{}", suggestion(nearest))]
pub struct UnknownLayer {
    /// The nearest names, best first; may be empty.
    pub nearest: Vec<String>,
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; nearest: {}", nearest.join(", ")) }
}

impl FromStr for LayerKind {
    type Err = UnknownLayer;

    fn from_str(name: &str) -> Result<Self, UnknownLayer> {
        Self::from_name(name).ok_or_else(|| UnknownLayer { nearest: nearest(name, Self::ALL.map(Self::name)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_names_are_read_as_they_are_written() {
        assert_eq!(LayerKind::ALL.map(|kind| kind.name().parse()), LayerKind::ALL.map(Ok));
    }

    #[test]
    fn short_forms_are_understood() {
        assert_eq!(["host", "vmm", "guest", "user"].map(LayerKind::from_name), LayerKind::ALL.map(Some));
    }

    #[test]
    fn unknown_layer_is_answered_with_the_nearest_names() {
        let error = "guest-kernle".parse::<LayerKind>().unwrap_err().to_string();

        assert!(error.contains("nearest: guest-kernel"), "{error}");
    }
}
