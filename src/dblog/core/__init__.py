"""The algorithm: pure functions and frozen dataclasses. No I/O, no clock, no Spark."""
