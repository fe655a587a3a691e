//! `vm.json` in the folder of a VM that may be another user's, as `ps` and whoever looks for a VM read it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use strata_recorder::control::{directory, found_vm, list};
use strata_recording::manifest::is_vm_name;
use strata_recording::text::terminal::acts;
use tempfile::TempDir;

/// The VM's folder: the same for the whole process, since each input takes the place of the one before it.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| TempDir::new().expect("the folder for temporary files is writable").keep())
}

/// Runs an input: the file.
///
/// # Panics
/// When a property that the target checks does not hold, or when files cannot be written.
pub fn run(data: &[u8]) {
    fs::write(folder().join("vm.json"), data).expect("the folder is writable");
    let Some(found) = found_vm::look_at(folder().into()) else { return };
    assert!(is_vm_name(&found.vm.name) && !found.alive);
    let _ = found.vm.vmm_rings.and_then(directory::VmmRings::rings);
    let text = list::text(&list::listed(vec![found], u64::MAX));
    assert!(!text.chars().any(|character| acts(character) && character != '\n'), "{text}");
    assert_eq!(text.lines().count(), 3, "a heading, the VM, and what to do: {text}");
}
