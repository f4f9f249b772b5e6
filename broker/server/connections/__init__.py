"""The connected peers: joining, rate limits, the roster, replies and their flow control."""
