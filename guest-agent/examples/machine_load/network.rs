//! Exchanges of a guest with its host.

use anyhow::{Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

/// Where datagrams are sent back.
const ECHO_PORT: u16 = 7777;
/// Where bytes are taken and dropped.
const SINK_PORT: u16 = 7778;
/// Bytes of a datagram.
const DATAGRAM: usize = 64;
/// Bytes that are handed to the connection at once.
const CHUNK: usize = 64 << 10;
/// After which a datagram is lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends datagrams back and takes bytes, until it is killed.
pub fn serve(address: &str) -> Result<()> {
    let echo = UdpSocket::bind((address, ECHO_PORT)).with_context(|| format!("port {ECHO_PORT}"))?;
    let sink = TcpListener::bind((address, SINK_PORT)).with_context(|| format!("port {SINK_PORT}"))?;
    thread::spawn(move || {
        for connection in sink.incoming().flatten() {
            thread::spawn(move || drop_all(connection));
        }
    });
    let mut datagram = [0; DATAGRAM];
    loop {
        let (length, from) = echo.recv_from(&mut datagram).context("echo")?;
        // a guest that is gone does not end the service of the next
        let _ = echo.send_to(&datagram[..length], from);
    }
}

fn drop_all(mut connection: TcpStream) {
    let mut bytes = vec![0; CHUNK];
    while connection.read(&mut bytes).is_ok_and(|read| read > 0) {}
}

/// Times datagrams to the host and back, and bytes to the host.
pub fn exchange(address: &str) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("socket")?;
    socket.connect((address, ECHO_PORT)).context("connect")?;
    socket.set_read_timeout(Some(PATIENCE)).context("timeout")?;
    let mut datagram = [0; DATAGRAM];
    super::time("network-round-trip", "ns", || {
        socket.send(&datagram)?;
        match socket.recv(&mut datagram) {
            // one that is lost counts as time only
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            received => Ok(received.map(|_| 1)?),
        }
    })?;
    let mut connection = TcpStream::connect((address, SINK_PORT)).context("connect")?;
    let chunk = vec![0x5a; CHUNK];
    super::time("network-send", "ns/MiB", || {
        (0..16).try_for_each(|_| connection.write_all(&chunk))?;
        Ok(1)
    })
}
