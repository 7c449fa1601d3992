import torch


@torch.compile(backend="aot_eager")
def pick(table, number):
    return table[number] + 1


print(pick(torch.ones(4), torch.tensor([1, 2])))
pick(torch.ones(4), torch.tensor([7, 2]))
