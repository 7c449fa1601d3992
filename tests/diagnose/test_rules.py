"""Rules of the search for a culprit, each by itself: what proves a suspect, what explains a rung."""

import contextlib
from types import SimpleNamespace
from typing import Any

from graphprobe.diagnose import prove, unexplained
from graphprobe.findings import Finding
from graphprobe.judge import Difference


def test_what_a_piece_proves_and_a_rung_explains() -> None:
    for suspected, shown, proves in (
        ("wrong_value", ["wrong_value"], True),
        ("wrong_value", ["wrong_dtype"], True),  # the piece shows another side of it
        ("wrong_value", ["crash_compile"], False),  # a piece that is refused shows no wrong value
        ("wrong_value", ["crash_compile", "nonfinite"], True),
        ("wrong_value", ["unsure"], False),
        ("wrong_value", ["SIGSEGV"], True),
        ("crash_compile", ["crash_compile"], True),
        ("crash_runtime", ["wrong_value"], True),
    ):
        died = "SIGSEGV" if shown == ["SIGSEGV"] else None
        differences = [Difference(kind, 0, "outputs[0]", "") for kind in shown if not died]
        if shown == ["unsure"]:
            differences = [Difference("wrong_value", 0, "outputs[0]", "", weight="unsure")]
        result: Any = SimpleNamespace(differences=differences, died=died)
        assert prove._alike(SimpleNamespace(kind=suspected), result) is proves  # type: ignore[arg-type]
    for rung, found, explained in (
        ("dynamo", [], False),
        ("dynamo", ["dynamo"], True),
        ("dynamo", ["codegen"], False),  # a kernel's fault is no reason for wrong graphs of Dynamo
        ("kernels", ["decomposition"], True),
        ("kernels", ["codegen", "dynamo"], True),
        ("aot", ["codegen"], False),
        ("aot", ["unknown"], True),
    ):
        findings = [Finding(kind="wrong_value", stage=stage) for stage in found]  # type: ignore[arg-type]
        assert unexplained.is_explained(rung, findings) is explained  # type: ignore[arg-type]


class Stepping:
    """A ladder whose steps are right if the operation in `guilty` is left whole."""

    program = compilation = None

    def __init__(self, guilty: str) -> None:
        self.guilty, self.in_time = guilty, lambda _: contextlib.nullcontext()
        self.runner = SimpleNamespace(begin=lambda _: None)

    def answer(self, step: Any, kind: Any) -> Any:
        return {"states": ["right" if self.guilty in step.args else "wrong"]}

    def differences(self, report: Any) -> list[str]:
        return [state for state in report["states"] if state == "wrong"]


def test_decompositions_are_bystanders_unless_they_make_the_fault() -> None:
    norm, pool, mean = (
        Finding(kind=kind, stage="decomposition", op=op)
        for kind, op in (("wrong_dtype", "norm"), ("wrong_stride", "pool"), ("wrong_value", "mean"))
    )
    numbers, dtypes = [Difference("wrong_value", 0, "outputs[0]", "")], [Difference("wrong_dtype", 0, "outputs[0]", "")]

    def left(given: list[Finding], differences: list[Difference], rung: Any = "passes") -> list[Finding]:
        return unexplained._without_bystanders(Stepping("pool"), rung, given, differences)  # type: ignore[arg-type]

    assert left([norm, pool, mean], numbers) == [pool, mean]
    assert left([norm], numbers) == []
    assert left([norm, pool], dtypes) == [norm, pool]
    assert left([norm, pool], numbers, "kernels") == [norm, pool]
