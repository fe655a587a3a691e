//! What the scenarios of one boot left in their folder, for tests that judge it.

use std::fs;
use std::path::PathBuf;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, ManifestError};

/// The folder.
#[derive(Debug, Clone)]
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
        assert_eq!(self.text(&format!("{scenario}.status")).trim(), "0", "{console}");
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

/// Asserts that `text` has all that is `wanted`.
///
/// # Panics
///
/// When something is missing.
pub fn assert_contains(text: &str, wanted: &[&str]) {
    let missing: Vec<_> = wanted.iter().filter(|wanted| !text.contains(**wanted)).collect();
    assert!(missing.is_empty(), "{missing:?} is missing in\n{text}");
}
