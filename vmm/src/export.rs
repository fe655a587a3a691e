//! `strata export`, which writes a recording in the form of another tool, and `strata report --html`, which writes it
//! as a page.

use crate::cli::{ExportArgs, Format, PageArgs, SymbolArgs};
use crate::query_program::{self, QueryProgramError};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal};
use std::path::{Path, PathBuf};
use strata_analysis::symbol_file::{self, SymbolFileError};
use strata_export::{ExportError, Exported, Options, ctf, html, perfetto, readable_size};
use strata_recording::files::access::Readers;
use strata_recording::files::removed_on_signal::RemovedOnSignal;
use strata_recording::files::trace_folder::{TraceFolder, TraceFolderError};
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::shell_path;
use tempfile::NamedTempFile;
use thiserror::Error;
use trace_merge::critical_path::{CriticalPathError, CriticalPathOptions, CriticalPaths, critical_paths};
use trace_merge::moment::{MomentError, Part};
use trace_merge::progress;
use trace_merge::report::{self, ReportOptions};

/// What is written at once.
const BUFFER: usize = 1 << 20;

/// Why there is no export.
#[derive(Debug, Error)]
pub enum ExportCommandError {
    /// A moment is not in the recording.
    #[error(transparent)]
    Moment(#[from] MomentError),
    /// The recording cannot be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The part lies outside of the recording.
    #[error("{0}")]
    Outside(String),
    /// The file is there.
    #[error("{}: is there already; give another name, or --force to replace it", .path.display())]
    Exists { path: PathBuf },
    /// Nothing says what to export to.
    #[error(
        "{}: its ending is of no format: give --format {}, or a name that ends with .pftrace", .path.display(),
        Format::ALL.map(Format::name).join("|")
    )]
    NoFormat {
        /// The output.
        path: PathBuf,
    },
    /// The folder of the file is not there.
    #[error("{}: there is no folder {}", .path.display(), .folder.display())]
    NoFolder {
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// The file cannot be written.
    #[error("{}: cannot be written; check the space and the permissions of its folder", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The folder cannot take an export.
    #[error(transparent)]
    Folder(#[from] TraceFolderError),
    /// The format is several files, which go into a folder of their own.
    #[error("{} is a folder of files: give the name of a new folder to -o, and no --force", .0.name())]
    NeedsFolder(Format),
    /// The format has no tracks to draw on.
    #[error("--why and --worst draw tracks, and {} has none: use --format perfetto, or see `strata why`", .0.name())]
    NoTracks(Format),
    /// The format has no tables to choose among.
    #[error("--tables chooses among tables, and {} has none: use --format parquet", .0.name())]
    NoTables(Format),
    /// The format has no place for names of addresses.
    #[error(
        "{} has no place for symbols, so not for --kallsyms: `strata cut TRACE --kallsyms FILE -o NEW` makes a trace that \
         keeps them", .0.name()
    )]
    NoSymbols(Format),
    /// The symbols of a kernel cannot be taken.
    #[error(transparent)]
    Symbols(#[from] SymbolFileError),
    /// Why tasks took so long cannot be found out.
    #[error(transparent)]
    Why(#[from] CriticalPathError),
    /// The program that writes it cannot be run.
    #[error(transparent)]
    Program(#[from] QueryProgramError),
    /// Nobody reads such bytes on a terminal.
    #[error("standard output is a terminal; give a file to -o, or a pipe")]
    Terminal,
}

/// Does what `args` ask for; `notify` takes lines for the user.
///
/// # Errors
/// What is wrong, and what to do. No file is left then, and one that was there is as it was.
pub fn run(args: &ExportArgs, notify: impl Fn(&str) + Sync) -> Result<(), ExportCommandError> {
    let no_format = || ExportCommandError::NoFormat { path: args.output.clone() };
    let format = args.chosen_format().ok_or_else(no_format)?;
    let part = Part::of(&args.trace, args.from, args.until)?;
    let why = args.why.options(part);
    let is_stdout = args.output == Path::new("-");
    let exported = match format {
        Format::Perfetto | Format::Ctf | Format::Ctf2 if !args.tables.is_empty() => {
            return Err(ExportCommandError::NoTables(format));
        }
        Format::Ctf | Format::Ctf2 | Format::Parquet if why.is_some() => {
            return Err(ExportCommandError::NoTracks(format));
        }
        Format::Ctf | Format::Ctf2 | Format::Parquet if !args.symbols.kallsyms.is_empty() => {
            return Err(ExportCommandError::NoSymbols(format));
        }
        Format::Ctf | Format::Ctf2 | Format::Parquet if is_stdout || args.force => {
            return Err(ExportCommandError::NeedsFolder(format));
        }
        Format::Ctf => write_folder(
            &open(&args.trace, part, &args.symbols, &notify)?,
            ctf::Version::V1_8,
            part,
            &args.output,
            &notify,
        )?,
        Format::Ctf2 => write_folder(
            &open(&args.trace, part, &args.symbols, &notify)?,
            ctf::Version::V2,
            part,
            &args.output,
            &notify,
        )?,
        Format::Parquet => return Err(query_program::export(args, part).into()),
        Format::Perfetto if is_stdout && io::stdout().is_terminal() => return Err(ExportCommandError::Terminal),
        Format::Perfetto if is_stdout => {
            let trace = open(&args.trace, part, &args.symbols, &notify)?;
            let why = explain(&trace, why.as_ref())?;
            let export = |options: &Options<'_>, out| perfetto::export_with(&trace, options, why.as_ref(), out);
            match write_stdout(part, &notify, export)? {
                Some(exported) => exported,
                None => return Ok(()),
            }
        }
        Format::Perfetto => {
            check_new_file(&args.output, args.force)?;
            let trace = open(&args.trace, part, &args.symbols, &notify)?;
            let why = explain(&trace, why.as_ref())?;
            write_perfetto(&trace, part, why.as_ref(), &args.output, args.force, &notify)?
        }
    };
    if let Some(incomplete) = &exported.incomplete {
        notify(incomplete);
    }
    notify(&summary(format, &args.output, &exported));
    Ok(())
}

/// What was written where, and how to look at it.
fn summary(format: Format, output: &Path, exported: &Exported) -> String {
    let Exported { bytes, records, .. } = *exported;
    let (records, size) = (counted(records, "record", "records"), readable_size(bytes));
    if output == Path::new("-") {
        return format!("{records}, {size}");
    }
    let output = shell_path(output);
    let next = match format {
        Format::Perfetto => format!("strata open {output}"),
        Format::Ctf | Format::Ctf2 => format!("babeltrace2 {output}"),
        Format::Parquet => format!("strata query {output} --list"),
    };
    format!("{output}: {records}, {size}\nnext: {next}")
}

/// Opens the recording at `path` for its `part`, with the symbols of kernels that are given.
///
/// # Errors
/// When it cannot be read, the part lies outside of it, or the symbols are of other kernels.
pub fn open(path: &Path, part: Part, symbols: &SymbolArgs, notify: impl Fn(&str)) -> Result<Trace, ExportCommandError> {
    let (trace, notices) = symbol_file::open(path, &symbols.kallsyms)?;
    notices.iter().for_each(|line| notify(line));
    let window = ReportOptions { from: part.from, to: part.to, json: false };
    match report::missed_window(&trace, &window) {
        Some(missed) => Err(ExportCommandError::Outside(missed)),
        None => Ok(trace),
    }
}

/// What `requested` asks of tasks, answered; nothing if it asks nothing.
fn explain(
    trace: &Trace,
    requested: Option<&CriticalPathOptions>,
) -> Result<Option<CriticalPaths>, ExportCommandError> {
    Ok(requested.map(|requested| critical_paths(trace, requested)).transpose()?.map(|(paths, _)| paths))
}

/// Writes the page that `args` ask for; `notify` takes lines for the user.
///
/// # Errors
/// Those of [`run`].
pub fn write_page(args: &PageArgs, notify: impl Fn(&str) + Sync) -> Result<(), ExportCommandError> {
    let is_stdout = args.output == Path::new("-");
    if !is_stdout {
        check_new_file(&args.output, args.force)?;
    } else if io::stdout().is_terminal() {
        return Err(ExportCommandError::Terminal);
    }
    let part = args.part.of(&args.trace)?;
    let trace = open(&args.trace, part, &args.kernels, &notify)?;
    let why = explain(&trace, args.why.options(part).as_ref())?;
    let exported = if is_stdout {
        let export =
            |options: &Options<'_>, out| html::export(&trace, options, args.symbols.as_deref(), why.as_ref(), out);
        match write_stdout(part, &notify, export)? {
            Some(exported) => exported,
            None => return Ok(()),
        }
    } else {
        write_file(part, &args.output, args.force, &notify, |options, out| {
            html::export(&trace, options, args.symbols.as_deref(), why.as_ref(), out)
        })?
    };
    if let Some(incomplete) = &exported.incomplete {
        notify(incomplete);
    }
    let Exported { bytes, records, drawn, .. } = exported;
    let size = readable_size(bytes);
    let next = if is_stdout { String::new() } else { format!(": open {}", shell_path(&args.output)) };
    notify(&format!("{drawn} of {records} records are in the page, of {size}{next}"));
    Ok(())
}

/// Refuses a file `path` that is there, unless it is replaced by `force`, and one whose folder is not there.
fn check_new_file(path: &Path, force: bool) -> Result<(), ExportCommandError> {
    let folder = folder_of(path);
    match path.symlink_metadata() {
        Ok(_) if !force => Err(ExportCommandError::Exists { path: path.into() }),
        Err(_) if !folder.is_dir() => Err(ExportCommandError::NoFolder { path: path.into(), folder: folder.into() }),
        _ => Ok(()),
    }
}

/// The folder that the file `path` lies in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes `part` of `trace`, and `why` tasks took so long, for Perfetto to the new file `path`, which appears when it
/// is complete.
///
/// # Errors
/// Those of [`run`].
pub fn write_perfetto(
    trace: &Trace,
    part: Part,
    why: Option<&CriticalPaths>,
    path: &Path,
    force: bool,
    notify: &(impl Fn(&str) + Sync),
) -> Result<Exported, ExportCommandError> {
    write_file(part, path, force, notify, |options, out| perfetto::export_with(trace, options, why, out))
}

/// Writes what `export` makes of `part` to standard output; `None` where that is closed before its end: who closed it has
/// seen enough.
fn write_stdout(
    part: Part,
    notify: &(impl Fn(&str) + Sync),
    export: impl FnOnce(&Options<'_>, BufWriter<io::Stdout>) -> Result<Exported, ExportError>,
) -> Result<Option<Exported>, ExportCommandError> {
    let out = BufWriter::with_capacity(BUFFER, io::stdout());
    match with_progress(part, notify, |options| export(options, out)) {
        Err(ExportError::Write(source)) if source.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        exported => Ok(Some(exported?)),
    }
}

/// Writes what `export` makes of `part` to the new file `path`, which appears when it is complete.
fn write_file(
    part: Part,
    path: &Path,
    force: bool,
    notify: &(impl Fn(&str) + Sync),
    export: impl FnOnce(&Options<'_>, BufWriter<&File>) -> Result<Exported, ExportError>,
) -> Result<Exported, ExportCommandError> {
    let failed = |source| ExportCommandError::Write { path: path.into(), source };
    let file = tempfile::Builder::new().prefix(".strata-export-").tempfile_in(folder_of(path)).map_err(failed)?;
    let guard = RemovedOnSignal::new(file.path()).map_err(failed)?;
    let out = BufWriter::with_capacity(BUFFER, file.as_file());
    let exported = with_progress(part, notify, |options| export(options, out)).map_err(|error| match error {
        ExportError::Write(source) => failed(source),
        other => other.into(),
    })?;
    persist(file, path, force).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => ExportCommandError::Exists { path: path.into() },
        _ => failed(source),
    })?;
    drop(guard);
    Ok(exported)
}

/// Writes `part` of `trace` into `path`, a new folder or an empty one. On failure, and after a signal, it is as it was.
fn write_folder(
    trace: &Trace,
    version: ctf::Version,
    part: Part,
    path: &Path,
    notify: &(impl Fn(&str) + Sync),
) -> Result<Exported, ExportCommandError> {
    let mut folder = TraceFolder::create(path, Readers::Owner)?;
    let failed = |source| ExportCommandError::Write { path: path.into(), source };
    let guard = folder.removed_on_signal().map_err(failed)?;
    let exported = with_progress(part, notify, |options| ctf::export(trace, version, options, path)).map_err(
        |error| match error {
            ExportError::Write(source) => failed(source),
            other => other.into(),
        },
    )?;
    folder.keep();
    drop(guard);
    Ok(exported)
}

fn persist(file: NamedTempFile, path: &Path, force: bool) -> io::Result<()> {
    let kept = if force { file.persist(path) } else { file.persist_noclobber(path) };
    kept.map(drop).map_err(|error| error.error)
}

/// What `export` makes of `part`, while it is shown how far it is.
fn with_progress<T>(part: Part, notify: &(impl Fn(&str) + Sync), export: impl FnOnce(&Options<'_>) -> T) -> T {
    progress::shown("exporting", notify, |progress| {
        export(&Options { from: part.from, to: part.to, progress: Some(progress) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{DrawnWhyArgs, PartArgs};
    use std::fs;

    fn args(output: &Path, force: bool) -> ExportArgs {
        ExportArgs {
            trace: "/nowhere/at-all".into(),
            format: Some(Format::Perfetto),
            output: output.into(),
            from: None,
            until: None,
            tables: Vec::new(),
            symbols: SymbolArgs::default(),
            why: DrawnWhyArgs::default(),
            force,
        }
    }

    #[test]
    fn summary_names_the_file_its_size_and_the_next_step() {
        let exported = Exported { bytes: 4_471_970, records: 154_816, ..Exported::default() };
        let of = |format, output| summary(format, Path::new(output), &exported);

        let texts = [
            of(Format::Perfetto, "web.pftrace"),
            of(Format::Ctf, "part"),
            of(Format::Perfetto, "-"),
            of(Format::Parquet, "-my part"),
        ];

        let expected = [
            "web.pftrace: 154816 records, 4.2 MiB\nnext: strata open web.pftrace",
            "part: 154816 records, 4.2 MiB\nnext: babeltrace2 part",
            "154816 records, 4.2 MiB",
            "'./-my part': 154816 records, 4.2 MiB\nnext: strata query './-my part' --list",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn format_without_tracks_says_where_to_ask_why() {
        let folder = tempfile::tempdir().unwrap();
        let why = DrawnWhyArgs { why: "web".parse().ok(), ..DrawnWhyArgs::default() };
        let args = ExportArgs { format: Some(Format::Ctf2), why, ..args(&folder.path().join("out"), false) };

        let refused = run(&args, |_| ()).unwrap_err().to_string();

        assert!(refused.contains("ctf2 has none: use --format perfetto"), "{refused}");
    }

    #[test]
    fn format_without_tables_has_none_to_choose() {
        let folder = tempfile::tempdir().unwrap();
        let args = ExportArgs { tables: vec!["exits".into()], ..args(&folder.path().join("out"), false) };

        let refused = run(&args, |_| ()).unwrap_err().to_string();

        assert!(refused.contains("perfetto has none: use --format parquet"), "{refused}");
    }

    #[test]
    fn file_that_is_there_is_left_alone_unless_forced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, "mine").unwrap();

        let refused = run(&args(&path, false), |_| ()).unwrap_err();
        let unread = run(&args(&path, true), |_| ()).unwrap_err();

        assert!(matches!(refused, ExportCommandError::Exists { .. }), "{refused}");
        assert!(matches!(unread, ExportCommandError::Symbols(_)), "{unread}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn page_that_is_there_is_left_alone_unless_forced() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("page.html");
        fs::write(&output, "mine").unwrap();
        let args = |force| PageArgs {
            trace: "/nowhere/at-all".into(),
            output: output.clone(),
            part: PartArgs::default(),
            symbols: None,
            kernels: SymbolArgs::default(),
            why: DrawnWhyArgs::default(),
            force,
        };

        let refused = write_page(&args(false), |_| ()).unwrap_err();
        let unread = write_page(&args(true), |_| ()).unwrap_err();

        assert!(matches!(refused, ExportCommandError::Exists { .. }), "{refused}");
        assert!(matches!(unread, ExportCommandError::Symbols(_)), "{unread}");
        assert_eq!(fs::read(&output).unwrap(), b"mine");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn output_of_no_format_is_refused_with_those_that_there_are() {
        let refused = run(&ExportArgs { format: None, ..args(Path::new("x.json"), false) }, |_| ()).unwrap_err();

        let refused = refused.to_string();
        assert!(refused.starts_with("x.json: ") && refused.contains("perfetto|ctf|ctf2|parquet"), "{refused}");
    }

    #[test]
    fn file_in_a_folder_that_is_not_there_is_refused_with_its_name() {
        let refused = run(&args(Path::new("/nowhere/at-all/x"), false), |_| ()).unwrap_err().to_string();

        assert_eq!(refused, "/nowhere/at-all/x: there is no folder /nowhere/at-all");
    }

    #[test]
    fn new_file_is_not_put_over_one_that_appeared_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let file = NamedTempFile::new_in(folder.path()).unwrap();
        fs::write(&path, "mine").unwrap();

        let refused = persist(file, &path, false).unwrap_err();

        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
