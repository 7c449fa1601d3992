"""Area interpolation to one fixed and one symbolic size does not compile; in the middle of a convolutional net."""

from torch.nn import functional

from diagnose.hosts import convnet


def halve(h):
    return functional.interpolate(h, size=(3, h.shape[-1] // 2), mode="area")


def make():
    return convnet(inner=halve, at=1)


COMPILE = {"dynamic": True}

EXPECT = {"kind": "crash_compile", "stage": "lowering", "ops": "aten._adaptive_avg_pool2d", "lines": 40}
