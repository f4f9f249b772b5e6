"""The broker's room: the wire, the ledger, weight blobs, the server, and the peers' ends. No torch here."""
