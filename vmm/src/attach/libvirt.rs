//! The process of a domain that libvirt runs with QEMU.
//!
//! While a domain runs, libvirt keeps two files of its name: `NAME.pid` has the number of its process, and `NAME.xml`
//! describes it, with its number and UUID. They lie in `/run/libvirt/qemu` for domains of the system, in
//! `$XDG_RUNTIME_DIR/libvirt/qemu/run` for those of a user's session. Of sessions
//! only that of the user who called sudo is looked at, or root's own: what other users write into their folders is not to
//! choose what root records.

use roxmltree::Document;
use rustix::process::geteuid;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use strata_jail::user::{User, UserError};
use strata_recording::text::nearest::nearest;
use strata_recording::text::terminal::foreign::Foreign;
use strata_recording::text::terminal::{shell_option, shell_word};
use thiserror::Error;

/// Where libvirt's daemon for the system has the files.
const OF_SYSTEM: &str = "/run/libvirt/qemu";
/// Where a user's session has them, below the user's folder.
const OF_SESSION: &str = "libvirt/qemu/run";
/// What has a folder for each user that is logged in, by number.
const USERS: &str = "/run/user";
/// Most bytes of a domain's description that are read: libvirt's have some ten thousand.
const MAX_DESCRIPTION: u64 = 1 << 20;

/// Why a domain has no process.
#[derive(Debug, Error)]
pub enum DomainError {
    /// Others than root do not see libvirt's files.
    #[error(
        "finding a domain's process needs root, as attaching does: sudo strata attach {} …",
        shell_option("--libvirt", domain)
    )]
    NotRoot { domain: String },
    /// It is not known who called sudo.
    #[error(transparent)]
    User(#[from] UserError),
    /// No domain runs.
    #[error(
        "libvirt runs no domain here; start it (virsh start {}), or give the number of the VM's process",
        shell_word(domain)
    )]
    NoneRuns { domain: String },
    /// That domain does not run.
    #[error("libvirt runs no domain '{domain}'; it runs {}", listed(running))]
    Unknown {
        domain: String,
        /// The nearest names of those that run, or all of them.
        running: Vec<Foreign<String>>,
    },
    /// The system and the user run a domain of that name.
    #[error("several domains '{domain}' run here, in the processes {}; give one of them", .processes.iter().map(u32::to_string).collect::<Vec<_>>().join(" and "))]
    Several {
        domain: String,
        /// The processes of all of them.
        processes: Vec<u32>,
    },
}

/// A domain that runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Domain {
    pub name: Foreign<String>,
    /// PID of its VMM.
    pub process: u32,
    /// Its number and UUID, where its description says them.
    identity: Option<(String, String)>,
}

impl Domain {
    /// Whether it has the number or the UUID `wanted`.
    fn is_identified_by(&self, wanted: &str) -> bool {
        self.identity.as_ref().is_some_and(|(id, uuid)| id == wanted || uuid.eq_ignore_ascii_case(wanted))
    }
}

/// The running domain with the name, number or UUID `wanted`, of the system or of the user who called sudo.
///
/// # Errors
///
/// No such domain runs, several do, or this user may not know.
pub fn domain(wanted: &str) -> Result<Domain, DomainError> {
    if !geteuid().is_root() {
        return Err(DomainError::NotRoot { domain: wanted.into() });
    }
    find(&folders()?, wanted)
}

/// The domains that run here as far as root can see.
#[must_use]
pub fn running() -> Vec<Domain> {
    let folders = if geteuid().is_root() { folders().unwrap_or_default() } else { [].into() };
    folders.iter().flat_map(|folder| domains(folder)).collect()
}

fn listed(names: &[Foreign<String>]) -> String {
    names.iter().map(Foreign::to_string).collect::<Vec<_>>().join(", ")
}

/// libvirt's folders: of the system, and of the user who called sudo.
fn folders() -> Result<Vec<PathBuf>, UserError> {
    let user = User::choose(None)?.map_or(0, |user| user.uid);
    Ok(vec![OF_SYSTEM.into(), Path::new(USERS).join(user.to_string()).join(OF_SESSION)])
}

/// The domain `wanted` in libvirt's folders. A name comes before a number or a UUID.
fn find(folders: &[PathBuf], wanted: &str) -> Result<Domain, DomainError> {
    let running: Vec<Domain> = folders.iter().flat_map(|folder| domains(folder)).collect();
    let named: Vec<&Domain> = running.iter().filter(|domain| domain.name == *wanted).collect();
    let identified = || running.iter().filter(|domain| domain.is_identified_by(wanted)).collect();
    let found = if named.is_empty() { identified() } else { named };
    let domain = wanted.to_owned();
    match found[..] {
        [found] => Ok(found.clone()),
        [_, ..] => {
            let processes = found.iter().map(|domain| domain.process).collect();
            Err(DomainError::Several { domain, processes })
        }
        [] if running.is_empty() => Err(DomainError::NoneRuns { domain }),
        [] => {
            let names = || running.iter().map(|domain| domain.name.raw().as_str());
            let near = nearest(wanted, names());
            let running = if near.is_empty() { names().map(str::to_owned).collect() } else { near };
            Err(DomainError::Unknown { domain, running: running.into_iter().map(Foreign::from).collect() })
        }
    }
}

/// The domains that run according to `folder`, in order of their names.
fn domains(folder: &Path) -> Vec<Domain> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let domain = |entry: fs::DirEntry| {
        // "driver.pid" is the daemon's own
        let name = entry.file_name().to_str()?.strip_suffix(".pid").filter(|name| *name != "driver")?.to_owned();
        let process = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
        let identity = identity(&folder.join(format!("{name}.xml")));
        Some(Domain { name: name.into(), process, identity })
    };
    let mut domains: Vec<_> = entries.filter_map(domain).collect();
    domains.sort_unstable();
    domains
}

/// Number and UUID in the description of a domain in `path`; `None` where it says none.
fn identity(path: &Path) -> Option<(String, String)> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_DESCRIPTION).read_to_string(&mut text).ok()?;
    let document = Document::parse(&text).ok()?;
    let domain = document.root_element().children().find(|node| node.has_tag_name("domain"))?;
    let uuid = domain.children().find(|node| node.has_tag_name("uuid"))?.text()?.trim();
    Some((domain.attribute("id")?.into(), uuid.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A folder as libvirt's, with these files.
    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = TempDir::new().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        folder
    }

    fn find_in(folders: &[&TempDir], domain: &str) -> Result<u32, String> {
        let folders: Vec<PathBuf> = folders.iter().map(|folder| folder.path().to_owned()).collect();
        find(&folders, domain).map(|domain| domain.process).map_err(|error| error.to_string())
    }

    #[test]
    fn domain_is_found_by_its_name() {
        let system =
            folder(&[("web.pid", "4242"), ("db.1.pid", "77\n"), ("web.xml", "<domstatus/>"), ("driver.pid", "9")]);

        assert_eq!(find_in(&[&system], "web"), Ok(4242));
        assert_eq!(find_in(&[&system], "db.1"), Ok(77));
        assert!(find_in(&[&system], "driver").is_err());
    }

    /// What libvirt writes about a domain that runs, in short.
    fn description(id: &str, name: &str, uuid: &str) -> String {
        format!(
            "<!--\nWARNING: THIS IS AN AUTO-GENERATED FILE.\n-->\n<domstatus state='running' reason='booted' pid='42'>\n  \
             <taint flag='high-privileges'/>\n  <monitor path='/var/lib/libvirt/qemu/domain-{id}/monitor.sock'/>\n  \
             <domain type='kvm' id='{id}'>\n    <name>{name}</name>\n    <uuid>{uuid}</uuid>\n  </domain>\n</domstatus>\n"
        )
    }

    #[test]
    fn domain_is_found_by_its_number_and_uuid_too_and_by_its_name_first() {
        let uuid = "5f2f1c8e-0a35-4b6f-8f6e-2f6d4e4b0c11";
        let (web, three) = (description("3", "my web (1)", uuid), description("4", "3", &uuid.replace('5', "6")));
        let system = folder(&[("my web (1).pid", "42"), ("my web (1).xml", &web), ("7.pid", "43"), ("7.xml", &three)]);
        let other = folder(&[("3.pid", "44"), ("3.xml", "<domstatus>")]);

        assert_eq!(find_in(&[&system], "my web (1)"), Ok(42));
        assert_eq!(find_in(&[&system], "3"), Ok(42));
        assert_eq!(find_in(&[&system], &uuid.to_uppercase()), Ok(42));
        assert_eq!(find_in(&[&system, &other], "3"), Ok(44));
        assert!(find_in(&[&other], uuid).is_err());
    }

    #[test]
    fn unknown_domain_is_refused_with_the_nearest_that_run() {
        let system = folder(&[("web.pid", "4242"), ("db.pid", "77")]);

        assert_eq!(find_in(&[&system], "web1").unwrap_err(), "libvirt runs no domain 'web1'; it runs web");
        assert_eq!(find_in(&[&system], "qqqq").unwrap_err(), "libvirt runs no domain 'qqqq'; it runs db, web");
    }

    #[test]
    fn where_nothing_runs_the_advice_is_how_to_start_it() {
        let error = find(&["/nonexistent".into()], "web").unwrap_err().to_string();

        assert!(error.contains("virsh start web"), "{error}");
    }

    #[test]
    fn domains_of_one_name_are_distinguished_by_their_processes() {
        let (system, session) = (folder(&[("web.pid", "1")]), folder(&[("web.pid", "2")]));

        let error = find_in(&[&system, &session], "web").unwrap_err();

        assert!(error.contains("processes 1 and 2"), "{error}");
    }
}
