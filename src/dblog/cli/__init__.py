"""The command line: `dblog --help`.

`program` has the application, its errors and exit codes; the other modules have the commands. A command imports what it
needs when it runs, so that `dblog --help` is quick.
"""

from dblog.cli import (
    check,
    demo,
    dump,
    dumps,
    events,
    forget,
    init,
    retry,
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
    "retry",
    "run",
    "schemas",
    "serve",
    "settings",
    "slots",
    "status",
    "tables",
    "watch",
]
