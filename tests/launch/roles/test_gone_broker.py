"""A peer whose broker is gone begins anew, unless it was asked to stop."""

import asyncio
import os
import signal

import pytest

from headrace.launch.process import runtime
from headrace.launch.roles import gone_broker


async def _gone() -> None:
    raise gone_broker.BrokerGoneError("the broker is gone")


async def _leave(*, asked: bool) -> int:
    """Plays the role of a peer that is left without a broker; `asked`: and is asked to stop while
    it ends."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_gone())
        try:
            await asyncio.Event().wait()
        finally:
            if asked:
                os.kill(os.getpid(), signal.SIGTERM)
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.Event().wait()
    return runtime.OK


@pytest.mark.parametrize("asked", [False, True])
def test_who_is_asked_to_stop_does_not_begin_anew(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(gone_broker, "begin_anew", lambda: begun.append(True))
    assert gone_broker.run(lambda: _leave(asked=asked)) == runtime.OK
    assert begun == ([] if asked else [True])
