//! What the jails of `strata run` and `strata attach` share: where their processes write, and what clients are refused.

use std::path::Path;
use strata_jail::Closed;
use strata_jail::files::Places;
use strata_recorder::control::directory::VmDirectory;
use strata_recorder::control::protocol::{Answer, Request};
use strata_recording::files::trace_folder::{SnapshotFolder, TraceFolder};

/// Where a process with the folder `directory`, and its `recording`, makes and writes files.
pub(crate) fn places(directory: &VmDirectory, recording: Option<(&TraceFolder, &SnapshotFolder)>) -> Places {
    let (trace, snapshots) = recording.map(|(trace, snapshots)| (trace.path(), snapshots.path())).unzip();
    let place = |path: Option<&Path>| path.and_then(|path| path.canonicalize().ok());
    let written = std::iter::once(directory.path().to_path_buf()).chain(place(trace)).collect();
    let offered = place(snapshots).into_iter().collect();
    // Folders in which nothing is are removed in the end.
    let emptied = [Some(directory.path()), trace].into_iter().flatten().filter_map(folder_above).collect();
    Places { written, offered, emptied, ..Places::default() }
}

/// The folder in which `path` lies.
pub(crate) fn folder_above(path: &Path) -> Option<std::path::PathBuf> {
    std::path::absolute(path).ok()?.parent()?.canonicalize().ok()
}

/// The refusal of a `request` for files where a process under `jail` cannot make them.
pub(crate) fn refusal(request: &Request, jail: &Closed) -> Option<Answer> {
    let (Request::Snapshot { dir: path, .. } | Request::SessionCreate { trace: Some(path), .. }) = request else {
        return None;
    };
    let places = jail.places.as_ref().filter(|places| !places.offer(path))?;
    let offered: Vec<_> = places.offered.iter().map(|place| format!("'{}'", place.display())).collect();
    Some(Answer::refused(format!(
        "'{}' is out of strata's reach: give a folder in {}, or start it with --writable DIR",
        path.display(),
        offered.join(" or ")
    )))
}
