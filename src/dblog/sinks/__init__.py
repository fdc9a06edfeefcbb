"""Outputs of `dblog run`: one module or folder per kind, behind the protocol of `dblog.sinks.base`."""
