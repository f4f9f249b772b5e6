"""Commands for a run that has ended: play, replay, report, audit."""
