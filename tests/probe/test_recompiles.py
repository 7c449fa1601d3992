"""Each kind of recompilation, planted: kind, line, values and remedy; and silence once the remedy is followed."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import torch

import graphprobe
import models
from graphprobe.analysis.recompile_remedies import REMEDIES
from graphprobe.errors import UsageError
from graphprobe.internals.bus import Patch
from probe import recompile_cases
from probe.recompile_cases import CASES, compiled, ones

SOURCE = inspect.getsource(recompile_cases).splitlines()
NEVER_PLANTED = {"limit-reached", "constant-changed", "unexplained", "other"}
"""Tested elsewhere, or what is left when torch itself knows no more."""


def line_of(name: str) -> int | None:
    """The line with the mark: in the case, or in what stands before it for its use."""
    begin = next(i for i, line in enumerate(SOURCE) if line.startswith(f"class {name}:"))
    end = next((i for i in range(begin + 1, len(SOURCE)) if SOURCE[i].startswith("@case(")), len(SOURCE))
    inside = [i + 1 for i in range(begin, end) if SOURCE[i].endswith("# HERE")]
    if inside and not any(SOURCE[i].startswith(("class ", "def ")) for i in range(begin + 1, inside[0])):
        return inside[0]
    helper = {
        "ModuleAttribute": "Scaled",
        "Instances": "Scaled",
        "TrainingMode": "Dropping",
        "Closures": "scaler",
        "InstancesOfOtherLength": "Wide",
    }
    if name not in helper:
        return None
    start = next(
        i for i, line in enumerate(SOURCE) if line.startswith((f"class {helper[name]}(", f"def {helper[name]}("))
    )
    return next(i + 1 for i in range(start, len(SOURCE)) if SOURCE[i].endswith("# HERE"))


@pytest.mark.parametrize("name", CASES)
def test_planted(name: str) -> None:
    case = CASES[name]
    with graphprobe.recompiles() as found:
        case.fault()
    report = found.result()
    assert report.unwanted and report.complete and not report.notes
    group = report.groups[0]
    assert (group.kind, group.name, tuple(group.values)) == (case.kind, case.name, case.values), found.report()
    line = line_of(name)
    if line is not None:
        assert group.where is not None and group.where.line == line, found.report()
        assert group.where.file == recompile_cases.__file__
    assert any(case.remedy in remedy for remedy in group.remedies), group.remedies
    assert group.callers and all(caller.file == recompile_cases.__file__ for caller in group.callers)
    assert group.kind in found.report() and case.remedy in found.report()


@pytest.mark.parametrize("name", CASES)
def test_repaired(name: str) -> None:
    if name == "ModelsThatShareAForward" and torch.__version__ < (2, 13):
        pytest.skip("this torch has no isolate_recompiles, the remedy")
    with graphprobe.recompiles() as found:
        CASES[name].repaired()
    assert found.report() == "no recompilations"
    assert not found.result().unwanted


def test_every_kind_is_planted() -> None:
    assert {case.kind for case in CASES.values()} == set(REMEDIES) - NEVER_PLANTED
    assert len({line_of(name) for name in CASES} - {None}) > 25


def test_another_dtype_object_is_a_constant() -> None:
    f = compiled(lambda x, dtype: x.to(dtype) + 1)
    with graphprobe.recompiles() as found:
        f(ones(4), torch.float64)
        f(ones(4), torch.float16)
    (group,) = found.result().groups
    assert (group.kind, group.values) == ("constant-changed", ["torch.float64", "torch.float16"])


def test_the_limit() -> None:
    def f(x: Any, key: str) -> Any:
        return x + 1 if key == "1" else x * 2

    with torch._dynamo.config.patch(recompile_limit=3), graphprobe.recompiles() as found:
        fast = compiled(f)
        for i in range(6):
            fast(ones(4), str(i))
    report = found.result()
    assert (report.guard_failures, report.recompilations) == (3, 2)
    limit, cause = report.groups
    assert limit.kind == "limit-reached" and limit.compile_ids == ["0/3"] and limit.values == ["3"]
    assert "recompile_limit is 3" in limit.cause and "recompile_limit" in " ".join(limit.remedies)
    assert cause.kind == "string-changed" and cause.values == ["'0'", "'1'", "'2'", "'3'"]
    (function,) = report.functions
    assert (function.versions, function.limit, function.limit_hit) == (3, 3, "recompile_limit")
    # A limit is never as wanted.
    assert graphprobe.recompiles(allowed=9).result().unwanted is False
    assert found.report().index("limit-reached") < found.report().index("string-changed")


def test_a_higher_limit_is_not_reached() -> None:
    with torch._dynamo.config.patch(recompile_limit=8), graphprobe.recompiles(allowed=5) as found:
        fast = compiled(lambda x, key: x + 1 if key == "1" else x * 2)
        for i in range(6):
            fast(ones(4), str(i))
    assert found.result().recompilations == 5 and not found.result().unwanted
    assert [group.kind for group in found.result().groups] == ["string-changed"]


def test_the_accumulated_limit() -> None:
    with torch._dynamo.config.patch(accumulated_recompile_limit=2), graphprobe.recompiles() as found:
        fast = compiled(lambda x, key: x + 1 if key == "1" else x * 2)
        for i in range(4):
            fast(ones(4), str(i))
    limit = found.result().groups[0]
    assert (limit.kind, limit.name, limit.values) == ("limit-reached", "accumulated_recompile_limit", ["2"])


def test_what_was_compiled_for_before_is_no_cause() -> None:
    fast = compiled(lambda x: x + 1)
    with graphprobe.recompiles() as found:
        fast(ones(4))
        fast(ones(4).double())  # dtype
        fast(ones(5))  # the last version fails at its dtype, the first one at the size
    assert [group.kind for group in found.result().groups] == ["dtype-changed", "size-changed"]


def test_behind_a_graph_break() -> None:
    def f(x: Any, flag: bool) -> Any:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2 if flag else x

    with graphprobe.recompiles() as found:
        fast = compiled(f)
        fast(ones(4), True)
        fast(ones(4), False)
    line = inspect.getsourcelines(f)[1] + 2
    assert f"f (behind the graph break at line {line})" in found.report()
    (group,) = found.result().groups
    assert group.kind == "bool-changed" and group.where is not None and group.where.line == line + 1


def test_threads() -> None:
    """Every thread counts, and its name is kept.

    torch remembers sizes by file, line and name, which the three functions share: had one thread seen both sizes before
    another compiled, the other's first graph would be dynamic already, and nothing would be compiled again.
    """
    functions = [compiled(lambda x: x + 1), compiled(lambda x: x * 2), compiled(lambda x: x - 3)]
    all_compiled = threading.Barrier(len(functions), timeout=120)

    def work(f: Any) -> None:
        f(ones(4))
        all_compiled.wait()
        f(ones(5))

    with graphprobe.recompiles() as found:
        threads = [threading.Thread(target=work, args=(f,), name=f"worker-{i}") for i, f in enumerate(functions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(fact.thread for fact in found.facts) == ["worker-0", "worker-1", "worker-2"]
    (group,) = found.result().groups  # three functions of one name on one line are one to the reader
    assert (group.kind, group.count) == ("size-changed", 3)


def test_a_model_that_nobody_prepared() -> None:
    pytest.importorskip("transformers")
    model = models.gpt2(n_layer=2).eval()
    fast = torch.compile(model, backend="eager")
    with graphprobe.recompiles() as found, torch.no_grad():
        for length in (7, 9, 12):
            fast(torch.zeros(1, length, dtype=torch.long))
    (group,) = found.result().groups
    assert (group.kind, group.dim, group.values) == ("size-changed", 1, ["7", "9"]), found.report()
    assert group.name in ("input_ids", "args[0]")  # as the version of transformers wraps its forward
    torch.compiler.reset()
    with graphprobe.recompiles() as quiet, torch.no_grad():
        for length in (7, 9, 12):
            ids = torch.zeros(1, length, dtype=torch.long)
            torch._dynamo.mark_dynamic(ids, 1)
            fast(ids)
    assert quiet.report() == "no recompilations"


class Head(torch.nn.Module):
    def __init__(self, k: Any) -> None:
        super().__init__()
        self.k = k
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        return x * self.k if isinstance(self.k, float) else self.dropout(x).relu()


def causes(found: Any) -> list[tuple[str, str, int, list[str]]]:
    return [(group.kind, group.name, group.count, group.values) for group in found.result().groups]


def test_training_validation_and_a_second_instance() -> None:
    """The third call has a new attribute; that it trains is not new, though the version used last does not."""
    a, b = compiled(Head(2.0)), compiled(Head(3.0))
    x = torch.ones(3, requires_grad=True)
    with graphprobe.recompiles() as found:
        a(x)
        with torch.no_grad():
            a(x)
        b(x)
        with torch.no_grad():
            b(x)
    assert causes(found) == [
        ("instance-changed", "self.k", 2, ["2.0", "3.0"]),
        ("grad-mode-changed", "", 1, []),
    ]


def test_autocast_evaluation_and_a_second_instance() -> None:
    first, second = Head("relu"), Head(None)
    with graphprobe.recompiles() as found:
        for module in (first, second):
            fast = compiled(module)
            fast(ones(3))
            with torch.autocast("cpu"):
                fast(ones(3))
            fast(ones(3))
            module.eval()
            fast(ones(3))
    instances = ["str", "NoneType"] if torch.__version__ >= (2, 13) else ["'relu'", "None"]
    assert sorted(causes(found)) == [
        ("autocast-changed", "", 1, []),
        ("instance-changed", "self.k", 2, instances),
        ("training-mode-changed", "self.dropout.training", 2, ["True", "False"]),
    ], found.report()


def test_causes_of_one_size_stay_apart() -> None:
    def shapes(x: Any) -> Any:
        return x.sin() if x.shape[0] > 5 else x.cos()

    with graphprobe.recompiles() as found:
        fast = compiled(shapes)
        for n in (3, 4, 7, 1, 0, 9):
            fast(ones(n))
    assert causes(found) == [
        ("size-zero-one", "x", 2, ["0", "1"]),
        ("size-changed", "x", 1, ["3", "4"]),
        ("size-condition", "x", 1, ["7"]),
    ]
    marked = [remedy for group in found.result().groups for remedy in group.remedies if "mark_dynamic" in remedy]
    assert marked == ["torch._dynamo.mark_dynamic(x, 0) before the first call"]


def test_a_first_batch_of_one_stays_apart_from_the_dtype() -> None:
    with graphprobe.recompiles() as found:
        fast = compiled(lambda x: x + 1)
        for x in (ones(1), ones(5), ones(5).double(), ones(7).double()):
            fast(x)
    assert causes(found) == [
        ("size-zero-one", "x", 1, ["1"]),
        ("dtype-changed", "x", 1, ["float32", "float64"]),
    ], found.report()


def test_keys_are_readable() -> None:
    with graphprobe.recompiles() as found:
        fast = compiled(lambda d: sum(d.values()))
        for keys in ("a", "ab", "c", "cb", ""):
            fast({key: ones(2) for key in keys})
    assert "the keys of d changed: 1 key; 'a', 'b'; 'c'; 'c', 'b'; 0 keys\n" in found.report()


PARTS_OF_T5 = ("input_ids", "encoder_hidden_states", "encoder_outputs.last_hidden_state")


def test_two_models_behind_one_decorator() -> None:
    """T5 is called with keywords and the vision model without: no length of an argument list is to blame."""
    transformers = pytest.importorskip("transformers")
    small = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=50, pad_token_id=0, **small))
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=8, **sizes))
    with graphprobe.recompiles() as found, torch.no_grad():
        fast_t5, fast_vit = compiled(t5.eval()), compiled(vit.eval())
        for n in (6, 9):
            fast_t5(input_ids=torch.zeros(2, n, dtype=torch.long), labels=torch.zeros(2, 5, dtype=torch.long))
        for n in (2, 3):
            fast_vit(torch.randn(n, 3, 16, 16))
    groups = {(group.kind, group.name) for group in found.result().groups}
    if torch.__version__ < (2, 13):  # breaks the graph in T5, whose parts are compiled for each size, too
        groups -= {("size-changed", name) for name in PARTS_OF_T5}
    assert groups == {
        ("size-changed", "kwargs['input_ids']"),
        ("shared-code", ""),
        ("size-changed", "args[0]"),
    }, found.report()
    shared = "T5ForConditionalGeneration, ViTForImageClassification"
    told = f"compiled for several: {shared}; each has versions of its own, and they share the limit of 8"
    assert told in found.report()
    assert f"4 versions of at most 8, shared by {shared}\n" in found.report()


def test_two_sequentials_are_instances_of_one() -> None:
    """torch itself puts a wrapper around modules of its own."""
    relu = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    tanh = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    with graphprobe.recompiles() as found:
        for module in (relu, tanh):
            compiled(module)(ones(2, 4))
    ((kind, name, count, values),) = causes(found)
    assert (kind, name, count) == ("instance-changed", "fn[1]", 1) and values[0].endswith("ReLU"), found.report()


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="allowed=-1"):
        graphprobe.recompiles(allowed=-1)
    with pytest.raises(UsageError, match="already"), graphprobe.recompiles() as found:
        found.open()


def test_a_fault_of_ours_is_told_and_gets_out_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphprobe.internals.dynamo import recompile_taps as taps

    def fails(*args: object) -> None:
        raise ValueError("planted")

    before = torch._dynamo.convert_frame.get_and_maybe_log_recompilation_reasons
    monkeypatch.setattr(taps, "_failed_guard", fails)
    fast = compiled(lambda x: x + 1)
    with graphprobe.recompiles() as found:
        assert fast(ones(4)).tolist() == [2.0] * 4
        assert fast(ones(5)).tolist() == [2.0] * 5
        assert torch._dynamo.convert_frame.get_and_maybe_log_recompilation_reasons is before
    assert not found.result().complete
    assert "ValueError: planted" in found.report() and "incomplete" in found.report()


def test_a_torch_that_lacks_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphprobe.internals.dynamo import recompile_taps as taps

    real = taps.patches

    def without(observer: taps.RecompileObserver) -> list[Patch]:
        first, second, third = real(observer)
        return [first, Patch(second.tap, second.module, "gone", second.make), third]

    monkeypatch.setattr(taps, "patches", without)
    fast = compiled(lambda x: x + 1)
    with graphprobe.recompiles() as found:
        fast(ones(4))
        fast(ones(5))
    report = found.result()
    assert not report.complete and report.groups == []
    assert report.notes == ["recompilations may be missing: this torch lacks torch._dynamo.convert_frame:gone"]
