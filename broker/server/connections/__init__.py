"""Who is connected: joining, rate limits, the roster, replies and their flow control."""
