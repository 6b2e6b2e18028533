"""Taps: they forward bytes unparsed and keep a copy.

The HTTP tap is a TCP relay on loopback inside this process. The stdio tap is `tee.py`, a process in front of the
server's command; this module names its recordings and reads them.
"""

import itertools
import socket
import sys
import threading
from pathlib import Path

import wire

HERE = Path(__file__).resolve().parent
MOMENTS = itertools.count()


class HttpTap:
    """Relays `port` to `target`, both on 127.0.0.1."""

    def __init__(self, target: int):
        self.target = target
        self.connections = []
        self.sockets = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                if self.listener.fileno() < 0:
                    return
                client.close()
                continue
            server.settimeout(None)
            up, down = wire.Stream(), wire.Stream()
            self.connections.append((up, down))
            self.sockets += [client, server]
            for source, sink, stream in ((client, server, up), (server, client, down)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=relay, args=(source, sink, stream), daemon=True).start()

    def calls(self) -> list[wire.Call]:
        return wire.http_calls(self.connections)

    def close(self):
        self.listener.close()
        for each in self.sockets:
            each.close()


def relay(source: socket.socket, sink: socket.socket, stream: wire.Stream):
    try:
        while piece := source.recv(1 << 16):
            stream.add(next(MOMENTS), piece)
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class StdioTap:
    """Recordings of a program that is started by `command`."""

    def __init__(self, log: Path):
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)

    def command(self, argv: list[str]) -> list[str]:
        return [sys.executable, str(HERE / "tee.py"), str(self.log), *argv]

    def recordings(self) -> list[Path]:
        return sorted(self.log.parent.glob(f"{self.log.name}.*.up"))

    def pids(self) -> list[int]:
        """The processes started for it: taps and servers."""
        names = [path.name.split(".")[-2] for path in self.recordings()]
        return [int(pid) for name in names for pid in name.split("-")[1:]]

    def calls(self) -> list[wire.Call]:
        return [
            call
            for up in self.recordings()
            for call in wire.stdio_calls(up.read_bytes(), up.with_suffix(".down").read_bytes())
        ]

    def close(self):
        pass
