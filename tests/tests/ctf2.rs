//! What babeltrace2 2.1 reads in an export to CTF 2: line for line what it reads in the recording itself.
//!
//! Shows: A CTF 2 export reads line for line as the recording; a part holds its time's packets.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::build::debian_root::DebianRoot;
use lab::paths::Paths;
use lab::scenarios::analysis;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use strata_export::{Exported, Options, ctf};
use strata_recording::reader::Trace;

/// What the export of a recording is judged with.
struct Judge {
    babeltrace2: DebianRoot,
    folder: tempfile::TempDir,
}

impl Judge {
    fn new() -> Self {
        let paths = Paths::of_workspace();
        let babeltrace2 = DebianRoot::babeltrace2(&paths).unwrap();
        // below the lab's folder, which the root sees as it is
        fs::create_dir_all(paths.runs()).unwrap();
        Self { babeltrace2, folder: tempfile::tempdir_in(paths.runs()).unwrap() }
    }

    /// The records of the traces in `folder`, a line each, read without a complaint.
    fn lines(&self, folder: &Path) -> String {
        let mut command: Command = self.babeltrace2.command(Path::new("/usr/bin/babeltrace2"), &[folder], &[]);
        let read = command.arg("--clock-seconds").arg(folder).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&read.stderr), "");
        String::from_utf8(read.stdout).unwrap()
    }

    /// What an export of the recording in `recorded` is, and its lines.
    fn export(&self, recorded: &Path, options: &Options<'_>) -> (Exported, String) {
        let folder = self.folder.path().join("export");
        fs::create_dir(&folder).unwrap();
        let exported = ctf::export(&Trace::open(recorded).unwrap(), ctf::Version::V2, options, &folder).unwrap();
        let lines = self.lines(&folder);
        fs::remove_dir_all(&folder).unwrap();
        (exported, lines)
    }
}

#[test]
fn export_of_a_real_host_and_guest_reads_as_the_recording_does() {
    let judge = Judge::new();
    let recorded = analysis::once_per_test_run(&Paths::of_workspace()).unwrap().output.join("trace");

    let (exported, lines) = judge.export(&recorded, &Options::default());

    assert_eq!(exported.records, lines.lines().count() as u64);
    assert!(lines == judge.lines(&recorded), "an export reads otherwise than its recording");
}

#[test]
fn export_of_a_part_holds_the_packets_of_that_time() {
    let judge = Judge::new();
    let recorded = analysis::once_per_test_run(&Paths::of_workspace()).unwrap().output.join("trace");
    let [from, to] = [5, 7].map(|seconds| Some(Duration::from_secs(seconds)));

    let (whole, _) = judge.export(&recorded, &Options::default());
    let (part, lines) = judge.export(&recorded, &Options { from, to, progress: None });

    assert_eq!(part.records, lines.lines().count() as u64);
    assert!(part.records > 0 && part.records < whole.records, "{} of {}", part.records, whole.records);
}
