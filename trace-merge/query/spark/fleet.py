"""The recordings of a fleet as one lake, a table of Delta Lake, and questions about it: docs/fleet.md says how.

fleet.py ingest RECORDINGS LAKE          # takes in each recording below the folder RECORDINGS, on Spark
fleet.py ask LAKE steal worst-wakeups    # ready questions, or SQL, on Spark; a JSON object a line
fleet.py remove LAKE RECORDING...        # takes recordings out again
fleet.py tidy LAKE                       # joins small files, and removes those that no version needs
fleet.py views LAKE                      # SQL that makes the tables views in DuckDB

It is one file because Spark sends its workers what the main program defines; modules would have to be with them before.
"""

import argparse
import contextlib
import datetime
import decimal
import difflib
import importlib
import json
import logging
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid

try:
    import pyarrow
    import pyarrow.compute
    import pyarrow.fs
    import pyarrow.parquet
    from deltalake import ColumnProperties, CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
    from deltalake import write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.fs import DeltaStorageHandler
    from deltalake.transaction import AddAction
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
except ImportError as absent:
    sys.exit(f"error: {absent}: `pip install pyspark pyarrow deltalake`")

HERE = pathlib.Path(__file__).resolve().parent
READY = HERE.parent / "queries"
# The tables that the exporter writes, made from trace-merge/query/src/tables.rs, and their version.
ABOUT = json.loads((HERE / "tables.json").read_text())
VERSION = ABOUT["version"]
VERSION_KEY = "strata.schema"
# The records of all event types. What only one type has is in `fields`, as text, by the column's name.
EVENTS = "events"
# What the lake says of each row beside the exporter's columns.
PLACE = [("host", "text"), ("boot", "text"), ("vm", "text"), ("hour", "text"), ("day", "text")]
# Files hold the rows of several tables, since there is one for each part, host and day: events, what lasts, the rest.
PARTITIONS = ["part", "host", "day"]
OWN = {
    EVENTS: [("fields", "map")],
    "recordings": [
        ("source", "text"),  # where it was taken in from
        ("source_state", "text"),  # size and age of its files: known again by that
        ("is_growing", "boolean"),  # whether its recorder had not ended, so that it is taken in again
        ("chosen", "text"),  # the tables that were taken in, with commas between them; null for all
    ],
}
TABLES = {name: [tuple(column) for column in columns] + OWN.get(name, []) for name, columns in ABOUT["tables"].items()}
# All columns of the lake. A recording is one commit, so that nobody sees a piece of it: that is why it is one table.
COLUMNS = {"recording": "text", "table_name": "text", "part": "text"} | {
    name: kind for columns in (*TABLES.values(), PLACE) for name, kind in columns
}
ARROW_TYPES = {
    "integer": pyarrow.int64(),
    "unsigned": pyarrow.decimal128(20, 0),
    "text": pyarrow.string(),
    "boolean": pyarrow.bool_(),
    "UTC": pyarrow.timestamp("us", "UTC"),
    "map": pyarrow.map_(pyarrow.string(), pyarrow.string()),
}
SQL_TYPES = {
    "integer": "bigint",
    "unsigned": "decimal(20,0)",
    "float": "double",
    "text": "string",
    "list": "string",
    "boolean": "boolean",
    "UTC": "timestamp",
    "map": "map<string,string>",
}
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
MANIFEST = "session.json"
# How the name of a recording in one file ends.
PACKED = ".strata"
# By what readers pass over files, and by what over row groups, too. Other columns' least and greatest value are not kept.
FILES_BY = ("recording", "table_name", "vm", "hour")
GROUPS_BY = (*FILES_BY, "event", "utc", "begin_utc")
# What is worth a dictionary: numbers seldom repeat.
TEXTS = [name for name, kind in COLUMNS.items() if kind == "text"]
# Row groups are small, so that readers find a table's among others.
GROUP, COMPRESSION = 1 << 17, "ZSTD"
# The same for deltalake, which writes what is in the place of other rows.
WRITING = WriterProperties(
    compression=COMPRESSION,
    max_row_group_size=GROUP,
    default_column_properties=ColumnProperties(statistics_enabled="NONE", dictionary_enabled=False),
    column_properties={
        name: ColumnProperties(
            statistics_enabled="CHUNK" if name in GROUPS_BY else "NONE", dictionary_enabled=name in TEXTS
        )
        for name in {*GROUPS_BY, *TEXTS} - set(PARTITIONS)
    },
)
# Rows that are read at once, bytes that are copied at once, and attempts when others write to the lake.
BATCH, COPIED, ATTEMPTS = 1 << 15, 1 << 20, 20
# How often the job reports its progress, seconds; and the most lines of one kind that it prints.
TELL_EVERY, MOST_LINES = 5, 20
# Files that are joined with others, bytes: joining costs as much as making them, and questions gain nothing where files
# are larger. How many are, of a part, host and day, without being asked; and about what a file has at most.
SMALL, MANY, LARGEST = 1 << 20, 8, 512 << 20
# How long readers of an older version of the lake have its files, hours.
KEPT_HOURS = 168


class Refused(Exception):
    """Why something is not done, in one line."""


def harmless(text: str) -> str:
    """`text` without what acts on a terminal: recorded systems choose names."""
    return "".join(letter if letter.isprintable() else f"\\u{{{ord(letter):x}}}" for letter in text)


def say(line: str) -> None:
    print(harmless(line), file=sys.stderr, flush=True)


def part_of(table: str) -> str:
    """In which part of the lake the rows of `table` are."""
    return ABOUT["parts"][table]


def one_line(error: Exception) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())[:500]


# The lake.


def schema() -> pyarrow.Schema:
    return pyarrow.schema([(name, ARROW_TYPES[kind]) for name, kind in COLUMNS.items()])


def opened(lake: str) -> DeltaTable:
    """The lake as it is now."""
    try:
        table = DeltaTable(lake)
    except (DeltaError, OSError) as error:
        raise Refused(f"{lake}: is no lake; `fleet.py ingest` makes one ({one_line(error)})") from None
    version = table.metadata().configuration.get(VERSION_KEY, "unknown")
    if not version.isdigit() or int(version) > int(VERSION):
        raise Refused(f"{lake}: is of version {version}, and this program of {VERSION}: take a newer one")
    return table


def made(lake: str) -> None:
    """Makes the lake where there is none, and gives one of an older version the columns of this one."""
    configuration = {VERSION_KEY: VERSION, "delta.dataSkippingStatsColumns": ",".join(FILES_BY)}
    try:
        os.umask(0o077)  # readable by its user only, as recordings are
        DeltaTable.create(
            lake,
            schema(),
            mode="ignore",
            partition_by=PARTITIONS,
            configuration=configuration,
            raise_if_key_not_exists=False,
        )
        table = opened(lake)
        if table.metadata().configuration[VERSION_KEY] != VERSION:
            table.alter.set_table_properties({VERSION_KEY: VERSION}, raise_if_not_exists=False)
        has = {field.name for field in table.schema().fields}
        if lacking := [field for field in Schema.from_arrow(schema()).fields if field.name not in has]:
            table.alter.add_columns(lacking)
    except (DeltaError, OSError) as error:
        raise Refused(f"{lake}: cannot be a lake: {one_line(error)}") from None


def read(lake: DeltaTable, table: str, *columns: str, recording: str | None = None) -> pyarrow.Table:
    """Columns of a table that is not large, of all recordings or of one."""
    filters = [("part", "=", part_of(table)), ("table_name", "=", table)]
    filters += [("recording", "=", recording)] if recording else []
    return lake.to_pyarrow_table(filters=filters, columns=list(columns))


def recordings_in(lake: DeltaTable, *columns: str, recording: str | None = None) -> dict[str, dict]:
    """What the lake says of its recordings, or of one, by their ids."""
    rows = read(lake, "recordings", "recording", *columns, recording=recording)
    return {row["recording"]: row for row in rows.to_pylist()}


# The lake's files. The exporter writes those of a recording; those that are joined have the columns that they had.
# deltalake would write all columns of the lake into each, and take twice the processor time.


def files_of(table: DeltaTable) -> pyarrow.fs.FileSystem:
    """Where the lake's files are, by their paths in it."""
    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(table.table_uri))


class NewFile:
    """A file of rows of one place, which is a value for each of PARTITIONS."""

    def __init__(self, files: pyarrow.fs.FileSystem, place: tuple, columns: pyarrow.Schema):
        self.place, self.path = place, new_path(place)
        self.stream = files.open_output_stream(self.path)
        self.about: list[pyarrow.parquet.FileMetaData] = []
        self.writer = pyarrow.parquet.ParquetWriter(
            self.stream,
            columns,
            compression=COMPRESSION,
            use_dictionary=TEXTS,
            write_statistics=list(GROUPS_BY),
            metadata_collector=self.about,
        )
        self.batches: list[pyarrow.RecordBatch] = []

    def write(self, batch: pyarrow.RecordBatch) -> None:
        self.batches.append(batch)
        if sum(map(len, self.batches)) >= GROUP:
            self.write_group()

    def write_group(self) -> None:
        self.writer.write_table(pyarrow.Table.from_batches(self.batches), row_group_size=GROUP)
        self.batches = []

    def added(self) -> AddAction:
        """Ends the file. What puts it into the lake."""
        if self.batches:
            self.write_group()
        self.writer.close()
        size = self.stream.tell()
        self.stream.close()
        return add_action(self.path, self.place, size, self.about[0])


def new_path(place: tuple) -> str:
    """That of a new file of `place` in the lake."""
    folders = "/".join(f"{key}={folder_of(value)}" for key, value in zip(PARTITIONS, place, strict=True))
    return f"{folders}/part-{uuid.uuid4()}.parquet"


def add_action(path: str, place: tuple, size: int, about: pyarrow.parquet.FileMetaData) -> AddAction:
    """What puts a file into the lake."""
    values, now = dict(zip(PARTITIONS, place, strict=True)), time.time_ns() // 1_000_000
    return AddAction(path, size, values, now, True, json.dumps(passed_over(about)))


def passed_over(about: pyarrow.parquet.FileMetaData) -> dict:
    """By what readers pass over a file: how many rows it has, and between what their columns of FILES_BY are."""
    bounds = {"numRecords": about.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    numbers = {about.schema.column(number).path: number for number in range(len(about.schema))}
    for name in FILES_BY:
        groups = [about.row_group(group).column(numbers[name]).statistics for group in range(about.num_row_groups)]
        bounds["nullCount"][name] = sum(group.null_count for group in groups)
        with_values = [group for group in groups if group.num_values]
        if with_values and all(group.has_min_max for group in with_values):
            bounds["minValues"][name] = min(group.min for group in with_values)
            bounds["maxValues"][name] = max(group.max for group in with_values)
    return bounds


def folder_of(value: str | None) -> str:
    return NULL_PARTITION if value is None else urllib.parse.quote(value, safe="")


def write_files(files: pyarrow.fs.FileSystem, batches) -> list[AddAction]:
    """Writes `batches`, each with its place and all columns of its part, into new files of each place."""
    open_at: dict[tuple, NewFile] = {}
    done = []
    for place, batch in batches:
        if place not in open_at:
            open_at[place] = NewFile(files, place, batch.schema)
        open_at[place].write(batch)
        if open_at[place].stream.tell() >= LARGEST:
            done.append(open_at.pop(place).added())
    return done + [file.added() for file in open_at.values()]


# Taking in: these functions run on workers.


def check_worker(paths: list[str], exporter: str) -> str | None:
    """Why this worker cannot take recordings in. Needs nothing but Python."""
    for package in ("pyarrow", "deltalake"):
        try:
            importlib.import_module(package)
        except ImportError:
            return f"{sys.executable} has no {package}: `pip install pyspark pyarrow deltalake`"
    for path in paths:
        if not os.path.exists(path):
            return f"{path} is not there"
    try:
        subprocess.run([exporter, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"the exporter {exporter} cannot be run: {getattr(error, 'strerror', error)}; --exporter names it"
    return None


def described(recording: str) -> dict:
    """Id, outcome and state of a recording; an id of None where its manifest does not tell it."""
    path = pathlib.Path(recording)
    files = [file.stat() for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    size, newest = sum(file.st_size for file in files), max((file.st_mtime_ns for file in files), default=0)
    about = {"path": recording, "size": size, "state": f"{len(files)} files, {size} bytes, {newest} ns"}
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        layers = manifest["layers"]
        identity = (layers[0] if layers else manifest["clock"])["uuid"].replace("-", "")
        return about | {"id": identity, "is_growing": manifest.get("outcome") is None}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return about | {"id": None, "is_growing": False}


def export(exporter: str, recording: str, files: pathlib.Path, chosen: str | None) -> None:
    """Writes the tables of `recording`, those that were chosen, as files of a lake into the new folder `files`."""
    choice = [] if chosen is None else [f"--tables={chosen}"]
    command = [exporter, "export", recording, "--lake", "--output", str(files), *choice]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as error:
        raise Refused(f"the exporter {exporter} cannot be run: {error.strerror}; --exporter names it") from None
    said = done.stderr.decode(errors="replace").splitlines()
    if done.returncode < 0:
        raise Refused(f"the exporter was ended by signal {-done.returncode}")
    if done.returncode != 0:
        raise Refused(said[-1].removeprefix("error: ").removeprefix("strata: ") if said else "the exporter failed")


def rows_of(files: pathlib.Path, about: dict, folder: pathlib.Path | None = None):
    """All rows of a recording's files, or of those in a `folder`, each batch with its place. `about` describes it."""
    for file in sorted((folder or files).rglob("*.parquet")):
        place = place_of(file, files)
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(BATCH):
            yield place, with_source(batch, about) if place[0] == part_of("recordings") else batch


def place_of(file: pathlib.Path, files: pathlib.Path) -> tuple:
    """The value for each of PARTITIONS that its folders name."""
    values = [folder.split("=", 1)[1] for folder in file.relative_to(files).parts[:-1]]
    return tuple(None if value == NULL_PARTITION else urllib.parse.unquote(value) for value in values)


def with_source(batch: pyarrow.RecordBatch, about: dict) -> pyarrow.RecordBatch:
    """`batch` with the columns that `about` has of its recording."""
    is_recording = pyarrow.compute.equal(batch.column("table_name"), "recordings")
    for name, kind in OWN["recordings"]:
        known = pyarrow.scalar(about[name], ARROW_TYPES[kind])
        batch = batch.append_column(name, pyarrow.compute.if_else(is_recording, known, pyarrow.scalar(None, known.type)))
    return batch


def put_files(lake: pyarrow.fs.FileSystem, files: pathlib.Path, about: dict) -> list[AddAction]:
    """Copies a recording's files into the lake, those with more to say written anew."""
    described = files / f"part={part_of('recordings')}"
    put = write_files(lake, rows_of(files, about, described))
    for file in sorted(files.rglob("*.parquet")):
        if described not in file.parents:
            place = place_of(file, files)
            path = new_path(place)
            # deltalake's stream does not take what pyarrow gives it unless there is a buffer between them.
            with open(file, "rb") as source, lake.open_output_stream(path, buffer_size=2 * COPIED) as copy:
                shutil.copyfileobj(source, copy, COPIED)
            put.append(add_action(path, place, file.stat().st_size, pyarrow.parquet.read_metadata(file)))
    return put


def whole_rows(rows):
    """The same with all columns of the lake."""
    lake = schema()
    for place, batch in rows:
        yield completed(lake, batch, dict(zip(PARTITIONS, place, strict=True)))


# What makes a recording another one than that which the lake has.
SAME = ("outcome", "records", "incomplete", "is_growing")


def says_more(known: dict, told: dict) -> bool:
    """Whether what the lake has of a recording is of another copy, which says more: what is `told` is a part, say."""

    def rank(row: dict) -> tuple[bool, int]:
        return not row["is_growing"], row["records"]

    return known["source"] != told["source"] and rank(known) > rank(told)


def told_of_recording(files: pathlib.Path) -> tuple[pathlib.Path, dict]:
    """Which of a recording's files has its row among `recordings`, and what that says."""
    columns = ["recording", *(name for name in SAME if name not in dict(OWN["recordings"]))]
    for file in (files / f"part={part_of('recordings')}").rglob("*.parquet"):
        is_it = [("table_name", "=", "recordings")]
        for row in pyarrow.parquet.read_table(file, partitioning=None, columns=columns, filters=is_it).to_pylist():
            return file, row
    raise Refused("the exporter says nothing of the recording")


def commit(lake: str, files: pathlib.Path, about: dict) -> tuple[str, dict]:
    """Puts a recording into the lake, or in the place of what that has of it: what was done, and what to report of it."""
    file, told = told_of_recording(files)
    identity, told = told["recording"], told | about
    version = (pyarrow.parquet.read_schema(file).metadata or {}).get(VERSION_KEY.encode(), b"unknown").decode()
    if version != VERSION:
        raise Refused(f"the exporter writes tables of version {version}, and this program takes {VERSION}")
    for _ in range(ATTEMPTS):
        table = opened(lake)
        turn = table.transaction_version(identity)
        # What was never taken in, which has no turn, is not looked for among all files.
        known = recordings_in(table, "source", "chosen", *SAME, recording=identity).get(identity) if turn else None
        if known and (all(known[name] == told[name] for name in SAME) or says_more(known, told)):
            return "known", told
        if known and known["chosen"] != told["chosen"]:
            raise Refused(f"the lake has it from {known['source']} with other tables; remove it from the lake first")
        # Of two that write the same recording at once, one fails, and looks again.
        turns = CommitProperties(
            max_commit_retries=ATTEMPTS, app_transactions=[Transaction(identity, (turn or 0) + 1)]
        )
        try:
            if known:
                write_deltalake(
                    table,
                    pyarrow.RecordBatchReader.from_batches(schema(), whole_rows(rows_of(files, about))),
                    mode="overwrite",
                    predicate=f"recording = '{identity}'",
                    writer_properties=WRITING,
                    commit_properties=turns,
                )
            else:
                new = put_files(files_of(table), files, about)
                table.create_write_transaction(new, "append", table.schema(), PARTITIONS, commit_properties=turns)
            return "replaced" if known else "taken", told
        except CommitFailedError:
            continue
    raise Refused("others write to the lake all the time")


def take_in(recording: dict, lake: str, exporter: str) -> dict:
    """Takes in a recording, one whose state the lake does not have: its `path`, what was `done`, and why or how."""
    os.umask(0o077)
    path, chosen = recording["path"], recording["chosen"]
    with tempfile.TemporaryDirectory(prefix="strata-fleet-", ignore_cleanup_errors=True) as private:
        files = pathlib.Path(private) / "files"
        try:
            export(exporter, path, files, chosen)
            grew = described(path)["state"] != recording["state"]
            about = {"source": path, "source_state": recording["state"], "chosen": chosen}
            about["is_growing"] = recording["is_growing"] or grew
            done, told = commit(lake, files, about)
        except Refused as refused:
            return {"path": path, "done": "refused", "why": str(refused)}
        except (OSError, StopIteration, LookupError, DeltaError, pyarrow.ArrowException) as error:
            return {"path": path, "done": "refused", "why": f"cannot be put into the lake: {one_line(error)}"}
    return {"path": path, "done": done, "records": told["records"], "why": told["incomplete"], "grows": grew}


# The job: these run on the driver.


def found_below(folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """The recordings at any depth below `folder`, and what is none."""
    if not folder.is_dir():
        raise Refused(f"{folder}: is no folder; give one with recordings in it")
    recordings, others = [], []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if MANIFEST in files:
            recordings.append(os.path.abspath(path))
            folders.clear()
            continue
        there = [os.path.join(path, file) for file in files if not file.startswith(".")]
        recordings += [os.path.abspath(file) for file in there if file.endswith(PACKED)]
        others += [file for file in there if not file.endswith(PACKED)]
        others += [] if folders or files else [path]
    if not recordings:
        raise Refused(f"{folder}: has no recordings in it")
    return sorted(recordings), sorted(others)


def say_some(lines: list[str]) -> None:
    for line in lines[:MOST_LINES]:
        say(line)
    if len(lines) > MOST_LINES:
        say(f"… and {len(lines) - MOST_LINES} more like that")


@contextlib.contextmanager
def progress(done, count: int):
    """Says meanwhile how many of `count` recordings are `done`, an accumulator."""
    is_over = threading.Event()

    def tell():
        told = 0
        while not is_over.wait(TELL_EVERY):
            if done.value != told:
                told = done.value
                say(f"{told} of {count} recordings")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join()


def one_of_each(recordings: list[dict]) -> tuple[list[dict], list[str]]:
    """Of copies of a recording the one that says most; and a line for each other one."""
    best: dict[str, dict] = {}
    lines = []
    for recording in recordings:
        key = recording["id"] or recording["path"]
        first, second = best.get(key), recording
        if first and (first["is_growing"], -first["size"]) > (second["is_growing"], -second["size"]):
            first, second = second, first
        best[key] = first or second
        if first:
            lines.append(f"{second['path']}: passed over, the same recording as {first['path']}")
    return list(best.values()), lines


def ingest(spark, folder: pathlib.Path, lake: str, exporter: str, chosen: str | None) -> bool:
    """Takes in each recording below `folder`, those tables that were chosen; whether the lake now has them all."""
    paths, others = found_below(folder)
    exporter = shutil.which(exporter) or exporter
    made(lake)
    context = spark.sparkContext
    needed = [str(folder.absolute())] + ([] if "://" in lake else [lake])
    slots = max(context.defaultParallelism, 1)
    checks = context.parallelize(range(2 * slots), 2 * slots).map(lambda _: check_worker(needed, exporter)).collect()
    if broken := sorted({why for why in checks if why}):
        raise Refused(f"a worker cannot take recordings in: {'; '.join(broken)}")
    say_some([f"{path}: passed over, no recording" for path in others])
    recordings, copies = one_of_each([described(path) for path in paths])
    say_some(copies)
    known = recordings_in(opened(lake), "source", "source_state", "incomplete", "chosen")
    # One in a file does not tell its id before it is read.
    by_source = {row["source"]: row for row in known.values()}
    results, fresh = [], []
    for recording in recordings:
        row = known.get(recording["id"]) if recording["id"] else by_source.get(recording["path"])
        if row and row["source_state"] == recording["state"]:
            results.append({"path": recording["path"], "done": "known", "why": row["incomplete"], "grows": False})
        else:
            # What is there keeps its tables.
            fresh.append(recording | {"chosen": row["chosen"] if row else chosen})
    # So that no worker is left with a large one at the end.
    fresh.sort(key=lambda recording: -recording["size"])
    done = context.accumulator(0)

    def task(recording):
        result = take_in(recording, lake, exporter)
        done.add(1)
        return result

    with progress(done, len(fresh)):
        results += context.parallelize(fresh, max(len(fresh), 1)).map(task).collect()
    results.sort(key=lambda result: result["path"])
    there = [result for result in results if result["done"] != "refused"]
    say_some([f"{result['path']}: is {result['why']}" for result in there if result["why"]])
    say_some([f"{result['path']}: grew meanwhile; a later job takes it in anew" for result in there if result["grows"]])
    refused = [result for result in results if result["done"] == "refused"]
    for result in refused:
        why = result["why"]
        say(why if why.startswith(result["path"]) else f"{result['path']}: {why}")
    counts = {word: sum(result["done"] == word for result in results) for word in ("taken", "replaced", "known")}
    records = sum(result["records"] for result in results if result["done"] in ("taken", "replaced"))
    say(
        f"{len(paths)} recordings: {counts['taken']} taken in and {counts['replaced']} replaced with {records} records, "
        f"{counts['known']} were there already, {len(copies)} copies passed over, {len(refused)} refused"
    )
    if fresh:
        try:
            tidy(lake, KEPT_HOURS, MANY)
        except Refused as untidy:
            # What was taken in is there.
            say(str(untidy))
    return not refused


def tidy(lake: str, kept_hours: float, many: int = 2) -> None:
    """Joins small files where there are `many`, and removes those that no version of the last hours needs.

    It is a commit for each part, host and day, which writes their rows anew, and fails where another one has changed them:
    deltalake's own `compact`, and a commit that names the files that go, do not see that, and the rows are there twice.
    """
    os.umask(0o077)
    try:
        for place, there in files_by_place(opened(lake)).items():
            sizes = [size for _, size in there]
            small = [size for size in sizes if size < SMALL]
            # What is large is not written again for a little that came.
            if len(small) >= many and sum(small) * 8 >= sum(sizes):
                join(opened(lake), place)
        table = opened(lake)
        table.create_checkpoint()
        # What no version has may be what another job is about to put into the lake.
        table.vacuum(
            retention_hours=kept_hours, dry_run=False, enforce_retention_duration=False, full=kept_hours >= KEPT_HOURS
        )
    except CommitFailedError:
        say(f"{lake}: files are not joined, since others write to it; `fleet.py tidy` does it later")
    except (DeltaError, OSError, pyarrow.ArrowException) as error:
        raise Refused(f"{lake}: files cannot be joined: {one_line(error)}") from None


def join(table: DeltaTable, place: tuple) -> None:
    """Writes the rows of one part, host and day into files of one commit."""
    # Null is "" here.
    at = [(name, "=", value or "") for name, value in zip(PARTITIONS, place, strict=True)]
    files, paths = files_of(table), [path for path, _ in files_by_place(table).get(place, [])]

    def opened_file(path: str) -> pyarrow.parquet.ParquetFile:
        return pyarrow.parquet.ParquetFile(files.open_input_file(path))

    has = {name for path in paths for name in opened_file(path).schema_arrow.names}
    columns = pyarrow.schema([field for field in table.to_pyarrow_dataset().schema if field.name in has])
    rows = (
        (place, completed(columns, batch, {})) for path in paths for batch in opened_file(path).iter_batches(BATCH)
    )
    table.create_write_transaction(
        write_files(files, rows), "overwrite", table.schema(), PARTITIONS, partition_filters=at
    )


def files_by_place(table: DeltaTable) -> dict[tuple, list[tuple[str, int]]]:
    """The lake's files by their places: the path of each in the lake, and bytes."""
    added = table.get_add_actions(flatten=True)
    places = zip(*(added[f"partition.{name}"].to_pylist() for name in PARTITIONS), strict=True)
    found: dict[tuple, list[tuple[str, int]]] = {}
    for place, path, size in zip(places, added["path"].to_pylist(), added["size_bytes"].to_pylist(), strict=True):
        # The log has it as a URI.
        found.setdefault(place, []).append((urllib.parse.unquote(path), size))
    return found


def completed(whole: pyarrow.Schema, batch: pyarrow.RecordBatch, same: dict) -> pyarrow.RecordBatch:
    """`batch` with all columns of `whole`: those that all rows have the `same` in; null is what it lacks."""
    rows, columns = len(batch), []
    for field in whole:
        if field.name in same:
            column = pyarrow.repeat(pyarrow.scalar(same[field.name], field.type), rows)
        elif field.name in batch.schema.names:
            column = batch.column(field.name).cast(field.type, safe=False)
        else:
            column = nulls(field.type, rows)
        columns.append(column)
    return pyarrow.RecordBatch.from_arrays(columns, schema=whole)


# By kind: as many nulls as a batch has rows, at most.
NULLS: dict[pyarrow.DataType, pyarrow.Array] = {}


def nulls(kind: pyarrow.DataType, rows: int) -> pyarrow.Array:
    if kind not in NULLS:
        NULLS[kind] = pyarrow.nulls(BATCH, kind)
    return NULLS[kind].slice(0, rows)


def remove(lake: str, names: list[str]) -> None:
    """Takes recordings out of the lake, by their ids or the places that they were taken in from."""
    table = opened(lake)
    known = recordings_in(table, "source")
    ids = {row["source"]: identity for identity, row in known.items()} | {identity: identity for identity in known}
    places = {name: name if name in ids else os.path.abspath(name) for name in names}
    if unknown := [name for name, place in places.items() if place not in ids]:
        raise Refused(f"{lake}: has no recording {', '.join(unknown)}; nothing is removed")
    os.umask(0o077)
    chosen = ", ".join(f"'{ids[place]}'" for place in places.values())
    rows = table.delete(f"recording in ({chosen})")["num_deleted_rows"]
    say(f"{len(set(chosen.split(', ')))} recordings removed, with {rows} rows; their files go with `fleet.py tidy`")


# Questions.


def select(table: str, columns: list[tuple[str, str]], lake_has: set[str], of: str) -> str:
    """The columns of a table in SQL, from `of`; null where the lake has not got one yet."""
    named = [name if name in lake_has else f"cast(null as {SQL_TYPES[kind]}) as {name}" for name, kind in columns]
    return f"select {', '.join(named)} from {of} where part = '{part_of(table)}' and table_name = '{table}'"


def select_event(fields: list[dict], of: str) -> str:
    """The columns of the table of one event type in SQL, from the events `of`."""
    kinds: dict[str, set[str]] = {}
    for field in fields:
        kinds.setdefault(field["field"], set()).add(field["kind"])
    typed = [f"cast(fields['{name}'] as {SQL_TYPES[kind_for(all_of)]}) as `{name}`" for name, all_of in kinds.items()]
    columns = [name for name, _ in (*TABLES[EVENTS], *PLACE) if name != "fields"]
    events = sorted({"'" + field["event"].replace("'", "''") + "'" for field in fields})
    return f"select {', '.join(columns + typed)} from {of} where event in ({', '.join(events)})"


def kind_for(kinds: set[str]) -> str:
    """What can hold a field of these kinds: kernels differ in what they have of an event."""
    if kinds == {"integer", "unsigned"}:
        return "unsigned"
    # An integer without a sign may be the bits of floating point: so described it who did not know that.
    if kinds == {"integer", "float"}:
        return "float"
    return next(iter(kinds)) if len(kinds) == 1 else "text"


def event_tables(lake: DeltaTable) -> dict[str, list[dict]]:
    """The tables of event types, and the fields of each."""
    columns = ["event", "event_table", "field", "kind"]
    found: dict[str, list[dict]] = {}
    for row in read(lake, "event_fields", *columns).group_by(columns).aggregate([]).sort_by("field").to_pylist():
        found.setdefault(row["event_table"], []).append(row)
    return found


def views(lake: str) -> None:
    """Prints SQL that makes the tables of the lake views in DuckDB."""
    table = opened(lake)
    has = {field.name for field in table.schema().fields}
    path = lake.replace("'", "''")
    scan = f"delta_scan('{path}')"
    print("install delta; load delta;")
    for name, columns in TABLES.items():
        print(f"create or replace view {name} as {select(name, columns + PLACE, has, scan)};")
    for name, fields in event_tables(table).items():
        # A provider may be called as what means something in SQL, or begin with a digit.
        schema_name, view = (f'"{part}"' for part in name.split("."))
        print(f"create schema if not exists {schema_name};")
        print(f"create or replace view {schema_name}.{view} as {select_event(fields, EVENTS)};".replace("`", '"'))


def view_name(table: str) -> str:
    """What a table is called as a view, whose name has no dot in Spark."""
    return table.replace(".", "__")


def with_views(question: str, tables: list[str]) -> tuple[str, list[str]]:
    """`question` with the views of tables in their place, and which of `tables` it names."""
    found = set()
    names = "|".join(re.escape(table) for table in sorted(tables, key=len, reverse=True))

    def replaced(match: re.Match) -> str:
        if match[1] is None:
            return match[0]
        found.add(match[1])
        return view_name(match[1])

    text = re.sub(rf"'(?:[^']|'')*'|--[^\n]*|(?<![\w.])({names})(?!\w)", replaced, question)
    return text, sorted(found)


class Asked:
    """A version of the lake whose tables are views in Spark as questions name them."""

    def __init__(self, spark, lake: str):
        self.spark, self.lake, self.table, self.made = spark, lake, opened(lake), set()
        self.said: set[str] = set()  # what was told of recordings
        self.has = {field.name for field in self.table.schema().fields}
        self.events = event_tables(self.table)
        self.recordings = recordings_in(self.table, "host", "source", "incomplete", "is_growing", "chosen")

    def add(self, table: str) -> None:
        """Makes `table` a view."""
        if table in self.made:
            return
        self.made.add(table)
        if table in self.events:
            self.add(EVENTS)
            self.spark.sql(select_event(self.events[table], EVENTS)).createOrReplaceTempView(view_name(table))
            return
        files = self.table.file_uris(file_pruning_predicate=f"part = '{part_of(table)}'")
        types = ", ".join(f"`{name}` {SQL_TYPES[kind]}" for name, kind in COLUMNS.items() if name in self.has)
        reader = self.spark.read.schema(types)
        frame = (
            reader.option("basePath", hadoop(self.lake)).parquet(*map(hadoop, files))
            if files
            else (self.spark.createDataFrame([], types))
        )
        frame.createOrReplaceTempView(f"lake_{table}")
        self.spark.sql(select(table, TABLES[table] + PLACE, self.has, f"lake_{table}")).createOrReplaceTempView(table)

    def warnings(self, tables: list[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
        """What answers about `tables` do not have: lines for each such recording; and why recordings are incomplete."""
        lines, reasons = {}, {}
        for identity, row in sorted(self.recordings.items(), key=lambda item: not item[1]["is_growing"]):
            own = []
            if why := row["incomplete"] or ("it was still growing" if row["is_growing"] else None):
                reasons[identity] = why
                own.append(why)
            chosen = row["chosen"] and row["chosen"].split(",") + ABOUT["always"]
            for table in tables:
                if chosen and table not in chosen and not ("." in table and EVENTS in chosen):
                    own.append(f"was taken in without {table} (--tables)")
            if own:
                at = f"recording {identity} of {row['host'] or 'an unnamed host'} ({row['source']})"
                lines[identity] = [f"{at}: {what}" for what in own]
        return lines, reasons

    def answer(self, name: str, question: str) -> None:
        """Prints the answer."""
        text, named = with_views(question, [*TABLES, *self.events])
        for table in named:
            self.add(table)
        lines, reasons = self.warnings(named)
        frame = self.spark.sql(text)
        if twice := {column for column in frame.columns if frame.columns.count(column) > 1}:
            raise Refused(f"two columns are called {', '.join(sorted(twice))}: name them with `as`")
        for row in frame.toLocalIterator():
            values = {column: plain(value) for column, value in zip(frame.columns, row)}
            if why := reasons.get(values.get("recording")):
                values["incomplete"] = why
            print(json.dumps({"question": name, **values}, allow_nan=False))
        fresh = [line for own in lines.values() for line in own if line not in self.said]
        self.said.update(fresh)
        say_some(fresh)
        if lines:
            ids = ", ".join([*lines][:MOST_LINES]) + (", …" if len(lines) > MOST_LINES else "")
            say(f"{name}: {len(lines)} of {len(self.recordings)} recordings are not all there: {ids}")


def hadoop(uri: str) -> str:
    """`uri` as Spark has it."""
    return re.sub(r"^s3://", "s3a://", uri)


def check_reads(spark, text: str) -> None:
    """Refuses what is no question."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    command = spark._jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.plans.logical.Command")
    shows = plan.getClass().getSimpleName().startswith(("Explain", "Describe", "Show"))
    # It may stand behind `with`.
    if "InsertInto" in plan.treeString() or (command.isInstance(plan) and not shows):
        raise Refused(
            "only questions are answered (select, with, values, explain, describe, show tables): tables do not change"
        )


def plain(value):
    """`value` as JSON can have it."""
    match value:
        case decimal.Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case float():
            return value if math.isfinite(value) else None
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return str(value)
        case bytes() | bytearray():
            return value.hex()
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value


def ask(spark, lake: str, questions: list[str]) -> bool:
    """Prints the answers; whether every question has one."""
    asked, are_answered = Asked(spark, lake), True
    for question in questions:
        text, ready = question, READY / f"{question}.sql"
        if re.fullmatch(r"[\w-]+", question):
            if not ready.is_file():
                near = difflib.get_close_matches(question, [path.stem for path in READY.glob("*.sql")])
                hint = f"nearest: {', '.join(near)}" if near else f"{READY} has them"
                raise Refused(f"there is no ready question '{question}'; {hint}; SQL has more than one word")
            text = ready.read_text()
        try:
            check_reads(spark, text)
            asked.answer(question, text)
        except Refused as refused:
            say(f"{question}: {refused}")
            are_answered = False
        except PySparkException as error:
            why = one_line(error)
            if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
                name = error.getMessageParameters()["relationName"].replace("`", "")
                near = difflib.get_close_matches(name, [*TABLES, *asked.events])
                why = f"there is no table {name}" + (f"; nearest: {', '.join(near)}" if near else "")
            say(f"{question}: {why}")
            are_answered = False
    return are_answered


def session(master: str | None) -> SparkSession:
    """Spark, set for these tables; without `master`, as spark-submit's options say."""
    if master:
        # Its workers are on this machine, and have the packages that this Python has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark hands its times to Python as local ones, whatever the session's zone is.
    os.environ["TZ"] = "UTC"
    time.tzset()
    logging.getLogger("SQLQueryContextLogger").disabled = True  # one line says what is wrong with a question
    builder = SparkSession.builder.appName("strata-fleet")
    for key, value in {
        # Text stays text, whatever a host is called.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # The job says itself how far it is.
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(key, value)
    return (builder.master(master) if master else builder).getOrCreate()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="The recordings of a fleet as one lake, and questions about it, on Spark.",
        epilog="Examples:\n  fleet.py ingest /recordings /lake\n"
        "  fleet.py ingest /recordings /lake --tables wakeups,vcpu_states,flow_steps\n"
        "  fleet.py ask /lake steal worst-wakeups disk-steps-by-kernel\n"
        '  fleet.py ask /lake "select host, count(*) from exits group by host"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--master", help="Spark's master, such as local[4]; spark-submit's own where it is not given")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about)
        if name == "ingest":
            made.add_argument("recordings", type=pathlib.Path, help="folder with recordings in it, at any depth")
        made.add_argument("lake", help="a folder, or the address of one in an object store (s3://bucket/lake)")
        return made

    ingesting = command("ingest", "take in each recording below a folder: one task for each")
    ingesting.add_argument(
        "--tables", metavar="TABLE,…", help="only these, with commas between them; events are those of all event types"
    )
    ingesting.add_argument("--exporter", default="strata-query", help="the program on workers (default: %(default)s)")
    asking = command("ask", "answer questions: a JSON object a line")
    asking.add_argument("questions", nargs="+", help="names of ready questions (trace-merge/query/queries), or SQL")
    removing = command("remove", "take recordings out")
    removing.add_argument("names", nargs="+", metavar="RECORDING", help="its id, or where it was taken in from")
    tidying = command("tidy", "join small files, and remove those that no version needs")
    tidying.add_argument(
        "--keep-hours", type=float, default=KEPT_HOURS, help="how long older versions stay (default: %(default)s)"
    )
    command("views", "print SQL that makes the tables views in DuckDB")
    return parser.parse_args()


def main() -> int:
    """Does what the command line says."""
    options = arguments()
    # Workers have another working directory.
    lake = options.lake if "://" in options.lake else os.path.abspath(options.lake)
    spark, is_good = None, True
    try:
        match options.command:
            case "ingest":
                spark = session(options.master)
                is_good = ingest(spark, options.recordings, lake, options.exporter, options.tables)
            case "ask":
                spark = session(options.master)
                is_good = ask(spark, lake, options.questions)
            case "remove":
                remove(lake, options.names)
            case "tidy":
                tidy(lake, options.keep_hours)
            case "views":
                views(lake)
        sys.stdout.flush()
    except Refused as refused:
        say(f"error: {refused}")
        is_good = False
    except BrokenPipeError:
        # Whoever reads has read enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if spark:
            spark.stop()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
