"""A parent that compiles before, beside and after a child that compiles too: `children.py fork|spawn|os.fork`."""

import multiprocessing
import os
import sys
import threading

import torch


def child(constant: float) -> None:
    # Distinct functions, as many as graphs: the child's run must hold each of them once.
    first = torch.compile(lambda x: x.sin() * 31)
    second = torch.compile(lambda x: x.cos() * 32)
    x = torch.ones(3, requires_grad=True)
    result = first(x) + second(x)
    result.sum().backward()
    assert torch.equal(result, x.sin() * 31 + x.cos() * 32)
    print("CHILD", constant, x.grad.tolist(), flush=True)


def main(method: str) -> None:
    torch.compile(lambda x: x.tan() * 11)(torch.ones(3))
    if method == "os.fork":
        pid = os.fork()
        if pid == 0:
            child(1.0)
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0
    else:
        process = multiprocessing.get_context(method).Process(target=child, args=(1.0,))
        process.start()
        process.join()
        assert process.exitcode == 0
    torch.compile(lambda x: x.exp() * 12)(torch.ones(3))
    assert threading.active_count() >= 1
    print("PARENT", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
