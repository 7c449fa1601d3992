"""A number in an object, changed by each call, keeps the value of an earlier call: Inductor bakes it into the graph
that gets it as a tensor. Found by differential testing; related to pytorch/pytorch#197554."""


class Schedule:
    def __init__(self):
        self.rate = 1.0


def program(x, schedule):
    schedule.rate += 1
    return x * schedule.rate


def make():
    import torch

    call = ((torch.ones(4), Schedule()), {})
    make.calls = [call, call]
    return program, *call


def extra_calls():
    return make.calls


EXPECT = {
    "kind": "wrong_value side_effect lost_mutation",
    "stage": "dynamo runtime aot",
    "ops": "operator.add aten.add",
}
