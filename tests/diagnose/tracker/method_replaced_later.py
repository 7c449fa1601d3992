"""A method that is replaced on its class between two calls: the graph keeps the old one, since no guard looks at it.
Found by differential testing, a sibling of pytorch#176851."""

import torch


def make():
    class Step:
        def run(self, x):
            return x + 1

    step = Step()

    @torch.compiler.disable
    def tuned():
        Step.run = lambda self, x: x * 50

    def program(x):
        y = step.run(x)
        tuned()
        return y

    return program, (torch.ones(2),), {}


def extra_calls():
    return [((torch.ones(2),), {})]


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "step.run", "lines": 70}
