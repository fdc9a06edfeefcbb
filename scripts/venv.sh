#!/bin/sh
# Make a virtual environment with Python 3.11 or newer: venv.sh <folder>
set -eu
. "$(dirname "$0")/root.sh"
folder=$1

[ ! -x "$folder/bin/python" ] || exit 0

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

for python in python3 python3.11 python3.12 python3.13 python3.14 none; do
    ! new_enough "$python" || break
done
if [ "$python" = none ]; then
    echo "no Python 3.11 or newer on PATH" >&2
    exit 1
fi
# Debian ships python3 without what venv needs.
"$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv || true
"$python" -m venv "$folder"
