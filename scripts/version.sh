#!/bin/sh
# Fail when the variable TAG is set and is not the tag of the version in src/dblog/__init__.py: version.sh <python>
set -eu
cd "$(dirname "$0")/.."
version=$("$1" -c 'import sys; sys.path.insert(0, "src"); import dblog; print(dblog.__version__)')
if [ -n "${TAG:-}" ] && [ "$TAG" != "v$version" ]; then
    echo "the tag is $TAG, but src/dblog/__init__.py has the version $version" >&2
    exit 1
fi
