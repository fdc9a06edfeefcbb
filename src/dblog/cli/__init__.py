"""The command line: `dblog --help`.

`program` holds the application, its errors and exit codes; the other modules hold the commands. Commands import what
they need when they run, so that `dblog --help` is quick.
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
