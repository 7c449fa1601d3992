"""What runs in the place of `python`: asks the server for a fork that becomes this program, and ends as that ends.

    python -IS client.py FOLDER [ARGS OF PYTHON]

Only the standard library is imported, and little of it: this is to start at once. Where the program could tell the
difference, by an option or a variable that is read while Python or torch are loaded, the usual Python takes over.
"""

import array
import json
import os
import resource
import signal
import socket
import sys

READ_WHEN_IMPORTED = ("TORCH", "PYTORCH", "AOT", "GRAPHPROBE_", "OMP_", "MKL_", "PYTHON", "RANK", "WORLD_SIZE")
READ_EACH_TIME = {
    "OMP_NUM_THREADS",  # set in the fork
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS",  # the server has its own
    "TORCH_COMPILE_DEBUG_DIR",
}


def counts(variable: str) -> bool:
    """Whether a program that was loaded with another value would be another."""
    return variable.startswith(READ_WHEN_IMPORTED) and variable not in READ_EACH_TIME


def is_usual(args: list[str], environment: dict[str, str]) -> bool:
    """Whether a fork of the server is what Python would be with these arguments, in this environment."""
    if not args or (args[0].startswith("-") and args[0] not in ("-m", "-c")):
        return False
    if args[0] == "-m" and args[1:2] not in (["graphprobe"], ["pytest"]):
        return False
    here = {name: value for name, value in os.environ.items() if counts(name)}
    return here == {name: value for name, value in environment.items() if counts(name)}


def main(folder: str, args: list[str]) -> None:
    with open(os.path.join(folder, "server.json"), encoding="utf-8") as file:
        server = json.load(file)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not is_usual(args, server["environment"]):
            raise OSError
        connection.connect(os.path.join(folder, "socket"))
    except OSError:
        os.execv(server["python"], [server["python"], *args])
    request = json.dumps({"args": args, "cwd": os.getcwd(), "environment": dict(os.environ)}).encode()
    standard = array.array("i", [0, 1, 2])
    connection.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, standard)])
    connection.sendall(request + b"\n")
    code = int(connection.makefile("r", encoding="utf-8").readline())
    if code >= 0:
        os._exit(code)
    # It died of a signal, and so does this process, but leaves no core.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code == signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
