//! What is asked of the small HTTP servers of `strata open` and `strata metrics`: the head of a request.

use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;
use std::time::Duration;

/// Longest head that is read, bytes.
const LONGEST_HEAD: u64 = 16 << 10;

/// The first line of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLine {
    /// `GET`, for instance.
    pub method: String,
    /// From the `/` on.
    pub path: String,
}

/// Reads the head of a request from `stream`. From here on a part of it may take `patience` to come, and a part of the
/// answer to go.
///
/// # Errors
/// When the stream fails, or nothing comes in time.
pub fn read_head(stream: &TcpStream, patience: Duration) -> io::Result<RequestLine> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut head = BufReader::new(stream.take(LONGEST_HEAD));
    let mut request = String::new();
    head.read_line(&mut request)?;
    // The rest of the head says nothing that matters, but has to be read before the connection is closed.
    let mut line = String::new();
    while head.read_line(&mut line)? > 2 {
        line.clear();
    }
    let mut words = request.split_whitespace().map(String::from);
    Ok(RequestLine { method: words.next().unwrap_or_default(), path: words.next().unwrap_or_default() })
}
