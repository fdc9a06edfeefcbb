"""CONTRIBUTING.md and the workflows name targets, files and options that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def named_targets(text: str) -> set[str]:
    """The targets of the commands `make ...` in a text."""
    return set(re.findall(r"(?:^|`|run: )make ([a-z]+)", text, re.MULTILINE))


def test_every_make_target_that_is_named_exists() -> None:
    named = named_targets(PAGE)
    assert {"check", "test", "chaos"} <= named
    assert named <= TARGETS


def test_every_variable_of_a_make_command_is_read_by_the_makefile() -> None:
    commands = re.findall(r"make [a-z]+((?: [A-Z]+=\S+)+)", PAGE)
    for name in re.findall(r"([A-Z]+)=", " ".join(commands)):
        assert f"$({name})" in MAKEFILE, name


def test_every_file_that_is_named_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    files = re.findall(r"`((?:src|tests|docs|scripts|\.github)/[\w./-]+)`", PAGE)
    commands = re.findall(r"pytest \"?(tests/[\w/.]+)", PAGE)
    assert len(files) > 5
    for name in {*links, *files, *commands}:
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_make_targets_that_exist_and_nothing_else(workflow: Path) -> None:
    text = workflow.read_text()
    assert named_targets(text)
    assert named_targets(text) <= TARGETS
    for command in re.findall(r"^\s*-? ?run: (.+)$", text, re.MULTILINE):
        assert re.fullmatch(r"make [a-z]+( [A-Z]+=\S+)*", command), command


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_of_others_are_pinned_by_their_commit_and_show_their_tag(workflow: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)$", workflow.read_text(), re.MULTILINE)
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action}: the tag"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_and_only_jobs_that_need_more_may_do_more(workflow: Path) -> None:
    document = yaml.safe_load(workflow.read_text())
    assert document["permissions"] == {"contents": "read"}
    granted = {name: job["permissions"] for name, job in document["jobs"].items() if "permissions" in job}
    releases = {"attest": {"attestations": "write", "id-token": "write"}, "publish": {"id-token": "write"}}
    assert granted == (releases if workflow.name == "release.yml" else {})
    for name in granted:
        assert not any("run" in step for step in document["jobs"][name]["steps"]), "no code of ours has an identity"
    checkouts = [
        step
        for job in document["jobs"].values()
        for step in job.get("steps", [])
        if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)
    assert all("timeout-minutes" in job or "uses" in job for job in document["jobs"].values())


def test_a_release_is_tested_built_attested_and_published_without_a_token() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    jobs = release["jobs"]
    assert [(name, job.get("needs")) for name, job in jobs.items()] == [
        ("test", None),
        ("build", "test"),
        ("attest", "build"),
        ("publish", "attest"),
    ]
    assert jobs["publish"]["environment"] == "pypi"
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()
    tests = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    called = tests["concurrency"]["group"].replace("${{ github.workflow }}", release["name"])
    assert release["concurrency"]["group"] != called, "a release would wait for itself, or end itself"


def test_the_workflows_are_those_of_tests_and_releases() -> None:
    assert [path.name for path in WORKFLOWS] == ["release.yml", "test.yml"]


def test_the_workflow_tests_every_python_that_is_declared() -> None:
    declared = set(re.findall(r"Programming Language :: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))
    tested = set(re.findall(r'"(3\.\d+)"', (ROOT / ".github/workflows/test.yml").read_text()))
    assert tested == declared == {"3.11", "3.12", "3.13"}


def test_every_target_is_phony_and_has_help() -> None:
    phony = set(re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[0].split())
    assert phony == TARGETS
    assert set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE)) == TARGETS
