//! What the scenarios of one boot left in their folder, for tests that judge it.

use crate::build::binaries::{self, Purpose};
use crate::paths::Paths;
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, ManifestError};
use strata_recording::reader::Trace;

/// The lines of a console that say how its guest ended.
const LAST_LINES: usize = 4;

#[derive(Clone, Debug)]
pub struct Results(pub PathBuf);

impl Results {
    /// The text of the file `name`; empty where there is none.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.0.join(name)).unwrap_or_default()).into_owned()
    }

    /// What the guest's console showed in `scenario`.
    ///
    /// # Panics
    ///
    /// When the guest did not power off by itself.
    #[must_use]
    pub fn console(&self, scenario: &str) -> String {
        let console = self.text(&format!("{scenario}.log"));
        let status = self.text(&format!("{scenario}.status"));
        // A summary shows how a message begins, and a console says at its end what happened.
        let end = console.trim_end().rsplit('\n').take(LAST_LINES).collect::<Vec<_>>().join(" < ");
        assert!(status.trim() == "0", "{scenario} ended with status {}: {end}\n{console}", status.trim());
        console
    }

    /// The trace of `scenario`.
    #[must_use]
    pub fn trace(&self, scenario: &str) -> PathBuf {
        self.0.join(format!("{scenario}.trace"))
    }

    /// How many records the trace of `scenario` has of layers of `kind`.
    ///
    /// # Errors
    ///
    /// When its `session.json` cannot be read.
    pub fn records(&self, scenario: &str, kind: LayerKind) -> Result<u64, ManifestError> {
        let layers = Manifest::load(&self.trace(scenario))?.layers;
        let streams = layers.iter().filter(|layer| layer.kind == kind).flat_map(|layer| &layer.streams);
        Ok(streams.map(|stream| stream.records).sum())
    }
}

/// What `md5sum` makes of the symbols of the guest's kernel in the recording `trace` of one VM; `None` where it has none.
fn sum_of_symbols(trace: &Path) -> Option<String> {
    let opened = Trace::open(trace).ok()?;
    let saved = opened.kallsyms(Some(&opened.manifest().vms.first()?.name))?;
    let file = tempfile::NamedTempFile::new().ok()?;
    fs::write(file.path(), &*saved).ok()?;
    let sum = process::capture(Command::new("md5sum").arg(file.path())).ok()?;
    sum.split_whitespace().next().map(str::to_owned)
}

/// Asserts that the recording `trace` of one VM holds the symbols of its guest's kernel as the guest has them: its `console`
/// shows, behind `symbols: `, the sum that `md5sum` makes of its `/proc/kallsyms` without modules.
///
/// # Panics
///
/// When they are missing, or others.
pub fn assert_symbols(trace: &Path, console: &str) {
    let sum = sum_of_symbols(trace);
    let is_shown = sum.as_ref().is_some_and(|sum| console.contains(&format!("symbols: {sum}")));
    assert!(is_shown, "{}: the sum of its symbols is {sum:?}, and the guest shows\n{console}", trace.display());
}

/// Asserts that `text` has all that is `wanted`.
///
/// # Panics
///
/// When something is missing.
pub fn assert_contains(text: &str, wanted: &[&str]) {
    let missing: Vec<_> = wanted.iter().filter(|wanted| !text.contains(**wanted)).collect();
    assert!(missing.is_empty(), "{missing:?} is missing in\n{text}");
}

/// Asserts that babeltrace2 reads every record of `trace` that `strata events` counts, without a complaint.
///
/// # Panics
///
/// When it does not, or a program cannot be run.
pub fn assert_babeltrace2_agrees(trace: &Path) {
    let strata = binaries::located(&Paths::of_workspace(), Purpose::Test).strata;
    let counted = Command::new(strata).args(["events", "--count"]).arg(trace).output();
    let read = Command::new("babeltrace2").arg(trace).output();
    let (Ok(counted), Ok(read)) = (counted, read) else { panic!("strata or babeltrace2 cannot be run") };
    let lines = read.stdout.iter().filter(|&&byte| byte == b'\n').count();
    let found = (String::from_utf8_lossy(&read.stderr), lines.to_string());
    assert_eq!(found, ("".into(), String::from_utf8_lossy(&counted.stdout).trim().to_owned()));
}
