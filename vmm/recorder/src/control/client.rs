//! The command line's end of the control socket: finds a VM and asks it.

use super::directory::DirectoryError;
use super::found_vm::{self, FoundVm, Owner, RuntimeFolder};
use super::protocol::{Answer, MAX_ANSWER, Request};
use super::socket::ControlSocket;
use super::socket_wait::read_until;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use strata_jail::user::User;
use strata_recording::text::terminal::foreign::Foreign;
use thiserror::Error;

/// How long a VM may take to answer: writing a snapshot takes its time.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);

/// Why a VM gave no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The folders of VMs cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// No such VM runs.
    #[error("no VM called '{0}' is running; `strata ps` lists those that are")]
    NoSuchVm(String),
    /// The VM's process died.
    #[error("the process of VM '{name}' died; get its trace with `strata recover {} -o DIR`", region.path_word())]
    Dead {
        /// What was requested.
        name: String,
        /// File of its region.
        region: Foreign<PathBuf>,
    },
    /// Several VMs of that name run.
    #[error("several VMs are called '{name}'; give one of {}", .choices.join(", "))]
    Ambiguous {
        /// What was requested.
        name: String,
        /// What names one of them each: its process, or user and process.
        choices: Vec<String>,
    },
    /// No such user.
    #[error("no user '{0}' is known here; `strata ps` lists VMs of others as USER/NAME")]
    NoSuchUser(String),
    /// The VM does not answer.
    #[error("the VM does not answer on '{path}'; perhaps it is ending")]
    NoAnswer {
        /// The socket.
        path: Foreign<PathBuf>,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Its answer is not of this protocol.
    #[error("what answers on '{path}' is not a VM of this version of strata: {why}")]
    NotAnAnswer {
        /// The socket.
        path: Foreign<PathBuf>,
        /// What is wrong with the answer, which it may quote.
        why: Foreign<String>,
    },
    /// The VM refused the request.
    #[error("{0}")]
    Refused(Foreign<String>),
}

impl ClientError {
    /// Whether nobody serves the VM's socket any more: it has ended, or is completing its recording.
    #[must_use]
    pub fn is_of_ended_vm(&self) -> bool {
        match self {
            Self::NoSuchVm(_) => true,
            Self::NoAnswer { source, .. } => matches!(
                source.kind(),
                ErrorKind::NotFound
                    | ErrorKind::ConnectionRefused
                    | ErrorKind::ConnectionReset
                    | ErrorKind::BrokenPipe
                    | ErrorKind::UnexpectedEof
            ),
            _ => false,
        }
    }
}

/// The VM that `wanted` names, by name or process id, among those in the folders `runtimes`: this user's if one is, else
/// another user's. `USER/NAME` is that user's.
///
/// # Errors
/// When there is none, or more than one.
pub fn find(runtimes: &[RuntimeFolder], wanted: &str) -> Result<FoundVm, ClientError> {
    let found = found_vm::list_all(runtimes)?;
    let Some((user, name)) = wanted.split_once('/') else { return choose(found, wanted) };
    let uid = User::number_of(user).ok_or_else(|| ClientError::NoSuchUser(user.into()))?;
    let of_user = found.into_iter().filter(|found| found.owner.uid() == uid).collect();
    choose(of_user, name).map_err(|error| match error {
        ClientError::NoSuchVm(_) => ClientError::NoSuchVm(wanted.into()),
        other => other,
    })
}

fn choose(found: Vec<FoundVm>, wanted: &str) -> Result<FoundVm, ClientError> {
    let pid: Option<u32> = wanted.parse().ok();
    let named = found.into_iter().filter(|found| Some(found.vm.pid) == pid || found.vm.name == wanted);
    let (others, own): (Vec<_>, Vec<_>) = named.partition(|found| matches!(found.owner, Owner::Other(_)));
    // What another user calls a VM has no part in which of one's own is meant, not even of one that died.
    one_of(own, wanted).and_then(|own| match own {
        Some(own) => Ok(own),
        None => one_of(others, wanted)?.ok_or_else(|| ClientError::NoSuchVm(wanted.into())),
    })
}

/// The VM of `named` that runs; `None` where there is nothing of any.
fn one_of(named: Vec<FoundVm>, wanted: &str) -> Result<Option<FoundVm>, ClientError> {
    let (mut alive, dead): (Vec<_>, Vec<_>) = named.into_iter().partition(|found| found.alive);
    match (alive.len(), dead.iter().find_map(FoundVm::region)) {
        (0, None) => Ok(None),
        (0, Some(region)) => Err(ClientError::Dead { name: wanted.into(), region }),
        (1, _) => Ok(alive.pop()),
        _ => Err(ClientError::Ambiguous { name: wanted.into(), choices: alive.iter().map(address).collect() }),
    }
}

/// What names `found` and no other.
#[must_use]
pub fn address(found: &FoundVm) -> String {
    let pid = found.vm.pid;
    found.owner.other_user().map_or_else(|| pid.to_string(), |user| format!("{user}/{pid}"))
}

/// Asks the VM that serves `socket`, and waits for its answer.
///
/// # Errors
/// When it does not answer, or says no.
pub fn call(socket: &ControlSocket, request: &Request) -> Result<Answer, ClientError> {
    call_until(socket, request, Instant::now() + ANSWER_LIMIT)
}

/// Asks the VM that serves `socket`, and waits for its whole answer up to `deadline`.
///
/// # Errors
/// When it does not answer by then, or says no.
pub fn call_until(socket: &ControlSocket, request: &Request, deadline: Instant) -> Result<Answer, ClientError> {
    let request = || -> io::Result<Vec<u8>> {
        let mut stream = socket.connect(deadline)?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        // Shorter than what a socket takes at once.
        stream.write_all(&text)?;
        let is_whole = |line: &[u8]| line.ends_with(b"\n");
        let line = read_until(&stream, MAX_ANSWER, deadline, is_whole)?;
        // One that ends meanwhile hangs up.
        if is_whole(&line) { Ok(line) } else { Err(ErrorKind::UnexpectedEof.into()) }
    };
    let path = || socket.path().clone();
    let line = request().map_err(|source| ClientError::NoAnswer { path: path(), source })?;
    match answer_of(&line) {
        Ok(Answer::Refused { message }) => Err(ClientError::Refused(message)),
        Ok(answer) => Ok(answer),
        Err(why) => Err(ClientError::NotAnAnswer { path: path(), why }),
    }
}

/// The answer that `line` is.
///
/// # Errors
/// With what is wrong with it when it is none.
pub fn answer_of(line: &[u8]) -> Result<Answer, Foreign<String>> {
    serde_json::from_slice(line).map_err(|error| error.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::directory::tests::description;
    use crate::control::directory::{VmDescription, VmDirectory};
    use crate::control::peer::Peer;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
    use std::io::BufRead;
    use std::os::unix::net::UnixStream;

    fn found(name: &str, pid: u32, alive: bool) -> FoundVm {
        let vm = VmDescription { pid, ..description(name) };
        FoundVm { path: "/nonexistent".into(), vm, alive, owner: Owner::Own }
    }

    fn of_other(name: &str, pid: u32, uid: u32) -> FoundVm {
        FoundVm { owner: Owner::Other(uid), ..found(name, pid, true) }
    }

    #[test]
    fn vm_is_found_by_name_and_by_process() {
        let vms = || vec![found("a", 1, true), found("b", 2, true)];

        assert_eq!(choose(vms(), "b").unwrap().vm.pid, 2);
        assert_eq!(choose(vms(), "1").unwrap().vm.name, "a");
        assert!(choose(vms(), "c").unwrap_err().to_string().contains("strata ps"));
    }

    #[test]
    fn running_vm_is_preferred_to_a_dead_one_of_its_name() {
        assert_eq!(choose(vec![found("a", 1, false), found("a", 2, true)], "a").unwrap().vm.pid, 2);
    }

    #[test]
    fn several_of_a_name_are_distinguished_by_process() {
        let error = choose(vec![found("a", 1, true), found("a", 2, true)], "a").unwrap_err();

        assert!(error.to_string().contains("1, 2"), "{error}");
    }

    #[test]
    fn own_vm_is_meant_whatever_other_users_call_theirs() {
        let vms = || vec![found("web", 1, true), of_other("web", 2, 4_000_000_000), of_other("1", 1, 4_000_000_000)];

        assert_eq!(choose(vms(), "web").unwrap().owner, Owner::Own);
        assert_eq!(choose(vms(), "1").unwrap().owner, Owner::Own);
        assert_eq!(choose(vms(), "2").unwrap().owner, Owner::Other(4_000_000_000));
    }

    #[test]
    fn vms_of_other_users_are_distinguished_by_user_and_process() {
        let vms = vec![of_other("web", 2, 4_000_000_000), of_other("web", 2, 4_000_000_001)];

        let error = choose(vms, "web").unwrap_err();

        assert!(error.to_string().ends_with("give one of 4000000000/2, 4000000001/2"), "{error}");
    }

    #[test]
    fn user_before_the_name_chooses_the_vms_of_that_user() {
        let runtime = crate::control::directory::tests::runtime();
        let _directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
        let (folders, own) = ([RuntimeFolder::named(runtime.path())], rustix::process::geteuid().as_raw());

        assert_eq!(find(&folders, &format!("{own}/a")).unwrap().vm.name, "a");
        assert!(matches!(find(&folders, &format!("{}/a", own + 1)), Err(ClientError::NoSuchVm(_))));
        assert!(matches!(find(&folders, "nobody-at-all/a"), Err(ClientError::NoSuchUser(_))));
    }

    /// A socket, and what `serve` does with its first client once that has asked.
    fn served(serve: impl FnOnce(UnixStream) + Send + 'static) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("control");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            // One that hangs up before would leave the client nothing to write to.
            io::BufReader::new(&client).read_line(&mut String::new()).unwrap();
            serve(client);
        });
        (folder, path)
    }

    #[test]
    fn answer_that_drips_has_one_deadline() {
        let drip = |mut client: UnixStream| {
            while client.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let (_folder, path) = served(drip);
        let deadline = Instant::now() + Duration::from_millis(100);

        let error = call_until(&ControlSocket::of_this_user(path), &Request::Live, deadline).unwrap_err();

        let has_ended = error.is_of_ended_vm();
        let ClientError::NoAnswer { source, .. } = error else { panic!("{error}") };
        assert_eq!((source.kind(), has_ended), (io::ErrorKind::TimedOut, false));
    }

    #[test]
    fn answer_without_an_end_is_cut_off() {
        let (_folder, path) = served(|mut client| while client.write_all(&[b' '; 4096]).is_ok() {});

        let error = call(&ControlSocket::of_this_user(path), &Request::Live).unwrap_err();

        let ClientError::NoAnswer { source, .. } = error else { panic!("{error}") };
        assert!(source.to_string().contains(&format!("{MAX_ANSWER} bytes")), "{source}");
    }

    #[test]
    fn vm_that_ends_while_it_is_asked_gives_no_answer() {
        let (_folder, hangs_up) = served(drop);
        let (_second, breaks_off) = served(|mut client| drop(client.write_all(b"{\"answer\":")));
        let paths = [hangs_up, breaks_off, "/nonexistent/control".into()];

        let errors = paths.map(|path| call(&ControlSocket::of_this_user(path), &Request::Live).unwrap_err());

        assert!(errors.iter().all(|error| matches!(error, ClientError::NoAnswer { .. })), "{errors:?}");
        assert!(errors.iter().all(ClientError::is_of_ended_vm), "{errors:?}");
    }

    #[test]
    fn texts_of_another_users_answer_do_not_act_where_an_error_quotes_them() {
        let hostile = "\x1b[2Jdone\nstrata: all is well\u{202e}";
        let shown = "\\u{1b}[2Jdone\\nstrata: all is well\\u{202e}";
        let request = |answer: serde_json::Value| {
            let (_folder, path) = served(move |mut client| drop(writeln!(client, "{answer}")));
            call(&ControlSocket::of_this_user(path), &Request::Live).unwrap_err().to_string()
        };

        let refused = request(serde_json::json!({"answer": "refused", "message": hostile}));
        let unknown = request(serde_json::json!({"answer": hostile}));

        assert_eq!(refused, shown);
        assert!(unknown.contains(shown) && !unknown.contains(['\x1b', '\n', '\u{202e}']), "{unknown}");
    }

    #[test]
    fn dead_vm_of_another_user_is_named_by_a_command_that_can_be_copied() {
        let region = Foreign::from("/run/user/1/strata/x\x1b; touch pwned\n#/region");

        let error = ClientError::Dead { name: "web".into(), region }.to_string();

        assert!(
            error.ends_with(r"`strata recover $'/run/user/1/strata/x\x1b; touch pwned\x0a#/region' -o DIR`"),
            "{error}"
        );
    }

    #[test]
    fn socket_that_accepts_nobody_has_the_same_deadline() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("control");
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _first = UnixStream::connect(&path).unwrap();

        let deadline = Instant::now() + Duration::from_millis(100);
        let error = call_until(&ControlSocket::of_this_user(path), &Request::Live, deadline).unwrap_err();

        assert!(matches!(error, ClientError::NoAnswer { .. }), "{error}");
    }

    #[test]
    fn socket_that_another_process_serves_gets_no_request() {
        let (_folder, path) = served(|mut client| drop(client.write_all(b"{\"answer\":\"done\",\"message\":\"\"}\n")));
        let this = Peer { pid: std::process::id(), uid: rustix::process::geteuid().as_raw() };
        let socket = |peer| ControlSocket::of_process(path.clone(), peer);

        let other = call(&socket(Peer { pid: this.pid + 1, ..this }), &Request::Live).unwrap_err();

        let ClientError::NoAnswer { source, .. } = other else { panic!("{other}") };
        assert!(source.to_string().contains("another process than"), "{source}");
    }

    #[test]
    fn dead_vm_is_to_be_recovered() {
        let runtime = crate::control::directory::tests::runtime();
        let mut directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
        directory.create_region().unwrap();
        directory.keep();
        drop(directory);

        let error = find(&[RuntimeFolder::named(runtime.path())], "a").unwrap_err();

        assert!(error.to_string().contains("strata recover"), "{error}");
    }
}
