#!/bin/sh
# Test the sinks of a lake and the example of Declarative Pipelines with real connectors: lakes.sh <venv>
#
# A connector is built for one minor version of Spark, and there is none for the newest. So the tests run on the older
# ones that sparks.sh puts into folders below the virtual environment. Spark fetches the connectors itself.
set -u
venv=$(cd "$1" && pwd)
python=$venv/bin/python
failed=

# The tables that Spark's own tests MERGE into. They are not published for every version; these run on 4.3 too.
tables() {
    [ ! -f "$venv/tables.jar" ] || return 0
    echo "9f46cfb6d4cb5dff696b76f8af3db1ecfc56cbc43ffb0fa785ef947ac4ad2620" \
        "org.apache.spark:spark-catalyst_2.13:4.2.0:tests" | "$python" "$(dirname "$0")/jars.py" "$venv/tables" &&
        mv "$venv"/tables/*.jar "$venv/tables.jar" && rmdir "$venv/tables"
}

# on <folder> <tests>...: with the PySpark of the folder, in a process of its own because it has a Spark of its own
on() {
    path=$venv/$1${PYTHONPATH:+:$PYTHONPATH}
    shift
    PYTHONPATH=$path "$python" -m pytest "$@" || failed=1
}

"$(dirname "$0")/sparks.sh" "$venv" && tables && "$python" -m pip install -q 'pyspark[pipelines]' || exit 1
on spark-4.2 tests/sinks/test_delta.py tests/sinks/test_lake.py
on spark-4.2 tests/lakes
"$(dirname "$0")/iceberg_rest.sh" "$venv"
on spark-4.1 tests/sinks/test_iceberg.py tests/sinks/test_iceberg_writers.py
DBLOG_TEST_TABLES=$venv/tables.jar "$python" -m pytest tests/lakes || failed=1
[ -z "$failed" ]
