"""The image: what the Dockerfile installs, copies, runs and asks exists, and it does not run as root.

No container is built here. `tests/install` installs the wheel with the extras of the image.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
import urllib.request
from pathlib import Path

import pytest

from dblog.control.guard import OPEN
from dblog.control.serve import serving
from dblog.spark.java import LEAST_JAVA
from tests.unit.test_docs_cli import commands

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "Dockerfile").read_text()
LINES = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
STEPS = [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in LINES if line)]
ENTRYPOINT = ROOT / "deploy/docker/entrypoint.sh"


def steps(word: str) -> list[str]:
    return [rest for each, rest in STEPS if each == word]


def words(text: str) -> list[str]:
    """The words of a JSON list, as CMD and ENTRYPOINT have it."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    assert found, text
    return found


def test_the_base_images_are_pinned_by_a_tag_that_pyproject_supports() -> None:
    bases = [rest.split()[0] for rest in steps("FROM")]
    assert len(set(bases)) == 1
    found = re.fullmatch(r"python:(3\.\d+)-slim-[a-z]+", bases[0])
    assert found is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {found[1]}" in project["classifiers"]


def test_the_extras_of_the_image_exist() -> None:
    (given,) = steps("ARG")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = given.removeprefix("EXTRAS=").split(",")
    assert "http" in named, "the health check needs it"
    assert set(named) <= set(extras)
    assert any("[${EXTRAS}]" in step for step in steps("RUN"))


def test_java_is_new_enough_and_has_no_screen() -> None:
    found = re.search(r"openjdk-(\d+)-jre-headless", TEXT)
    assert found is not None
    assert int(found[1]) >= LEAST_JAVA


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored, "everything is ignored that is not named"
    copied = [
        name
        for rest in steps("COPY")
        if "--from=" not in rest
        for name in [word for word in rest.split() if not word.startswith("--")][:-1]
    ]
    assert "src" in copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)


def test_what_the_wheel_is_built_from_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first = steps("COPY")[0].split()
    assert {project["readme"], *project["license-files"], "pyproject.toml"} <= set(first)


def test_the_user_is_not_root_and_is_the_one_that_was_made() -> None:
    (user,) = steps("USER")
    assert user.isdecimal(), "Kubernetes checks runAsNonRoot by the number"
    assert int(user) >= 10_000
    assert f"--uid {user} " in TEXT
    assert [word for word, _ in STEPS].index("USER") > max(n for n, (word, _) in enumerate(STEPS) if word == "RUN")


def test_the_command_is_one_of_dblog() -> None:
    (entry,), (command,) = steps("ENTRYPOINT"), steps("CMD")
    assert words(entry) == ["tini", "--", ENTRYPOINT.name]
    assert f" deploy/docker/{ENTRYPOINT.name} /usr/local/bin/{ENTRYPOINT.name}" in TEXT
    given = words(command)
    found = commands()[given[0]]
    found.make_context(given[0], given[1:])


def test_the_health_check_asks_a_probe_at_the_address_that_is_served(tmp_path: Path) -> None:
    (check,), (command,) = steps("HEALTHCHECK"), steps("CMD")
    program = words(check)
    assert program[:2] == ["python", "-c"]
    found = re.search(r"http://(127\.0\.0\.1:\d+)(/[\w/]+)", program[2])
    assert found is not None
    address, path = found.groups()
    assert path in OPEN, "it must be open without a token"
    assert words(command)[-2:] == ["--http", address]
    assert address.rpartition(":")[2] in steps("EXPOSE")
    with serving("127.0.0.1:0", str(tmp_path / "state.db"), "secret") as url:
        exec(program[2].replace(f"http://{address}", url))
        with pytest.raises(urllib.request.HTTPError, match="401"):
            exec(program[2].replace(f"http://{address}{path}", f"{url}/metrics"))


def test_folders_that_change_are_on_the_volume() -> None:
    (volume,) = steps("VOLUME")
    settings = dict(pair.split("=") for rest in steps("ENV") for pair in rest.split())
    assert [settings[name].startswith(f"{volume}/") for name in ("DBLOG_STATE", "XDG_CACHE_HOME")] == [True, True]
    assert steps("WORKDIR")[-1] == volume


# -- the entry point -----------------------------------------------------------------------------------------------


def called(tmp_path: Path, *arguments: str, **environment: str) -> list[str]:
    """The program that the entry point calls, and its arguments; `dblog` and `java` are programs that print theirs."""
    for name in ("dblog", "java"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        program.chmod(0o755)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [ENTRYPOINT, *arguments], check=True, capture_output=True, text=True, env={**paths, **environment}
    )
    return done.stdout.splitlines()


def test_arguments_go_to_dblog(tmp_path: Path) -> None:
    assert called(tmp_path, "run", "a file.toml") == ["dblog", "run", "a file.toml"]
    assert called(tmp_path) == ["dblog"]


def test_an_executor_is_started_with_what_spark_has_put_into_the_environment(tmp_path: Path) -> None:
    environment = {
        "SPARK_HOME": "/spark",
        "SPARK_JAVA_OPT_0": "-Dfirst=with blanks",
        "SPARK_JAVA_OPT_1": "-Dsecond=$HOME;",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "shop-exec-3",
    }
    options = "--driver-url spark://CoarseGrainedScheduler@driver:7078 --executor-id 3 --cores 2 --app-id app-1"
    options += " --hostname 10.0.0.7 --resourceProfileId 0 --podName shop-exec-3"
    assert called(tmp_path, "executor", **environment) == [
        "java",
        "-Dfirst=with blanks",
        "-Dsecond=$HOME;",
        "-Xms1g",
        "-Xmx1g",
        "-cp",
        "/spark/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *shlex.split(options),
    ]


def test_an_executor_is_not_started_without_the_environment(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        called(tmp_path, "executor", SPARK_HOME="/spark")
