"""torch's words, read; the cause among several failed guards; the report of no recompilations. Without torch."""

from __future__ import annotations

import pytest

from graphprobe.analysis.recompile_facts import FailedGuard, Recompile
from graphprobe.analysis.recompile_guards import check_from_text, guard_code, readable, root_name
from graphprobe.analysis.recompile_remedies import REMEDIES
from graphprobe.analysis.recompiles import function_name, report_from_facts

TEXTS = {
    "tensor 'x' size mismatch at index 1. expected 4, actual 5": ("size-changed", "x", 1, "4", "5"),
    "tensor 'x' stride mismatch at index 0. expected 4, actual 1": ("stride-changed", "x", 0, "4", "1"),
    "tensor 'x' dtype mismatch. expected Half, actual BFloat16": ("dtype-changed", "x", None, "float16", "bfloat16"),
    "tensor 'x' requires_grad mismatch. expected requires_grad=1": (
        "requires-grad-changed",
        "x",
        None,
        "True",
        "False",
    ),
    "tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU, BackendSelect, AutogradCPU), actual "
    "DispatchKeySet(CUDA, BackendSelect, AutogradCUDA)": ("device-changed", "x", None, "cpu", "cuda"),
    "Tensor device index mismatch. Expected device index to be 0, got 1": ("device-changed", "", None, "0", "1"),
    "n == 3          # y = x + n  # a.py:3 in f": ("int-changed", "n", None, "3", None),
    "p == 'a # b'    # y = x + n  # a.py:3 in f": ("string-changed", "p", None, "'a # b'", None),
    "G['K']['k'] == 1   # return x * K['k']  # a.py:3 in f": ("global-changed", "G['K']['k']", None, "1", None),
    "n <= 5  # if n > 5:  # a.py:3 in f (_dynamo/variables/tensor.py:2606 in evaluate_expr)": (
        "value-condition",
        "n",
        None,
        None,
        None,
    ),
    "not xs   # for x in xs:  # a.py:3 in f": ("length-changed", "xs", None, "0", None),
    "len(d) != 2": ("keys-changed", "d", None, "2 of them", None),
    "not ___dict_contains('a', d)   # if 'a' in d:  # a.py:3 in f": (
        "keys-changed",
        "d",
        None,
        "without 'a'",
        "with 'a'",
    ),
    "KeyError on d['a']['b']": ("keys-changed", "d['a']", None, "with 'b'", "without 'b'"),
    "not hasattr(o, 'a')   # hasattr(o, 'a')  # a.py:3 in f": ("attribute-changed", "o.a", None, "absent", "present"),
    "b is not None  # if b is None:  # a.py:3 in f": ("none-changed", "b", None, "not None", None),
    "GLOBAL_STATE changed: grad_mode ": ("grad-mode-changed", "", None, None, None),
    "Cache line invalidated because L['o'] got deallocated": ("object-freed", "o", None, None, None),
    "something that no torch has said so far": ("other", "", None, None, None),
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts(text: str) -> None:
    check = check_from_text(text)
    assert (check.kind, check.source, check.dim, check.expected, check.actual) == TEXTS[text]
    assert check.kind in REMEDIES


def test_names() -> None:
    assert guard_code("n == 3     # f(x)  # a.py:3 in f (HINT: make it dynamic)") == "n == 3"
    assert readable("self._modules['ls']._modules['1']._parameters['weight']") == "self.ls[1].weight"
    assert readable("G['__import_pkg_dot_mod'].SCALE") == "pkg_dot_mod.SCALE"
    assert readable("___from_numpy(a)") == "a"
    assert root_name("self._modules['ls'].k") == "self" and root_name("G['K']") is None
    assert function_name("torch_dynamo_resume_in_step_at_12") == "step (behind the graph break at line 12)"


def fact(*guards: tuple[str, str], number: int = 1, limit: str | None = None) -> Recompile:
    failed = tuple(FailedGuard(f"0/{i}", text, actual=actual or None) for i, (text, actual) in enumerate(guards))
    return Recompile(
        function="f",
        file="a.py",
        line=1,
        guards=failed,
        compile_id=f"0/{number}",
        versions=number,
        limit=8,
        limit_hit=limit,
    )


def test_the_cause_is_what_is_new() -> None:
    """`n` was 2 before, when `k` was 1: that it is 2 again is no news, and that `k` is 3 is."""
    report = report_from_facts(
        [
            fact(("n == 1", "2")),
            fact(("k == 1", "2"), ("n == 1", "2"), number=2),
            fact(("n == 7", "2"), ("k == 2", "3"), number=3),
        ]
    )
    assert {(group.name, group.count) for group in report.groups} == {("n", 1), ("k", 2)}
    assert next(group.values for group in report.groups if group.name == "k") == ["1", "2", "3"]


def test_every_value_seen_before_falls_to_the_version_used_last() -> None:
    report = report_from_facts(
        [fact(("n == 1", "2")), fact(("k == 1", "2"), number=2), fact(("n == 2", "1"), ("k == 2", "1"))]
    )
    assert {group.name: group.count for group in report.groups} == {"n": 2, "k": 1}


def test_no_reason_at_all() -> None:
    (group,) = report_from_facts([fact()]).groups
    assert group.kind == "unexplained" and group.remedies


def test_allowed_and_limits() -> None:
    once = [fact(("n == 1", "2"))]
    assert report_from_facts(once).unwanted and not report_from_facts(once, allowed=1).unwanted
    assert report_from_facts([fact(("n == 1", "2"), limit="recompile_limit")], allowed=9).unwanted
    assert not report_from_facts([]).unwanted
