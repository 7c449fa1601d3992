"""Functions that Dynamo cannot trace, each compiled once. What it prints is how each failed."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import sys
import tempfile
import threading
import zlib

import parts
import torch
from parts import pick
from torch import nn

RATE = 0.5
TABLE = torch.arange(4.0)
Point = collections.namedtuple("Point", "x y", defaults=(3,))


class Mode(enum.Enum):
    FAST = 1
    SAFE = "safe"


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 3
    mode: Mode = Mode.FAST
    tags: tuple = ()


def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.layers = nn.Sequential(nn.Linear(cfg.width, 4), nn.ReLU())
        self.tied = self.layers[0].weight
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x, *rest, flag=True, **more):
        h = self.layers(x) * RATE + TABLE + self.seen
        if self.cfg.mode is Mode.FAST and self.tied is self.layers[0].weight:
            return pick(h, more["limit"])
        return h


class Child(Net):
    def forward(self, x):
        return super().forward(x, limit=0.5)


def dict_key(x, y):
    table = {x: 1}
    return table[y]


def branch(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def c_function(x):
    return x * zlib.crc32(b"abc")


def generator(x):
    yield x + 1


def raises(x):
    raise ValueError(f"no: {x.shape[0]}")


def bad_shapes(x):
    return x @ torch.ones(7, 7)


def with_closure(k):
    seen = []

    def inner(x, p):
        def go(t):
            return t * k + len(seen)

        return parts.pick(go(x) + p.x, 2.0)

    return inner


def with_dataclass(cfg, x):
    return branch(x * cfg.width) if cfg.mode is Mode.FAST and cfg.tags[1] == 1.5 else x


def aliased(x, view):
    view.mul_(2)
    return branch(x) if view._base is x else x


def with_object(x, thing):
    return thing.judge(x)


def with_defaults(x, k=parts.LIMITS, *, mode=Mode.SAFE):
    return branch(x) if mode is Mode.SAFE and k["low"] == 0.5 else x


def grows(x):
    y = x * 2
    return y if x.shape[0] == 3 else branch(y)


def only_without_grad(x):
    return x if torch.is_grad_enabled() else branch(x)


def only_in_autocast(x):
    return branch(x) if torch.is_autocast_enabled("cpu") else x


def only_in_double(x):
    return branch(x) if torch.get_default_dtype() is torch.float64 else x


def item(x):
    return torch.zeros(x.sum().item())


def imports_late(x):
    from parts import Base

    return Base("late").judge(x)


@logged
def decorated(x):
    return branch(x)


@contextlib.contextmanager
def managed():
    yield 1


def in_context(x):
    with managed() as one:
        return branch(x + one)


@torch.compiler.disable
def refused(x):
    return x


def calls_refused(x):
    return refused(x)


def calls_compiled(x):
    return COMPILED(x)


def with_lock(x, lock, counts):
    return branch(x)


def partly(x):
    y = x + 1
    with contextlib.suppress(KeyError):
        torch._dynamo.graph_break()
    return branch(y)


COMPILED = torch.compile(branch, backend="eager")


def attempt(name, fn, *args, fullgraph=True, **kwargs):
    torch.compiler.reset()
    called(name, torch.compile(fn, backend="eager", fullgraph=fullgraph), *args, **kwargs)


def called(name, compiled, *args, **kwargs):
    try:
        compiled(*args, **kwargs)
    except Exception as error:
        print(name, type(error).__name__, str(error).strip().splitlines()[0])
    else:
        print(name, "-")


def main():
    x = torch.ones(3)
    net = Net(Config(tags=("a", 1.5)))
    net.mode = "tuned"
    attempt("dict_key", dict_key, x, x + 1)
    attempt("branch", branch, x)
    attempt("c_function", c_function, x)
    attempt("generator", generator, x)
    attempt("raises", raises, x)
    attempt("bad_shapes", bad_shapes, x)
    attempt("method", net, torch.ones(2, 3), limit=1.0)
    attempt("inherited", Child(Config()), torch.ones(2, 3))
    base = torch.arange(6.0)
    attempt("closure", with_closure(2), base[1:4], Point(base[2:5]))
    attempt("dataclass", with_dataclass, Config(tags=("a", 1.5)), x)
    attempt("aliased", aliased, base, base[2:])
    thing = parts.Base("thing")
    parts.Base.scale = 5
    attempt("object", with_object, x, thing)
    attempt("defaults", with_defaults, x)
    attempt("imports_late", imports_late, x)
    attempt("decorated", decorated, x)
    attempt("in_context", in_context, x)
    attempt("calls_refused", calls_refused, x)
    attempt("calls_compiled", calls_compiled, x)
    attempt("lambda", lambda t: branch(t) if t.dim() else t, x)
    with torch.no_grad():
        attempt("only_without_grad", only_without_grad, x)
    with torch.autocast("cpu"):
        attempt("only_in_autocast", only_in_autocast, x)
    torch.set_default_dtype(torch.float64)
    attempt("only_in_double", only_in_double, x)
    torch.set_default_dtype(torch.float32)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        attempt("item", item, x)
    attempt("partly", partly, x, fullgraph=False)
    torch.compiler.reset()
    compiled = torch.compile(grows, backend="eager", fullgraph=True)
    compiled(torch.ones(3))
    called("grows", compiled, torch.ones(5))
    with tempfile.TemporaryFile() as file:
        attempt("lock", with_lock, x, threading.Lock(), {"file": file})


if __name__ == "__main__":
    main()
    sys.stdout.flush()
