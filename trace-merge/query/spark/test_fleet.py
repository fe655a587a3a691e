"""The fleet's job with several workers, one of which is killed: `cargo xtask query --spark` runs these tests.

They take the exporter from STRATA_QUERY, a recording from STRATA_FLEET_RECORDING, and judge with DuckDB.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import duckdb
import fleet
from copies import HOSTS, copy, copy_fleet

JOB = pathlib.Path(__file__).resolve().parent / "fleet.py"
EXPORTER = os.environ["STRATA_QUERY"]
RECORDING = pathlib.Path(os.environ["STRATA_FLEET_RECORDING"])
RECORDINGS = 60
# Three workers with a processor and 1 GiB each: processes of their own.
CLUSTER = "local-cluster[3,1,1024]"
# The executor, as the system shows it.
EXECUTOR = b"CoarseGrainedExecutorBackend"
PATIENCE = 1800
# What Spark and DuckDB may differ by in a percentile, as a share of it; and in a share that is rounded.
CLOSE, ROUNDED = 1e-6, 0.011
QUESTIONS = sorted(path.stem for path in fleet.READY.glob("*.sql"))


def command(*arguments, master: str = "local[2]") -> list[str]:
    return [sys.executable, str(JOB), "--master", master, *map(str, arguments)]


def run(*arguments, master: str = "local[2]") -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments, master=master), capture_output=True, text=True, timeout=PATIENCE)


def export(recording: pathlib.Path, tables: pathlib.Path) -> None:
    subprocess.run([EXPORTER, "export", recording, "-o", tables], check=True, capture_output=True)


def table(folder: pathlib.Path, name: str) -> str:
    files = f"'{folder}/{name}/**/*.parquet'"
    return f"read_parquet({files}, hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"


def table_names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


class Killed(unittest.TestCase):
    """A fleet of which one worker is killed in the middle of the job."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="strata-fleet-")))
        cls.recordings, cls.lake = cls.folder / "recordings", cls.folder / "lake"
        copy_fleet(RECORDING, cls.recordings, RECORDINGS)
        cls.tables = cls.folder / "tables"
        export(cls.recordings / "recording-000", cls.tables)
        # A recording takes as long as a larger one would, so that the worker is in the middle of one.
        slow = cls.folder / "slow"
        slow.write_text(f'#!/bin/sh\n"{EXPORTER}" "$@" || exit\nsleep 0.5\n')
        slow.chmod(0o700)
        log = cls.folder / "log"
        with open(log, "wb") as said:
            arguments = command("ingest", cls.recordings, cls.lake, "--exporter", slow, master=CLUSTER)
            job = subprocess.Popen(arguments, stdout=said, stderr=said)
        cls.killed_at = kill_a_worker(job, cls.lake)
        cls.status = job.wait(PATIENCE)
        cls.said = log.read_text()

    def test_job_goes_on_and_says_that_all_are_there(self):
        self.assertEqual(self.status, 0, self.said)
        self.assertIn(f"{RECORDINGS} recordings:", self.said)
        self.assertIn("0 refused", self.said)

    def test_worker_was_lost_in_mid_job(self):
        self.assertTrue(0 < self.killed_at < RECORDINGS, self.killed_at)
        self.assertIn("Lost executor", self.said)

    def test_lake_has_every_row_of_every_recording_once(self):
        self.assertEqual(table_names(self.lake), table_names(self.tables))
        for name in table_names(self.tables):
            of_one = duckdb.sql(f"select count(*) from {table(self.tables, name)}").fetchall()[0][0]
            question = f"select count(*) as n from {table(self.lake, name)} group by recording"
            each = [n for (n,) in duckdb.sql(question).fetchall()]
            self.assertEqual(each, [of_one] * RECORDINGS, name)

    def test_nothing_else_is_left_behind(self):
        self.assertEqual(list((self.lake / fleet.BOOK).glob("attempt-*")), [])
        self.assertEqual(list((self.lake / fleet.BOOK).glob("*.moving")), [])

    def test_every_ready_question_has_the_same_answer_from_duckdb(self):
        asked = run("ask", self.lake, *QUESTIONS)

        self.assertEqual(asked.returncode, 0, asked.stderr)
        answers: dict[str, list[dict]] = {question: [] for question in QUESTIONS}
        for line in asked.stdout.splitlines():
            row = json.loads(line)
            answers[row.pop("question")].append(row)
        database = duckdb.connect()
        database.sql("set timezone = 'UTC'")
        for name in table_names(self.lake):
            schema, _, own = name.rpartition(".")
            database.sql(f'create schema if not exists "{schema or "main"}"')
            database.sql(f'create view "{schema or "main"}"."{own}" as from {table(self.lake, name)}')
        database.sql(f"create view events as from {table(self.lake, '*.*')}")
        for question in QUESTIONS:
            text = (fleet.READY / f"{question}.sql").read_text()
            theirs = database.sql(text)
            kinds = zip(theirs.columns, theirs.types)
            left_out = {name for name, kind in kinds if "TIMESTAMP" in str(kind)}
            # Copies differ in their host only: which of them are among the first is any engine's own choice.
            left_out |= {"host"} if " limit " in text else set()
            theirs = theirs.project(", ".join(f'"{name}"' for name in theirs.columns if name not in left_out))
            rows = [dict(zip(theirs.columns, row)) for row in theirs.fetchall()]
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
        for own, their in zip(ours, theirs):
            for name in (name for name in own if not is_exact(name) and own[name] is not None):
                allowed = max(CLOSE * abs(own[name]), ROUNDED)
                self.assertAlmostEqual(own[name], float(their[name]), delta=allowed, msg=name)

    def test_fleet_is_told_apart_by_host_and_kernel(self):
        asked = run("ask", self.lake, "steal", "disk-steps-by-kernel")

        rows = [json.loads(line) for line in asked.stdout.splitlines()]
        hosts = {row["host"] for row in rows if row["question"] == "steal"}
        kernels = {row["host_kernel"] for row in rows if row["question"] == "disk-steps-by-kernel"}
        self.assertEqual(hosts, {f"node-{number:02}" for number in range(HOSTS)})
        self.assertEqual(kernels, {"6.12.0", "6.12.1", "6.12.2"})

    def test_taking_in_again_adds_only_what_is_new(self):
        copy(RECORDING, self.recordings / "recording-new", 0)

        again = run("ingest", self.recordings, self.lake, "--exporter", EXPORTER)

        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("1 taken in with ", again.stderr)
        self.assertIn(f"{RECORDINGS} were there already, 0 refused", again.stderr)
        shutil.rmtree(self.recordings / "recording-new")


def is_exact(name: str) -> bool:
    return name not in ("p50_ns", "p99_ns", "percent", "seconds")


def kill_a_worker(job: subprocess.Popen, lake: pathlib.Path) -> int:
    """Kills an executor of `job` when the lake has some recordings; how many it had."""
    deadline = time.monotonic() + PATIENCE
    while job.poll() is None and time.monotonic() < deadline:
        taken = len(fleet.complete_in(lake))
        workers = [pid for pid in descendants(job.pid) if EXECUTOR in command_line(pid)]
        if taken >= RECORDINGS // 6 and workers:
            os.kill(workers[0], signal.SIGKILL)
            return taken
        time.sleep(0.05)
    return 0


def command_line(pid: int) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants(pid: int) -> list[int]:
    """The processes that `pid` started, and those that they started."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
        own = [int(child) for file in children for child in file.read_text().split()]
    except OSError:
        return []
    return own + [below for child in own for below in descendants(child)]


class Refusals(unittest.TestCase):
    """What cannot be taken in, or read."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="strata-fleet-")))
        self.recordings, self.lake = self.folder / "recordings", self.folder / "lake"
        copy_fleet(RECORDING, self.recordings, 2)

    def test_bad_recordings_are_a_line_each_and_the_others_are_taken_in(self):
        (self.recordings / "empty").mkdir()
        (self.recordings / "file").write_text("no recording")
        manifest = self.recordings / "recording-001" / "session.json"
        manifest.write_bytes(manifest.read_bytes()[:1000])
        shutil.copytree(self.recordings / "recording-000", self.recordings / "twin")

        done = run("ingest", self.recordings, self.lake, "--exporter", EXPORTER)

        self.assertEqual(done.returncode, 1)
        lines = [line for line in done.stderr.splitlines() if line.startswith(str(self.recordings))]
        self.assertEqual(len(lines), 3, done.stderr)
        self.assertIn("not a trace folder", lines[0])
        self.assertIn("recording-001/session.json: damaged or truncated", lines[2])
        self.assertIn("5 recordings: 1 taken in with ", done.stderr)
        self.assertIn("1 were there already, 3 refused", done.stderr)

    def test_missing_exporter_is_a_line_for_each_recording(self):
        done = run("ingest", self.recordings, self.lake, "--exporter", "/nonexistent/strata-query")

        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("the exporter /nonexistent/strata-query cannot be run"), 2, done.stderr)
        self.assertIn("0 were there already, 2 refused", done.stderr)

    def test_tables_of_another_version_are_left_out_and_named(self):
        run("ingest", self.recordings, self.lake, "--exporter", EXPORTER)
        old = next((self.lake / "exits").rglob("*.parquet"))
        content = old.read_bytes()
        # The key's value is of the same length, so that the file stays whole.
        key = b"strata.schema\x18\x01"
        old.write_bytes(content.replace(key + fleet.SCHEMA_VERSION.encode(), key + b"0"))

        asked = run("ask", self.lake, "select count(distinct recording) as n from exits")

        self.assertEqual(asked.returncode, 1)
        self.assertIn(f"{old}: its tables are of version 0, and this is {fleet.SCHEMA_VERSION}: export again", asked.stderr)
        self.assertEqual(json.loads(asked.stdout)["n"], 1)

    def test_recording_that_was_half_moved_is_whole_afterwards(self):
        tables = self.folder / "tables"
        export(self.recordings / "recording-000", tables)
        identity, rows = fleet.check(tables)
        moved = next((tables / "exits").rglob("*.parquet"))
        place = self.lake / moved.relative_to(tables)
        place.parent.mkdir(parents=True)
        # Of an attempt that numbered its files in another way.
        shutil.copy(moved, place.with_name(f"{identity}-99.parquet"))
        (self.lake / fleet.BOOK).mkdir()
        (self.lake / fleet.BOOK / f"{identity}.moving").touch()

        is_new = fleet.publish(tables, self.lake, identity, {"rows": rows})
        export(self.recordings / "recording-000", self.folder / "again")
        is_new_again = fleet.publish(self.folder / "again", self.lake, identity, {"rows": rows})

        self.assertEqual((is_new, is_new_again), (True, False))
        footers = [fleet.pyarrow.parquet.read_metadata(file) for file in self.lake.rglob("*.parquet")]
        self.assertEqual(sum(footer.num_rows for footer in footers), rows)

    def test_question_that_is_none_is_a_line_and_the_next_is_answered(self):
        run("ingest", self.recordings, self.lake, "--exporter", EXPORTER)

        asked = run("ask", self.lake, "select nothing from exits", "select count(*) as n from recordings")

        self.assertEqual(asked.returncode, 1)
        self.assertIn("select nothing from exits: ", asked.stderr)
        self.assertEqual(json.loads(asked.stdout)["n"], 2)

    def test_ready_question_about_what_no_recording_has_is_answered_by_no_row(self):
        run("ingest", self.recordings, self.lake, "--exporter", EXPORTER)
        shutil.rmtree(self.lake / "packets", ignore_errors=True)

        asked = run("ask", self.lake, "packets", "recordings")

        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.assertIn("packets: no row, since no recording here has any of what it is about", asked.stderr)
        self.assertEqual({json.loads(line)["question"] for line in asked.stdout.splitlines()}, {"recordings"})

    def test_table_that_was_not_chosen_is_not_one_without_rows(self):
        run("ingest", self.recordings, self.lake, "--exporter", EXPORTER, "--tables", "wakeups,recordings")
        copy(RECORDING, self.recordings / "recording-new", 0)
        run("ingest", self.recordings, self.lake, "--exporter", EXPORTER)

        asked = run("ask", self.lake, "worst-wakeups", "exits-by-reason")
        shutil.rmtree(self.lake / "exits")
        gone = run("ask", self.lake, "exits-by-reason")

        self.assertEqual((asked.returncode, gone.returncode), (1, 1), asked.stderr)
        self.assertEqual(asked.stderr.count("recordings were taken in without it (--tables)"), 1, asked.stderr)
        self.assertIn("exits: 2 recordings were taken in without it (--tables)", asked.stderr)
        self.assertIn("2 recordings are left out, in whole or in part", asked.stderr)
        questions = {json.loads(line)["question"] for line in asked.stdout.splitlines()}
        self.assertEqual(questions, {"worst-wakeups", "exits-by-reason"})
        self.assertIn("exits: 2 recordings were taken in without it (--tables)", gone.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
