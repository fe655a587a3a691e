"""The fleet's job and its lake: `cargo xtask query --spark` runs these tests.

They take the exporter from STRATA_QUERY, a recording from STRATA_FLEET_RECORDING, and judge with DuckDB's own reader of
Delta Lake.
"""

import collections
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request

import duckdb
import duckdb_ext
import fleet
import pyspark
from copies import HOSTS, copy, copy_fleet, halve, leave_growing

JOB = pathlib.Path(__file__).resolve().parent / "fleet.py"
EXPORTER = os.environ["STRATA_QUERY"]
RECORDING = pathlib.Path(os.environ["STRATA_FLEET_RECORDING"])
RECORDINGS = 40
# Starts a master or a worker of a standalone cluster.
SPARK_CLASS = pathlib.Path(pyspark.__path__[0]) / "bin/spark-class"
MASTER, WORKER = (f"org.apache.spark.deploy.{role}" for role in ("master.Master", "worker.Worker"))
WORKERS = 2
PATIENCE = 1800
# What Spark and DuckDB may differ by in a percentile, as a share of it; and in a share that is rounded.
CLOSE, ROUNDED = 1e-6, 0.011
QUESTIONS = sorted(path.stem for path in fleet.READY.glob("*.sql"))


def command(*arguments, master: str = "local[2]") -> list[str]:
    return [sys.executable, str(JOB), "--master", master, *map(str, arguments)]


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), check=False, capture_output=True, text=True, timeout=PATIENCE)


class Alone:
    """A Spark without workers: what the job asks of one, in this process."""

    defaultParallelism = 1

    def __init__(self):
        self.sparkContext, self.value = self, 0

    def parallelize(self, items, _):
        return Items(items)

    def accumulator(self, _):
        return self

    def add(self, number):
        self.value += number


class Items(list):
    def map(self, function):
        return Items(map(function, self))

    def collect(self):
        return list(self)


def ingest(recordings: pathlib.Path, lake: pathlib.Path | str, exporter=EXPORTER, tables=None) -> tuple[bool, str]:
    """Whether all were taken in, and what the job said."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            is_good = fleet.ingest(Alone(), recordings, str(lake), str(exporter), tables)
        except fleet.Refused as refused:
            return False, str(refused)
    return is_good, said.getvalue()


def delta() -> duckdb.DuckDBPyConnection:
    """DuckDB with its reader of Delta Lake, which comes in a package."""
    database = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    extension = next(pathlib.Path(duckdb_ext.__path__[0]).rglob("delta.duckdb_extension"))
    database.sql(f"load '{extension}'; set timezone = 'UTC'")
    return database


def with_views(lake: pathlib.Path) -> duckdb.DuckDBPyConnection:
    """DuckDB with the lake's tables, as `fleet.py views` says."""
    database = delta()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        fleet.views(str(lake))
    database.execute(said.getvalue().replace("install delta; load delta;", ""))
    return database


def exported(recording: pathlib.Path, tables: pathlib.Path) -> duckdb.DuckDBPyConnection:
    """DuckDB with the tables of one recording, as the exporter wrote them."""
    subprocess.run([EXPORTER, "export", recording, "-o", tables], check=True, capture_output=True)
    database = duckdb.connect()
    for name in {path.name for path in tables.iterdir() if "." not in path.name} | {fleet.EVENTS}:
        files = f"'{tables}/{'*.*' if name == fleet.EVENTS else name}/**/*.parquet'"
        options = "hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
        database.sql(f"create view {name} as from read_parquet({files}, {options})")
    return database


def sums(database: duckdb.DuckDBPyConnection, table: str, where: str = "true") -> dict:
    """Rows of a table and what its columns add up to, by recording."""
    numbers = [name for name, kind in fleet.TABLES[table] if kind == "integer"]
    texts = [
        name
        for name, kind in fleet.TABLES[table]
        if kind == "text" and name not in ("source", "source_state", "chosen")
    ]
    added = [f"sum({name}::hugeint)" for name in numbers]
    added += [
        f"sum(hash(coalesce(nullif({name}, '{fleet.NULL_PARTITION}'), ''))::hugeint)"
        for name in (*texts, "host", "vm", "boot", "hour")
    ]
    found = database.sql(
        f"select recording, count(*), {', '.join(added)} from {table} where {where} group by 1"
    ).fetchall()
    return {row[0]: row[1:] for row in found}


class Cluster:
    """A master and workers with a processor each, in sessions of their own, on this machine; their logs are in `folder`."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.started = folder, []
        self.start("master", MASTER, "--port", "0", "--webui-port", "0")
        self.url = self.logged("master", r"spark://\S+:\d+")
        for number in range(WORKERS):
            work = folder / f"work-{number}"
            options = ("--cores", "1", "--memory", "2g", "--webui-port", "0", "--work-dir", str(work))
            self.start(f"worker-{number}", WORKER, *options, self.url)
        for number in range(WORKERS):
            self.logged(f"worker-{number}", "Successfully registered with master")

    def start(self, name: str, role: str, *options: str) -> None:
        with open(self.folder / name, "wb") as log:
            process = subprocess.Popen(
                [SPARK_CLASS, role, "--host", "127.0.0.1", *options], stdout=log, stderr=log, start_new_session=True
            )
        self.started.append(process)

    def logged(self, name: str, pattern: str) -> str:
        """What matches `pattern` in the log of the process `name`, when it is there."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and all(process.poll() is None for process in self.started):
            if found := re.search(pattern, (self.folder / name).read_text()):
                return found[0]
            time.sleep(0.1)
        raise AssertionError((self.folder / name).read_text())

    def kill_a_worker(self) -> None:
        """Kills the last worker with what it runs, as if its machine failed."""
        worker = self.started.pop()
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        for process in self.started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Fleet(unittest.TestCase):
    """Forty recordings: whole, growing, damaged, a copy; one of two workers is killed in the middle of the job."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="strata-fleet-")))
        cls.recordings, cls.lake = cls.folder / "recordings", cls.folder / "lake"
        copy_fleet(RECORDING, cls.recordings, RECORDINGS)
        leave_growing(cls.recordings / "recording-001")
        halve(cls.recordings / "recording-002")
        shutil.copytree(cls.recordings / "recording-003", cls.recordings / "deeper/twin")
        # A recording takes as long as a larger one would, so that the worker is in the middle of one.
        slow = cls.folder / "slow"
        slow.write_text(f'#!/bin/sh\n"{EXPORTER}" "$@" || exit\nsleep 0.5\n')
        slow.chmod(0o700)
        cluster = Cluster(cls.folder)
        cls.addClassCleanup(cluster.stop)
        log = cls.folder / "log"
        with open(log, "wb") as said:
            arguments = command("ingest", cls.recordings, cls.lake, "--exporter", slow, master=cluster.url)
            job = subprocess.Popen(arguments, stdout=said, stderr=said)
        cls.killed_at = recordings_when_some_are_taken_in(job, cls.lake)
        cluster.kill_a_worker()
        cls.status = job.wait(PATIENCE)
        cls.said = log.read_text()

    def test_worker_was_lost_and_the_job_went_on(self):
        self.assertEqual(self.status, 0, self.said)
        self.assertTrue(0 < self.killed_at < RECORDINGS, self.killed_at)
        self.assertIn("Lost executor", self.said)
        self.assertIn(f"{RECORDINGS + 1} recordings:", self.said)
        self.assertIn("1 copies passed over, 0 refused", self.said)

    def test_report_names_what_grows_is_damaged_or_a_copy(self):
        growing, damaged, twin = (
            next(line for line in self.said.splitlines() if words in line)
            for words in ("recording-001: is", "recording-002: is", "recording-003: passed over")
        )

        self.assertIn("its recorder still runs or was killed", growing)
        self.assertIn("INCOMPLETE", damaged)
        self.assertIn(f"the same recording as {self.recordings}/deeper/twin", twin)

    def test_lake_has_every_row_of_every_recording_once(self):
        lake, whole = with_views(self.lake), {}
        for number in range(RECORDINGS):
            copy = "deeper/twin" if number == 3 else f"recording-{number:03}"
            one = exported(self.recordings / copy, self.folder / f"tables-{number}")
            has = {name for (name,) in one.sql("select view_name from duckdb_views() where not internal").fetchall()}
            for table in has & set(fleet.TABLES):
                whole.setdefault(table, {}).update(sums(one, table))

        for table in fleet.TABLES:
            with self.subTest(table):
                self.assertEqual(sums(lake, table), whole.get(table, {}))

    def test_no_version_of_the_lake_has_a_piece_of_a_recording(self):
        def rows(version: int) -> collections.Counter:
            table = fleet.DeltaTable(str(self.lake), version=version)
            return collections.Counter(table.to_pyarrow_table(columns=["recording"])["recording"].to_pylist())

        last = fleet.opened(str(self.lake)).version()
        whole = rows(last)

        versions = [rows(version) for version in range(1, last, 5)]

        self.assertEqual(len(whole), RECORDINGS)
        for version in versions:
            self.assertEqual(version, {recording: whole[recording] for recording in version})

    def test_lake_has_few_files_and_fewer_when_they_are_joined(self):
        tidied = self.folder / "tidied"
        shutil.copytree(self.lake, tidied)

        with contextlib.redirect_stderr(io.StringIO()):
            fleet.tidy(str(tidied), 0)

        self.assertLessEqual(len(fleet.opened(str(self.lake)).file_uris()), 3 * RECORDINGS)
        self.assertEqual(len(list(tidied.rglob("part-*.parquet"))), 3 * HOSTS)
        for table in fleet.TABLES:
            self.assertEqual(sums(with_views(tidied), table), sums(with_views(self.lake), table), table)

    def test_every_ready_question_has_the_same_answer_from_duckdb(self):
        asked = run("ask", self.lake, *QUESTIONS)

        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.assertIn("its recorder still runs or was killed", asked.stderr)
        answers: dict[str, list[dict]] = {question: [] for question in QUESTIONS}
        for line in asked.stdout.splitlines():
            row = json.loads(line)
            answers[row.pop("question")].append(row)
        database = with_views(self.lake)
        for question in QUESTIONS:
            text = (fleet.READY / f"{question}.sql").read_text()
            theirs = database.sql(text)
            kinds = zip(theirs.columns, theirs.types, strict=True)
            left_out = {name for name, kind in kinds if "TIMESTAMP" in str(kind)}
            theirs = theirs.project(", ".join(f'"{name}"' for name in theirs.columns if name not in left_out))
            rows = [dict(zip(theirs.columns, row, strict=True)) for row in theirs.fetchall()]
            ours = [{name: row[name] for name in theirs.columns} for row in answers[question]]
            with self.subTest(question):
                self.assertTrue(rows)
                self.assert_alike(ours, rows)

    def assert_alike(self, ours: list[dict], theirs: list[dict]):
        """Equal but for the order, and for what engines round."""

        def key(row):
            return json.dumps({name: value for name, value in row.items() if is_exact(name)}, default=int)

        ours, theirs = sorted(ours, key=key), sorted(theirs, key=key)
        self.assertEqual([key(row) for row in ours], [key(row) for row in theirs])
        for own, their in zip(ours, theirs, strict=True):
            for name in (name for name in own if not is_exact(name) and own[name] is not None):
                allowed = max(CLOSE * abs(own[name]), ROUNDED)
                self.assertAlmostEqual(own[name], float(their[name]), delta=allowed, msg=name)


def is_exact(name: str) -> bool:
    return name not in ("p50_ns", "p99_ns", "percent", "seconds")


def recordings_when_some_are_taken_in(job: subprocess.Popen, lake: pathlib.Path) -> int:
    """How many recordings `lake` has, as soon as these are some of them; 0 when `job` has ended."""
    deadline = time.monotonic() + PATIENCE
    while job.poll() is None and time.monotonic() < deadline:
        taken = fleet.DeltaTable(str(lake)).version() if (lake / "_delta_log").is_dir() else 0
        if taken >= RECORDINGS // 6:
            return taken
        time.sleep(0.05)
    return 0


class TakingIn(unittest.TestCase):
    """What becomes of recordings that change, are bad, or are written twice."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="strata-fleet-")))
        self.recordings, self.lake = self.folder / "recordings", self.folder / "lake"
        copy_fleet(RECORDING, self.recordings, 2)

    def ask(self, question: str) -> list[tuple]:
        database = with_views(self.lake)
        return database.sql(question).fetchall()

    def test_recording_that_grew_replaces_what_was_taken_in_of_it(self):
        whole = self.folder / "whole"
        shutil.copytree(self.recordings / "recording-000", whole)
        leave_growing(self.recordings / "recording-000")

        first = ingest(self.recordings, self.lake)
        growing = self.ask("select count(*), count(*) filter (is_growing) from recordings")
        shutil.rmtree(self.recordings / "recording-000")
        shutil.copytree(whole, self.recordings / "recording-000")
        second = ingest(self.recordings, self.lake)

        self.assertTrue(first[0] and second[0], (first, second))
        self.assertIn("its recorder still runs or was killed", first[1])
        self.assertEqual(growing, [(2, 1)])
        self.assertIn("0 taken in and 1 replaced", second[1])
        events = self.ask("select recording, count(*) from events group by all")
        self.assertEqual(len({count for _, count in events}), 1, events)
        self.assertEqual(self.ask("select count(*), count(*) filter (is_growing) from recordings"), [(2, 0)])

    def test_recording_that_grew_keeps_the_tables_that_were_taken_in_of_it(self):
        whole = self.folder / "whole"
        self.recordings.rename(whole)
        shutil.copytree(whole, self.recordings)
        leave_growing(self.recordings / "recording-000")

        ingest(self.recordings, self.lake)
        shutil.rmtree(self.recordings)
        shutil.copytree(whole, self.recordings)
        again = ingest(self.recordings, self.lake, tables="wakeups")

        self.assertIn("0 taken in and 1 replaced", again[1])
        events = self.ask("select recording, count(*) from events group by all")
        self.assertEqual([len(events), len({count for _, count in events})], [2, 1], events)

    def test_exporter_that_leaves_damaged_tables_is_a_line(self):
        torn = self.folder / "torn"
        torn.write_text(
            f'#!/bin/sh\n"{EXPORTER}" "$@" || exit\n'
            'case $1 in export) find "$5" -type f -exec truncate -s 100 {} + ;; esac\n'
        )
        torn.chmod(0o700)

        is_good, said = ingest(self.recordings, self.lake, torn)

        self.assertFalse(is_good)
        self.assertIn("recording-000: cannot be put into the lake: ", said)
        self.assertIn("2 recordings: 0 taken in", said)

    def test_taking_in_again_changes_nothing_wherever_recordings_lie(self):
        first = ingest(self.recordings, self.lake)
        before = self.ask("select count(*) from events")
        self.recordings.rename(self.folder / "moved")
        copy(RECORDING, self.folder / "moved/deep/er/new", 0)

        again = ingest(self.folder / "moved", self.lake)

        self.assertIn("2 recordings: 2 taken in and 0 replaced", first[1])
        self.assertIn("3 recordings: 1 taken in and 0 replaced", again[1])
        self.assertIn("2 were there already", again[1])
        self.assertEqual(self.ask("select count(*) * 2 / 3 from events"), before)

    def test_copy_that_says_less_does_not_replace_what_is_there(self):
        ingest(self.recordings, self.lake)
        before = self.ask("select count(*) from events")
        shutil.copytree(self.recordings / "recording-000", self.folder / "copies/part")
        leave_growing(self.folder / "copies/part")

        is_good, said = ingest(self.folder / "copies", self.lake)

        self.assertTrue(is_good, said)
        self.assertIn("0 taken in and 0 replaced", said)
        self.assertEqual(self.ask("select count(*) from events"), before)

    def test_file_that_should_be_a_recording_is_handed_to_the_exporter(self):
        (self.recordings / "one.strata").write_text("none")

        is_good, said = ingest(self.recordings, self.lake)

        self.assertFalse(is_good)
        self.assertIn(f"{self.recordings}/one.strata", said)
        self.assertIn("3 recordings: 2 taken in", said)

    def test_bad_recordings_are_a_line_each_and_the_others_are_taken_in(self):
        (self.recordings / "empty").mkdir()
        (self.recordings / "file").write_text("no recording")
        manifest = self.recordings / "recording-001" / "session.json"
        manifest.write_bytes(manifest.read_bytes()[:1000])

        is_good, said = ingest(self.recordings, self.lake)

        self.assertFalse(is_good)
        self.assertIn(f"{self.recordings}/empty: passed over, no recording", said)
        self.assertIn(f"{self.recordings}/file: passed over, no recording", said)
        self.assertIn("recording-001/session.json: damaged or truncated", said)
        self.assertEqual(said.count(f"{self.recordings}/recording-001"), 1, said)
        self.assertIn("2 recordings: 1 taken in", said)
        self.assertIn("1 refused", said)

    def test_worker_that_cannot_take_in_is_said_before_the_first_task(self):
        is_good, said = ingest(self.recordings, self.lake, "/nonexistent/strata-query")

        self.assertFalse(is_good)
        self.assertEqual(said.count("the exporter /nonexistent/strata-query cannot be run"), 1, said)

    def test_recording_that_is_removed_is_gone_and_can_come_again(self):
        ingest(self.recordings, self.lake)
        place = str(self.recordings / "recording-000")

        with contextlib.redirect_stderr(io.StringIO()) as said:
            fleet.remove(str(self.lake), [place])
        left = {table: len(sums(with_views(self.lake), table)) for table in ("recordings", "events", "exits")}
        again = ingest(self.recordings, self.lake)

        self.assertIn("1 recordings removed, with ", said.getvalue())
        self.assertEqual(left, {"recordings": 1, "events": 1, "exits": 1})
        self.assertIn("1 taken in and 0 replaced", again[1])
        with self.assertRaisesRegex(fleet.Refused, "has no recording nobody; nothing is removed"):
            fleet.remove(str(self.lake), [place, "nobody"])

    def test_lake_of_a_newer_version_is_left_alone(self):
        ingest(self.recordings, self.lake)
        table = fleet.opened(str(self.lake))
        table.alter.set_table_properties({fleet.VERSION_KEY: "99"}, raise_if_not_exists=False)

        refused = ingest(self.recordings, self.lake)

        self.assertIn(f"is of version 99, and this program of {fleet.VERSION}", refused[1])

    def test_lake_that_lacks_a_column_gets_it(self):
        columns = dict(fleet.COLUMNS)
        with unittest.mock.patch.object(
            fleet, "COLUMNS", {name: columns[name] for name in columns if name != "cgroup"}
        ):
            ingest(self.recordings, self.lake)
        copy(RECORDING, self.recordings / "new", 0)

        is_good, said = ingest(self.recordings, self.lake)

        self.assertTrue(is_good, said)
        self.assertEqual(self.ask("select count(distinct recording) from events"), [(3,)])

    def test_two_jobs_at_once_take_everything_in_once(self):
        copy_fleet(RECORDING, self.recordings / "more", 6)
        script = f"import test_fleet, pathlib; print(*test_fleet.ingest(pathlib.Path({str(self.recordings)!r}), {str(self.lake)!r}))"
        jobs = [
            subprocess.Popen([sys.executable, "-c", script], cwd=JOB.parent, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]

        said = [job.communicate(timeout=PATIENCE)[0] for job in jobs]

        self.assertTrue(all(text.startswith("True") for text in said), said)
        rows = self.ask("select recording, count(*) from events group by all")
        self.assertEqual((len(rows), len({count for _, count in rows})), (8, 1), rows)

    def test_files_that_two_jobs_join_at_once_are_joined_once(self):
        copy_fleet(RECORDING, self.recordings / "more", 2)
        with unittest.mock.patch.object(fleet, "tidy"):
            ingest(self.recordings, self.lake)
        stale = fleet.opened(str(self.lake))

        fleet.tidy(str(self.lake), fleet.KEPT_HOURS)
        with (
            unittest.mock.patch.object(fleet, "opened", return_value=stale),
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            fleet.tidy(str(self.lake), fleet.KEPT_HOURS)

        self.assertIn("files are not joined, since others write to it", said.getvalue())
        rows = self.ask("select recording, count(*) from events group by all")
        self.assertEqual((len(rows), len({count for _, count in rows})), (4, 1), rows)

    def test_what_a_killed_job_left_goes_once_no_job_can_be_about_to_take_it_in(self):
        ingest(self.recordings, self.lake)
        there = next(self.lake.rglob("part-*.parquet"))
        left, fresh = (there.with_name(f"part-{name}.parquet") for name in ("left", "fresh"))
        for path, hours in [(left, fleet.KEPT_HOURS + 1), (fresh, 1)]:
            shutil.copy(there, path)
            os.utime(path, (time.time() - hours * 3600,) * 2)

        fleet.tidy(str(self.lake), fleet.KEPT_HOURS)

        self.assertEqual([path.exists() for path in (left, fresh, there)], [False, True, True])

    def test_job_that_is_killed_leaves_whole_recordings_and_a_rerun_completes_them(self):
        copy_fleet(RECORDING, self.recordings / "more", 8)
        script = (
            f"import test_fleet, pathlib; test_fleet.ingest(pathlib.Path({str(self.recordings)!r}), {str(self.lake)!r})"
        )
        job = subprocess.Popen([sys.executable, "-c", script], cwd=JOB.parent)
        while not (self.lake / "_delta_log/00000000000000000002.json").exists() and job.poll() is None:
            time.sleep(0.01)
        job.kill()
        job.wait()

        between = self.ask("select recording, count(*) from events group by all")
        is_good, said = ingest(self.recordings, self.lake)
        after = self.ask("select recording, count(*) from events group by all")

        self.assertTrue(is_good, said)
        self.assertTrue(1 < len(between) < 10, between)
        self.assertEqual((len(after), len({count for _, count in after + between})), (10, 1))

    def test_names_of_hosts_are_any_text(self):
        manifest = self.recordings / "recording-000/session.json"
        about = json.loads(manifest.read_text())
        about["host"]["hostname"] = "a/b %=ü"
        manifest.write_text(json.dumps(about))

        ingest(self.recordings, self.lake)

        self.assertEqual(self.ask("select distinct host from exits order by 1"), [("a/b %=ü",), ("node-01",)])


class ObjectStore(unittest.TestCase):
    """A lake in an object store, which runs on this machine."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="strata-fleet-")))
        copy_fleet(RECORDING, cls.folder / "recordings", 3)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        # A process of its own: deltalake keeps this one's other threads from running while it waits for the store.
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.terminate)
        store = f"http://127.0.0.1:{port}"
        cls.enterClassContext(
            unittest.mock.patch.dict(
                os.environ,
                AWS_ENDPOINT_URL=store,
                AWS_ALLOW_HTTP="true",
                AWS_ACCESS_KEY_ID="name",
                AWS_SECRET_ACCESS_KEY="secret",
                AWS_REGION="us-east-1",
            )
        )
        make_bucket = urllib.request.Request(f"{store}/lakes", method="PUT")
        end = time.monotonic() + 60
        while True:
            try:
                return urllib.request.urlopen(make_bucket).close()
            except urllib.error.URLError:
                assert server.poll() is None and time.monotonic() < end, "no object store"
                time.sleep(0.1)

    def test_recordings_are_taken_in_once_and_removed(self):
        lake = "s3://lakes/one"

        first, again = (ingest(self.folder / "recordings", lake) for _ in range(2))
        recordings = fleet.recordings_in(fleet.opened(lake), "source")
        with contextlib.redirect_stderr(io.StringIO()):
            fleet.remove(lake, [next(iter(recordings))])
        left = fleet.opened(lake).to_pyarrow_table(columns=["recording"])["recording"]

        self.assertIn("3 taken in and 0 replaced", first[1])
        self.assertIn("3 were there already", again[1])
        self.assertEqual(set(left.to_pylist()), set(list(recordings)[1:]))

    def test_store_that_refuses_is_a_line(self):
        is_good, said = ingest(self.folder / "recordings", "s3://absent/lake")

        self.assertFalse(is_good)
        self.assertRegex(said, "^s3://absent/lake: cannot be a lake: .*NoSuchBucket")
        self.assertNotIn("\n", said)


class Views(unittest.TestCase):
    """SQL that makes the lake's tables views in DuckDB."""

    def test_names_that_mean_something_in_sql_are_quoted(self):
        events = {"order.created": [{"event": "order:created", "field": "n", "kind": "integer"}]}
        lake = unittest.mock.patch.object(fleet, "opened")
        tables = unittest.mock.patch.object(fleet, "event_tables", return_value=events)

        with lake, tables, contextlib.redirect_stdout(io.StringIO()) as said:
            fleet.opened.return_value.schema.return_value.fields = []
            fleet.views("/bob's/lake")

        self.assertIn(" from delta_scan('/bob''s/lake') where ", said.getvalue())
        self.assertIn('create schema if not exists "order";', said.getvalue())
        self.assertIn('create or replace view "order"."created" as ', said.getvalue())


class Questions(unittest.TestCase):
    """Questions for a lake of three recordings: one grows, one has few tables."""

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="strata-fleet-")))
        cls.lake = folder / "lake"
        copy_fleet(RECORDING, folder / "first", 2)
        leave_growing(folder / "first/recording-001")
        ingest(folder / "first", cls.lake)
        copy_fleet(RECORDING, folder / "second", 1)
        ingest(folder / "second", cls.lake, tables="wakeups,recordings")
        cls.spark = fleet.session("local[2]")
        cls.addClassCleanup(cls.spark.stop)

    def ask(self, *questions) -> tuple[bool, list[dict], str]:
        with contextlib.redirect_stdout(io.StringIO()) as answers, contextlib.redirect_stderr(io.StringIO()) as said:
            is_answered = fleet.ask(self.spark, str(self.lake), list(questions))
        return is_answered, [json.loads(line) for line in answers.getvalue().splitlines()], said.getvalue()

    def test_answer_names_what_is_incomplete(self):
        is_answered, rows, said = self.ask("exits-by-reason", "worst-wakeups")

        self.assertTrue(is_answered, said)
        self.assertTrue(any("its recorder still runs" in row.get("incomplete", "") for row in rows), rows)
        self.assertRegex(said, r"recording \w+ of node-01 \(.*\): INCOMPLETE: .*its recorder still runs")
        self.assertRegex(said, r"recording \w+ of node-00 \(.*\): was taken in without exits \(--tables\)")
        self.assertNotIn("without wakeups", said)
        for question in ("exits-by-reason", "worst-wakeups"):
            self.assertIn(f"{question}: 3 of 3 recordings are not all there: ", said)

    def test_every_kind_of_value_is_json(self):
        is_answered, rows, said = self.ask(
            "select cast('NaN' as double) as nan, max(begin_utc) - min(begin_utc) as took, date(max(begin_utc)) as day, "
            "max(begin_utc) as at, cast(1.5 as decimal(3, 1)) as half from exits",
            "select fields, address from events, locks limit 1",
        )

        self.assertTrue(is_answered, said)
        self.assertEqual((rows[0]["nan"], rows[0]["took"], rows[0]["half"]), (None, "0:00:00", 1.5))
        self.assertTrue(rows[0]["at"].startswith(rows[0]["day"]))
        self.assertIsInstance(rows[1]["fields"], dict)
        self.assertIsInstance(rows[1]["address"], int)

    def test_utc_is_utc_wherever_the_job_runs(self):
        question = "select min(first_utc) as first_utc from recordings"
        elsewhere = os.environ | {"TZ": "Asia/Tokyo"}

        ended = subprocess.run(
            command("ask", self.lake, question),
            env=elsewhere, check=True, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        database = with_views(self.lake)
        (expected,) = database.sql("select strftime(min(first_utc), '%Y-%m-%dT%H:%M:%S') from recordings").fetchone()

        self.assertTrue(json.loads(ended.stdout)["first_utc"].startswith(expected), ended.stdout)

    def test_what_changes_something_is_refused_and_the_next_question_is_answered(self):
        changes = [
            "drop view exits",
            "insert into exits select * from exits",
            "with a as (select 1) insert into exits select * from a",
            "create table mine as select 1",
            "set spark.sql.session.timeZone = Asia/Tokyo",
            "cache table exits",
        ]

        is_answered, rows, said = self.ask(*changes, "select count(*) > 0 as n from exits", "describe exits")

        self.assertFalse(is_answered)
        self.assertEqual(said.count("only questions are answered"), len(changes), said)
        self.assertTrue(rows[0]["n"])
        self.assertEqual(rows[1]["col_name"], "recording")

    def test_wrong_question_is_a_line_that_helps(self):
        is_answered, rows, said = self.ask(
            "select * from exitz",
            "select nothing from exits",
            "select * from flows a join flow_steps b on a.flow = b.flow",
            "select count(*) as n from recordings",
        )
        with self.assertRaisesRegex(fleet.Refused, "no ready question 'exits-by-reasn'; nearest: exits-by-reason"):
            self.ask("exits-by-reasn")

        self.assertFalse(is_answered)
        self.assertIn("there is no table exitz; nearest: exits", said)
        self.assertIn("select nothing from exits: ", said)
        self.assertIn("two columns are called begin_ns, ", said)
        self.assertEqual(rows[-1]["n"], 3)

    def test_tables_of_event_types_have_their_fields_with_their_types(self):
        is_answered, rows, said = self.ask(
            "select typeof(s.next_pid) as a, typeof(s.next_comm) as b, count(*) as n from sched.sched_switch s group by all",
            "select w.comm, w.field_comm from sched.sched_waking w limit 1",
            "select s.call from raw_syscalls.sys_enter s limit 1",
        )

        self.assertTrue(is_answered, said)
        self.assertEqual([(row["a"], row["b"]) for row in rows[:1]], [("bigint", "string")])
        self.assertGreater(rows[0]["n"], 0)
        self.assertIn("field_comm", rows[1])

    def test_field_that_kernels_have_of_different_kinds_has_one_that_holds_both(self):
        seen = [
            ("a", ["integer"], "bigint"),
            ("b", ["integer", "unsigned"], "decimal(20,0)"),
            ("c", ["text", "integer"], "string"),
            ("d", ["integer", "float"], "double"),
            ("e", ["unsigned", "float"], "string"),
            ("f", ["integer", "unsigned", "float"], "string"),
        ]
        fields = [{"event": "x:y", "field": name, "kind": kind} for name, kinds, _ in seen for kind in kinds]

        selected = fleet.select_event(fields, "events")

        for name, _, kind in seen:
            self.assertIn(f"cast(fields['{name}'] as {kind}) as `{name}`", selected)
            self.assertEqual(selected.count(f"`{name}`"), 1)

    def test_table_without_rows_is_there(self):
        is_answered, rows, said = self.ask("select count(*) as n from missing")

        self.assertTrue(is_answered, said)
        self.assertEqual(rows, [{"question": "select count(*) as n from missing", "n": 0}])

    def test_reader_that_has_read_enough_is_no_error(self):
        ended = subprocess.run(
            ["sh", "-c", '"$@" | head -1', "sh", *command("ask", self.lake, "select * from events")],
            check=False, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip

        self.assertEqual(len(ended.stdout.splitlines()), 1)
        self.assertNotIn("BrokenPipe", ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
