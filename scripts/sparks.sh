#!/bin/sh
# Put the older minor versions of PySpark beside the environment's own, to test on: sparks.sh <venv> [<folder>]
#
# Each is in a folder of its own, like <folder>/spark-4.0 (the folder is the environment if none is given). On PYTHONPATH
# it stands before the environment's PySpark; all else is the environment's. Only py4j comes with it: each version of
# PySpark names the versions of py4j that it runs with.
set -eu
MINORS='4.0 4.1 4.2'
venv=$(cd "$1" && pwd)
folder=${2:-$venv}

for minor in $MINORS; do
    to=$folder/spark-$minor
    [ ! -d "$to" ] || continue
    echo "fetching PySpark $minor, to test on"
    rm -rf "$to.new"
    "$venv/bin/python" -m pip install -q --target "$to.new" "pyspark==$minor.*"
    mv "$to.new" "$to"
done
