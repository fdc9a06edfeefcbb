"""The tables of docs/benchmarks.md: a run replaces the blocks of its parts, and nothing else."""

from __future__ import annotations

import pytest

from bench.figures import Cpu, Figure, Target, ratio
from bench.parts import PARTS, all_blocks
from bench.report import DOCUMENT, block, figure_table, replaced

TEXT = """# Title
<!-- figures: postgres dump -->
old dump
<!-- end: postgres dump -->
Text between.
<!-- figures: mysql dump -->
old too
<!-- end: mysql dump -->
"""


def test_a_block_is_replaced_and_all_else_stays() -> None:
    written = replaced(TEXT, "postgres dump", "new\nlines")
    assert written == TEXT.replace("old dump", "new\nlines")
    assert replaced(written, "postgres dump", "old dump") == TEXT


@pytest.mark.parametrize("name", ["dump", "postgres", "mariadb dump"])
def test_a_block_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"no block '{name}'"):
        replaced(TEXT, name, "new")


def test_a_block_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one"):
        replaced(TEXT + TEXT, "mysql dump", "new")


def test_the_document_has_a_block_for_each_part_and_source_and_no_other() -> None:
    text = DOCUMENT.read_text()
    for name in all_blocks():
        replaced(text, name, "new")
    assert text.count("<!-- figures: ") == text.count("<!-- end: ") == len(all_blocks())
    assert set(PARTS) == {name.split()[-1] for name in all_blocks()}


def test_a_block_has_the_machine_then_targets_then_figures() -> None:
    ours = Figure("dump", "dblog", (10.0, 20.0), "rows/s", cpu=(Cpu(1, 2), Cpu(3, 2)))
    other = Figure("dump", "other", (5.0, 5.0), "rows/s")
    lines = block("a machine", [ours, other], [ratio("against other", ours, other, 2.0, aim=4.0)]).splitlines()
    assert lines[0] == "a machine"
    assert [cell.strip() for cell in lines[4].split("|")] == [
        *("", "against other", "3 x", "at least 2 x, aim 4 x", "yes", "")
    ]
    assert "| dump | dblog | 15 rows/s | 10 to 20 | 2 + 2 source      |" in lines
    assert "| dump | other | 5 rows/s  | 5 to 5   |                   |" in lines


def test_a_column_without_values_is_left_out() -> None:
    assert figure_table([Figure("a", "b", (1.0,), "s")])[0] == "|   |   | median |"


def test_a_bar_in_a_cell_does_not_end_the_cell() -> None:
    assert figure_table([Figure("a", "b | c", (1.0,), "s")])[2] == "| a | b \\| c | 1 s    |"


def test_a_target_is_met_on_its_side_of_the_bound() -> None:
    assert Target("", 1.2, " x", 1.3, least=False).met
    assert not Target("", 1.2, " x", 1.3).met
    assert Target("", 1.2, " x", None).met is None


def test_processor_seconds_are_per_million_rows() -> None:
    assert Cpu(1.0, 2.0, 3.0).per_million(500_000) == Cpu(2.0, 4.0, 6.0)
