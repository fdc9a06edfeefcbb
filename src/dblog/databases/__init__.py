"""Connections to database servers: one folder per family, used by sources and sinks."""
