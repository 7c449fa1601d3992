"""What of torch's settings the program has changed, and how a diagnosis compiles."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
from torch.fx import Graph

from graphprobe.diagnose.settings import Changed, Compilation, changed_settings, versions
from graphprobe.findings import Finding


def custom_pass(graph: Graph) -> None:
    del graph


def new(before: Changed) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
    """What has been changed since; a caller's environment may have changed settings of its own."""
    after = changed_settings()
    inductor, functorch, dynamo = (
        {name: value for name, value in after.configs[part].items() if name not in before.configs[part]}
        for part in ("inductor", "functorch", "dynamo")
    )
    return inductor, functorch, dynamo, [text for text in after.unsaved if text not in before.unsaved]


def test_changes() -> None:
    before = changed_settings()
    with (
        torch._inductor.config.patch({"epilogue_fusion": False, "cpp.simdlen": 256}),
        torch._functorch.config.patch(functionalize_rng_ops=True),
        torch._dynamo.config.patch(recompile_limit=3),
    ):
        found = new(before)
    settings = {"epilogue_fusion": False, "cpp.simdlen": 256}
    assert found == (settings, {"functionalize_rng_ops": True}, {"recompile_limit": 3}, [])
    assert new(before) == ({}, {}, {}, [])
    config, before = torch._inductor.config, changed_settings()
    with (
        config.patch(epilogue_fusion=config.epilogue_fusion),
        config.patch(compile_threads=config.compile_threads + 1, fx_graph_cache=not config.fx_graph_cache),
    ):
        assert new(before) == ({}, {}, {}, [])


def test_what_json_cannot_hold_is_text() -> None:
    before = changed_settings()
    settings = {"post_grad_custom_pre_pass": custom_pass, "post_grad_custom_post_pass": eval("lambda graph: None")}
    with torch._inductor.config.patch(settings):
        hook = changed_settings().hooks["inductor.post_grad_custom_pre_pass"]
        inductor, _, _, (unsaved,) = new(before)
    assert inductor == {} and hook.name == "custom_pass" and "def custom_pass(graph" in hook.text
    assert unsaved.startswith("torch._inductor.config.post_grad_custom_post_pass = <lambda>: ")


def test_what_is_found_can_be_written_and_set_again() -> None:
    with torch._inductor.config.patch({"cpp.simdlen": 256, "post_grad_fusion_options": {"a": {"b": 1}}}):
        found = changed_settings().configs["inductor"]
    assert json.loads(json.dumps(found)) == found
    with torch._inductor.config.patch(found):
        assert torch._inductor.config.cpp.simdlen == 256
        assert torch._inductor.config.post_grad_fusion_options == {"a": {"b": 1}}


@pytest.mark.parametrize("align", [True, False])
def test_random_ops_as_in_eager(align: bool) -> None:
    before = torch._inductor.config.fallback_random
    with Compilation("inductor", None, Path("x"), align_random=align).configured():
        assert torch._inductor.config.fallback_random is (True if align else before)
    assert torch._inductor.config.fallback_random is before


def test_backends_and_versions() -> None:
    for backend, is_inductor, name in (
        ("inductor", True, "inductor"),
        ("aot_eager", False, "aot_eager"),
        (lambda gm, _: gm, False, "eager"),
    ):
        made = Compilation(backend, None, Path("x"))
        assert (made.is_inductor, made.backend_name) == (is_inductor, name)
    found = versions()
    assert found["PyTorch version"] == torch.__version__
    assert torch.backends.cpu.get_cpu_capability() in found["CPU"]
    assert {"PyTorch commit", "Python version", "OS"} <= found.keys()


def test_a_line_that_is_not_the_programs_is_told_with_the_one_that_calls() -> None:
    for place, called in (
        ({"op": "aten.relu.default"}, True),
        ({"op": "aten.relu.default", "source": "/x/site-packages/other.py:3"}, True),
        ({"op": "aten.relu.default", "source": "/x/model.py:3"}, False),
        ({}, False),
    ):
        compilation, finding = Compilation("inductor", None, Path()), Finding(kind="hang", stage="codegen", **place)  # type: ignore[arg-type]
        compilation.complete(finding)
        assert (finding.called_from or "").startswith(f"{__file__}:") == called
        assert finding.line == (finding.called_from or place.get("source"))
