"""The run file: loading, checking, comparing, and what a machine allows of it."""
