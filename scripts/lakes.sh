#!/bin/sh
# Test the sinks of a lake and the example of Declarative Pipelines with real connectors: lakes.sh <venv>
#
# A connector is built for one minor version of Spark, and there is none for the newest. So the older ones are put into
# folders below the virtual environment, alone: on PYTHONPATH they stand before its own PySpark, and all else is the
# environment's. Spark fetches the connectors itself.
set -u
venv=$(cd "$1" && pwd)
python=$venv/bin/python
failed=

# older <folder> <version>
older() {
    [ ! -d "$venv/$1" ] || return 0
    echo "fetching PySpark $2, to test on"
    rm -rf "$venv/$1.new"
    "$python" -m pip install -q --no-deps --target "$venv/$1.new" "pyspark==$2" && mv "$venv/$1.new" "$venv/$1"
}

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

older lake42 '4.2.*' && older lake41 '4.1.*' && tables && "$python" -m pip install -q 'pyspark[pipelines]' || exit 1
on lake42 tests/sinks/test_delta.py tests/sinks/test_lake.py
on lake42 tests/lakes
"$(dirname "$0")/iceberg_rest.sh" "$venv"
on lake41 tests/sinks/test_iceberg.py tests/sinks/test_iceberg_writers.py
DBLOG_TEST_TABLES=$venv/tables.jar "$python" -m pytest tests/lakes || failed=1
[ -z "$failed" ]
