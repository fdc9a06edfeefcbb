"""The checkpoints of a stream: one folder for each epoch of its leaders.

Two drivers must never write to one checkpoint. Spark refuses to write an offset or a commit that is there already, but
it looks first and renames then, and on S3 a rename replaces. A driver that was stopped between the two, and wakes up
when another one leads, would replace what the other has written. So every leader has a checkpoint of its own:

    checkpoint/               of a stream without standbys
    checkpoint-<epoch>/       of the leader with this epoch
    checkpoint-<epoch>.json   says that it is complete: it has the newest entries of the checkpoint before it

What an earlier leader still writes to its own folder is read by nobody. A folder without the file does not count: its
leader died, or lost the lease, before it had started.
"""

from __future__ import annotations

import json
import re

import pyarrow.fs as pafs

from dblog.storage.object_storage import is_on_s3

FIRST = "checkpoint"
"""The checkpoint of a stream without standbys."""
KEPT_ENTRIES = 3
"""How many of the newest offsets a new leader copies. Spark reads the last two."""


def checkpoint_of(epoch: int) -> str:
    """The name of the checkpoint of the leader with this epoch."""
    return f"{FIRST}-{epoch}"


def newest(files: pafs.FileSystem, root: str, before: int | None = None) -> tuple[int, str]:
    """The epoch and the name of the newest complete checkpoint in a stream's folder; with `before`, of those of earlier
    epochs. Epoch 0 is the checkpoint of a stream without standbys, which need not exist."""
    found = files.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    named = (re.fullmatch(rf"{FIRST}-(\d+)\.json", info.base_name) for info in found)
    epochs = [int(name[1]) for name in named if name is not None]
    epoch = max((e for e in epochs if before is None or e < before), default=0)
    return epoch, checkpoint_of(epoch) if epoch else FIRST


def numbers(files: pafs.FileSystem, folder: str) -> list[int]:
    """The numbers of the batches that have an entry in a folder of a checkpoint."""
    found = files.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    return sorted(int(info.base_name) for info in found if info.base_name.isdecimal())


def inherit(files: pafs.FileSystem, root: str, epoch: int) -> str:
    """Make the checkpoint of a new leader from the newest one of the leaders before it. Returns its name.

    The sink must refuse the earlier leaders before: then each batch that it has got from them is in their checkpoint.

    1. Copy the newest offsets, then the commits: the driver writes the commit of a batch before the next offset.
    2. Write the file that makes the checkpoint count.
    3. Remove the checkpoints of leaders before the last one.
    """
    name = checkpoint_of(epoch)
    before, old = newest(files, root, epoch)
    # 1.
    offsets = numbers(files, f"{root}/{old}/offsets")[-KEPT_ENTRIES:]
    commits = [number for number in numbers(files, f"{root}/{old}/commits") if number >= min(offsets, default=0)]
    entries = [f"offsets/{n}" for n in offsets] + [f"commits/{n}" for n in commits]
    for entry in ["metadata", *entries] if offsets else []:
        _copy(files, f"{root}/{old}/{entry}", f"{root}/{name}/{entry}")
    # 2.
    write_whole(files, f"{root}/{name}.json", json.dumps({"from": before}).encode())
    # 3.
    found = files.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    for info in found:
        known = re.fullmatch(rf"{FIRST}-(\d+)(\.json)?", info.base_name)
        if known is not None and int(known[1]) < before:
            files.delete_file(info.path) if known[2] else files.delete_dir(info.path)
    return name


def _copy(files: pafs.FileSystem, source: str, target: str) -> None:
    with files.open_input_stream(source) as stream:
        content = stream.read()
    write_whole(files, target, content)


def write_whole(files: pafs.FileSystem, path: str, content: bytes) -> None:
    """Write a whole file: on S3 it appears when it is complete, elsewhere by a rename."""
    if is_on_s3(files):
        with files.open_output_stream(path) as stream:
            stream.write(content)
        return
    files.create_dir(path.rpartition("/")[0], recursive=True)
    with files.open_output_stream(f"{path}.new") as stream:
        stream.write(content)
    files.move(f"{path}.new", path)
