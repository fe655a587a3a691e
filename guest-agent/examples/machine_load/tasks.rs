//! Work as guests do it: what a build does, what tasks that talk over the loopback network do, what a file server does.

use anyhow::{Context, Result, anyhow, ensure};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// Processes of a build that run at the same time.
const JOBS: usize = 2;
/// Bytes of a message over the loopback network.
const MESSAGE: usize = 1024;
/// Messages there and back in an operation.
const MESSAGES: u64 = 32;
/// Files of the server.
const FILES: u32 = 64;
/// Bytes of each.
const FILE_SIZE: usize = 32 << 10;

/// Times processes that read a file, compute something of it, and write and remove another.
pub fn build(folder: &Path) -> Result<()> {
    let source = folder.join("source");
    fs::write(&source, vec![0x5a; 256 << 10]).with_context(|| source.display().to_string())?;
    super::time("build", "ns/job", || {
        let jobs = (0..JOBS).map(|job| {
            let object = folder.join(format!("object-{job}"));
            let script = "busybox md5sum < \"$0\" > \"$1\" && busybox rm \"$1\"";
            Command::new("sh").args(["-c", script]).arg(&source).arg(object).spawn().context("cannot start sh")
        });
        for mut job in jobs.collect::<Result<Vec<_>>>()? {
            ensure!(job.wait()?.success(), "a job failed");
        }
        Ok(JOBS as u64)
    })?;
    Ok(fs::remove_file(&source)?)
}

/// Times messages to a thread and back over a connection of the loopback network.
pub fn loopback() -> Result<()> {
    up()?;
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
    let mut connection = TcpStream::connect(listener.local_addr()?).context("cannot connect")?;
    connection.set_nodelay(true)?;
    let (mut partner, _) = listener.accept()?;
    partner.set_nodelay(true)?;
    let partner = thread::spawn(move || {
        let mut message = [0; MESSAGE];
        while partner.read_exact(&mut message).is_ok() && partner.write_all(&message).is_ok() {}
    });
    let mut message = [0; MESSAGE];
    super::time("loopback", "ns/message", || {
        for _ in 0..MESSAGES {
            connection.write_all(&message)?;
            connection.read_exact(&mut message)?;
        }
        Ok(MESSAGES)
    })?;
    drop(connection);
    partner.join().map_err(|_| anyhow!("the partner panicked"))
}

/// Times files of `folder` that a client asks for by number over the loopback network, each opened, read and sent.
pub fn files(folder: &Path) -> Result<()> {
    up()?;
    for file in 0..FILES {
        let path = folder.join(format!("served-{file}"));
        fs::write(&path, vec![0x5a; FILE_SIZE]).with_context(|| path.display().to_string())?;
    }
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
    let mut client = TcpStream::connect(listener.local_addr()?).context("cannot connect")?;
    let (mut server, _) = listener.accept()?;
    let served = folder.to_owned();
    let server = thread::spawn(move || -> Result<()> {
        let mut number = [0; 4];
        let mut content = Vec::new();
        while server.read_exact(&mut number).is_ok() {
            content.clear();
            File::open(served.join(format!("served-{}", u32::from_le_bytes(number))))?.read_to_end(&mut content)?;
            server.write_all(&content)?;
        }
        Ok(())
    });
    let mut content = vec![0; FILE_SIZE];
    let mut next: u32 = 0;
    super::time("files", "ns/file", || {
        client.write_all(&(next % FILES).to_le_bytes())?;
        client.read_exact(&mut content)?;
        next = next.wrapping_add(1);
        Ok(1)
    })?;
    drop(client);
    server.join().map_err(|_| anyhow!("the server panicked"))?
}

/// The loopback network is up from now on.
fn up() -> Result<()> {
    let mut ip = Command::new("ip");
    ip.args(["link", "set", "lo", "up"]).stdout(Stdio::null());
    ensure!(ip.status().context("cannot run ip")?.success(), "the loopback network cannot be brought up");
    Ok(())
}
