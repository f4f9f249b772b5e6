"""Decides what happens to every unroll: credit, leases, deduplication, versions."""
