"""The pipelines of `dblog run`: one stream for each sink. A stream neither stops nor waits for another."""
