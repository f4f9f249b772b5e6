"""What is done with a run that has ended: play, replay, report, audit."""
