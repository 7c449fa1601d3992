"""A descriptor whose `__get__` changes the object: Dynamo runs the code of the first call again, since no guard
looks at what the descriptor reads. Found by differential testing."""


class Counting:
    def __get__(self, owner, kind=None):
        owner.__dict__["read"] = owner.__dict__.get("read", 0) + 1
        return owner.__dict__["read"]

    def __set__(self, owner, value):
        owner.__dict__["written"] = value


class Gate:
    level = Counting()


def program(x, gate):
    gate.level = 5
    return x * gate.level + gate.level


def make():
    import torch

    call = ((torch.ones(3), Gate()), {})
    make.calls = [call]
    return program, *call


def extra_calls():
    return make.calls


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "gate.level operator.mul operator.add", "lines": 60}
