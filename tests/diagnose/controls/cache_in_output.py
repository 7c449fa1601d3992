"""GPT-2 in training as transformers calls it: the output holds a cache of keys and values, an object of its own."""

import torch


class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32)
        self.model = GPT2LMHeadModel(config)

    def forward(self, ids):
        output = self.model(input_ids=ids, labels=ids)
        assert output.past_key_values is not None
        return output


def make():
    return WithLoss().eval(), (torch.randint(0, 64, (2, 11)),), {}
