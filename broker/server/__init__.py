"""The broker process: sockets around the ledger, its replies, its metrics and status."""
