//! The program `strata-query`, which writes Parquet and answers SQL: found beside this program or on `PATH`, and run in
//! its place. It is not part of this one because of its size, and of what it is built from.

use crate::cli::{ExportArgs, QueryArgs};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use thiserror::Error;
use trace_merge::moment::Part;

const PROGRAM: &str = "strata-query";

/// Why it does not run.
#[derive(Debug, Error)]
pub enum QueryProgramError {
    /// It is not there.
    #[error("there is no {PROGRAM} beside strata or on PATH: install the package {PROGRAM}")]
    NotThere,
    /// It cannot be started.
    #[error("{}: cannot be run", .path.display())]
    Start {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Lets it write the export of `part` that `args` ask for, in place of this program.
#[must_use]
pub fn export(args: &ExportArgs, part: Part) -> QueryProgramError {
    run(export_words(args, part))
}

/// What it gets then.
fn export_words(args: &ExportArgs, part: Part) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["export".into(), "-o".into(), args.output.clone().into()];
    let seconds = |option: &str, time: Option<Duration>| {
        time.map(|time| format!("{option}={}.{:09}", time.as_secs(), time.subsec_nanos()).into())
    };
    words.extend(seconds("--from", part.from));
    words.extend(seconds("--until", part.to));
    words.extend(args.tables.iter().map(|table| format!("--tables={table}").into()));
    words.extend(["--".into(), args.trace.clone().into()]);
    words
}

/// Lets it answer the question that `args` ask, in place of this program.
#[must_use]
pub fn query(args: &QueryArgs) -> QueryProgramError {
    let mut words: Vec<OsString> = vec!["query".into()];
    words.extend(args.json.then(|| "--json".into()));
    if let Some(file) = &args.save {
        words.extend(["--save".into(), file.clone()]);
    }
    words.push("--".into());
    words.extend(args.words.iter().cloned());
    run(words)
}

/// Runs it with `words` in place of this program; returns only when that is not possible.
fn run(words: Vec<OsString>) -> QueryProgramError {
    let own = std::env::current_exe().ok();
    let Some(path) = find(own.as_deref(), std::env::var_os("PATH").as_deref()) else {
        return QueryProgramError::NotThere;
    };
    let source = Command::new(&path).args(words).exec();
    QueryProgramError::Start { path, source }
}

/// The program, beside the program `own` or in a folder of `path`.
fn find(own: Option<&Path>, path: Option<&OsStr>) -> Option<PathBuf> {
    let beside = own.and_then(Path::parent).map(Path::to_path_buf);
    let folders = beside.into_iter().chain(path.into_iter().flat_map(std::env::split_paths));
    folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::fs;

    #[test]
    fn program_beside_this_one_comes_first_and_then_those_on_path() {
        let (beside, on_path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let own = beside.path().join("strata");
        let path = Some(on_path.path().as_os_str());

        let none = find(Some(&own), path);
        fs::write(on_path.path().join(PROGRAM), "").unwrap();
        let second = find(Some(&own), path);
        fs::write(beside.path().join(PROGRAM), "").unwrap();
        let first = find(Some(&own), path);

        assert_eq!(none, None);
        assert_eq!(second, Some(on_path.path().join(PROGRAM)));
        assert_eq!(first, Some(beside.path().join(PROGRAM)));
    }

    #[test]
    fn tables_and_part_are_handed_on() {
        let line = "strata export trace --format parquet --tables events,exits --from 1.5 -o out";
        let Command::Export(args) = Cli::parse_from(line.split(' ')).command else { unreachable!("{line}") };

        let part = Part::of(&args.trace, args.from, args.until).unwrap();
        let words = export_words(&args, part);

        let expected = "export -o out --from=1.500000000 --tables=events --tables=exits -- trace";
        assert_eq!(words, expected.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn absent_program_is_reported_in_one_line_with_its_package() {
        let line = QueryProgramError::NotThere.to_string();

        assert!(line.ends_with("install the package strata-query"), "{line}");
        assert!(!line.contains('\n') && !line.contains("  "), "{line}");
    }
}
