"""A fleet for tests: copies of a recording, each with ids of its own, of several hosts and kernels."""

import json
import pathlib
import shutil
import uuid

HOSTS = 10
KERNELS = 3


def copy(recording: pathlib.Path, target: pathlib.Path, number: int) -> None:
    """Copies `recording` to the new folder `target`, as that of host `number` modulo `HOSTS`."""
    shutil.copytree(recording, target)
    manifest = target / "session.json"
    ids = {layer["uuid"] for layer in json.loads(manifest.read_text())["layers"]}
    new = {uuid.UUID(old): uuid.uuid4() for old in ids}
    for file in (path for path in target.rglob("*") if path.is_file()):
        content = file.read_bytes()
        for old, own in new.items():
            content = content.replace(old.bytes, own.bytes).replace(str(old).encode(), str(own).encode())
        file.write_bytes(content)
    about = json.loads(manifest.read_text())
    host = number % HOSTS
    about["host"]["hostname"] = f"node-{host:02}"
    about["host"]["kernel"] = f"6.12.{host % KERNELS}"
    manifest.write_text(json.dumps(about))


def copy_fleet(recording: pathlib.Path, folder: pathlib.Path, count: int) -> None:
    """Makes `count` copies in the new folder `folder`."""
    folder.mkdir(parents=True)
    for number in range(count):
        copy(recording, folder / f"recording-{number:03}", number)


def halve(recording: pathlib.Path) -> None:
    """Leaves half of every second stream of `recording`: files were damaged."""
    for stream in sorted(recording.rglob("stream_*"))[1::2]:
        content = stream.read_bytes()
        stream.write_bytes(content[: len(content) // 2])


def leave_growing(recording: pathlib.Path) -> None:
    """Leaves of `recording` what a recorder that still runs has written."""
    manifest = recording / "session.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"outcome": None}))
    halve(recording)
