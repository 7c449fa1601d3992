"""What of torch's settings the program has changed, and how a diagnosis compiles."""

from __future__ import annotations

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


def custom_pass(graph: Graph) -> None:
    del graph


def new(before: Changed, after: Changed) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
    """What has been added since; a caller's environment may have changed settings of its own."""
    return (
        {k: v for k, v in after.inductor.items() if k not in before.inductor},
        {k: v for k, v in after.functorch.items() if k not in before.functorch},
        {k: v for k, v in after.dynamo.items() if k not in before.dynamo},
        [text for text in after.unsaved if text not in before.unsaved],
    )


def test_changes_are_found_in_each_package() -> None:
    before = changed_settings()
    assert new(before, changed_settings()) == ({}, {}, {}, [])
    with (
        torch._inductor.config.patch({"epilogue_fusion": False, "cpp.simdlen": 256}),
        torch._functorch.config.patch(functionalize_rng_ops=True),
        torch._dynamo.config.patch(recompile_limit=3),
    ):
        inductor, functorch, dynamo, unsaved = new(before, changed_settings())
    assert inductor == {"epilogue_fusion": False, "cpp.simdlen": 256}
    assert functorch == {"functionalize_rng_ops": True}
    assert dynamo == {"recompile_limit": 3}
    assert unsaved == []
    assert new(before, changed_settings()) == ({}, {}, {}, [])


def test_a_value_that_is_set_to_its_default_is_no_change() -> None:
    before = changed_settings()
    with torch._inductor.config.patch(epilogue_fusion=torch._inductor.config.epilogue_fusion):
        assert new(before, changed_settings()) == ({}, {}, {}, [])


def test_what_json_cannot_hold_is_text() -> None:
    before = changed_settings()
    settings = {"post_grad_custom_pre_pass": custom_pass, "post_grad_custom_post_pass": eval("lambda graph: None")}
    with torch._inductor.config.patch(settings):
        after = changed_settings()
    inductor, _, _, unsaved = new(before, after)
    assert inductor == {}
    hook = after.hooks["inductor.post_grad_custom_pre_pass"]
    assert "def custom_pass(graph" in hook.text
    assert hook.name == "custom_pass"
    assert len(unsaved) == 1
    assert unsaved[0].startswith("torch._inductor.config.post_grad_custom_post_pass = <lambda>: ")


def test_what_has_no_influence_is_left_out() -> None:
    before = changed_settings()
    config = torch._inductor.config
    with config.patch(compile_threads=config.compile_threads + 1, fx_graph_cache=not config.fx_graph_cache):
        assert new(before, changed_settings()) == ({}, {}, {}, [])


def test_what_is_found_can_be_written_and_set_again() -> None:
    with torch._inductor.config.patch({"cpp.simdlen": 256, "post_grad_fusion_options": {"a": {"b": 1}}}):
        found = changed_settings().inductor
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


def test_backends() -> None:
    assert Compilation("inductor", None, Path("x")).is_inductor
    other = Compilation("aot_eager", None, Path("x"))
    assert (other.is_inductor, other.backend_name) == (False, "aot_eager")
    own = Compilation(lambda gm, _: gm, None, Path("x"))
    assert (own.is_inductor, own.backend_name) == (False, "eager")


def test_versions() -> None:
    found = versions()
    assert found["PyTorch version"] == torch.__version__
    assert torch.backends.cpu.get_cpu_capability() in found["CPU"]
    assert {"PyTorch commit", "Python version", "OS"} <= found.keys()
