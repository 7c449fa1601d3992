"""A conv net in training: batch statistics, running statistics and gradients."""

from diagnose.hosts import convnet

GRAD = True


def make():
    return convnet(train=True)
