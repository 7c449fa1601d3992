"""Changes that may mend a program: which, in which order, what to write; and the search among them."""

import ast
import linecache
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch

from graphprobe.diagnose.dossier.report import with_workarounds
from graphprobe.diagnose.dynamo.rewriting import SourcePiece, rewrite
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation
from graphprobe.diagnose.workarounds import search
from graphprobe.diagnose.workarounds.apply import InForce, edit_from, workarounds_in
from graphprobe.diagnose.workarounds.candidates import (
    Change,
    WayAround,
    candidates,
    changed,
    fallback,
    joined,
    put_in_force,
    setting,
    together,
)
from graphprobe.diagnose.workarounds.edits import PieceEdit, edit_of, edited, put_in
from graphprobe.diagnose.workarounds.trial import Price, _caller
from graphprobe.errors import UsageError
from graphprobe.findings import Diagnosis, Finding, Stage, Workaround, finding_json
from graphprobe.internals import leave_out
from graphprobe.internals.leave_out import INDUCTOR, LeftOut, fallback_text, known_op, settings_for, without_pass

FOLDING = "torch._inductor.config.joint_graph_constant_folding = False"


def compilation(**more: Any) -> Compilation:
    return Compilation("inductor", more.pop("dynamic", None), Path("proofs"), **more)


def finding(stage: Stage, **more: Any) -> Finding:
    return Finding(kind="wrong_value", stage=stage, proof="piece", **more)


def words(changes: Iterator[Change]) -> list[str]:
    return [" + ".join(one.words for one in change) for change in changes]


def ways(stage: Stage, useless: Sequence[str] = (), how: Compilation | None = None, **more: Any) -> list[str]:
    return words(candidates(finding(stage, **more), how or compilation(), lambda: [], useless))


# -- the table of settings ---------------------------------------------------------------------------------------------


def test_each_setting_of_the_table_is_one_of_this_torch_and_has_another_value() -> None:
    rows = {row for groups in leave_out.LEAVE_OUT.values() for group in groups for row in group}
    assert rows == {row for stage in leave_out.LEAVE_OUT for group in settings_for(stage) for row in group}
    for row in rows:
        torch_way_around = WayAround(kind="setting", head=f"import {row.module}\n{row.statement}")
        compile(torch_way_around.code, "text", "exec")


def test_a_setting_that_torch_lacks_or_that_is_so_already_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (LeftOut(INDUCTOR, "no_such", 1), LeftOut(INDUCTOR, "cpp.simdlen", 0), LeftOut("torch._no.such", "x", 1))
    monkeypatch.setitem(leave_out.LEAVE_OUT, "codegen", (rows[:1], rows))
    assert list(settings_for("codegen")) == [rows[1:2]]
    with torch._inductor.config.patch({"cpp.simdlen": 0}):
        assert list(settings_for("codegen")) == []


def test_a_pass_is_left_out_beside_those_that_are() -> None:
    assert without_pass("remove_noop_ops") == LeftOut(INDUCTOR, "disabled_passes", "remove_noop_ops")
    with torch._inductor.config.patch(disabled_passes="other"):
        assert without_pass("one") == LeftOut(INDUCTOR, "disabled_passes", "other,one")


def test_operations_that_can_be_fallbacks() -> None:
    assert known_op("aten.silu.default") is torch.ops.aten.silu.default  # decomposed
    assert known_op("aten.acosh.default") is torch.ops.aten.acosh.default  # lowered
    for other in ("aten.chunk.default", "aten.acosh", "torch.nn.functional.silu", "aten", "no.such.op", "KeyError", ""):
        assert known_op(other) is None
    assert fallback(["KeyError"]) == []


def test_the_text_of_a_fallback_takes_the_operation_out_of_all_tables() -> None:
    op = torch.ops.aten.silu.default
    text = fallback_text([op, torch.ops.aten.acosh.default])
    modules = [sys.modules["torch._inductor.decomposition"], sys.modules["torch._inductor.lowering"]]
    decompositions, lowerings = modules[0].decompositions, modules[1].lowerings
    before = dict(decompositions), dict(lowerings), torch.compiler.config.cache_key_tag
    try:
        assert op in modules[0].select_decomp_table()
        exec(text, {})
        assert op not in modules[0].select_decomp_table()
        assert lowerings[op] is not before[1].get(op)
        assert torch.compiler.config.cache_key_tag != before[2]
    finally:
        for table, old in zip((decompositions, lowerings), before[:2], strict=True):
            table.clear()
            table.update(old)
        modules[0].fast_random_decomps.cache_clear()
        torch.compiler.config.cache_key_tag = before[2]


# -- the order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "first"),
    [
        ("dynamo", ["torch._dynamo.config.trace_numpy = False"]),
        ("decomposition", ["torch's own kernel of torch.ops.aten.silu.default", "torch.compile(…, mode='lite')"]),
        ("lowering", ["torch's own kernel of torch.ops.aten.silu.default", "torch._inductor.config.cpp.simdlen = 0"]),
        ("joint", ["torch._inductor.config.disabled_passes += ',p'", FOLDING]),
    ],
)
def test_the_cheapest_loss_is_tried_first_and_the_backend_last(stage: Stage, first: list[str]) -> None:
    found = ways(stage, op="aten.silu.default", pass_="p")
    assert found[: len(first)] == first
    assert found[-2:] == ["torch.compile(…, backend='aot_eager')", "torch.compile(…, backend='eager')"]
    assert len(found) == len(set(found))


def test_every_stage_has_an_order_without_what_is_useless() -> None:
    for stage in (stage for stage in Stage.__args__ if stage not in ("trace", "pass")):  # type: ignore[attr-defined]
        assert ways(stage)[-1] == "torch.compile(…, backend='eager')"
        assert not {"lite", "eager"} & {w.rpartition("=")[2].strip("')") for w in ways(stage, ["lite", "eager"])}


def test_of_another_backend_only_pieces_and_backends_are_tried() -> None:
    own = Compilation(lambda gm, _: gm.forward, None, Path("proofs"))
    assert ways("dynamo", how=own) == ["torch.compile(…, backend='aot_eager')", "torch.compile(…, backend='eager')"]


def test_what_the_program_gives_to_compile_is_changed_there_and_what_it_switched_on_first() -> None:
    how = compilation(inductor_settings={"max_autotune": True, "cpp.simdlen": 8}, dynamic=True)
    found = ways("codegen", how=how)
    assert found[0] == "torch.compile(…, options={'max_autotune': False})"
    assert "torch.compile(…, options={'cpp.simdlen': 0})" in found
    assert "torch.compile(…, dynamic=False)" in found
    with torch._inductor.config.patch(max_autotune=True):
        assert ways("lowering")[0] == "torch._inductor.config.max_autotune = False"


def test_the_arguments_of_a_change() -> None:
    how = compilation(inductor_settings={"max_autotune": True})
    lite, eager = ([WayAround(kind="fallback", arguments=given)] for given in ({"mode": "lite"}, {"backend": "eager"}))
    assert "max_autotune" not in changed(how, lite).inductor_settings
    assert changed(how, lite).inductor_settings["use_post_grad_passes"] is False
    assert (changed(how, eager).backend, changed(how, eager).inductor_settings) == ("eager", {})
    [static] = setting([LeftOut(INDUCTOR, "max_autotune", False)], how)
    assert changed(how, [static]).inductor_settings == {"max_autotune": False}


def test_options_of_several_changes_are_written_as_one_with_those_of_the_program() -> None:
    how = compilation(inductor_settings={"max_autotune": True, "cpp.simdlen": 8, "epilogue_fusion": True})
    off = [LeftOut(INDUCTOR, "max_autotune", False), LeftOut(INDUCTOR, "cpp.simdlen", 0), LeftOut("sys", "x", 1)]
    change = [one for each in off for one in setting([each], how)]
    expected = {"max_autotune": False, "cpp.simdlen": 0, "epilogue_fusion": True}
    assert changed(how, change).inductor_settings == changed(how, joined(change, how)).inductor_settings == expected
    assert [one.arguments for one in joined(change, how)] == [{}, {"options": expected}]
    assert joined(change[2:], how) == change[2:]


def some(*names: str) -> list[Change]:
    return [[WayAround(kind="setting", head=f"import sys\n{name}")] for name in names]


def test_several_findings_are_mended_together() -> None:
    lite: Change = [WayAround(kind="fallback", arguments={"mode": "lite"})]
    found = words(together([iter([*some("a", "b"), lite]), iter([*some("c"), lite])], 10))
    assert found == ["a + c", "a + c + b", "torch.compile(…, mode='lite')"]
    assert words(together([iter(some("a", "b"))], 1)) == ["a"]


def test_where_a_change_is_to_be_written(tmp_path: Path) -> None:
    main, model = tmp_path / "main.py", tmp_path / "model.py"
    main.write_text("import torch\nfrom model import f\n\ng = torch.compile(f)\ng(1)\n", "utf-8")
    model.write_text("def f(x):\n    return x\n", "utf-8")
    known = finding("lowering", source=f"{model}:2")
    head, argument = WayAround(kind="setting", head="a\nb"), WayAround(kind="fallback", arguments={"mode": "lite"})
    assert head.place(known, f"{main}:5") == f"{model}:1"
    assert argument.place(known, f"{main}:5") == f"{main}:4"
    assert argument.place(known, None) == f"{model}:1"
    assert argument.place(finding("lowering"), None) is None


# -- pieces of the program ---------------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], tuple[FunctionType, dict[str, SourcePiece]]]:
    """A function from its text, and its pieces by their text."""

    def made(text: str) -> tuple[FunctionType, dict[str, SourcePiece]]:
        file = tmp_path / f"program_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(text, "utf-8")
        space: dict[str, Any] = {"__name__": "program"}
        exec(compile(text, str(file), "exec"), space)
        lines = linecache.getlines(str(file))
        pieces = {}
        for piece in rewrite([space["f"]], lambda _: ""):
            (first, column), (last, until) = piece.begin, piece.end
            rows = [line.encode() for line in lines[first - 1 : last]]
            rows[-1] = rows[-1][:until]
            pieces[b"".join([rows[0][column:], *rows[1:]]).decode()] = piece
        return space["f"], pieces

    return made


MANY = """
import torch


def f(x, y=(3, 4), *rest, log=None):
    é = x * 2 + y[0]
    for i in y:
        é = é + i
    if x > 1:
        log.append(x)
    x += 1
    log[0] = é
    found = [v * x for v in y]
    return é + sum(found) + (
        x -
        1)
"""


@pytest.mark.parametrize(
    ("piece", "call", "body"),
    [
        ("x * 2", "uncompiled_6(x)", "return x * 2"),
        ("y[0]", "uncompiled_6(y)", "return y[0]"),
        ("for i in y:\n        é = é + i", "i, é = uncompiled_7(y, é)", "for i in y:\n    é = é + i\nreturn i, é"),
        ("log.append(x)", "uncompiled_10(log, x)", "return log.append(x)"),
        ("x > 1", "uncompiled_9(x)", "return x > 1"),
        ("x += 1", "x = uncompiled_11(x)", "x += 1\nreturn x"),
        ("log[0] = é", "uncompiled_12(log, é)", "log[0] = é"),
        ("[v * x for v in y]", "uncompiled_13(x, y)", "return [v * x for v in y]"),
        ("v * x", "uncompiled_13(v, x)", "return v * x"),
        ("x -\n        1", "uncompiled_15(x)", "return (x -\n        1)"),
    ],
)
def test_a_piece_moves_into_a_function(program: Any, piece: str, call: str, body: str) -> None:
    f, pieces = program(MANY)
    edit = edit_of(pieces[piece])
    assert edit is not None
    assert sorted(edit.call) == sorted(call)  # names in any order
    [helper] = ast.parse(edit.helper).body
    assert isinstance(helper, ast.FunctionDef)
    assert ast.unparse(helper.body) == ast.unparse(ast.parse(f"def g():\n{_indented(body)}").body[0].body)  # type: ignore[attr-defined]
    log: list[Any] = [0]
    expected, first = f(2, log=log), list(log)
    put_in([edit])
    log[:] = [0]
    assert (f(2, log=log), log) == (expected, first)
    assert helper.name in f.__globals__
    assert edit.text.startswith("@torch.compiler.disable\ndef uncompiled_")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("def f(x):\n    for i in x:\n        return i\n", "for i in x:\n        return i"),
        ("def f(x):\n    if (n := abs(x)) > 1:\n        return n\n", "(n := abs(x)) > 1"),
        ("class A:\n    pass\n\n\ndef f(x):\n    return abs(__x(x))\n", "abs(__x(x))"),
    ],
)
def test_a_piece_that_belongs_to_its_function_stays(program: Any, text: str, piece: str) -> None:
    _, pieces = program(text)
    found = {name.strip("() "): edit_of(one) for name, one in pieces.items()}
    assert found.get(piece.strip("() ")) is None


def test_a_function_that_is_not_there_cannot_be_changed(program: Any) -> None:
    _, pieces = program(MANY)
    edit = edit_of(pieces["x * 2"])
    assert edit is not None
    gone = PieceEdit(edit.file, ("g", 1), edit.begin, edit.end, edit.call, edit.helper)
    with pytest.raises(ValueError, match="g of .* cannot be changed"):
        put_in([gone])


def test_what_runs_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "seen_by_test", 0, raising=False)
    put_in_force([WayAround(kind="setting", head="import sys\nsys.seen_by_test = 3")])
    assert vars(sys)["seen_by_test"] == 3


# -- the search --------------------------------------------------------------------------------------------------------


def test_a_call_that_changes_the_shape_of_an_argument_has_no_price(tmp_path: Path) -> None:
    grown = Program(lambda x: x.unsqueeze_(0), [((torch.ones(2),), {})], grad=False)
    with pytest.raises(ValueError, match="shape of an argument"):
        _caller(grown, Compilation("eager", None, tmp_path), compiled=False)
    moved = Program(lambda x: x.add_(1), [((torch.ones(2),), {})], grad=False)
    assert _caller(moved, Compilation("eager", None, tmp_path), compiled=False)() > 0


def test_a_price_is_too_high_only_if_nothing_is_gained_by_compiling() -> None:
    assert Price(1.0, 0.5, 1.2).is_too_high
    assert Price(1.0, None, 1.2).is_too_high
    assert not Price(1.0, 0.5, 1.0).is_too_high
    assert not Price(0.5, 1.0, 1.05).is_too_high
    assert not Price(2e-5, 4e-5, 9e-5).is_too_high  # guards are all that it takes


class MadeUpSearch(search._WaySearch):
    """A search in which `right` says which changes mend the program; `prices` and `as_text` what else comes of them."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        changes: Sequence[Change],
        right: Callable[[set[str]], bool],
        *,
        prices: Mapping[str, Price] | None = None,
        as_text: Callable[[set[str]], bool] = lambda names: True,
        graphs: Mapping[str, int] | None = None,
        states: Mapping[str, str] | None = None,
        count: int = 1,
    ) -> None:
        found = [finding("lowering", op=f"op{i}") for i in range(count)]
        ladder: Any = SimpleNamespace(
            states=lambda: states or {}, top="plain", compilation=compilation(), started=time.monotonic()
        )
        ladder.result = Diagnosis(verdict="fault", findings=found)
        ladder.seen = lambda name: SimpleNamespace(report=RungReport(breaks=1))
        monkeypatch.setattr(search, "candidates", lambda *_: iter(changes))
        super().__init__(ladder, found)
        self.right, self.prices, self.as_text, self.graphs = right, prices or {}, as_text, graphs or {}
        self.asked: list[tuple[str, Any]] = []

    def _report(self, change: Change, point: Any = None, **more: Any) -> RungReport | None:
        names = {one.words for one in change}
        self.asked.append(("+".join(sorted(names)), "text" if more else point))
        if not (self.as_text(names) if more else self.right(names)):
            return None
        return RungReport(graphs=min(self.graphs.get(name, 1) for name in names), breaks=2)

    def _price(self, change: Change) -> Price | None:
        return self.prices.get(change[0].words)

    def texts(self) -> list[str]:
        self.run()
        return [one.code.partition("\n")[2] for one in self.findings[0].workarounds]


def test_the_first_change_that_helps_is_taken_with_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeUpSearch(monkeypatch, some("a", "b", "c"), lambda n: "b" in n, prices={"b": Price(2.0, 1.0, 1.5)})
    assert made.texts() == ["b"]
    [one] = made.findings[0].workarounds
    assert (one.call_time, one.uncompiled_time, one.graph_breaks, one.tried, one.kind) == (1.5, 0.75, 1, 2, "setting")
    assert made.asked == [("a", None), ("b", None), ("b", "text")]
    assert made.findings[0].tried == []


def test_what_is_dear_or_does_not_work_as_text_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    dear = {"a": Price(1.0, 0.5, 46.0)}
    made = MadeUpSearch(monkeypatch, some("a", "b", "c"), lambda n: True, prices=dear, as_text=lambda n: "b" not in n)
    assert made.texts() == ["c"]


def test_a_bundle_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = [one for [one] in some(*"abcdefgh")]
    assert MadeUpSearch(monkeypatch, [bundle], lambda n: "f" in n).texts() == ["f"]
    assert MadeUpSearch(monkeypatch, [bundle], lambda n: {"b", "g"} <= n).texts() == ["b", "g"]


def test_changes_are_tried_on_the_lowest_rung_and_what_helps_as_the_user_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {"dynamo": "right", "aot": "wrong", "plain": "wrong"}
    made = MadeUpSearch(monkeypatch, some("a", "b"), lambda n: "b" in n, states=states)
    assert made.texts() == ["b"]
    assert made.asked == [("a", "aot"), ("b", "aot"), ("b", None), ("b", "text")]


def test_what_leaves_nothing_compiled_is_taken_last(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeUpSearch(monkeypatch, some("a", "b"), lambda n: True, graphs={"a": 0})
    assert made.texts() == ["b"]
    made = MadeUpSearch(monkeypatch, some("a", "b"), lambda n: "a" in n, graphs={"a": 0})
    assert made.texts() == ["a"]
    assert made.findings[0].workarounds[0].graphs == 0
    assert "nothing of the program is compiled then" in made.findings[0].workarounds[0].price


def test_where_nothing_helps_the_words_say_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeUpSearch(monkeypatch, some("a", "b"), lambda n: False)
    assert made.texts() == []
    assert made.findings[0].tried == ["a", "b"]
    assert made.ladder.result.notes == []


def test_the_time_for_it_ends_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeUpSearch(monkeypatch, some("a", "b"), lambda n: False)
    made._until = time.monotonic()
    assert made.texts() == []
    assert made.ladder.result.notes == ["no more changes were tried as a workaround after 0 s"]


def test_what_was_found_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(names: set[str]) -> bool:
        made._until = time.monotonic() + search.LEAST_S / 2
        return True

    made = MadeUpSearch(monkeypatch, some("a"), late, as_text=lambda names: made._left_s > search.MOST_S / 2)
    assert made.texts() == ["a"]


def test_three_findings_have_one_set_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeUpSearch(monkeypatch, [], lambda n: {"b", "c", "e"} <= n, count=3)
    mine = iter([some("a", "b"), some("c"), some("d", "e")])
    monkeypatch.setattr(search, "candidates", lambda *_: iter(next(mine)))
    assert sorted(made.texts()) == ["b", "c", "e"]
    assert made.findings[0].workarounds == made.findings[2].workarounds


# -- words -------------------------------------------------------------------------------------------------------------


def printed(known: Finding) -> list[str]:
    lines = [line.strip() for line in str(Diagnosis(verdict="fault", findings=[known])).splitlines()]
    start = next((i for i, line in enumerate(lines) if line.startswith("workaround:")), len(lines))
    return [line for line in lines[start:] if line]


def test_a_workaround_is_the_last_that_is_told_of_a_finding() -> None:
    one = Workaround(kind="setting", code=HEAD, place="model.py:1", call_time=1.5, uncompiled_time=0.75, tried=2)
    told = printed(finding("codegen", workarounds=[one], tried=["never shown"]))
    assert " ".join(told[:-3]) == (
        "workaround:  the whole program is right with this change, seen in a process of its own (2 changes tried); a "
        "call takes 1.5 times as long as now and 0.75 times as long as uncompiled."
    )
    assert told[-3:] == ["before anything is compiled in model.py:1", *HEAD.splitlines()]
    assert printed(finding("codegen")) == []


def test_what_was_tried_is_told_where_nothing_helps() -> None:
    told = " ".join(printed(finding("codegen", tried=["a = 1", "b = 2"])))
    assert told.startswith("workaround:  none was found.")
    assert told.endswith("with each of: a = 1; b = 2")


def test_the_issue_has_the_workaround_before_what_is_folded_and_once() -> None:
    one = Workaround(kind="setting", code=f"{HEAD}  # /home/me/model.py")
    report = "# title\n\n- *Actual*: 1\n\n<details>x</details>\n\n### Error logs\n"
    with_it = with_workarounds(report, [one])
    assert with_it.index("### Workaround") < with_it.index("<details>")
    assert f"```python\n{HEAD}  # model.py\n```" in with_it
    assert with_workarounds(with_it, [one]) == with_it
    assert with_workarounds(report, []) == report


# -- a script with workarounds in force --------------------------------------------------------------------------------

APPLIED = """
import torch


def f(x):
    try:
        {}["key"]
    except KeyError as error:
        x = x * len(str(error))
    return x.sin()


def g(x):
    return x.cos()


x = torch.linspace(-2, 2, 24)
assert torch.allclose(torch.compile(f)(x), f(x)), "f is wrong"
assert torch.allclose(torch.compile(g)(x), g(x)), "g is wrong"
print("simdlen", torch._inductor.config.cpp.simdlen, "uncompiled_7" in globals())
"""

HEAD = "import torch._inductor.config\ntorch._inductor.config.cpp.simdlen = 0"
PIECE = (
    '@torch.compiler.disable\ndef uncompiled_7():\n    return {}["key"]\n\n# line 7 becomes:\n        uncompiled_7()'
)


def kept(folder: Path, *workarounds: Workaround) -> Path:
    """A folder of proofs whose only finding has these workarounds."""
    dossier = folder / "graphprobe-diagnosis" / "20260101-000000-000000" / "dynamo-KeyError"
    dossier.mkdir(parents=True)
    (dossier / "finding.json").write_bytes(finding_json(finding("dynamo", workarounds=list(workarounds))))
    return dossier.parent


def test_a_script_runs_with_the_workarounds_of_its_newest_diagnosis(
    run_warm: Callable[..., Any], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(APPLIED, "utf-8")
    kept(
        tmp_path, Workaround(kind="setting", code=HEAD), Workaround(kind="uncompiled", code=PIECE, place=f"{script}:7")
    )
    done = run_warm("-m", "graphprobe", "diagnose", "--apply", "script.py", cwd=tmp_path)
    assert (done.code, done.out.split()) == (0, ["simdlen", "0", "True"]), done.err
    assert done.err.count("workaround in force") == 2
    assert "def uncompiled_7():" in done.err
    assert script.read_text("utf-8") == APPLIED


def test_without_a_workaround_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        workarounds_in(None)
    folder = kept(tmp_path)
    with pytest.raises(UsageError, match="has no workaround"):
        workarounds_in(None)
    one = Workaround(kind="setting", code=HEAD)
    (folder / "dynamo-KeyError" / "finding.json").write_bytes(finding_json(finding("dynamo", workarounds=[one, one])))
    assert workarounds_in(folder) == (folder, [one])


def test_arguments_take_the_place_of_those_of_the_script() -> None:
    lite, options, static = "mode='lite'", "options={'cpp.simdlen': 0}", "dynamic=False"
    for text, expected in (
        (lite, {"backend": "inductor", "mode": "lite"}),
        (options, {"backend": "inductor", "options": {"cpp.simdlen": 0}}),
        (static, {"backend": "inductor", "mode": "max-autotune", "dynamic": False}),
    ):
        code = f"torch.compile(…, {text})"
        in_force = InForce([Workaround(kind="setting", code=code)])
        assert in_force._changed({"backend": "inductor", "mode": "max-autotune"}) == expected
        assert in_force.used == {code: 1}


def test_what_is_told_of_a_piece_can_be_read_again(program: Any) -> None:
    f, pieces = program(MANY)
    for piece in ("x * 2", "for i in y:\n        é = é + i", "x -\n        1"):
        edit = edit_of(pieces[piece])
        assert edit is not None
        again = edit_from(Workaround(kind="uncompiled", code=edit.text, place=edit.place))
        assert again is not None
        lines = linecache.getlines(edit.file)
        assert edited(lines, [again]) == edited(lines, [edit])
        assert again.function == edit.function == ("f", f.__code__.co_firstlineno)
