"""Puts a fault into the compiler of this process and takes it out again. No cache may serve a graph compiled without
the fault, or keep one compiled with it."""

import contextlib
import itertools
import re
from unittest import mock

import torch
import torch._inductor.codegen.cpp
import torch._inductor.config
import torch._inductor.decomposition
import torch._inductor.lowering


@contextlib.contextmanager
def no_caches():
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


@contextlib.contextmanager
def attribute(owner, name, value):
    """`owner.name` is `value`; for a class, pass a staticmethod where the original is one."""
    with mock.patch.object(owner, name, value, create=True), no_caches():
        yield


@contextlib.contextmanager
def entries(table, new):
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
    fast = module.fast_random_decomps()  # made, and kept, of the other table: before that is changed
    with entries(module.decompositions, {op: function}), entries(fast, {op: function}):
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
    with no_caches(), torch._inductor.config.patch({key.replace("__", "."): value for key, value in settings.items()}):
        yield


def graph_of(given):
    """A pass gets a graph or a module, as the place it is called from wants it."""
    return given.graph if isinstance(given, torch.fx.GraphModule) else given


def off_by_some(source):
    """C++ of a kernel, with its last output of floating-point numbers wrong in one place."""
    begin = source.rfind('extern "C"')
    head = source[begin : source.index(")", begin)]
    names = re.findall(r"(?:float|double|at::BFloat16|at::Half)\*\s*(\w+)", re.sub(r"const \w+\*\s*\w+", "", head))
    assert names, head
    end = source.rstrip().rfind("}")
    return f"{source[:end]}    {names[-1]}[1] = {names[-1]}[1] * 1.5f + 0.25f;\n{source[end:]}"


@contextlib.contextmanager
def kernel(wanted, change=off_by_some):
    """The C++ of every kernel that `wanted(number, name)` holds for is what `change` makes of it.

    Kernels are counted from 0 in the order of their launches, through all graphs; one that is launched several times
    is counted each time, and what is changed is generated for this launch alone. `name` is made of the fused ops.
    """
    module = torch._inductor.codegen.cpp
    right = module.CppScheduling.define_kernel
    numbers = itertools.count()

    def define_kernel(self, source, nodes, *args, **kwargs):
        name = module.get_fused_kernel_name(nodes, torch._inductor.config.cpp.descriptive_names)
        if wanted(next(numbers), name):
            source = change(source)
        return right(self, source, nodes, *args, **kwargs)

    with attribute(module.CppScheduling, "define_kernel", define_kernel):
        yield
