"""Errors of pyiceberg, of its catalogs and of the storage, as those of a sink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg import exceptions as iceberg

from dblog.errors import SinkError, SinkUnreachable

try:
    from sqlalchemy import exc

    TAKEN: tuple[type[Exception], ...] = (exc.IntegrityError,)
    """Errors of a catalog in a database: what is to be created exists."""
    SQL_ERRORS: tuple[type[Exception], ...] = (exc.InterfaceError, exc.OperationalError, exc.TimeoutError)
    """Errors of the database itself."""
except ImportError:  # only catalogs in a database need SQLAlchemy
    TAKEN, SQL_ERRORS = (), ()

_PASSING: tuple[type[Exception], ...] = (
    OSError,
    iceberg.ServiceUnavailableError,
    iceberg.ServerError,
    iceberg.TooManyRequestsError,
    *SQL_ERRORS,
)
"""Errors of a catalog that may pass."""
_LASTING = (
    iceberg.RESTError,
    iceberg.ValidationError,
    iceberg.ValidationException,
    iceberg.NoSuchTableError,
    iceberg.NoSuchNamespaceError,
    iceberg.SignError,
    iceberg.ResolveError,
)


@contextmanager
def reached(name: str) -> Iterator[None]:
    """Raise SinkUnreachable for errors that may pass, and SinkError for others."""
    try:
        yield
    except iceberg.CommitStateUnknownException as error:
        raise SinkUnreachable(
            f"the catalog does not say whether it has made a commit to {name}: {error}", hint="it is tried again"
        ) from error
    except (iceberg.CommitFailedException, iceberg.TableAlreadyExistsError, iceberg.WaitingForLockException) as error:
        raise SinkUnreachable(f"somebody else writes to {name}: {error}", hint="it is tried again") from error
    except PermissionError as error:
        raise SinkError(f"cannot write to {name}: {error}", hint="see that it can be written") from error
    except _PASSING as error:
        raise SinkUnreachable(f"cannot write to {name}: {error}", hint="see that it is there") from error
    except _LASTING as error:
        raise SinkError(f"cannot write to {name}: {error}", hint="see that the table is whole") from error
