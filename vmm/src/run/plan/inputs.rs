//! The files that every boot of a guest opens by their names, with the rights that its process has before it is
//! confined.
//!
//! What a guest may have broken out into can still write in the folder of its recording, and a kernel or disk image may
//! lie there: a link in its place would be opened with more rights at the next boot. So they must stay the files that
//! they were.

use crate::run::request::{Agent, Boot, RunRequest};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use strata_machine::LinkConfig;

/// Device and number of the file that a path leads to.
type Identity = (u64, u64);

/// Files and which ones they were.
#[derive(Debug)]
pub(in crate::run) struct Inputs(Vec<(PathBuf, Option<Identity>)>);

impl Inputs {
    /// Those of `request`, as they are now.
    pub(in crate::run) fn of(request: &RunRequest) -> Self {
        let booted = match &request.boot {
            Boot::Files { kernel, initrd } => vec![Some(kernel), initrd.as_ref()],
            Boot::FirstDisk => Vec::new(),
        };
        let module = match &request.agent {
            Agent::Module(module) => Some(module),
            Agent::Unspecified | Agent::None => None,
        };
        let sockets = request.nets.iter().filter_map(|net| match &net.link {
            LinkConfig::Passt(socket) => socket.as_ref(),
            LinkConfig::Tap(_) => None,
        });
        let disks = request.disks.iter().map(|disk| &disk.path);
        let paths = booted.into_iter().flatten().chain(module).chain(disks).chain(sockets);
        Self(paths.map(|path| (path.clone(), identity(path))).collect())
    }

    /// The first one that is another file now.
    pub(in crate::run) fn changed(&self) -> Option<&Path> {
        let changed = self.0.iter().find(|(path, before)| identity(path) != *before);
        changed.map(|(path, _)| path.as_path())
    }
}

/// `None` where there is no such file.
fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// Inputs of all kinds, in a folder.
    fn inputs() -> (TempDir, Inputs) {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        ["kernel", "initrd", "disk", "agent.ko", "socket"].iter().for_each(|name| fs::write(path(name), name).unwrap());
        let (kernel, initrd, disk, agent) = (path("kernel"), path("initrd"), path("disk"), path("agent.ko"));
        let net = format!("passt={}", path("socket"));
        let files = ["--kernel", &kernel, "--initrd", &initrd, "--disk", &disk, "--agent", &agent];
        let others = ["--net", &net, "--net", "tap=tap0", "--trace", "trace"];
        let all = ["strata", "run"].into_iter().chain(files).chain(others);
        let Command::Run(args) = Cli::parse_from(all).command else { panic!("it is strata run") };
        let inputs = Inputs::of(&RunRequest::from(*args));
        (folder, inputs)
    }

    #[test]
    fn file_that_is_written_stays_the_same() {
        let (folder, inputs) = inputs();

        fs::write(folder.path().join("disk"), "other content").unwrap();

        assert_eq!(inputs.changed(), None);
    }

    #[test]
    fn every_file_that_a_link_takes_the_place_of_is_found() {
        for name in ["kernel", "initrd", "disk", "agent.ko", "socket"] {
            let (folder, inputs) = inputs();
            let path = folder.path().join(name);
            fs::remove_file(&path).unwrap();
            symlink("/etc/passwd", &path).unwrap();

            assert_eq!(inputs.changed(), Some(path.as_path()));
        }
    }
}
