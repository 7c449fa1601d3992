"""torch's words, read; the cause among several failed guards; the report of no recompilations. Without torch."""

import itertools
import string

import msgspec
import pytest

from graphprobe.analysis import recompiles
from graphprobe.analysis.recompile_facts import (
    GUARDS,
    FailedGuard,
    ReadGuard,
    Recompile,
    check_from_text,
    guard_code,
    readable,
    root_name,
)
from graphprobe.analysis.recompile_rules import RULES
from graphprobe.analysis.recompiles import function_name, report_from_facts, short_name

REQUIRES, KEYS = "tensor 'x' requires_grad mismatch", "tensor 'x' dispatch key set mismatch"
INDEX, EVALUATED = "Tensor device index mismatch", "(_dynamo/variables/tensor.py:2606 in evaluate_expr)"
CPU, CUDA = (f"DispatchKeySet({name}, BackendSelect, Autograd{name})" for name in ("CPU", "CUDA"))
TEXTS: list[tuple[str, str, str, int | None, str | None, str | None]] = [
    ("tensor 'x' size mismatch at index 1. expected 4, actual 5", "size-changed", "x", 1, "4", "5"),
    ("tensor 'x' stride mismatch at index 0. expected 4, actual 1", "stride-changed", "x", 0, "4", "1"),
    ("tensor 'x' dtype mismatch. expected Half, actual BFloat16", "dtype-changed", "x", None, "float16", "bfloat16"),
    (f"{REQUIRES}. expected requires_grad=1", "requires-grad-changed", "x", None, "True", "False"),
    (f"{KEYS}. expected {CPU}, actual {CUDA}", "device-changed", "x", None, "cpu", "cuda"),
    (f"{INDEX}. Expected device index to be 0, got 1", "device-changed", "", None, "0", "1"),
    ("n == 3          # y = x + n  # a.py:3 in f", "int-changed", "n", None, "3", None),
    ("p == 'a # b'    # y = x + n  # a.py:3 in f", "string-changed", "p", None, "'a # b'", None),
    ("G['K']['k'] == 1   # return x * K['k']  # a.py:3 in f", "global-changed", "G['K']['k']", None, "1", None),
    (f"n <= 5  # if n > 5:  # a.py:3 in f {EVALUATED}", "value-condition", "n", None, None, None),
    ("not xs   # for x in xs:  # a.py:3 in f", "length-changed", "xs", None, "0", None),
    ("len(d) != 2", "keys-changed", "d", None, "2 keys", None),
    ("list(dict.keys(d))[1] == 'b'  # a.py:3 in f", "keys-changed", "d", 1, "'b'", None),
    ("list(d.keys()) == ['a', 'b']", "keys-changed", "d", None, "'a', 'b'", None),
    ("not ___dict_contains('a', d)   # if 'a' in d:", "keys-changed", "d", None, "without 'a'", "with 'a'"),
    ("KeyError on d['a']['b']", "keys-changed", "d['a']", None, "with 'b'", "without 'b'"),
    ("not hasattr(o, 'a')   # hasattr(o, 'a')", "attribute-changed", "o.a", None, "absent", "present"),
    ("b is not None  # if b is None:  # a.py:3 in f", "none-changed", "b", None, "not None", None),
    ("GLOBAL_STATE changed: grad_mode ", "grad-mode-changed", "", None, None, None),
    ("Cache line invalidated because L['o'] got deallocated", "object-freed", "o", None, None, None),
    ("something that no torch has said so far", "other", "", None, None, None),
]


@pytest.mark.parametrize(("text", "kind", "source", "dim", "expected", "actual"), TEXTS)
def test_texts(text: str, kind: str, source: str, dim: int | None, expected: str | None, actual: str | None) -> None:
    check = check_from_text(text)
    assert (check.kind, check.source, check.dim) == (kind, source, dim)
    assert (check.expected, check.actual) == (expected, actual)
    assert kind in RULES


def test_rules_are_whole() -> None:
    """Each sentence names only what there is, and each kind that is read has a row."""
    cause = recompiles.Cause("other", ReadGuard("other"), None)
    names = set(recompiles._names(Recompile(function="f", file="a.py", line=1), cause, "", [], None))
    for rule in RULES.values():
        for text in (rule.cause, *rule.remedies, *itertools.chain(*rule.other.values())):
            assert {name for _, name, _, _ in string.Formatter().parse(text) if name is not None} <= names, text
    assert {rule.kind for rule in GUARDS} - {"size-bounds"} <= set(RULES)


def test_names() -> None:
    assert guard_code("n == 3     # f(x)  # a.py:3 in f (HINT: make it dynamic)") == "n == 3"
    assert readable("self._modules['ls']._modules['1']._parameters['weight']") == "self.ls[1].weight"
    assert readable("G['__import_pkg_dot_mod'].SCALE") == "pkg_dot_mod.SCALE"
    assert readable("___from_numpy(a)") == "a"
    assert root_name("self._modules['ls'].k") == "self" and root_name("G['K']") is None
    assert function_name("torch_dynamo_resume_in_step_at_12") == "step (behind the graph break at line 12)"
    assert short_name("a.b.make.<locals>.inner and c.<lambda>") == "inner and <lambda>"


def fact(*guards: tuple[str, str], number: int = 1, limit: str | None = None) -> Recompile:
    last = len(guards) - 1  # the latest used first
    failed = tuple(FailedGuard(f"0/{last - i}", text, actual=actual or None) for i, (text, actual) in enumerate(guards))
    given = {"compile_id": f"0/{number}", "versions": number, "limit": 8, "limit_hit": limit}
    return Recompile(function="f", file="a.py", line=1, guards=failed, **given)  # type: ignore[arg-type]


N, K = ("n == 1", "2"), ("k == 1", "2")


def test_the_cause_is_what_is_new() -> None:
    """`n` was 2 before, when `k` was 1: that it is 2 again is no news, and that `k` is 3 is."""
    facts = [fact(N), fact(K, N, number=2), fact(("k == 2", "3"), ("k == 1", "3"), N, number=3)]
    report = report_from_facts(facts)
    assert {(group.name, group.count) for group in report.groups} == {("n", 1), ("k", 2)}
    assert next(group.values for group in report.groups if group.name == "k") == ["1", "2", "3"]


def test_every_value_seen_before_falls_to_the_version_used_last() -> None:
    facts = [fact(N), fact(K, N, number=2), fact(("n == 2", "1"), ("n == 2", "1"), K, number=3)]
    assert {group.name: group.count for group in report_from_facts(facts).groups} == {"n": 2, "k": 1}


def made(entry: str, text: str, actual: str | None = None, *, same: bool = True, owner: str = "m.Head") -> FailedGuard:
    return FailedGuard(entry, text, actual=actual, owner=owner, same_owner=same)


def called(number: int, *guards: FailedGuard, owner: str = "m.Head", other: bool = False, limit: int = 8) -> Recompile:
    given = {"compile_id": f"0/{number}", "first_argument": "self", "other_instance": other, "owner": owner}
    return Recompile(function="forward", file="a.py", line=1, guards=guards, limit=limit, **given)  # type: ignore[arg-type]


GRAD = "GLOBAL_STATE changed: grad_mode "


def test_all_that_is_new_is_told() -> None:
    second = called(2, made("0/1", "p == 1.5", "2.5"), made("0/0", "q == 3", "4"))
    assert [name for _, name, _ in causes(called(1, made("0/0", "mode == 'a'", "'b'")), second)] == ["mode", "p", "q"]


def causes(*facts: Recompile) -> list[tuple[str, str, list[str]]]:
    return [(group.kind, group.name, group.values) for group in report_from_facts(facts).groups]


def test_a_mode_that_another_version_has_is_no_cause() -> None:
    """Training, then no_grad, then another instance in training; and that one in no_grad too."""
    other = made("0/0", "self.k == 2.0", "3.0", same=False)
    again = msgspec.structs.replace(other, entry="0/1")
    facts = [
        called(1, made("0/0", GRAD)),
        called(2, made("0/1", GRAD, same=False), other, other=True),
        called(3, made("0/2", GRAD), again, made("0/0", GRAD, same=False)),
    ]
    assert causes(*facts) == [("instance-changed", "self.k", ["2.0", "3.0"]), ("grad-mode-changed", "", [])]


def test_the_same_object_is_nearer_than_another_one() -> None:
    """The second instance has a flag set that the first one had set too: against its own version only that is new."""
    first, second = (made(entry, "self.k == 2", "3", same=False) for entry in ("0/0", "0/1"))
    flag = made("0/0", "self.flag == False", "True")
    facts = [
        called(1, flag),
        called(2, second, first, other=True),
        called(3, second, msgspec.structs.replace(flag, entry="0/2"), first),
    ]
    flags = ("attribute-changed", "self.flag", ["False", "True"])
    assert causes(*facts) == [flags, ("instance-changed", "self.k", ["2", "3"])]


def test_of_two_modes_that_changed_the_one_that_is_new() -> None:
    """autocast is new; that gradients are not recorded is not."""
    both, new = (f"GLOBAL_STATE changed: {more}autocast(cpu)_enabled " for more in ("grad_mode ", ""))
    facts = [called(1, made("0/0", GRAD)), called(2, made("0/0", both), made("0/1", new))]
    assert [kind for kind, _, _ in causes(*facts)] == ["grad-mode-changed", "autocast-changed"]


def test_what_torch_has_made_dynamic_is_no_cause() -> None:
    """The second version takes any size from 2 on, so the third call is about the mode alone; not so for size 1."""
    size = "tensor 'x' size mismatch at index 0. expected 4, actual {}"
    first, third = fact((size.format(5), "")), fact(("mode == 'a'", "'b'"), (size.format(6), ""), number=2)
    assert [name for _, name, _ in causes(first, third)] == ["x", "mode"]
    third = fact(("mode == 'a'", "'b'"), (size.format(1), ""), number=2)
    assert [kind for kind, _, _ in causes(first, third)] == ["size-changed", "string-changed", "size-zero-one"]


def test_another_class_behind_one_decorator_is_the_cause_whatever_guard_fails() -> None:
    length = made("0/0", "len(kwargs) == 2", "0", same=False)
    size = made("0/1", "tensor 'args[0]' size mismatch at index 0. expected 2, actual 3", owner="m.Other")
    facts = [
        called(1, length, owner="m.Other", other=True, limit=5),
        called(2, size, length, owner="m.Other"),
    ]
    report = report_from_facts(facts)
    shared, changed = report.groups
    assert (shared.kind, shared.values) == ("shared-code", ["m.Head", "m.Other"])
    assert (changed.kind, changed.name) == ("size-changed", "args[0]")
    assert "for several: Head, Other;" in shared.cause and shared.cause.endswith("they share the limit of 5")
    assert report.functions[0].owners == ["Head", "Other"]


def test_sizes_that_torch_compiles_by_themselves_stay_apart() -> None:
    def sized(number: int, *guards: str, actual: str) -> Recompile:
        return fact(*((text, actual) for text in guards), number=number)

    static, low, high = (
        "tensor 'x' size mismatch at index 0. expected {}, actual {}",
        "2 <= x.size()[0] <= 5",
        "6 <= x.size()[0]",
    )
    facts = [
        sized(1, static.format(3, 4), actual=""),
        sized(2, f"{low}  # if x.shape[0] > 5:", static.format(3, 7), actual="7"),
        sized(3, high, low, static.format(3, 1), actual="1"),
        sized(4, static.format(1, 0), high, low, static.format(3, 0), actual="0"),
    ]
    changed, condition = ("size-changed", "x", ["3", "4"]), ("size-condition", "x", ["7"])
    assert causes(*facts) == [("size-zero-one", "x", ["0", "1"]), changed, condition]
    assert causes(sized(1, static.format(1, 5), actual="")) == [("size-zero-one", "x", ["1"])]


def test_keys_are_named_in_full_where_they_are_known() -> None:
    facts = [
        fact(("len(d) != 1", "'a', 'b'")),
        fact(("len(d) != 2", "'c'"), ("list(dict.keys(d))[0] == 'a'", "'c'"), number=2),
        fact(("len(d) != 1", "'a', 'c', 'd'"), ("len(d) != 2", "'a', 'c', 'd'"), number=3),
        fact(("list(dict.keys(d))[1] == 'c'", "'a', 'e', 'd'"), number=3),
    ]
    (group,) = report_from_facts(facts).groups
    assert group.cause.endswith("changed: 1 key; 'a', 'b'; 'c'; 'a', 'c', 'd'; 'a', 'c', …; 'a', 'e', 'd'")


def test_no_reason_at_all_and_what_is_unwanted() -> None:
    (group,) = report_from_facts([fact()]).groups
    assert group.kind == "unexplained" and group.remedies
    once, limited = [fact(("n == 1", "2"))], [fact(("n == 1", "2"), limit="recompile_limit")]
    assert report_from_facts(once).unwanted and not report_from_facts(once, allowed=1).unwanted
    assert report_from_facts(limited, allowed=9).unwanted and not report_from_facts([]).unwanted
