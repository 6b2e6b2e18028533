"""tee.py LOG COMMAND…: runs the command and records its input and output.

Standard input is recorded in RECORD.up and standard output in RECORD.down, each piece before it is forwarded, where
RECORD is LOG.<time>-<own pid>-<command's pid>. Exits like the command; SIGTERM is forwarded to it.
"""

import os
import signal
import subprocess
import sys
import threading
import time

PIECE = 1 << 16


def main():
    log, *command = sys.argv[1:]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    log = f"{log}.{time.time_ns()}-{os.getpid()}-{child.pid}"
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    # Opened first: a tap that is killed at its start may have no RECORD.up, but no RECORD.up is alone.
    with open(f"{log}.down", "wb", buffering=0) as record:
        threading.Thread(target=feed, args=(f"{log}.up", child.stdin), daemon=True).start()
        while piece := os.read(child.stdout.fileno(), PIECE):
            record.write(piece)
            write_all(1, piece)
    code = child.wait()
    os._exit(code if code >= 0 else 128 - code)


def feed(path: str, sink):
    try:
        with open(path, "wb", buffering=0) as record:
            while piece := os.read(0, PIECE):
                record.write(piece)
                write_all(sink.fileno(), piece)
    except BrokenPipeError:
        return
    sink.close()


def write_all(fd: int, data: bytes):
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    main()
