"""The broker's room: wire, ledger, weight blobs, server, and the peers' ends. No torch here."""
