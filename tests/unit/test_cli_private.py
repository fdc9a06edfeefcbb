"""Files of the program are for its user alone, and the umask of the process is left as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblog.cli.program import private_files


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("private", "folder", "file"), [(True, 0o700, 0o600), (False, 0o755, 0o644)])
def test_files_are_private_unless_told_otherwise(tmp_path: Path, private: bool, folder: int, file: int) -> None:
    with private_files(private):
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").write_text("row")
    (tmp_path / "after").write_text("row")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"folder": folder, "file": file, "after": 0o644}
