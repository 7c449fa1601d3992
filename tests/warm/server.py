"""The process that the others are forks of: it loads torch, compiles once, and then only listens.

    python server.py FOLDER

It listens at FOLDER/socket until its own standard input ends. graphprobe is not imported here: when it is, is for the
program to say.
"""

import array
import atexit
import gc
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
import types
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

OWN = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""A pool of threads for compilations would not outlive a fork."""


def serve(folder: Path) -> dict[str, Any] | None:
    """Answer; gives the request in each fork, None in the server when its input has ended."""
    before = dict(os.environ)
    os.environ |= OWN
    _load()
    for name in os.environ.keys() - before.keys() - OWN.keys():
        del os.environ[name]
    (folder / "server.json").write_text(json.dumps({"environment": before, "python": sys.executable}), "utf-8")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(folder / "socket"))
    listening.listen(16)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    forks: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that tells of the end of the process
    with selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ)
        waiting.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj == 0:
                    return None
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    request, standard = _receive(connection)
                    pid = os.fork()
                    if pid == 0:
                        waiting.close()
                        for one in (listening, connection, *(other for _, other in forks.values())):
                            one.close()
                        for descriptor in forks:
                            os.close(descriptor)
                        return {**request, "standard": standard}
                    for descriptor in standard:
                        os.close(descriptor)
                    ended = os.pidfd_open(pid)
                    forks[ended] = (pid, connection)
                    waiting.register(ended, selectors.EVENT_READ)
                    waiting.register(connection, selectors.EVENT_READ, ended)
                elif key.data is not None:  # the client is gone: so is who wanted this
                    waiting.unregister(key.fileobj)
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(forks[key.data][0], signal.SIGKILL)
                elif key.fd in forks:
                    pid, connection = forks.pop(key.fd)
                    waiting.unregister(key.fd)
                    with suppress(KeyError):
                        waiting.unregister(connection)
                    os.close(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with suppress(OSError):  # the client is gone
                        connection.sendall(f"{code}\n".encode())
                    connection.close()


def _load() -> None:
    """Compile once, so that torch has loaded what it loads on first use and registered its patterns; then forget it."""
    import torch

    threads = _threads()  # of libraries that start theirs again in a fork
    if torch.cuda.device_count() == 0:  # before a trace makes devices up, for which autograd would have threads
        torch.ones((), requires_grad=True).backward()
    x = torch.ones(4, 4, requires_grad=True)
    torch.compile(lambda x: torch.relu(x @ x).sum())(x).backward()
    torch.compiler.reset()
    if (progress := sys.modules.get("tqdm.std")) is not None and progress.tqdm.monitor is not None:
        progress.tqdm.monitor.exit()  # a thread; the next progress bar starts another
        progress.tqdm.monitor = None
    deadline = time.monotonic() + 60
    while _threads() > threads:
        left = [thread.name for thread in threading.enumerate()]
        assert time.monotonic() < deadline, f"torch left threads behind, which would not be in a fork: {left}"
        time.sleep(0.1)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    fds = array.array("i")
    _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(3 * fds.itemsize))
    fds.frombytes(ancillary[0][2])
    data = b""
    while not data.endswith(b"\n"):
        data += connection.recv(1 << 16)
    return json.loads(data), list(fds)


def become(request: dict[str, Any], executable: str) -> int:
    """Be what was asked for; returns the exit code."""
    os.setsid()
    for to, descriptor in enumerate(request["standard"]):
        os.dup2(descriptor, to)
    for descriptor in request["standard"]:
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ |= {**request["environment"], **OWN}
    args = request["args"]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    if threads := os.environ.get("OMP_NUM_THREADS"):
        import torch

        torch.set_num_threads(int(threads))
    sys.executable = executable
    first = "" if args[0] == "-c" else os.getcwd() if args[0] == "-m" else str(Path(args[0]).resolve().parent)
    added = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [first, *added, *(entry for entry in sys.path[1:] if entry not in added)]
    return _run(args)


def _run(args: list[str]) -> int:
    if args[0] == "-m":
        from importlib.util import find_spec

        spec = find_spec(f"{args[1]}.__main__")
        assert spec is not None and spec.origin is not None
        file, sys.argv = spec.origin, [spec.origin, *args[2:]]
    elif args[0] == "-c":
        file, sys.argv = "<string>", ["-c", *args[2:]]
    else:
        file, sys.argv = args[0], args
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __spec__=None, __annotations__={})
    if args[0] != "-c":
        main.__dict__.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
    if args[0] == "-m":
        main.__package__ = args[1]
    sys.modules["__main__"] = main
    try:
        source = args[1].encode() if args[0] == "-c" else Path(file).read_bytes()
        exec(compile(source, file, "exec"), main.__dict__)
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            return exit.code or 0
        sys.stderr.write(f"{exit.code}\n")
        return 1
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _end(code: int) -> None:
    """End as Python does, but for the taking down of each module, which takes seconds in a fork."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    asked = serve(Path(sys.argv[1]))
    if asked is not None:
        _end(become(asked, str(Path(sys.argv[1]) / "python")))
