"""The private names of torch that a diagnosis stands on, and what is lost without each: for `graphprobe doctor`."""

from __future__ import annotations

from graphprobe.internals.dump_names import Need
from graphprobe.internals.program_backends import COMMON, REGISTRY
from graphprobe.internals.stages import COMPILE_FX

UTILS = "torch._dynamo.utils"

NEEDS: tuple[Need, ...] = (
    Need(
        "diagnose_stages",
        (
            (COMPILE_FX, "compile_fx"),
            (COMPILE_FX, "compile_fx_inner"),
            (COMPILE_FX, "_recursive_post_grad_passes"),
            (COMPILE_FX, "fake_tensor_prop"),
            (COMPILE_FX, "view_to_reshape"),
            ("torch._dynamo", "graph_break"),
        ),
        "a fault is found, and the stage and the operation that are to blame are not",
    ),
    Need(
        "diagnose_settings",
        (("torch", "_TorchCompileInductorWrapper"), ("torch", "_TorchCompileWrapper")),
        "mode and options of torch.compile are not kept",
    ),
    Need(
        "diagnose_own_backends",
        ((REGISTRY, "_COMPILER_FNS"), (COMMON, "AotAutograd")),
        "a backend that the program has made with aot_autograd, or has registered under a name, is not in the repro",
    ),
    Need(
        "diagnose_caches",
        (("torch.compiler.config", "cache_key_tag"),),
        "the program is run without torch's graph caches, so that faults that come out of one are not seen",
    ),
    Need(
        "diagnose_excess_precision",
        (("torch._inductor.config", "emulate_precision_casts"),),
        "narrow values that a kernel keeps wider are told as a difference, without their cause",
    ),
    Need(
        "diagnose_ranks",
        (
            ("torch._C._distributed_c10d", "FakeProcessGroup"),
            ("torch.distributed.distributed_c10d", "_world"),
        ),
        "a program of several ranks cannot be diagnosed",
    ),
    Need(
        "diagnose_numpy",
        tuple((UTILS, f"numpy_{what}_wrapper") for what in ("to_tensor", "method", "operator", "attr")),
        "functions of numpy's that Dynamo gets wrong are not named",
    ),
)
"""What a diagnosis needs besides what collecting needs."""
