"""The memory plan gives a buffer the storage of another one that is still read later."""

import torch
from torch._inductor.codegen import wrapper

from diagnose.planting import attribute

right = wrapper.PythonWrapperCodegen.memory_plan_reuse


def plan(self):
    """Plans, then lets the first new buffer for which there is one take the storage of a living one of its size."""
    right(self)
    living, outputs = {}, wrapper.V.graph.get_output_names()
    for i, line in enumerate(self.lines):
        if isinstance(line, wrapper.ReuseLine):
            living.pop(line.node.get_name(), None)
        elif isinstance(line, wrapper.FreeIfNotReusedLine):
            living.pop(line.node.get_name(), None)
        elif isinstance(line, wrapper.AllocateLine) and line.node.get_name() not in outputs:
            key = wrapper.buffer_reuse_key(line.node)
            for node in living.values():
                if wrapper.buffer_reuse_key(node) == key:
                    self.lines[i] = wrapper.ReuseLine(self, node, line.node, delete_old=False)
                    return
            living[line.node.get_name()] = line.node


def program(x, w):
    a = x @ w
    b = (x + 1) @ w
    c = torch.sin(a) @ w
    return c @ b.t()


def make():
    torch.manual_seed(0)
    return program, (torch.randn(8, 8), torch.randn(8, 8)), {}


def plant():
    return attribute(wrapper.PythonWrapperCodegen, "memory_plan_reuse", plan)


EXPECT = {"kind": "wrong_value aliasing", "stage": "codegen runtime", "ops": "aten.mm aten.sin aten.add"}
