"""Nothing guards that an argument that is changed shares no memory with another one: what overlaps runs what was
compiled for arguments apart (pytorch/pytorch#139789)."""


def program(x, y):
    x.mul_(2)
    return x + y


def make():
    import torch

    return program, (torch.ones(4), torch.ones(4)), {}


def extra_calls():
    import torch

    base = torch.ones(8)
    return [((base[:4], base[2:6]), {})]


EXPECT = {
    "kind": "wrong_value lost_mutation aliasing",
    "stage": "runtime aot",
    "ops": "aten.mul torch.Tensor.mul_ aten.mul_ aten.add",
}
