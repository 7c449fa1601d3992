"""Puts a fault into the compiler of this process and takes it out again. No cache may serve a graph compiled without
the fault, or keep one compiled with it."""

import contextlib

import torch
import torch._inductor.codegen.cpp
import torch._inductor.config
import torch._inductor.decomposition
import torch._inductor.lowering


@contextlib.contextmanager
def no_caches():
    """Nothing is read from or written to the caches of compiled graphs."""
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


@contextlib.contextmanager
def attribute(owner, name, value):
    """`owner.name` is `value`; for a class, pass a staticmethod where the original is one."""
    missing = object()
    old = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        with no_caches():
            yield
    finally:
        if old is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, old)


@contextlib.contextmanager
def entries(table, new):
    """The dict `table` holds the entries of `new`."""
    missing = object()
    old = {key: table.get(key, missing) for key in new}
    table.update(new)
    try:
        with no_caches():
            yield
    finally:
        for key, value in old.items():
            if value is missing:
                table.pop(key, None)
            else:
                table[key] = value


@contextlib.contextmanager
def decomposition(op, function):
    """The tables that Inductor takes its decompositions from hold `function` for the overload `op`."""
    module = torch._inductor.decomposition
    with entries(module.decompositions, {op: function}), entries(module.fast_random_decomps(), {op: function}):
        yield


@contextlib.contextmanager
def lowering(op, wrong):
    """The lowering of the overload `op` is `wrong(lower, *args, **kwargs)`; `lower` is the right one."""
    lowerings = torch._inductor.lowering.lowerings
    right = lowerings[op]

    def lowered(*args, **kwargs):
        return wrong(right, *args, **kwargs)

    with entries(lowerings, {op: lowered}):
        yield


@contextlib.contextmanager
def cpp(name, function, scalar=True, vector=True):
    """The C++ of `name` is what `function` returns, in scalar code, in vector code or in both."""
    module = torch._inductor.codegen.cpp
    with contextlib.ExitStack() as stack:
        for owner, wanted in ((module.CppOverrides, scalar), (module.CppVecOverrides, vector)):
            if wanted:
                stack.enter_context(attribute(owner, name, staticmethod(function)))
        yield


@contextlib.contextmanager
def inductor(**settings):
    """Settings of Inductor; `cpp__simdlen` stands for `cpp.simdlen`."""
    with (
        no_caches(),
        torch._inductor.config.patch({key.replace("__", "."): value for key, value in settings.items()}),
    ):
        yield


def graph_of(given):
    """A pass gets a graph or a module, as the place it is called from wants it."""
    return given.graph if isinstance(given, torch.fx.GraphModule) else given
