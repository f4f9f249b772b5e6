"""How a learner rank tells that it gets on, or that there is no work for it: for launch.notify."""

from launch.notify import Pulse
from learner.feed import Feed
from learner.metrics import LearnerMetrics
from learner.progress import Progress


def look(feed: Feed, progress: Progress, metrics: LearnerMetrics) -> Pulse:
    """Read by a thread of its own: both loops must turn, the receiver's, and once there is one the
    train loop. Without a batch that turns twice a second."""
    link, welcomed = feed.end.link, feed.end.welcome_version is not None
    train_loop = metrics.phase_seconds()["wait"] if welcomed else link.turns
    unheard = "" if link.welcome is not None else f"no broker answers at {link.endpoint}; "
    return Pulse(
        ready=welcomed,
        moved=(progress.learner_steps, progress.nonfinite),
        turns=(train_loop, link.turns),
        idle=True,
        text=f"{unheard}version {progress.version}",
        steps=progress.trained_steps,
    )
