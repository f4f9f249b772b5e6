"""Games that a run's newest policy plays against others, and what a learning gate asks of them."""

import functools
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.actors import evaluator
from headrace.launch.results import loaded_run

HALF: Final = "half"  # the run's own policy as it was after about half of its versions
_LINES: Final = (
    (0, 1, 2),
    (3, 4, 5),
    (6, 7, 8),
    (0, 3, 6),
    (1, 4, 7),
    (2, 5, 8),
    (0, 4, 8),
    (2, 4, 6),
)
_DRAWS: Final = 2000  # of each checkpoint that plays alone
Board = tuple[int, ...]  # nine squares: 0 = free, 1 = of who is to move, 2 = of the other


class Games(NamedTuple):
    """Asks for a share of games that are won, and allows one that is lost."""

    against: str  # as in evaluate.against, or HALF
    episodes: int
    won: float = 0.0
    lost: float = 1.0
    greedy: bool = True


def play(folder: Path, games: Games) -> dict[str, Any]:
    """Plays them with the newest weights of a run's folder; returns the shares of games won and
    lost, and whether they are as asked for."""
    found = loaded_run.load(folder, "newest")
    against = games.against if games.against != HALF else str(_half(folder))
    how = msgspec.structs.replace(
        found.run.evaluate, episodes=games.episodes, envs=32, greedy=games.greedy, against=against
    )
    scores = evaluator.play(
        loaded_run.policy_of(found, seed=how.seed),
        found.run.env,
        found.spaces,
        how,
        against=loaded_run.opponent(how, found.spaces),
    )
    won, _, lost = (count / games.episodes for count in scores.outcomes)
    holds = won >= games.won and lost <= games.lost
    return {"against": games.against, "won": won, "lost": lost, "holds": holds}


def play_alone(folder: Path, within: float) -> dict[str, Any]:
    """Returns how often each choice is made by the mean of all kept checkpoints, in a game in which
    nothing is seen; it holds if no choice is further from its even share than `within`."""
    shares = []
    for version in loaded_run.versions(folder, "checkpoints"):
        found = loaded_run.load(folder, str(version))
        (leaf,), action = found.spaces.observation, found.spaces.action
        seen = {leaf.name: np.ones((_DRAWS, *leaf.shape), leaf.dtype)}
        drawn, *_ = loaded_run.policy_of(found, seed=version).act(seen)
        shares.append(np.bincount(drawn, minlength=action.categories[0]) / _DRAWS)
    mean = np.mean(shares, axis=0)
    furthest = float(np.abs(mean - 1 / len(mean)).max())
    late = float(np.abs(np.array(shares[-len(shares) // 4 :]) - 1 / len(mean)).max(1).mean())
    told = {"mean": mean.round(3).tolist(), "furthest": round(furthest, 3)}
    return told | {"late": round(late, 3), "holds": furthest <= within}


def _half(folder: Path) -> Path:
    kept = loaded_run.versions(folder, "checkpoints")
    half = min(kept, key=lambda version: abs(version - kept[-1] / 2))
    return folder / "checkpoints" / f"{half:012d}"


def perfect_tictactoe(obs: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Makes a move after which nobody can do better, for each board [3, 3, 2] as PettingZoo shows
    it: the first plane is of who is to move. Of several it takes another one on each board."""
    moves = []
    for planes in obs["observation"]:
        board = tuple((planes[..., 0] + 2 * planes[..., 1]).ravel().tolist())
        best = _value(board)[1]
        moves.append(best[sum(at * square for at, square in enumerate(board)) % len(best)])
    return np.array(moves, np.int64)


@functools.cache
def _value(board: Board) -> tuple[int, tuple[int, ...]]:
    """Returns what the board is worth to who is to move, and the moves that are worth it."""
    if any(all(board[at] == 2 for at in line) for line in _LINES):
        return -1, ()
    best: dict[int, tuple[int, ...]] = {}
    for at in (at for at, square in enumerate(board) if not square):
        after = tuple((1 if other == at else square) for other, square in enumerate(board))
        worth = -_value(tuple((0, 2, 1)[square] for square in after))[0]
        best[worth] = (*best.get(worth, ()), at)
    return (max(best), best[max(best)]) if best else (0, ())
