//! Both sides of connections between a guest and its host over a socket device (virtio-vsock).
//!
//! In the guest: `sockets echo PORT` waits for one connection to PORT and gives back what comes; `sockets send PORT`
//! connects to PORT of the host and sends its standard input. On the host: `sockets call SOCKET PORT` connects to the
//! guest's PORT by the VM's socket, sends its standard input and writes the answer to its standard output; `sockets serve
//! SOCKET` waits for one connection and writes what comes to its standard output.
#![allow(unsafe_code)] // Addresses of such sockets are given to the kernel as they are.

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{AddressFamily, SocketType, accept, listen, socket};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// The host's address.
const HOST: u32 = 2;
/// Every address of this machine.
const ANY: u32 = u32::MAX;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["echo", port] => echo(port.parse()?),
        ["send", port] => send(port.parse()?),
        ["call", path, port] => call(path, port),
        ["serve", path] => serve(path),
        _ => bail!("sockets echo PORT | send PORT | call SOCKET PORT | serve SOCKET"),
    }
}

fn echo(port: u32) -> Result<()> {
    let listener = guest_socket(libc::bind, ANY, port).context("cannot have the port")?;
    listen(&listener, 1)?;
    println!("sockets: port {port} is open");
    let stream = File::from(accept(&listener)?);
    let bytes = io::copy(&mut &stream, &mut &stream)?;
    println!("sockets: gave {bytes} bytes back");
    Ok(())
}

fn send(port: u32) -> Result<()> {
    let stream = File::from(guest_socket(libc::connect, HOST, port).context("cannot connect")?);
    let bytes = io::copy(&mut io::stdin(), &mut &stream)?;
    println!("sockets: sent {bytes} bytes");
    Ok(())
}

fn call(path: &str, port: &str) -> Result<()> {
    let mut stream = UnixStream::connect(path).context("cannot connect")?;
    writeln!(stream, "CONNECT {port}")?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut answer = String::new();
    reader.read_line(&mut answer)?;
    ensure!(answer.starts_with("OK "), "the guest has no port {port}");
    // The answer is read meanwhile: both are longer than what buffers hold.
    let sender = std::thread::spawn(move || -> io::Result<()> {
        io::copy(&mut io::stdin(), &mut stream)?;
        stream.shutdown(std::net::Shutdown::Write)
    });
    io::copy(&mut reader, &mut io::stdout())?;
    sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?.context("cannot send")
}

fn serve(path: &str) -> Result<()> {
    let (mut stream, _) = UnixListener::bind(path)?.accept()?;
    io::copy(&mut stream, &mut io::stdout())?;
    Ok(())
}

/// A socket that `does` something with an address: `bind` or `connect`.
fn guest_socket(
    does: unsafe extern "C" fn(i32, *const libc::sockaddr, libc::socklen_t) -> i32,
    cid: u32,
    port: u32,
) -> Result<OwnedFd> {
    let socket = socket(AddressFamily::VSOCK, SocketType::STREAM, None)?;
    // SAFETY: the structure is plain numbers, and zeros are valid ones.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::sa_family_t::try_from(libc::AF_VSOCK)?;
    (address.svm_cid, address.svm_port) = (cid, port);
    let size = libc::socklen_t::try_from(size_of_val(&address))?;
    // SAFETY: the kernel reads an address of that size.
    let done = unsafe { does(socket.as_raw_fd(), (&raw const address).cast(), size) };
    ensure!(done == 0, io::Error::last_os_error());
    Ok(socket)
}
