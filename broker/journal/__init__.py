"""The audit log of unrolls: written per process, compacted, read and added up."""
