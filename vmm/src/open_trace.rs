//! `strata open`: shows a recording in Perfetto's viewer, which fetches it from here once.
//!
//! The viewer is a page at `https://ui.perfetto.dev` that runs in the user's browser: nothing is sent anywhere else. It
//! may fetch from this machine's loopback address only. Other users of this machine can reach that too, so that the
//! trace's address has a part that nobody can guess.

use crate::cli::OpenArgs;
use crate::export::{self, ExportCommandError};
use crate::http::{self, Head, Next};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use strata_recording::files::removed_on_signal::RemovedOnSignal;
use strata_recording::manifest::is_perfetto_file;
use thiserror::Error;
use trace_merge::moment::MomentError;
use uuid::Uuid;

const VIEWER: &str = "https://ui.perfetto.dev";
/// How long a request may take to come.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// How long a part of the answer may take to go.
const PART_LIMIT: Duration = Duration::from_secs(30);
/// Size of such a part, bytes.
const PART: usize = 256 << 10;

/// Why a recording is not shown.
#[derive(Debug, Error)]
pub enum OpenError {
    /// It cannot be exported.
    #[error(transparent)]
    Export(#[from] ExportCommandError),
    /// A moment is not in the recording.
    #[error(transparent)]
    Moment(#[from] MomentError),
    /// A part of a file was requested, or symbols for it.
    #[error(
        "{}: --from, --until and --kallsyms are for Strata's traces; another file is shown as it is", .path.display()
    )]
    Part { path: PathBuf },
    /// A file cannot be read or made.
    #[error("{}: cannot be used", .path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The port is taken.
    #[error(
        "port {port} of 127.0.0.1 is in use, by another `strata open` or by trace_processor: end that, or write a file \
         with `strata export` and open it in the viewer by hand; with another --port the viewer at {VIEWER} refuses to \
         fetch, one of your own may not"
    )]
    InUse { port: u16 },
    /// The port cannot be listened to.
    #[error("cannot listen to port {port} of 127.0.0.1")]
    Listen {
        port: u16,
        #[source]
        source: io::Error,
    },
}

/// Shows what `args` say; `notify` takes lines for the user. Returns once the viewer has it.
///
/// # Errors
/// What is wrong, and what to do.
pub fn run(args: &OpenArgs, notify: impl Fn(&str) + Sync) -> Result<(), OpenError> {
    // First of all, before work is done for nothing.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => OpenError::InUse { port: args.port },
        _ => OpenError::Listen { port: args.port, source },
    })?;
    let port = listener.local_addr().map_or(args.port, |address| address.port());
    let file_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| OpenError::File { path, source }
    };
    let (path, _removed) = if !is_perfetto_file(&args.trace) {
        let folder = tempfile::Builder::new().prefix("strata-open-").tempdir();
        let folder = folder.map_err(file_error(&std::env::temp_dir()))?;
        let guard = RemovedOnSignal::new(folder.path()).map_err(file_error(folder.path()))?;
        let path = folder.path().join("trace.pftrace");
        let part = args.part.of(&args.trace)?;
        export::write_perfetto(
            &export::open(&args.trace, part, &args.symbols, &notify)?,
            part,
            None,
            &path,
            false,
            &notify,
        )?;
        (path, Some((guard, folder)))
    } else if args.part.from.is_some() || args.part.to.is_some() || !args.symbols.kallsyms.is_empty() {
        return Err(OpenError::Part { path: args.trace.clone() });
    } else {
        (args.trace.clone(), None)
    };
    // Opened once: whoever asks gets this file, whatever happens to its name.
    let file = File::open(&path).map_err(file_error(&path))?;
    let length = file.metadata().map_err(file_error(&path))?.len();
    let name = format!("{}/{}.pftrace", Uuid::new_v4().simple(), file_name(&args.trace));
    let address = format!("{VIEWER}/#!/?url=http://127.0.0.1:{port}/{name}");
    notify(&format!("open {address}"));
    notify("waiting for the browser, up to Ctrl-C");
    if !args.no_browser {
        open_browser(&address);
    }
    serve(&listener, name, file, length).map_err(|source| OpenError::Listen { port, source })?;
    notify("the viewer has the trace");
    Ok(())
}

/// The name that the viewer shows: of letters that mean nothing in an address.
fn file_name(path: &Path) -> String {
    let name = path.file_stem().map_or_else(|| "trace".into(), |name| name.to_string_lossy());
    name.chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '_' })
        .collect()
}

/// Has the desktop open `address`, where there is one.
fn open_browser(address: &str) {
    let desktop = ["DISPLAY", "WAYLAND_DISPLAY"].into_iter().any(|name| std::env::var_os(name).is_some());
    if desktop {
        let mut browser = Command::new("xdg-open");
        // The address is on the terminal, too: without xdg-open it is opened by hand.
        let _ = browser.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    }
}

/// Answers requests, until one got all of `file`, which is called `name` here.
fn serve(listener: &TcpListener, name: String, file: File, length: u64) -> io::Result<()> {
    http::serve(listener, HEAD_LIMIT, move |stream, head| answer(stream, head, &name, &file, length))
}

/// Answers a request; the last one is for the file and got all of it.
fn answer(stream: &TcpStream, head: &Head, name: &str, file: &File, length: u64) -> io::Result<Next> {
    let is_file = head.path.strip_prefix('/') == Some(name);
    let allowed = format!("Access-Control-Allow-Origin: {VIEWER}\r\nCache-Control: no-store\r\nConnection: close\r\n");
    let write = |bytes: &[u8]| http::write_until(stream, bytes, Instant::now() + PART_LIMIT);
    let end = "Content-Length: 0\r\nConnection: close\r\n\r\n";
    match head.method.as_str() {
        // A page has made a name of its own mean this machine.
        _ if !head.is_for(&[]) => write(format!("HTTP/1.1 421 Misdirected Request\r\n{end}").as_bytes())?,
        "GET" if is_file => {
            let kind = "Content-Type: application/octet-stream";
            write(format!("HTTP/1.1 200 OK\r\n{allowed}{kind}\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
            // Others may read the file, too: each has a place of its own in it.
            let (mut part, mut sent) = (vec![0; PART], 0);
            while sent < length {
                let wanted = usize::try_from(length - sent).map_or(PART, |left| left.min(PART));
                let read = file.read_at(&mut part[..wanted], sent)?;
                if read == 0 {
                    return Ok(Next::Serve);
                }
                write(&part[..read])?;
                sent += read as u64;
            }
            return Ok(Next::End);
        }
        // Browsers ask first whether a page of the net may fetch from this machine.
        "OPTIONS" if is_file => {
            let methods = "Access-Control-Allow-Methods: GET\r\nAccess-Control-Allow-Private-Network: true";
            write(format!("HTTP/1.1 204 No Content\r\n{allowed}{methods}\r\n\r\n").as_bytes())?;
        }
        _ => write(format!("HTTP/1.1 404 Not Found\r\n{end}").as_bytes())?,
    }
    Ok(Next::Serve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{PartArgs, SymbolArgs};
    use std::io::{Read, Write};
    use std::net::SocketAddr;
    use std::thread;

    fn answer_to(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn args(trace: &Path, port: u16) -> OpenArgs {
        OpenArgs {
            trace: trace.into(),
            part: PartArgs::default(),
            symbols: SymbolArgs::default(),
            port,
            no_browser: true,
        }
    }

    #[test]
    fn file_is_served_once_to_the_viewer_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "a trace").unwrap();
        let file = File::open(&path).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();

        let server = thread::spawn(move || serve(&listener, "secret/file.pftrace".into(), file, 7));
        let refused = ["GET /file.pftrace HTTP/1.1", "POST /secret/file.pftrace HTTP/1.1", "nonsense"]
            .map(|request| answer_to(address, &format!("{request}\r\nHost: localhost:9001\r\n\r\n")));
        let elsewhere = ["\r\nHost: evil.example", ""]
            .map(|host| answer_to(address, &format!("GET /secret/file.pftrace HTTP/1.1{host}\r\n\r\n")));
        let allowed =
            answer_to(address, "OPTIONS /secret/file.pftrace HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: x\r\n\r\n");
        let served = answer_to(address, "GET /secret/file.pftrace HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        server.join().unwrap().unwrap();

        assert!(elsewhere.iter().all(|answer| answer.starts_with("HTTP/1.1 421 ")), "{elsewhere:?}");
        assert!(refused.iter().all(|answer| answer.starts_with("HTTP/1.1 404 ")), "{refused:?}");
        assert!(allowed.starts_with("HTTP/1.1 204 "), "{allowed}");
        for answer in [&allowed, &served] {
            assert!(answer.contains("\r\nAccess-Control-Allow-Origin: https://ui.perfetto.dev\r\n"), "{answer}");
        }
        assert!(served.starts_with("HTTP/1.1 200 OK\r\n") && served.ends_with("\r\n\r\na trace"), "{served}");
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn port_in_use_is_reported_with_the_way_out() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();

        let error = run(&args(Path::new("/nowhere"), port), |_| ()).unwrap_err();

        assert!(matches!(error, OpenError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("strata export"), "{error}");
    }

    #[test]
    fn what_is_no_trace_is_refused_as_reports_refuse_it() {
        let folder = tempfile::tempdir().unwrap();
        let refused = [None, Some(&b"PERFILE2...."[..]), Some(b""), Some(b"text")].map(|bytes| {
            let path = folder.path().join("file");
            bytes.into_iter().for_each(|bytes| std::fs::write(&path, bytes).unwrap());
            run(&args(&path, 0), |_| ()).unwrap_err().to_string()
        });

        let expected = ["no such trace", "a recording of perf", "a file; give the folder", "a file; give the folder"];
        assert!(refused.iter().zip(expected).all(|(refused, said)| refused.contains(said)), "{refused:?}");
    }

    #[test]
    fn part_of_a_file_of_perfettos_and_symbols_for_it_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // A packet of one field, its time.
        std::fs::write(&path, b"\x0a\x02\x40\x05").unwrap();
        let part = PartArgs { from: Some(Duration::from_secs(1).into()), to: None };

        let symbols = SymbolArgs { kallsyms: vec!["System.map".parse().unwrap()] };

        let refused = [OpenArgs { part, ..args(&path, 0) }, OpenArgs { symbols, ..args(&path, 0) }]
            .map(|args| run(&args, |_| ()).unwrap_err());

        assert!(refused.iter().all(|error| matches!(error, OpenError::Part { .. })), "{refused:?}");
    }

    #[test]
    fn names_hold_only_letters_that_mean_nothing_in_an_address() {
        assert_eq!(file_name(Path::new("/a/my trace&x=1.pftrace")), "my_trace_x_1");
    }
}
