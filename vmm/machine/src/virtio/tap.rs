//! A tap: a network device of the host's kernel whose other end is the guest's.
#![allow(unsafe_code)] // The kernel's interface to taps is ioctl.

use super::link::{HEADER, Link};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use vmm_sys_util::ioctl::{ioctl_with_ref, ioctl_with_val};

/// Where taps are opened.
const TUN_DEVICE: &str = "/dev/net/tun";
/// What ends a tap before the guest.
const REMOVED: &str = "its tap was removed";

/// Why a tap cannot be had. Nothing was changed on the host.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The name is not one of a network device.
    #[error("'{0}' is not a name of a tap: give 1 to 15 characters without '/', '%' and spaces")]
    Name(String),
    /// There is no such device.
    #[error("there is no tap '{0}': make it with `ip tuntap add {0} mode tap user USER` and `ip link set {0} up`")]
    Missing(String),
    /// The kernel has no taps.
    #[error("cannot open {TUN_DEVICE}: load the host's module tun with `modprobe tun`")]
    NoDriver(#[source] io::Error),
    /// This user may not have it.
    #[error(
        "no permission for the tap '{0}': make it this user's with `ip tuntap add {0} mode tap user USER`, or be root"
    )]
    Permission(String),
    /// Another program has it.
    #[error("the tap '{0}' is in use: end the program that has it, or give another tap")]
    Busy(String),
    /// The device is not a tap, or one of several queues.
    #[error("the network device '{0}' is not a tap of one queue: make one with `ip tuntap add NAME mode tap`")]
    NotATap(String),
    /// The host refuses something else.
    #[error("cannot use the tap '{name}'")]
    Refused {
        /// Name of the tap.
        name: String,
        #[source]
        source: io::Error,
    },
}

/// A tap that is there, opened. It stays when it is closed.
#[derive(Debug)]
pub struct Tap {
    file: File,
    is_removed: bool,
}

impl Tap {
    /// Opens the tap called `name`, which the guest then has alone. None is made.
    ///
    /// # Errors
    /// There is no such tap, or it cannot be had.
    pub fn open(name: &str) -> Result<Self, TapError> {
        let fits = (1..libc::IFNAMSIZ).contains(&name.len());
        let mut bytes = name.bytes();
        if !fits || name == "." || name == ".." || bytes.any(|byte| !byte.is_ascii_graphic() || b"/%:".contains(&byte))
        {
            return Err(TapError::Name(name.into()));
        }
        let refused = |source: io::Error| TapError::Refused { name: name.into(), source };
        // Whoever may make taps makes one by asking for one that is not there.
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(|error| refused(error.into()))?;
        netdevice::name_to_index(&socket, name).map_err(|_| TapError::Missing(name.into()))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(TUN_DEVICE).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => TapError::Permission(name.into()),
            _ => TapError::NoDriver(source),
        })?;
        attach(&file, name).map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => TapError::Permission(name.into()),
            Some(libc::EBUSY) => TapError::Busy(name.into()),
            Some(libc::EINVAL) => TapError::NotATap(name.into()),
            _ => refused(source),
        })?;
        set_headers(&file).map_err(refused)?;
        Ok(Self { file, is_removed: false })
    }
}

impl Tap {
    /// The descriptor, for the host's kernel to move the packets itself.
    #[must_use]
    pub fn into_file(self) -> File {
        self.file
    }

    /// `result` of moving a packet, which tells whether the tap is there.
    fn noted(&mut self, result: io::Result<usize>) -> io::Result<usize> {
        // The only answer of a descriptor whose device is gone. A device that is down has another one.
        self.is_removed |= result.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::BADFD));
        result
    }
}

/// Makes `file` the tap called `name`, with a header before each frame.
fn attach(file: &File, name: &str) -> io::Result<()> {
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    // SAFETY: the structure is plain numbers, and zeros are valid ones.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(flags).map_err(io::Error::other)?;
    // SAFETY: the kernel reads and writes the request, an `ifreq`, whose name is shorter than its field and so ends
    // with a NUL.
    answer(unsafe { ioctl_with_ref(file, libc::TUNSETIFF, &request) })
}

/// Has headers of virtio 1.x, and whole packets with their checksums from the host: nothing is left to the guest.
fn set_headers(file: &File) -> io::Result<()> {
    let size = i32::try_from(HEADER).map_err(io::Error::other)?;
    // SAFETY: the kernel reads an `int`.
    answer(unsafe { ioctl_with_ref(file, libc::TUNSETVNETHDRSZ, &size) })?;
    // SAFETY: the argument is a number.
    answer(unsafe { ioctl_with_val(file, libc::TUNSETOFFLOAD, 0) })
}

fn answer(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Link for Tap {
    fn offloads(&self) -> bool {
        true
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        // A tap takes a packet in one piece or not at all.
        let sent = self.file.write(packet);
        self.noted(sent).map(drop)
    }

    fn receive(&mut self, packet: &mut [u8]) -> io::Result<usize> {
        let received = self.file.read(packet);
        self.noted(received)
    }

    fn end(&self) -> Option<&'static str> {
        self.is_removed.then_some(REMOVED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_would_complete_or_refuse_are_reported() {
        let refused = ["", "a/b", "tap%d", "a name", "sixteen-letters-", "a:1", ".."].map(|name| Tap::open(name).err());

        assert!(refused.iter().all(|error| matches!(error, Some(TapError::Name(_)))), "{refused:?}");
    }

    #[test]
    fn tap_that_is_missing_is_not_made() {
        let error = Tap::open("strata-none").unwrap_err().to_string();

        assert!(error.contains("there is no tap 'strata-none'") && error.contains("ip tuntap add"), "{error}");
        assert!(!std::path::Path::new("/sys/class/net/strata-none").exists());
    }

    #[test]
    fn tap_that_is_removed_has_ended_and_one_that_is_down_or_empty_has_not() {
        let mut tap = Tap { file: tempfile::tempfile().unwrap(), is_removed: false };

        let ends = [Errno::AGAIN, Errno::IO, Errno::BADFD].map(|errno| {
            let result = tap.noted(Err(errno.into()));
            (result.is_err(), tap.end())
        });

        assert_eq!(ends, [(true, None), (true, None), (true, Some(REMOVED))]);
    }

    #[test]
    fn device_that_is_not_a_tap_is_refused() {
        let error = Tap::open("lo").unwrap_err();

        let by_kernel = matches!(error, TapError::NotATap(_));
        assert!(by_kernel || matches!(error, TapError::NoDriver(_) | TapError::Permission(_)), "{error:?}");
    }
}
