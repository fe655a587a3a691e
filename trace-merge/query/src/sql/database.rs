//! The tables that a question can name.

use super::percentile::Exact;
use super::{Folder, QueryError, RECORDINGS};
use crate::parquet::{columns_of_event_table, table_names};
use crate::tables::{
    CHOSEN_KEY, Column, EVENTS, FIXED, Fixed, Kind, NULL_PARTITION, PARTITIONS, RECORDING_KEY, VERSION, VERSION_KEY,
    check_names, is_chosen,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::catalog::MemorySchemaProvider;
use datafusion::common::TableReference;
use datafusion::datasource::MemTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::{AggregateUDF, Expr, ident, lit};
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use strata_recording::reader::Trace;
use url::Url;

/// Memory that a question may take before it goes on on the disk, bytes.
const MEMORY: usize = 4 << 30;
/// The catalog that DataFusion looks in.
const CATALOG: &str = "datafusion";
/// The schema of the tables about tables.
const ABOUT_TABLES: &str = "information_schema";
/// The schema of tables without a dot.
const SCHEMA: &str = "public";

/// Tables, and what answers questions about them.
pub struct Database {
    context: SessionContext,
    runtime: tokio::runtime::Runtime,
}

impl Database {
    /// One without tables.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn new() -> Result<Self, QueryError> {
        let environment = RuntimeEnvBuilder::new().with_memory_limit(MEMORY, 1.0).build_arc()?;
        let config = SessionConfig::new().with_default_catalog_and_schema(CATALOG, SCHEMA);
        let config = config.with_information_schema(true);
        let runtime = tokio::runtime::Builder::new_multi_thread().build().map_err(QueryError::Write)?;
        let context = SessionContext::new_with_config_rt(config, environment);
        context.register_udaf(AggregateUDF::from(Exact::default()));
        Ok(Self { context, runtime })
    }

    /// The names of the tables that `question` asks.
    ///
    /// # Errors
    /// When it is not a question.
    pub fn tables_of(&self, question: &str) -> Result<Vec<String>, QueryError> {
        let statement = self.statement(question)?;
        let is_question = match &statement {
            Statement::Statement(statement) => matches!(
                **statement,
                ast::Statement::Query(_) | ast::Statement::ShowTables { .. } | ast::Statement::ExplainTable { .. }
            ),
            Statement::Explain(_) => true,
            _ => false,
        };
        if !is_question {
            return Err(QueryError::NotAQuestion);
        }
        let name = |table: TableReference| match table.schema() {
            Some(ABOUT_TABLES) => None,
            Some(schema) if schema != SCHEMA => Some(format!("{schema}.{}", table.table())),
            _ => Some(table.table().to_string()),
        };
        let names = self.context.state().resolve_table_references(&statement)?.into_iter().filter_map(name);
        Ok(names.collect::<BTreeSet<String>>().into_iter().collect())
    }

    /// Whether `question` is about which tables there are.
    pub(super) fn is_about_tables(&self, question: &str) -> Result<bool, QueryError> {
        let statement = self.statement(question)?;
        if let Statement::Statement(statement) = &statement
            && matches!(**statement, ast::Statement::ShowTables { .. })
        {
            return Ok(true);
        }
        let tables = self.context.state().resolve_table_references(&statement)?;
        Ok(tables.iter().any(|table| table.schema() == Some(ABOUT_TABLES)))
    }

    fn statement(&self, question: &str) -> Result<Statement, QueryError> {
        let state = self.context.state();
        let dialect = state.config_options().sql_parser.dialect;
        Ok(state.sql_to_statement(question, &dialect)?)
    }

    /// Checks that each of `names` is one of the tables `known` in `folders` and recordings.
    pub(super) fn check(
        &self,
        names: &[String],
        known: &BTreeSet<String>,
        folders: &[Folder],
    ) -> Result<(), QueryError> {
        for folder in folders {
            check_chosen(names, folder)?;
        }
        Ok(check_names(names, known)?)
    }

    /// Adds the table `name` without rows, with the columns that it has in `folders` and `traces`.
    pub(super) fn add_columns<'t>(
        &mut self,
        name: &str,
        folders: &[Folder],
        mut traces: impl Iterator<Item = &'t Trace>,
    ) -> Result<(), QueryError> {
        let mut schema = schema_of(name, &folders_of(name, folders)?)?;
        if schema.fields().is_empty()
            && let Some(columns) = traces.find_map(|trace| columns_of_event_table(trace, name))
        {
            let field = |column: Column| Field::new(column.name, data_type(column.kind), true);
            schema = Schema::new(columns.into_iter().map(field).collect::<Vec<_>>());
        }
        self.add_empty(name, &schema)
    }

    fn add_empty(&self, name: &str, schema: &Schema) -> Result<(), QueryError> {
        let partitions = PARTITIONS.iter().map(|(name, _)| Arc::new(Field::new(*name, DataType::Utf8, true)));
        let fields: Vec<_> = schema.fields().iter().cloned().chain(partitions).collect();
        let empty = MemTable::try_new(Arc::new(Schema::new(fields)), vec![Vec::new()])?;
        self.context.register_table(self.reference(name)?, Arc::new(empty))?;
        Ok(())
    }

    /// Adds the table `name`, as the parts of it in `folders` have it.
    pub(super) fn add(&mut self, name: &str, folders: &[Folder]) -> Result<(), QueryError> {
        let folders = folders_of(name, folders)?;
        let schema = Arc::new(schema_of(name, &folders)?);
        let _entered = self.runtime.enter();
        let reference = self.reference(name)?;
        let mut urls = Vec::new();
        for folder in &folders {
            urls.extend(urls_of(folder)?);
        }
        if urls.is_empty() {
            return self.add_empty(name, &schema);
        }
        let listed = self.listed(&schema, urls)?;
        self.context.register_table(reference, listed.into_view())?;
        Ok(())
    }

    /// The rows of a table in the files at `urls`, with the columns that their folders stand for.
    fn listed(&self, schema: &Arc<Schema>, urls: Vec<ListingTableUrl>) -> Result<DataFrame, QueryError> {
        let partitions = PARTITIONS.iter().map(|(name, _)| ((*name).to_string(), DataType::Utf8)).collect();
        let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
            .with_file_extension(".parquet")
            .with_table_partition_cols(partitions);
        let config = ListingTableConfig::new_with_multi_paths(urls)
            .with_listing_options(options)
            .with_schema(Arc::clone(schema));
        let listed = self.context.read_table(Arc::new(ListingTable::try_new(config)?))?;
        // What stands for a null in a folder's name is one.
        let partition = |(name, _): &(&str, &str)| nullif(ident(*name), lit(NULL_PARTITION)).alias(*name);
        let columns = schema.fields().iter().map(|field| ident(field.name()));
        let columns: Vec<Expr> = columns.chain(PARTITIONS.iter().map(partition)).collect();
        Ok(listed.select(columns)?)
    }

    /// What the table `name` is registered as; its schema is made.
    fn reference(&self, name: &str) -> Result<TableReference, QueryError> {
        let Some((schema, table)) = name.split_once('.') else { return Ok(TableReference::partial(SCHEMA, name)) };
        if let Some(catalog) = self.context.catalog(CATALOG)
            && catalog.schema(schema).is_none()
        {
            catalog.register_schema(schema, Arc::new(MemorySchemaProvider::new()))?;
        }
        Ok(TableReference::partial(schema, table))
    }

    /// A line for each recording that lacks something, where their table is there.
    ///
    /// # Errors
    /// When that cannot be read.
    pub(super) fn incomplete(&self) -> Result<Vec<String>, QueryError> {
        let question =
            format!("select recording, incomplete from {RECORDINGS} where incomplete is not null order by 1");
        let batches = self.runtime.block_on(async { self.context.sql(&question).await?.collect().await })?;
        let mut lines = Vec::new();
        for batch in batches {
            let [recordings, reasons] = batch.columns() else { continue };
            let options = FormatOptions::default();
            let recordings = ArrayFormatter::try_new(recordings, &options).map_err(DataFusionError::from)?;
            let reasons = ArrayFormatter::try_new(reasons, &options).map_err(DataFusionError::from)?;
            let line = |row| format!("recording {}: {}", recordings.value(row), reasons.value(row));
            lines.extend((0..batch.num_rows()).map(line));
        }
        Ok(lines)
    }

    /// The answer to `question`, handed batch by batch to `take`. It only reads.
    ///
    /// # Errors
    /// When the question cannot be answered, and when `take` fails.
    pub fn answer<T>(
        &self,
        question: &str,
        take: impl AsyncFnOnce(SendableRecordBatchStream) -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        let only_reads = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        self.runtime.block_on(async {
            let answer = self.context.sql_with_options(question, only_reads).await?;
            let mut names = HashSet::new();
            if let Some(twice) = answer.schema().fields().iter().find(|field| !names.insert(field.name())) {
                return Err(QueryError::TwoColumns(twice.name().clone()));
            }
            take(answer.execute_stream().await?).await
        })
    }
}

/// The addresses of the files in `folder` that count: of all, or of those whose names begin alike.
fn urls_of(folder: &Folder) -> Result<Vec<ListingTableUrl>, QueryError> {
    let Folder { path, only } = folder;
    let whole = fs::canonicalize(path).map_err(|source| QueryError::Folder { path: path.clone(), source })?;
    // As text, without a scheme, a path with brackets would be a pattern.
    let url = Url::from_directory_path(&whole).map_err(|()| QueryError::NoInput(whole))?;
    let url = ListingTableUrl::try_new(url, None)?;
    let Some(only) = only else { return Ok(vec![url]) };
    // Folders of partitions are no part of what the pattern is about.
    let of = |name: &String| url.clone().with_glob(&format!("{}-[0-9]*.parquet", escaped(name)));
    let urls: Result<Vec<_>, DataFusionError> = only.iter().map(of).collect();
    Ok(urls?)
}

/// `name` as a part of a pattern: anybody may have put a file there.
fn escaped(name: &str) -> String {
    let escape = |character| match character {
        '?' | '*' | '[' | ']' => format!("[{character}]"),
        other => other.to_string(),
    };
    name.chars().map(escape).collect()
}

/// Where the table `name` lies below `folders`: `events` are the tables of all event types.
fn folders_of(name: &str, folders: &[Folder]) -> Result<Vec<Folder>, QueryError> {
    let below = |folder: &Folder, path: PathBuf| Folder { path, only: folder.only.clone() };
    if name != EVENTS {
        let named = folders.iter().map(|folder| below(folder, folder.path.join(name)));
        return Ok(named.filter(|folder| folder.path.is_dir()).collect());
    }
    let mut found = Vec::new();
    for folder in folders {
        let failed = |source| QueryError::Folder { path: folder.path.clone(), source };
        for entry in fs::read_dir(&folder.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_of_events =
                entry.file_name().to_str().is_some_and(|name| name.contains('.') && !name.starts_with('.'));
            if is_of_events && entry.path().is_dir() {
                found.push(below(folder, entry.path()));
            }
        }
    }
    Ok(found)
}

/// The names of all tables of `traces` and `folders`.
pub(super) fn known_tables<'t>(
    traces: impl Iterator<Item = &'t Trace>,
    folders: &[Folder],
) -> Result<BTreeSet<String>, QueryError> {
    let mut known: BTreeSet<String> = FIXED.iter().map(|table| table.name.to_string()).collect();
    traces.for_each(|trace| known.extend(table_names(trace)));
    for Folder { path, .. } in folders {
        let entries = fs::read_dir(path).map_err(|source| QueryError::Folder { path: path.clone(), source })?;
        known.extend(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()));
    }
    Ok(known)
}

/// What is in a folder of tables: what the names of the files of each recording, or part of one, begin with, and how many
/// tables of it were chosen.
///
/// # Errors
/// When two exports of one lie there: nothing tells which of the files to leave out.
pub(super) fn recordings_in(folder: &Path) -> Result<BTreeMap<String, usize>, QueryError> {
    let mut found = BTreeMap::new();
    for path in files_below(&folder.join(RECORDINGS))? {
        let Some(name) = begin_of_name(&path) else { continue };
        // Where none were chosen, all are there.
        let tables = Metadata::read(&path)?.value(CHOSEN_KEY).map_or(usize::MAX, |chosen| chosen.split(',').count());
        if found.insert(name.clone(), tables).is_some() {
            return Err(QueryError::Twice { folder: folder.into(), recording: name });
        }
    }
    Ok(found)
}

/// What the name of a file begins with: which recording, or part of one, it is of.
fn begin_of_name(path: &Path) -> Option<String> {
    Some(path.file_stem()?.to_str()?.rsplit_once('-')?.0.to_string())
}

/// Checks that each of `names` was written of every recording in `folder` that counts: some may have been left out when
/// it was exported, and without a row means something else.
fn check_chosen(names: &[String], Folder { path: folder, only }: &Folder) -> Result<(), QueryError> {
    let counts = |path: &PathBuf| {
        only.as_ref().is_none_or(|only| begin_of_name(path).is_some_and(|begin| only.contains(&begin)))
    };
    for path in files_below(&folder.join(RECORDINGS))?.into_iter().filter(counts) {
        let file = Metadata::read(&path)?;
        let Some(chosen) = file.value(CHOSEN_KEY) else { continue };
        let tables = chosen.split(',').map(String::from).collect();
        let is_left_out =
            |name: &&String| (Fixed::find(name).is_some() || name.contains('.')) && !is_chosen(name, &tables);
        if let Some(name) = names.iter().find(is_left_out) {
            let recording = file.value(RECORDING_KEY).unwrap_or("unknown").into();
            let (folder, name, chosen) = (folder.clone(), name.clone(), chosen.into());
            return Err(QueryError::NotChosen { folder, recording, name, chosen });
        }
    }
    Ok(())
}

/// The Parquet files below `folder`, if there is one.
pub(super) fn files_below(folder: &Path) -> Result<Vec<PathBuf>, QueryError> {
    let (mut files, mut pending) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = pending.pop() {
        let failed = |source| QueryError::Folder { path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "parquet") {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// What a file says of itself; it is of this version.
struct Metadata(ArrowReaderMetadata);

impl Metadata {
    fn read(path: &Path) -> Result<Self, QueryError> {
        let file = File::open(path).map_err(|source| QueryError::Folder { path: path.into(), source })?;
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())
            .map_err(|error| QueryError::Damaged { path: path.into(), reason: error.to_string() })?;
        let read = Self(metadata);
        match read.value(VERSION_KEY) {
            Some(VERSION) => Ok(read),
            other => Err(QueryError::Version { path: path.into(), version: other.unwrap_or("unknown").into() }),
        }
    }

    fn value(&self, key: &str) -> Option<&str> {
        let mut entries = self.0.metadata().file_metadata().key_value_metadata().into_iter().flatten();
        entries.find(|entry| entry.key == key)?.value.as_deref()
    }
}

/// The type of a column of this kind.
fn data_type(kind: Kind) -> DataType {
    let list = |element| DataType::List(Arc::new(Field::new("item", element, true)));
    match kind {
        Kind::Integer => DataType::Int64,
        Kind::Unsigned => DataType::UInt64,
        Kind::Float => DataType::Float64,
        Kind::Text => DataType::Utf8,
        Kind::Flag => DataType::Boolean,
        Kind::Moment => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
        Kind::Integers => list(DataType::Int64),
        Kind::Unsigneds => list(DataType::UInt64),
    }
}

/// The columns of the table `name`: those that every export has, and all that a file in `folders` has, but for `events`.
fn schema_of(name: &str, folders: &[Folder]) -> Result<Schema, QueryError> {
    let known = Fixed::find(name).into_iter().flat_map(Fixed::columns);
    let mut fields: Vec<Field> = known.map(|column| Field::new(column.name, data_type(column.kind), true)).collect();
    for folder in folders {
        for path in files_below(&folder.path)? {
            add_columns(&mut fields, &path, name != EVENTS)?;
        }
    }
    Ok(Schema::new(fields))
}

/// Adds the columns of a file that are not there yet, if they `are_new` ones of the table. One that has another type
/// elsewhere gets one that holds both. A file of another version is refused.
fn add_columns(fields: &mut Vec<Field>, path: &Path, are_new: bool) -> Result<(), QueryError> {
    let Metadata(metadata) = Metadata::read(path)?;
    for field in metadata.schema().fields().iter().filter(|_| are_new) {
        match fields.iter_mut().find(|known| known.name() == field.name()) {
            Some(known) if known.data_type() == field.data_type() => {}
            Some(known) => *known = Field::new(field.name(), type_for(known.data_type(), field.data_type()), true),
            None => fields.push(field.as_ref().clone()),
        }
    }
    Ok(())
}

/// What holds values of both of two types. Numbers stay numbers: text sorts by its letters.
fn type_for(one: &DataType, other: &DataType) -> DataType {
    let is_integer = |kind: &DataType| matches!(kind, DataType::Int64 | DataType::UInt64 | DataType::Decimal128(20, 0));
    match (one, other) {
        _ if is_integer(one) && is_integer(other) => DataType::Decimal128(20, 0),
        // One without a sign may be the bits of floating point: so described it who did not know that.
        (DataType::Float64, DataType::Int64) | (DataType::Int64, DataType::Float64) => DataType::Float64,
        _ => DataType::Utf8,
    }
}
