"""A TCP proxy in front of a broker, that can reset, stall, delay and slow its connections; no root.

It listens at another loopback address on the broker's own two ports, because a peer looks for the
announcements beside the address that it was given.
"""

import asyncio
import contextlib
import functools
import socket
import struct
import threading
from types import TracebackType

_BACK = "127.0.0.1"
_PIECE = 16384
_PIECES = 64  # on their way at once in each direction; then the sender must wait
_OVERSLEPT_S = 0.02
_RESET = struct.pack("ii", 1, 0)  # close without a goodbye: the other end sees a reset


class Proxy:
    """Runs on a thread of its own, between `with` and its end."""

    def __init__(self, broker: str, *, at: str = "127.0.0.2") -> None:
        port = int(broker.rpartition(":")[2])
        self._front = at
        self.endpoint = f"tcp://{at}:{port}"  # what peers connect to
        self.connections = 0  # ever made
        self.resets = 0  # connections that were reset
        self.delay_s = 0.0  # of every byte, in each direction
        # That the line carries in each direction, all connections together; 0 = as fast as it can.
        self.kb_s = 0.0
        self.kb_s_up = 0.0  # the same to the broker only; 0 = as the other direction
        self.to_broker = 0  # bytes carried
        self.from_broker = 0
        self._ports = (port, port + 1)
        self._free_at = {True: 0.0, False: 0.0}  # when the line can take more, by direction
        self._open: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()  # cleared = nothing passes, and nobody is told
        self._ends = asyncio.Event()
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="proxy")

    def reset(self) -> int:
        """Every connection that is open now."""

        async def now() -> int:
            both_ends = list(self._open)
            for writer in both_ends:
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _RESET
                )
                writer.transport.abort()
            self.resets += len(both_ends) // 2
            return len(both_ends) // 2

        return asyncio.run_coroutine_threadsafe(now(), self._loop).result(10.0)

    def carried(self) -> int:
        """Connections that stand now."""
        return len(self._open) // 2

    def stall(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.clear)

    def flow(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    # ---- the proxy's thread ---------------------------------------------------------------------

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._flows.set()
        async with contextlib.AsyncExitStack() as stack:
            for port in self._ports:
                connected = functools.partial(self._connected, port)
                server = await asyncio.start_server(connected, self._front, port)
                await stack.enter_async_context(server)
            self._started.set()
            await self._ends.wait()
            for writer in list(self._open):
                writer.transport.abort()
            async with asyncio.timeout(5.0):
                while self._open:  # noqa: ASYNC110  # their tasks end by themselves
                    await asyncio.sleep(0.01)

    async def _connected(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        ends = {writer}
        self._open.add(writer)  # at once: whoever ends the proxy now closes it, too
        try:
            inner_reader, inner_writer = await asyncio.open_connection(_BACK, port)
            ends.add(inner_writer)
            self._open.add(inner_writer)
            self.connections += 1
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, inner_writer, inwards=True))
                group.create_task(self._carry(inner_reader, writer, inwards=False))
        except* OSError:
            pass  # one end is closed, or was reset; the other follows
        finally:
            for end in ends:
                end.transport.abort()
            await asyncio.sleep(0)  # until they are closed
            self._open -= ends

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, inwards: bool
    ) -> None:
        """One direction, until either end is closed."""
        loop = asyncio.get_running_loop()
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES)

        async def take() -> None:
            while piece := await reader.read(_PIECE):
                await way.put((loop.time() + self.delay_s, piece))
            raise ConnectionError("closed")

        async def give() -> None:
            while True:
                due, piece = await way.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await self._in_turn(len(piece), inwards=inwards)
                await self._flows.wait()
                writer.write(piece)
                await writer.drain()
                self.to_broker += inwards * len(piece)
                self.from_broker += (not inwards) * len(piece)

        async with asyncio.TaskGroup() as group:
            group.create_task(take())
            group.create_task(give())

    async def _in_turn(self, nbytes: int, *, inwards: bool) -> None:
        """Until the line has carried it, after all that came before."""
        kb_s = (self.kb_s_up if inwards else 0.0) or self.kb_s
        if kb_s:
            now = asyncio.get_running_loop().time()
            # A sleep that lasted too long does not make the line slower.
            since = max(self._free_at[inwards], now - _OVERSLEPT_S)
            self._free_at[inwards] = since + nbytes / (1000 * kb_s)
            await asyncio.sleep(self._free_at[inwards] - now)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        assert self._started.wait(10.0), f"cannot listen at {self.endpoint}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(10.0)
