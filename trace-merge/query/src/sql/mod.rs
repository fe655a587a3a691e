//! SQL over recordings and over folders of tables.

mod answer;
mod database;
mod percentile;

pub use answer::{Form, Saved, print, save};
pub use database::Database;
pub use trace_merge::ready_questions::{READY, Ready};

use crate::parquet::{self, Selection, recording_id};
use crate::tables::NoTable;
use datafusion::error::DataFusionError;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use strata_export::{ExportError, Exported, Options};
use strata_recording::files::MANIFEST_FILE;
use strata_recording::files::removed_on_signal::RemovedOnSignal;
use strata_recording::reader::{ReadError, Trace};
use strata_recording::text::terminal::harmless;
use strata_recording::window::Window;
use tempfile::TempDir;
use thiserror::Error;
use trace_merge::progress;

/// The table by which a folder of tables is known.
const RECORDINGS: &str = "recordings";

/// Why a question has no answer.
#[derive(Debug, Error)]
pub enum QueryError {
    /// Neither a recording nor tables.
    #[error(
        "{}: neither a recording nor a folder that `strata export --format parquet` wrote: it has no {MANIFEST_FILE} and no \
         {RECORDINGS}",
        .0.display()
    )]
    NoInput(PathBuf),
    /// Nothing to ask.
    #[error("give a recording, or a folder that `strata export --format parquet` wrote, before the question")]
    NoInputs,
    /// A recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Its tables cannot be made.
    #[error("{}: the tables cannot be made", .trace.display())]
    Export {
        trace: PathBuf,
        #[source]
        source: ExportError,
    },
    /// There is no room for the tables, or no right.
    #[error("{}: tables cannot be kept there; TMPDIR names another folder", .path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file of a table cannot be read.
    #[error("{}: is damaged: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: String },
    /// Two columns of an answer have one name.
    #[error("two columns of the answer are called {0}: name them with `as`")]
    TwoColumns(String),
    /// A table of another version.
    #[error("{}: its tables are of version {version}, and this is version {}: export again", .path.display(), crate::tables::VERSION)]
    Version { path: PathBuf, version: String },
    /// A table that was left out when the recording was exported.
    #[error(
        "{}: recording {recording} was exported with `--tables {chosen}`, without '{name}': export it again with that",
        .folder.display()
    )]
    NotChosen {
        /// The folder of tables.
        folder: PathBuf,
        recording: String,
        name: String,
        /// What was chosen.
        chosen: String,
    },
    /// Two exports of a recording in one folder.
    #[error(
        "{}: two exports of recording {recording} lie there: export it again, into a folder of its own",
        .folder.display()
    )]
    Twice {
        /// The folder of tables.
        folder: PathBuf,
        recording: String,
    },
    /// No such table.
    #[error(transparent)]
    NoTable(#[from] NoTable),
    /// It is to change something.
    #[error("only questions are answered (select, with, values, explain, describe, show tables): tables do not change")]
    NotAQuestion,
    /// The question is none, or its answer cannot be computed.
    #[error("{}", one_line(.0))]
    Sql(DataFusionError),
    /// The answer cannot be written.
    #[error("the answer cannot be written")]
    Write(#[source] io::Error),
    /// A file is there.
    #[error("{}: is there already; give another name", .0.display())]
    Exists(PathBuf),
    /// Its name does not say what it is to be.
    #[error("{}: the name has to end in .parquet, .csv or .json", .0.display())]
    Extension(PathBuf),
}

impl From<DataFusionError> for QueryError {
    fn from(error: DataFusionError) -> Self {
        Self::Sql(error)
    }
}

/// What DataFusion says, in one line.
fn one_line(error: &DataFusionError) -> String {
    let text = error.strip_backtrace();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Tables that were made of recordings to answer a question. Dropping them, or a signal, removes them.
pub struct MadeTables {
    _guard: RemovedOnSignal,
    folder: TempDir,
}

/// What questions are about.
#[derive(Debug)]
pub struct Inputs {
    /// Folders of tables, each with what of it counts: what is given again counts once.
    folders: Vec<Folder>,
    /// Recordings, whose tables are made first.
    traces: Vec<(PathBuf, Trace)>,
}

/// A folder of tables.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// What the names of the files begin with that count; `None` where all do.
    pub(crate) only: Option<BTreeSet<String>>,
}

impl Inputs {
    /// What lies in `paths`.
    ///
    /// # Errors
    /// When there is none, one is neither a recording nor a folder of tables, or two exports of a recording lie in one.
    pub fn of(paths: &[PathBuf]) -> Result<Self, QueryError> {
        let (mut folders, mut traces, mut given) = (Vec::new(), Vec::new(), HashSet::new());
        for path in paths {
            if path.is_dir() && !path.join(MANIFEST_FILE).exists() {
                if !path.join(RECORDINGS).is_dir() {
                    return Err(QueryError::NoInput(path.clone()));
                }
                folders.push((path, database::recordings_in(path)?));
                continue;
            }
            let trace = Trace::open(path)?;
            if given.insert(recording_id(&trace)) {
                traces.push((path.clone(), trace));
            } else {
                print_count_once(path, 1);
            }
        }
        let is_whole = |name: &&String| !name.contains('-');
        let mut whole = given.clone();
        whole.extend(folders.iter().flat_map(|(_, there)| there.keys().filter(is_whole).cloned()));
        let fullest = fullest(&folders);
        let mut all = BTreeSet::new();
        let mut count_once = |(number, (path, there)): (usize, (&PathBuf, BTreeMap<String, usize>))| {
            let is_here = |name: &&String| fullest.get(*name) == Some(&number) && counts(name, &given, &whole);
            let only: BTreeSet<String> = there.keys().filter(is_here).cloned().collect();
            let again = there.len() - only.len();
            if again > 0 {
                print_count_once(path, again);
            }
            all.extend(only.iter().cloned());
            Folder { path: path.clone(), only: (again > 0).then_some(only) }
        };
        let folders = folders.into_iter().enumerate().map(&mut count_once).collect();
        for id in overlapping(&all) {
            inform(format_args!(
                "parts of recording {} overlap: what lies in several of them counts as often",
                harmless(id)
            ));
        }
        if paths.is_empty() { Err(QueryError::NoInputs) } else { Ok(Self { folders, traces }) }
    }

    /// The database that answers `question`, and the folder in which the tables of recordings are kept meanwhile: only
    /// those that the question names.
    ///
    /// # Errors
    /// When the question is none or names no table that there is, or tables cannot be made.
    pub fn database(&self, question: &str) -> Result<(Database, Option<MadeTables>), QueryError> {
        let mut database = Database::new()?;
        let names = database.tables_of(question)?;
        let traces = || self.traces.iter().map(|(_, trace)| trace);
        let known = database::known_tables(traces(), &self.folders)?;
        database.check(&names, &known, &self.folders)?;
        if database.is_about_tables(question)? {
            for name in known.iter().filter(|name| !names.contains(name)) {
                database.add_columns(name, &self.folders, traces())?;
            }
        }
        let mut folders = self.folders.clone();
        let made = (!self.traces.is_empty()).then(|| self.make_tables(&names)).transpose()?;
        if let Some(made) = &made {
            let path = |number: usize| made.folder.path().join(number.to_string());
            folders.extend((0..self.traces.len()).map(|number| Folder { path: path(number), only: None }));
        }
        for name in &names {
            database.add(name, &folders)?;
        }
        if !self.folders.is_empty() {
            let mut about = Database::new()?;
            about.add(RECORDINGS, &self.folders)?;
            about.incomplete()?.iter().for_each(|line| inform(harmless(line)));
        }
        Ok((database, made))
    }

    fn make_tables(&self, names: &[String]) -> Result<MadeTables, QueryError> {
        let temporary = std::env::temp_dir();
        let failed = |source| QueryError::Folder { path: temporary.clone(), source };
        let made = tempfile::Builder::new().prefix("strata-query-").tempdir().map_err(failed)?;
        let guard = RemovedOnSignal::new(made.path()).map_err(failed)?;
        let selection = Selection::Named(names.iter().cloned().collect());
        for (number, (path, trace)) in self.traces.iter().enumerate() {
            let folder = made.path().join(number.to_string());
            std::fs::create_dir(&folder).map_err(failed)?;
            make(path, trace, &folder, &selection)?;
        }
        Ok(MadeTables { _guard: guard, folder: made })
    }
}

/// In which of `folders`, by number, each recording or part counts: the first of those that have the most of its tables.
fn fullest(folders: &[(&PathBuf, BTreeMap<String, usize>)]) -> HashMap<String, usize> {
    let mut most: HashMap<String, (usize, usize)> = HashMap::new();
    for (number, (_, there)) in folders.iter().enumerate() {
        for (name, &tables) in there {
            let known = most.entry(name.clone()).or_insert((number, tables));
            if tables > known.1 {
                *known = (number, tables);
            }
        }
    }
    most.into_iter().map(|(name, (number, _))| (name, number)).collect()
}

/// Whether the recording called `name`, or the part of one, counts in a folder of tables: it is not `given` itself, and is
/// no part of what is given `whole`.
fn counts(name: &str, given: &HashSet<String>, whole: &HashSet<String>) -> bool {
    let is_of_whole = name.split_once('-').is_some_and(|(id, _)| whole.contains(id));
    !given.contains(name) && !is_of_whole
}

/// The recordings of which two parts overlap. The `names` of parts tell where they begin and end.
fn overlapping(names: &BTreeSet<String>) -> BTreeSet<&str> {
    let mut parts: Vec<_> = names.iter().filter_map(|name| parquet::part_of_name(name)).collect();
    parts.sort_unstable_by_key(|&(id, part)| (id, part.begin, part.end));
    let mut ends: HashMap<&str, u64> = HashMap::new();
    let mut found = BTreeSet::new();
    for (id, Window { begin, end }) in parts {
        let latest = ends.entry(id).or_insert(begin);
        if begin < *latest {
            found.insert(id);
        }
        *latest = end.max(*latest);
    }
    found
}

/// Prints a line on standard error. What cannot be printed there has no other place to go.
pub fn inform(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Says that `count` recordings in `path`, or parts, are given elsewhere.
fn print_count_once(path: &Path, count: usize) {
    inform(format_args!("{}: {count} recordings or parts are given elsewhere, too, and count once", path.display()));
}

/// Makes the tables in `selection` of a recording, and says what it lacks.
fn make(path: &Path, trace: &Trace, folder: &Path, selection: &Selection) -> Result<(), QueryError> {
    let title = format!("reading {}", path.display());
    let made = progress::shown(&title, &|line: &str| inform(line), |progress| {
        let options = Options { progress: Some(progress), ..Options::default() };
        parquet::export(trace, &options, folder, selection)
    });
    let lacking = lacking(made).map_err(|source| QueryError::Export { trace: path.into(), source })?;
    if let Some(lacking) = lacking {
        inform(format_args!("{}: {}", path.display(), harmless(&lacking)));
    }
    Ok(())
}

/// What a recording lacks whose tables were `made`, in a line; one without records has no tables.
fn lacking(made: Result<Exported, ExportError>) -> Result<Option<String>, ExportError> {
    match made {
        Ok(exported) => Ok(exported.incomplete),
        Err(ExportError::Nothing) => Ok(Some("has no records, and so no rows: `strata report` says why".into())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod engines;
#[cfg(test)]
mod tests;
