"""The page of a run: its HTML, style and scripts."""
