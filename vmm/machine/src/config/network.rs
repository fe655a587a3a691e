//! Network devices as a machine is given them.

use crate::virtio::link::Link;
use crate::virtio::mac_address::MacAddress;
use crate::virtio::net::NetLimits;
use crate::virtio::passt::{Passt, PasstError};
use crate::virtio::tap::{Tap, TapError};
use crate::virtio::vhost_net;
use crate::virtio::vhost_net::{KernelMover, VhostError};
use std::path::PathBuf;
use vm_memory::GuestMemoryMmap;

/// What carries the frames on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkConfig {
    /// The tap of this name, which is there.
    Tap(String),
    /// The passt that listens at this socket, or one that is started for the guest.
    Passt(Option<PathBuf>),
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub(crate) fn open(&self, memory: &GuestMemoryMmap) -> Result<NetBackend, LinkError> {
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
