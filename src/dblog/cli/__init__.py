"""The command line: `dblog --help`.

`program` is the program itself: one application, its errors and exit codes. Every other module holds the commands of
one theme. Commands import what they need when they run, so that `dblog --help` answers at once.
"""

from dblog.cli import (
    check,
    demo,
    dump,
    dumps,
    events,
    forget,
    init,
    run,
    schemas,
    serve,
    settings,
    slots,
    status,
    tables,
    watch,
)
from dblog.cli.program import app, main

__all__ = [
    "app",
    "check",
    "demo",
    "dump",
    "dumps",
    "events",
    "forget",
    "init",
    "main",
    "run",
    "schemas",
    "serve",
    "settings",
    "slots",
    "status",
    "tables",
    "watch",
]
