"""The thread that reads the log, the segments it cuts the log into, and the spool that holds them."""
