"""PostgreSQL 13 to 18: pgoutput capture, chunk reads, watermarks, preflight."""
