//! The process of a domain that libvirt runs with QEMU.
//!
//! libvirt writes the number of each domain's process into a file of the domain's name while it runs: in
//! `/run/libvirt/qemu` for domains of the system, in `$XDG_RUNTIME_DIR/libvirt/qemu/run` for those of a user's session.
//! Of sessions only that of the user who called sudo is looked at, or root's own: what other users write into their
//! folders is not to choose what root records.

use rustix::process::geteuid;
use std::fs;
use std::path::{Path, PathBuf};
use strata_jail::user::{User, UserError};
use strata_recording::nearest::nearest;
use strata_recording::terminal::{shell_option, shell_word};
use thiserror::Error;

/// Where libvirt's daemon for the system has the files.
const OF_SYSTEM: &str = "/run/libvirt/qemu";
/// Where a user's session has them, below the user's folder.
const OF_SESSION: &str = "libvirt/qemu/run";
/// What has a folder for each user that is logged in, by number.
const USERS: &str = "/run/user";

/// Why a domain has no process.
#[derive(Debug, Error)]
pub enum DomainError {
    /// Others than root do not see libvirt's files.
    #[error(
        "finding a domain's process needs root, as attaching does: sudo strata attach {} …",
        shell_option("--libvirt", domain)
    )]
    NotRoot {
        /// What was asked for.
        domain: String,
    },
    /// It is not known who called sudo.
    #[error(transparent)]
    User(#[from] UserError),
    /// No domain runs.
    #[error(
        "libvirt runs no domain here; start it (virsh start {}), or give the number of the VM's process",
        shell_word(domain)
    )]
    NoneRuns {
        /// What was asked for.
        domain: String,
    },
    /// That domain does not run.
    #[error("libvirt runs no domain '{domain}'; it runs {}", .running.join(", "))]
    Unknown {
        /// What was asked for.
        domain: String,
        /// The nearest names of those that run, or all of them.
        running: Vec<String>,
    },
    /// The system and the user run a domain of that name.
    #[error("several domains '{domain}' run here, in the processes {}; give one of them", .processes.iter().map(u32::to_string).collect::<Vec<_>>().join(" and "))]
    Several {
        /// What was asked for.
        domain: String,
        /// The processes of all of them.
        processes: Vec<u32>,
    },
}

/// The process of the running domain `domain`, of the system or of the user who called sudo.
///
/// # Errors
///
/// No domain of that name runs, several do, or this user may not know.
pub fn process_of(domain: &str) -> Result<u32, DomainError> {
    if !geteuid().is_root() {
        return Err(DomainError::NotRoot { domain: domain.into() });
    }
    find(&folders()?, domain)
}

/// The domains that run here as far as root can see, and their processes.
#[must_use]
pub fn running() -> Vec<(String, u32)> {
    let folders = if geteuid().is_root() { folders().unwrap_or_default() } else { [].into() };
    folders.iter().flat_map(|folder| domains(folder)).collect()
}

/// libvirt's folders: of the system, and of the user who called sudo.
fn folders() -> Result<Vec<PathBuf>, UserError> {
    let user = User::choose(None)?.map_or(0, |user| user.uid);
    Ok(vec![OF_SYSTEM.into(), Path::new(USERS).join(user.to_string()).join(OF_SESSION)])
}

/// The process of `domain` in libvirt's folders.
fn find(folders: &[PathBuf], domain: &str) -> Result<u32, DomainError> {
    let running: Vec<(String, u32)> = folders.iter().flat_map(|folder| domains(folder)).collect();
    let processes: Vec<u32> = running.iter().filter(|(name, _)| name == domain).map(|(_, process)| *process).collect();
    let domain = domain.to_owned();
    match processes[..] {
        [process] => Ok(process),
        [_, ..] => Err(DomainError::Several { domain, processes }),
        [] if running.is_empty() => Err(DomainError::NoneRuns { domain }),
        [] => {
            let names = || running.iter().map(|(name, _)| name.as_str());
            let near = nearest(&domain, names());
            let running = if near.is_empty() { names().map(str::to_owned).collect() } else { near };
            Err(DomainError::Unknown { domain, running })
        }
    }
}

/// The domains that run according to `folder`, and their processes, in order of their names.
fn domains(folder: &Path) -> Vec<(String, u32)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let domain = |entry: fs::DirEntry| {
        // "driver.pid" is the daemon's own
        let name = entry.file_name().to_str()?.strip_suffix(".pid").filter(|name| *name != "driver")?.to_owned();
        Some((name, fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?))
    };
    let mut domains: Vec<_> = entries.filter_map(domain).collect();
    domains.sort_unstable();
    domains
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
        find(&folders, domain).map_err(|error| error.to_string())
    }

    #[test]
    fn domain_is_found_by_its_name() {
        let system =
            folder(&[("web.pid", "4242"), ("db.1.pid", "77\n"), ("web.xml", "<domstatus/>"), ("driver.pid", "9")]);

        assert_eq!(find_in(&[&system], "web"), Ok(4242));
        assert_eq!(find_in(&[&system], "db.1"), Ok(77));
        assert!(find_in(&[&system], "driver").is_err());
    }

    #[test]
    fn unknown_domain_is_refused_with_the_nearest_that_run() {
        let system = folder(&[("web.pid", "4242"), ("db.pid", "77")]);

        assert_eq!(find_in(&[&system], "web1").unwrap_err(), "libvirt runs no domain 'web1'; it runs web");
        assert_eq!(find_in(&[&system], "qqqq").unwrap_err(), "libvirt runs no domain 'qqqq'; it runs db, web");
    }

    #[test]
    fn where_nothing_runs_it_is_said_how_to_start_it() {
        let error = find(&["/nonexistent".into()], "web").unwrap_err().to_string();

        assert!(error.contains("virsh start web"), "{error}");
    }

    #[test]
    fn domains_of_one_name_are_told_apart_by_their_processes() {
        let (system, session) = (folder(&[("web.pid", "1")]), folder(&[("web.pid", "2")]));

        let error = find_in(&[&system, &session], "web").unwrap_err();

        assert!(error.contains("processes 1 and 2"), "{error}");
    }
}
