"""Lives here: the lines of history.jsonl, and what each column means."""
