#!/bin/sh
# Test with the oldest allowed release of every dependency: oldest.sh <venv>
#
# The releases are the lower bounds in pyproject.toml, each of which must be one that exists. They are installed into an
# environment of their own below the virtual environment; what only the tests need is the newest that goes with them.
set -eu
venv=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
oldest=$venv/oldest

rm -rf "$oldest"
mkdir -p "$oldest"
"$venv/bin/python" - >"$oldest/bounds.txt" <<'PYTHON'
import re, sys, tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
for line in [*project["dependencies"], *extras["demo"], *extras["http"]]:
    found = re.fullmatch(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)( *;.*)?", line)
    if found is None:
        sys.exit(f"pyproject.toml: {line!r} is not of the form name>=version")
    name, version, where = found.groups()
    print(f"{name}=={version}{where or ''}")
PYTHON
cat "$oldest/bounds.txt"
"$venv/bin/python" -m venv "$oldest/venv"
"$oldest/venv/bin/python" -m pip install -q --constraint "$oldest/bounds.txt" \
    '.[demo,http]' 'pyspark[connect]' httpx hypothesis psutil pytest pytest-xdist
for server in kafka mariadb11 mysql; do
    [ ! -d "$venv/$server" ] || ln -s "$venv/$server" "$oldest/venv/$server"
done
# Not those of the documents and of the deployment, which the newest Typer reads out of the commands, nor those that need a newer FastAPI, nor
# that of availableNow, which before PySpark 4.2 makes one batch only (tests/versions).
"$oldest/venv/bin/python" -m pytest -n 2 --ignore-glob='*/test_docs*' --ignore=tests/unit/deploy \
    --ignore=tests/control/test_openapi.py \
    tests/unit tests/control tests/state tests/server tests/cli \
    tests/engine/test_binlog.py tests/engine/test_transactions.py \
    tests/sinks/test_ndjson.py tests/sinks/test_parquet.py tests/sinks/test_sql.py tests/sinks/test_http.py \
    tests/spark/test_stream.py \
    --deselect tests/spark/test_stream.py::test_all_that_is_there_now_goes_into_parquet_once
rm -rf "$oldest"
