"""The pipelines of `dblog run`: one stream for each sink. The streams are independent of each other."""
