"""Messages between the tool and its processes: pickles over a socket pair, each with its length.

The reading side never blocks in the middle of a message: a sender that stops half-way costs its
deadline, not the tool.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct("!Q")
MAX_MESSAGE_BYTES = 2 * 2**30
MAX_FDS = 8


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """One end of a two-way message stream.

    Args:
        sock: Connected stream socket; the channel owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._fds: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel for this process, and the socket for the other."""
        mine, other = socket.socketpair()
        return cls(mine), other

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message, and file descriptors with it; blocks while the other side does not read.

        Raises:
            Closed: The other side is gone.
        """
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        data = _HEADER.pack(len(data)) + data
        try:
            sent = socket.send_fds(self._socket, [data], fds) if fds else 0
            self._socket.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed(str(error)) from None

    def poll(self) -> tuple[bool, Any]:
        """Read what has arrived, without waiting.

        Returns:
            Whether a whole message is there, and that message.
        Raises:
            Closed: The other side is gone and no whole message is left.
        """
        if (message := self._take()) is not None:
            return True, message[0]
        while select.select([self._socket], [], [], 0)[0]:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, 1 << 20, MAX_FDS)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Closed("the other side closed its end")
            self._buffer += data
            self._fds += fds
            if (message := self._take()) is not None:
                return True, message[0]
        return False, None

    def receive(self) -> Any:
        """Wait for the next message, without limit; for the children's side.

        Raises:
            Closed: The other side is gone.
        """
        while True:
            arrived, message = self.poll()
            if arrived:
                return message
            select.select([self._socket], [], [])

    def take_fds(self) -> list[int]:
        """The file descriptors that came with the messages read so far; the caller owns them."""
        fds, self._fds = self._fds, []
        return fds

    def close(self) -> None:
        self._socket.close()

    def _take(self) -> tuple[Any] | None:
        if len(self._buffer) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._buffer)
        if size > MAX_MESSAGE_BYTES:
            raise Closed(f"a message of {size} bytes is not one of ours")
        if len(self._buffer) < _HEADER.size + size:
            return None
        data = bytes(self._buffer[_HEADER.size : _HEADER.size + size])
        del self._buffer[: _HEADER.size + size]
        return (pickle.loads(data),)
