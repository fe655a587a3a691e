"""The recordings of a fleet as one lake of tables, and questions about it, on Spark: docs/fleet.md says how.

    fleet.py ingest RECORDINGS LAKE          # takes in each recording in the folder RECORDINGS
    fleet.py ingest RECORDINGS LAKE --tables wakeups,exits   # these tables of it only
    fleet.py ask LAKE steal worst-wakeups    # ready questions, or SQL; a JSON object a line
"""

import argparse
import contextlib
import datetime
import decimal
import fcntl
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

import pyarrow
import pyarrow.parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

# Version of the tables that is read and written: trace-merge/query/src/tables.rs has the same.
SCHEMA_VERSION = "2"
VERSION_KEY = b"strata.schema"
# All tables of event types as one, whose names have a dot; and what all of them have.
EVENTS = "events"
OF_EVENTS = [
    "recording", "time_ns", "utc", "ticks", "layer", "cpu", "vcpu", "tid", "pid", "comm", "cgroup", "event",
    "host", "boot", "vm", "hour",
]  # fmt: skip
# The tables that are taken in whichever are chosen: trace-merge/query/src/tables.rs has the same.
ALWAYS = ["recordings", "vms", "missing", "losses", "gaps"]
READY = pathlib.Path(__file__).resolve().parent.parent / "queries"
# The lake's own folder: what is in it, and what is on its way into it. Readers of tables pass over such names.
BOOK = ".ingest"
MANIFEST = "session.json"
# How often it is said how far the job is, seconds.
TELL_EVERY = 5


class Refused(Exception):
    """Why a recording is not taken in, in one line."""


def harmless(text: str) -> str:
    """`text` without what acts on a terminal: recorded systems choose names."""
    return "".join(letter if letter.isprintable() else f"\\u{{{ord(letter):x}}}" for letter in text)


# Taking in: these functions run on workers.


def id_of(recording: pathlib.Path) -> str | None:
    """The id by which the exporter will call it; None where its manifest does not tell."""
    try:
        manifest = json.loads((recording / MANIFEST).read_text())
        layers = manifest["layers"]
        return (layers[0] if layers else manifest["clock"])["uuid"].replace("-", "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def run_exporter(exporter: str, recording: pathlib.Path, tables: pathlib.Path, chosen: str | None) -> None:
    """Writes the tables of `recording`, those that were chosen, into the new folder `tables`."""
    choice = [] if chosen is None else [f"--tables={chosen}"]
    try:
        done = subprocess.run(
            [exporter, "export", str(recording), "--output", str(tables), *choice],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise Refused(f"the exporter {exporter} cannot be run: {error.strerror}; --exporter names it") from None
    said = done.stderr.decode(errors="replace").splitlines()
    if done.returncode < 0:
        raise Refused(f"the exporter was ended by signal {-done.returncode}")
    if done.returncode != 0:
        reasons = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        raise Refused((reasons or said or ["the exporter failed"])[-1])


def version_of(footer: pyarrow.parquet.FileMetaData) -> str:
    """Of which version the tables are that a file belongs to."""
    return (footer.metadata or {}).get(VERSION_KEY, b"unknown").decode(errors="replace")


def check(tables: pathlib.Path) -> tuple[str, int]:
    """The id in the names of the files below `tables`, and how many rows they have."""
    rows, ids = 0, set()
    for file in tables.rglob("*.parquet"):
        footer = pyarrow.parquet.read_metadata(file)
        if version_of(footer) != SCHEMA_VERSION:
            raise Refused(
                f"the exporter writes tables of version {version_of(footer)}, and this lake is of {SCHEMA_VERSION}"
            )
        rows += footer.num_rows
        ids.add(file.name.split("-")[0])
    if len(ids) != 1:
        raise Refused("the exporter wrote no tables of one recording")
    return ids.pop(), rows


def publish(tables: pathlib.Path, lake: pathlib.Path, recording: str, about: dict) -> bool:
    """Moves files into the lake, each in one rename, and notes that all are there; whether that was still to be done.

    Attempts at the same recording take turns. One that was ended while it moved leaves the note `.moving` behind, and
    what it had moved goes before the next attempt moves its own.
    """
    book = lake / BOOK
    complete, moving = book / f"{recording}.json", book / f"{recording}.moving"
    with open(book / f"{recording}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists():
            return False
        if moving.exists():
            remove_files_of(lake, recording)
        moving.touch()
        for file in sorted(tables.rglob("*.parquet")):
            place = lake / file.relative_to(tables)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
        note = tables / "note"
        note.write_text(json.dumps(about))
        os.replace(note, complete)
        moving.unlink()
    return True


def remove_files_of(lake: pathlib.Path, recording: str) -> None:
    """Removes what the lake has of a recording."""
    for file in lake.glob(f"*/*/*/*/*/{recording}-*.parquet"):
        file.unlink(missing_ok=True)


def take_in(recording: str, lake: str, exporter: str, chosen: str | None) -> tuple[str, str, str, int]:
    """Takes in a recording: which, `taken`, `known` or `refused`, why, and how many rows it has."""
    path, target = pathlib.Path(recording), pathlib.Path(lake)
    os.umask(0o077)  # readable by its user only, as recordings are
    known = id_of(path)
    if known is not None and (target / BOOK / f"{known}.json").exists():
        return recording, "known", "", 0
    with tempfile.TemporaryDirectory(prefix="attempt-", dir=target / BOOK, ignore_cleanup_errors=True) as private:
        tables = pathlib.Path(private) / "tables"
        try:
            run_exporter(exporter, path, tables, chosen)
            identity, rows = check(tables)
            about = {"source": str(path.absolute()), "rows": rows, "tables": chosen and chosen.split(",")}
            is_new = publish(tables, target, identity, about)
        except Refused as refused:
            return recording, "refused", str(refused), 0
        except (OSError, pyarrow.ArrowException) as error:
            return recording, "refused", f"cannot be put into the lake: {error}", 0
    return (recording, "taken", "", rows) if is_new else (recording, "known", "", 0)


# The job: these run on the driver.


@contextlib.contextmanager
def only_job(lake: pathlib.Path):
    """Makes the lake where there is none, and keeps other jobs from writing to it."""
    book = lake / BOOK
    try:
        lake.mkdir(mode=0o700, parents=True, exist_ok=True)
        book.mkdir(mode=0o700, exist_ok=True)
        lock = open(book / "job", "w")
    except OSError as error:
        raise Refused(f"{lake}: cannot be a lake: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"{lake}: another job is taking recordings in") from None
        clean_up(lake)
        try:
            yield
        finally:
            clean_up(lake)


def clean_up(lake: pathlib.Path) -> None:
    """Removes what attempts that were ended have left."""
    for attempt in (lake / BOOK).glob("attempt-*"):
        shutil.rmtree(attempt, ignore_errors=True)
    for moving in (lake / BOOK).glob("*.moving"):
        if not moving.with_suffix(".json").exists():
            remove_files_of(lake, moving.stem)
        moving.unlink(missing_ok=True)


def complete_in(lake: pathlib.Path) -> set[str]:
    """The ids of the recordings of which the lake has all files."""
    return {note.stem for note in (lake / BOOK).glob("*.json")}


@contextlib.contextmanager
def progress(lake: pathlib.Path, count: int):
    """Says meanwhile how many recordings the lake has."""
    before, is_done = len(complete_in(lake)), threading.Event()

    def tell():
        told = 0
        while not is_done.wait(TELL_EVERY):
            taken = len(complete_in(lake)) - before
            if taken != told:
                print(f"{taken} of {count} recordings", file=sys.stderr, flush=True)
                told = taken

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_done.set()
        teller.join()


def ingest(
    spark: SparkSession, folder: pathlib.Path, lake: pathlib.Path, exporter: str, chosen: str | None
) -> bool:
    """Takes in each recording in `folder`, those tables that were chosen; whether the lake now has them all."""
    try:
        recordings = sorted(str(path.absolute()) for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise Refused(f"{folder}: {error.strerror}; give a folder with recordings in it") from None
    if not recordings:
        raise Refused(f"{folder}: is empty; give a folder with recordings in it")
    exporter = shutil.which(exporter) or exporter
    target = str(lake)
    with only_job(lake), progress(lake, len(recordings)):
        tasks = spark.sparkContext.parallelize(recordings, len(recordings))
        results = tasks.map(lambda recording: take_in(recording, target, exporter, chosen)).collect()
    refused = [(recording, why) for recording, outcome, why, _ in results if outcome == "refused"]
    for recording, why in refused:
        print(harmless(why if why.startswith(recording) else f"{recording}: {why}"), file=sys.stderr)
    taken = [rows for _, outcome, _, rows in results if outcome == "taken"]
    known = len(results) - len(taken) - len(refused)
    print(
        f"{len(results)} recordings: {len(taken)} taken in with {sum(taken)} rows, {known} were there already, "
        f"{len(refused)} refused",
        file=sys.stderr,
    )
    return not refused


# Questions.


def footer_of(path: str) -> tuple[str, str | None, str, list[str]]:
    """A file, why it cannot be read (or None), its columns with their types, and those that are times. On a worker."""
    try:
        footer = pyarrow.parquet.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
    except (OSError, pyarrow.ArrowException) as error:
        return path, f"is damaged: {str(error).splitlines()[0]}", "", []
    if version_of(footer) != SCHEMA_VERSION:
        why = f"its tables are of version {version_of(footer)}, and this is {SCHEMA_VERSION}: export again"
        return path, why, "", []
    times = [field.name for field in schema if pyarrow.types.is_timestamp(field.type)]
    return path, None, str(schema.remove_metadata()), times


def tables_in(lake: pathlib.Path) -> dict[str, list[str]]:
    """The files of each table, of recordings that are complete."""
    complete = complete_in(lake)
    tables = {
        table.name: [str(file) for file in table.rglob("*.parquet") if file.name.split("-")[0] in complete]
        for table in lake.iterdir()
        if table.is_dir() and table.name != BOOK
    }
    of_events = [file for table, files in tables.items() if "." in table for file in files]
    return tables | ({EVENTS: of_events} if of_events else {})


def chosen_in(lake: pathlib.Path) -> dict[str, list[str]]:
    """Which tables were chosen when a recording was taken in, by the ids of those of which not all were."""
    notes = ((note.stem, json.loads(note.read_text()).get("tables")) for note in (lake / BOOK).glob("*.json"))
    return {recording: tables for recording, tables in notes if tables}


def taken_in_without(table: str, chosen: dict[str, list[str]]) -> set[str]:
    """The ids of the recordings of which `table` was not `chosen`; says how many these are."""

    def has(tables: list[str]) -> bool:
        return table in tables + ALWAYS or ("." in table and EVENTS in tables)

    ids = {recording for recording, tables in chosen.items() if not has(tables)}
    if ids:
        print(harmless(f"{table}: {len(ids)} recordings were taken in without it (--tables)"), file=sys.stderr)
    return ids


def absent_table(error: PySparkException) -> str | None:
    """The table that is not there, when that is the error."""
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return None
    return error.getMessageParameters()["relationName"].replace("`", "")


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

    text = re.sub(rf"'(?:[^']|'')*'|--[^\n]*|(?<![\w.])({names})(?!\w)" if names else r"(?!)()", replaced, question)
    return text, sorted(found)


def add_view(spark: SparkSession, lake: pathlib.Path, table: str, files: list[str]) -> dict[str, str]:
    """Makes a table a view; what is left out, and why, by recording.

    Recordings of different kernels may have different columns: what one lacks is null, and a column that has different
    types is text. Times of nanoseconds come as numbers, and are made times of microseconds, which is what Spark has.
    Unsigned integers of 64 bits come as decimals.
    """
    context = spark.sparkContext
    footers = context.parallelize(files, min(len(files), 4 * context.defaultParallelism)).map(footer_of).collect()
    bad = [(path, why) for path, why, _, _ in footers if why is not None]
    left_out = {pathlib.Path(path).name.split("-")[0]: f"{path}: {why}" for path, why in bad}
    # Files of `events` lie in folders of their own.
    groups: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for path, why, columns, times in footers:
        if why is None:
            folder = pathlib.Path(path).relative_to(lake).parts[0]
            groups.setdefault((folder, columns), ([], times))[0].append(path)
    frames = []
    for (folder, _), (paths, times) in groups.items():
        frame = spark.read.option("basePath", str(lake / folder)).parquet(*paths)
        if table == EVENTS:
            frame = frame.select(OF_EVENTS)
        for name in times:
            frame = frame.withColumn(name, functions.expr(f"timestamp_micros(`{name}` div 1000)"))
        frames.append(frame)
    kinds: dict[str, set] = {}
    for frame in frames:
        for field in frame.schema:
            kinds.setdefault(field.name, set()).add(field.dataType.simpleString())
    mixed = [name for name, kind in kinds.items() if len(kind) > 1]
    whole = None
    for frame in frames:
        for name in set(mixed) & set(frame.columns):
            frame = frame.withColumn(name, functions.col(f"`{name}`").cast("string"))
        whole = frame if whole is None else whole.unionByName(frame, allowMissingColumns=True)
    if whole is not None:
        whole.createOrReplaceTempView(view_name(table))
    return left_out


def plain(value):
    """`value` as JSON can have it."""
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return [plain(item) for item in value] if isinstance(value, list) else value


def ask(spark: SparkSession, lake: pathlib.Path, questions: list[str]) -> bool:
    """Prints the answers; whether every question has one."""
    if not (lake / BOOK).is_dir():
        raise Refused(f"{lake}: is no lake; `fleet.py ingest` makes one")
    tables, chosen, views, left_out, are_answered = tables_in(lake), chosen_in(lake), set(), set(), True
    for question in questions:
        text, ready = question, READY / f"{question}.sql"
        is_ready = re.fullmatch(r"[\w-]+", question) is not None
        if is_ready:
            if not ready.is_file():
                raise Refused(f"there is no ready question '{question}': {READY} has them; SQL has more than one word")
            text = ready.read_text()
        text, named = with_views(text, list(tables))
        for table in named:
            if table not in views and tables[table]:
                views.add(table)
                left_out |= taken_in_without(table, chosen)
                for recording, line in add_view(spark, lake, table, tables[table]).items():
                    if recording not in left_out:
                        print(harmless(line), file=sys.stderr)
                    left_out.add(recording)
        try:
            for row in spark.sql(text).toLocalIterator():
                values = {name: plain(value) for name, value in row.asDict().items()}
                print(json.dumps({"question": question, **values}))
        except PySparkException as error:
            name = absent_table(error)
            without = taken_in_without(name, chosen) if name else set()
            left_out |= without
            # A ready question names only tables of this version.
            if name and is_ready and not without:
                print(f"{question}: no row, since no recording here has any of what it is about", file=sys.stderr)
                continue
            print(f"{question}: {harmless(' '.join(str(error).split()))[:500]}", file=sys.stderr)
            are_answered = False
    if left_out:
        print(f"{len(left_out)} recordings are left out, in whole or in part", file=sys.stderr)
    return are_answered and not left_out


def session(master: str | None) -> SparkSession:
    """Spark, set for these tables; without `master`, as spark-submit was told."""
    if master:
        # Its workers are on this machine, and have the packages that this Python has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.getLogger("SQLQueryContextLogger").disabled = True  # what is wrong with a question is told in a line
    builder = SparkSession.builder.appName("strata-fleet")
    for key, value in {
        # Text stays text, whatever a host is called.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        # Spark has no times of nanoseconds: they come as numbers.
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        "spark.sql.session.timeZone": "UTC",
        # The job says itself how far it is.
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(key, value)
    return (builder.master(master) if master else builder).getOrCreate()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="The recordings of a fleet as one lake of tables, and questions about it, on Spark.",
        epilog="Examples:\n  fleet.py ingest /recordings /lake\n"
        "  fleet.py ingest /recordings /lake --tables wakeups,vcpu_states,flow_steps\n"
        "  fleet.py ask /lake steal worst-wakeups disk-steps-by-kernel\n"
        '  fleet.py ask /lake "select host, count(*) from exits group by host"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--master", help="Spark's master, such as local[4]; spark-submit's own where it is not given")
    commands = parser.add_subparsers(dest="command", required=True)
    ingesting = commands.add_parser("ingest", help="take in each recording in a folder: one task for each")
    ingesting.add_argument("recordings", type=pathlib.Path, help="folder with recordings in it")
    ingesting.add_argument("lake", type=pathlib.Path, help="folder of tables: a new one, or one to add to")
    ingesting.add_argument(
        "--tables", metavar="TABLE,…", help="only these, with commas between them; events are those of all event types"
    )
    ingesting.add_argument("--exporter", default="strata-query", help="the program on workers (default: %(default)s)")
    asking = commands.add_parser("ask", help="answer questions: a JSON object a line")
    asking.add_argument("lake", type=pathlib.Path)
    asking.add_argument("questions", nargs="+", help="names of ready questions (trace-merge/query/queries), or SQL")
    arguments = parser.parse_args()
    lake = arguments.lake.absolute()  # workers have another working directory
    spark = session(arguments.master)
    try:
        if arguments.command == "ingest":
            is_good = ingest(spark, arguments.recordings, lake, arguments.exporter, arguments.tables)
        else:
            is_good = ask(spark, lake, arguments.questions)
    except Refused as refused:
        print(f"error: {harmless(str(refused))}", file=sys.stderr)
        is_good = False
    finally:
        spark.stop()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
