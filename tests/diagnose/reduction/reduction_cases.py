"""Small cases and backends that fail on purpose, for the tests of the reducer."""

import ctypes
import os
import random
import time

import torch
from torch import nn

from graphprobe.diagnose.case import Case
from graphprobe.engine.values import capture


def captured(fn, *calls, grad=False, dynamic=None):
    """The largest graph that Dynamo makes of `fn`, with the values of each call."""
    graphs = []

    def backend(gm, _):
        values = []
        graphs.append((gm, values))

        def run(*args):
            values.append(capture(list(args)))
            return gm.forward(*args)

        return run

    torch.compiler.reset()
    compiled = torch.compile(fn, backend=backend, dynamic=dynamic)
    for args in calls:
        with torch.set_grad_enabled(grad):
            compiled(*args)
    return max(graphs, key=lambda record: len(record[0].graph.nodes))


def case_of(fn, *calls, backend="inductor", grad=False, dynamic=None, **settings):
    """The case of `fn`; settings are Inductor's, `cpp__simdlen` stands for `cpp.simdlen`."""
    graph, values = captured(fn, *calls, grad=grad, dynamic=dynamic)
    config = {key.replace("__", "."): value for key, value in settings.items()}
    return Case(graph, values, "wrong_value", backend=backend, grad=grad, dynamic=dynamic, configs={"inductor": config})


def relu_fault(kind):
    return {"cpp__inject_relu_bug_TESTING_ONLY": kind}


def mlp(depth=12, at=7, width=8):
    torch.manual_seed(0)
    layers = []
    for i in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU() if i == at else nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(4, width),)


def calls_of(gm):
    return [node for node in gm.graph.nodes if node.op.startswith("call_")]


def has_relu(gm):
    return any("relu" in str(node.target) for node in gm.graph.nodes)


def raising(gm, _):
    if has_relu(gm):
        raise NotImplementedError(f"relu of graph {id(gm):#x} is not supported, {len(calls_of(gm))} calls")
    return gm.forward


def segfaulting(gm, _):
    if has_relu(gm):
        ctypes.string_at(0)
    return gm.forward


def hanging(gm, _):
    if has_relu(gm):
        time.sleep(3600)
    return gm.forward


def hungry(gm, _):
    kept = []
    while has_relu(gm):
        kept.append(torch.ones(1 << 25))
    return gm.forward


def flaky(gm, _):
    """Fails three times out of ten."""
    if has_relu(gm) and random.Random(os.urandom(8)).random() < 0.3:
        raise RuntimeError("relu went wrong")
    return gm.forward


def adding(gm, _):
    """Wrong by far where there is a relu, right elsewhere."""
    if not has_relu(gm):
        return gm.forward
    return lambda *args: [out + 1 for out in gm(*args)]
