"""What the fleet's job costs: `cargo xtask bench fleet` runs it, with a folder of recordings and the exporter.

Prints a table of taking in, beside the exporter alone under `xargs`, and one of the ready questions, beside DuckDB.
"""

import contextlib
import functools
import io
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import fleet
from test_fleet import with_views


say = functools.partial(print, flush=True)


def spent() -> float:
    """Processor time of this process's own and of those that have ended, seconds."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def timed(task) -> tuple[float, float]:
    """Seconds, and seconds of processor time."""
    began, before = time.monotonic(), spent()
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        task()
    return time.monotonic() - began, spent() - before


def export_all(recordings: list[pathlib.Path], exporter: str, folder: pathlib.Path, workers: int) -> None:
    one = '"$0" export "$1" -o "$2/$(basename "$1")"'
    command = ["xargs", "-0", f"-P{workers}", "-I{}", "sh", "-c", one, exporter, "{}", str(folder)]
    subprocess.run(command, input="\0".join(map(str, recordings)), text=True, check=True, stderr=subprocess.DEVNULL)


def take_in(folder: pathlib.Path, lake: pathlib.Path, exporter: str, workers: int) -> tuple[float, float]:
    """The same with Spark, once it has started."""
    spark = fleet.session(f"local[{workers}]")
    spark.sparkContext.parallelize([0], 1).map(lambda _: 0).collect()
    took = timed(lambda: fleet.ingest(spark, folder, str(lake), exporter, None))
    spark.stop()
    return took


def halves(recordings: list[pathlib.Path], folder: pathlib.Path) -> list[pathlib.Path]:
    """Folders with every second recording each."""
    made = [folder / "half-0", folder / "half-1"]
    for number, half in enumerate(made):
        half.mkdir()
        for recording in recordings[number::2]:
            shutil.copytree(recording, half / recording.name)
    return made


def bytes_in(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def bench_taking_in(recordings: pathlib.Path, exporter: str, folder: pathlib.Path) -> pathlib.Path:
    """Prints what taking in costs; the lake."""
    paths = sorted(recordings.iterdir())
    say("| how | workers | seconds | of `xargs` | bytes a record |\n|---|---|---|---|---|")
    lake = folder
    for workers in (1, 2):
        tables = folder / f"tables-{workers}"
        tables.mkdir()
        alone, _ = timed(lambda to=tables, workers=workers: export_all(paths, exporter, to, workers))
        lake = folder / f"lake-{workers}"
        took, _ = take_in(recordings, lake, exporter, workers)
        fleet.tidy(str(lake), 0)
        rows = fleet.recordings_in(fleet.opened(str(lake)), "records")
        records = sum(row["records"] for row in rows.values())
        say(f"| exporter | {workers} | {alone:.1f} | 1 | {bytes_in(tables) / records:.1f} |")
        say(f"| Spark | {workers} | {took:.1f} | {took / alone:.2f} | {bytes_in(lake) / records:.1f} |")
    files = len(fleet.opened(str(lake)).file_uris())
    say(f"\n{len(rows)} recordings with {records} records; {files / len(rows):.2f} files a recording when joined.\n")
    grown = folder / "grown"
    first, second = (take_in(half, grown, exporter, 2)[0] for half in halves(paths, folder))
    say(f"Half of them took {first:.1f} s, the others into the same lake {second:.1f} s.\n")
    return lake


def bench_questions(lake: pathlib.Path) -> None:
    spark, database = fleet.session("local[2]"), with_views(lake)
    asked, shares = fleet.Asked(spark, str(lake)), []
    say("| question | Spark, s | DuckDB, s |\n|---|---|---|")
    for ready in sorted(fleet.READY.glob("*.sql")):
        text = ready.read_text()
        # The first time makes views, and reads files.
        ours = min(timed(lambda name=ready.stem, text=text: asked.answer(name, text))[0] for _ in range(2))
        theirs = min(timed(lambda text=text: database.execute(text).fetch_arrow_table())[0] for _ in range(2))
        shares.append(ours / theirs)
        say(f"| {ready.stem} | {ours:.2f} | {theirs:.2f} |")
    spark.stop()
    say(f"\nSpark takes {statistics.median(shares):.1f} times as long as DuckDB in the median.")


def main() -> None:
    # Workers look for the job there.
    os.environ["PYTHONPATH"] = str(fleet.HERE)
    recordings, exporter = pathlib.Path(sys.argv[1]).absolute(), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="strata-fleet-bench-") as folder:
        lake = bench_taking_in(recordings, exporter, pathlib.Path(folder))
        bench_questions(lake)


if __name__ == "__main__":
    main()
