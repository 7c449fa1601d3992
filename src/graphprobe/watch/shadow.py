"""Makes a call of a compiled function uncompiled as well, and judges in units of noise what came of the two.

The uncompiled call is made in a forked child, behind the compiled one, with arguments, buffers and generators as they
were before it. Two values that are further apart than roundings mostly are, are judged as `diagnose` does.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from graphprobe.diagnose.program import Program, tensors_of
from graphprobe.diagnose.script import ScriptOptions
from graphprobe.diagnose.script_calls import copied_call
from graphprobe.engine.value_file import ValueFile
from graphprobe.internals import after_fork
from graphprobe.internals.operators.operators import OpMode, Overload
from graphprobe.judge.effects import plain_values
from graphprobe.judge.judging import Difference, compare
from graphprobe.judge.observation import Observation, ObservationRecord, read
from graphprobe.judge.uncompiled import Reference, roundoff_of
from graphprobe.numerics.verdict import NARROW
from graphprobe.settings.limits import TimeBudget
from graphprobe.watch.step_calls import Form, StepCall, in_child

MOST_JUDGED = 8
"""How often the calls of one function are judged: each time with a float64 run, which takes longer than many steps."""

TOLERATED = 4.0
"""What was judged to be rounding, makes differences of so many times its size pass unjudged from then on."""

FINER = 16.0
"""By how much less values may be apart unjudged where they are narrow: 256 roundings are more than all digits there."""

NO_FORK = "no call is made uncompiled as well: CUDA or another device is in use, or threads of autograd run"
DRAWS = "{name} draws random numbers otherwise than uncompiled: its calls were not compared"
TALKS = "{name} talks to other ranks: its calls were not compared"
CHANGES = "{name}, call {number}, changed what was not copied, such as parameters, and was not compared"
FAILED = "{name}, call {number}, could not be made uncompiled as well: {why}"
ENOUGH = "calls of {name} were judged {judged} times, and are not compared any more: each time rounding explained it"


COLLECTIVES = frozenset({"c10d", "_c10d_functional", "c10d_functional"})
"""Namespaces of operators that talk to other ranks, which do not answer a child process."""


def why_not() -> str:
    """Why no call of this program can be made uncompiled as well, in words; empty if calls can."""
    return "" if after_fork.can_fork() else NO_FORK


class Apart(msgspec.Struct):
    """What a child saw: by how many roundings values are apart, by their places; `why` they are not to be compared."""

    apart: dict[str, float] = {}
    why: str = ""


class Shadow:
    """A call that is made uncompiled as well: make one ahead of the call."""

    def __init__(self, call: StepCall) -> None:
        self._call, self._fn = call, call.function.compiled.fn
        self._versions, self._grad = self._versions_now(), call.grad
        self._plain, self._drawn = plain_values(self._fn), (random.getstate(), np.random.get_state())
        self.note = ""

    def wrong(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, budget: TimeBudget
    ) -> Difference | None:
        """What is certainly wrong with the call, which has returned; `note` says why that is not known.

        Raises:
            NoTimeLeft: the budget was ended meanwhile.
        """
        call, function = self._call, self._call.function
        if function.judged >= MOST_JUDGED:
            self.note = ENOUGH.format(name=function.name, judged=MOST_JUDGED)
            return None
        if not call.whole or self._versions_now() != self._versions:
            self.note = function.not_kept or CHANGES.format(name=function.name, number=call.number)
            return None
        seen = self._in_child(partial(self._both, args, kwargs, result), Apart, budget)
        if seen is None:
            return None
        if seen.why:
            self.note = seen.why.format(name=function.name)
            return None
        apart = {where: z for where, z in seen.apart.items() if z > function.tolerated.get(where, 0.0)}
        if not apart:
            return None
        function.judged += 1
        # Where values of Python changed, too, the call cannot be repeated exactly: only what is seen again counts.
        record = None
        if plain_values(self._fn) == self._plain:
            record = self._in_child(partial(self._compiled, args, kwargs, result), ObservationRecord, budget)
        with call.as_then():
            options = ScriptOptions(budget=budget)
            found = options.wrong_in_place(function.compiled, (call.args, call.kwargs), None, seen=record)
        if found:
            return found[0]
        function.tolerated |= {where: TOLERATED * z for where, z in apart.items() if z < float("inf")}
        return None

    def named(self, wrong: Difference) -> str:
        """What differs: `outputs[0]`, `the gradient of fc1.weight`."""
        part, _, number = wrong.where.rstrip("]").partition("[")
        given = len(tensors_of((self._call.args, self._call.kwargs)))
        names = [*(f"tensor {i} of the arguments" for i in range(given)), *(n for n, _ in self._call.function.state())]
        if part not in ("inputs", "gradients") or not number.isdecimal() or int(number) >= len(names):
            return wrong.where or wrong.kind
        name = names[int(number)].replace("_orig_mod.", "")
        return f"the gradient of {name}" if part == "gradients" else f"{name} after the call"

    def _in_child(self, step: Callable[[], Form], form: type[Form], budget: TimeBudget) -> Form | None:
        found = in_child(step, form, budget)
        if not isinstance(found, str):
            return found
        self.note = FAILED.format(name=self._call.function.name, number=self._call.number, why=found)
        self._call.function.judged += 1
        return None

    def _versions_now(self) -> dict[int, int]:
        parameters = [t for _, t in self._call.function.state() if isinstance(t, torch.nn.Parameter)]
        return {id(tensor): tensor._version for tensor in parameters if not tensor.is_inference()}

    def _program(self, args: Any, kwargs: Any) -> Program:
        """With the backward of a sum of the results, where `diagnose` runs one."""
        program = Program(self._fn, [(args, kwargs)], grad=False, effects=False)
        return replace(program, grad=True) if self._grad and program.wants_gradients() else program

    def _compiled(self, args: Any, kwargs: Any, result: Any) -> ObservationRecord:
        """The call as it was made, with the backward of its very results; in a child."""
        return self._program(args, kwargs).run(lambda fn: lambda *args, **kwargs: result)[0]

    def _both(self, args: Any, kwargs: Any, result: Any) -> Apart:
        call, state = self._call, torch.get_rng_state()

        def left(tensor: torch.Tensor) -> torch.Tensor:
            same = id(tensor) in self._versions and self._versions[id(tensor)] == tensor._version
            return tensor.new_empty(0) if same else tensor

        program = replace(self._program(args, kwargs), left=left, file=ValueFile())
        got = read(program.run(lambda fn: lambda *args, **kwargs: result)[0])
        torch.compiler.set_stance("force_eager")
        talks: list[Overload] = []

        def around(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            talks.extend([op] if op.namespace in COLLECTIVES else [])
            return op(*args, **kwargs)

        with call.as_then(), OpMode(around) if after_fork.ranks() > 1 else contextlib.nullcontext():
            random.setstate(self._drawn[0])
            np.random.set_state(self._drawn[1])
            again = replace(program, calls=[copied_call(self._fn, call.args, call.kwargs)])
            expected = read(again.run(lambda fn: fn)[0])
            if not torch.equal(state, torch.get_rng_state()):
                return Apart(why=DRAWS)
        if talks:
            return Apart(why=TALKS)
        given = len(tensors_of((args, kwargs)))
        pairs = [_with_gradients(one, given, got) for one in (expected, got)]
        values = [v for v in (*expected.outputs, *expected.inputs) if isinstance(v, torch.Tensor)]
        roundoff = roundoff_of(values)
        roundoff /= FINER if roundoff >= NARROW else 1.0
        found = compare(Reference([[pairs[0]]], roundoff=roundoff), [pairs[1]])
        return Apart({d.where or d.kind: d.z for d in found})


def _with_gradients(one: Observation, given: int, got: Observation) -> Observation:
    """Without those of arguments that came out of other operations of the program: autograd keeps none of these."""
    gradients = [g for i, g in enumerate(one.gradients) if i >= given or got.gradients[i] is not None]
    return replace(one, gradients=gradients)
