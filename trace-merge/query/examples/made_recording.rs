//! Writes the recording that the tests are made with, in which every table has rows, into a new folder.

#[allow(dead_code, reason = "the tests' own use of it")]
#[path = "../src/made_recording.rs"]
mod made_recording;

use std::path::{Path, PathBuf};
use std::{fs, io};
use strata_query::parquet; // what that file writes tables with

fn main() -> io::Result<()> {
    let Some(target) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(io::Error::other("give the folder to write"));
    };
    let (recording, _trace) = made_recording::open();
    copy(recording.path(), &target)
}

/// Copies the folder `from`, and what is in it, to the new folder `to`.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
