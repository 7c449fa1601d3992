"""The calls of a script's compiled functions: modes, signatures, copies of arguments, what is known of each function.

Imports no torch before the script does.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from graphprobe.errors import UsageError
from graphprobe.findings import Diagnosis
from graphprobe.internals.dynamo.compile_calls import Compiled
from graphprobe.probe.script import Ended

if TYPE_CHECKING:
    import torch

FIRST = 4
"""Each of so many calls is looked at, and then those whose number is a power of two."""

MOST_WALKS = 1_000
"""Calls of a function before which the values around it are read."""

MOST_TOGETHER = 3
"""Changes of the same values that count."""

FAILED = "the diagnosis itself failed: {kind}: {error}"
PROVEN = "The script, run again, does."

UNSEEN = "Dynamo compiled {count} graph{s} outside of the calls that are diagnosed"
"""Such as in a context manager, or by what took Dynamo's parts before the script began."""

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def mode_of(fn: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """What calls must have in common to be diagnosed as one sequence: gradients on or off, training or not."""
    import torch

    owners = [fn, getattr(fn, "__self__", None), *args]
    training = tuple(m.training for m in owners if isinstance(m, torch.nn.Module))
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), training)


def signature_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a compiled function looks at to decide whether it must be compiled again, as far as arguments show it."""
    import torch

    from graphprobe.internals.tensors import structure_of, tree_leaves

    given = (tuple(args), dict(kwargs))

    def seen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            stride = leaf.stride() if leaf.layout is torch.strided else ()
            return (tuple(leaf.shape), stride, leaf.dtype, leaf.device, leaf.requires_grad)
        return (type(leaf), repr(leaf)) if isinstance(leaf, PLAIN) else type(leaf)

    return (structure_of(given), *map(seen, tree_leaves(given)))


def copied_call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The arguments with every tensor a copy without history; they share memory with each other as the originals do.

    The function's own parameters and buffers, and what cannot be copied, stay as they are. Gradients are copied where
    the function reads such.
    """
    import torch

    from graphprobe.diagnose.program import Program, tensors_of
    from graphprobe.engine.values import capture, why_not
    from graphprobe.internals.tensors import tree_map

    program = Program(fn, [(args, kwargs)])
    own, reads = {id(tensor) for tensor in program.state()}, program.reads_gradients()
    found = {id(t): t for t in tensors_of((args, kwargs)) if id(t) not in own and why_not(t) is None}
    with torch.inference_mode(False), torch.no_grad():
        copies = dict(zip(found, capture(list(found.values()), rng=False).restore(), strict=True))
    for key, copy in copies.items():  # what `mark_dynamic` and its like have noted
        vars(copy).update((name, value) for name, value in vars(found[key]).items() if name.startswith("_dynamo_"))
        if reads and found[key].is_leaf:
            copy.grad = deepcopy(found[key].grad)
    result: tuple[Any, Mapping[str, Any]] = tree_map(lambda t: copies.get(id(t), t), (tuple(args), dict(kwargs)))
    return result


def requires_grad(result: Any) -> bool:
    """Whether a backward may begin at a result."""
    from graphprobe.diagnose.program import tensors_of

    return any(tensor.requires_grad for tensor in tensors_of(result))


def gradients_of(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """What backwards have left at parameters and arguments."""
    from graphprobe.diagnose.program import Program

    return [t.grad for t in Program(fn, [(args, kwargs)]).tensors() if t.is_leaf and t.grad is not None]


class CallBefore:
    """The arguments of a call that is about to be made, tensors that calls change in place as they are before it.

    Args:
        changed: numbers of the leaves that earlier calls have changed, which are copied; `before` adds those of this.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], changed: set[int]) -> None:
        from graphprobe.internals import tensors  # once the program has imported torch

        self._trees, self._call, self._changed = tensors, (tuple(args), dict(kwargs)), changed
        self._versions = self._versions_now()
        self._copies: dict[int, Any] = {}
        with contextlib.suppress(Exception):  # a tensor that cannot be copied, inside of a transform for instance
            leaves = self._trees.tree_leaves(self._call)
            self._copies = {i: leaves[i].detach().clone().requires_grad_(leaves[i].requires_grad) for i in changed}

    def before(self) -> tuple[Any, Mapping[str, Any]]:
        """The arguments, once the call was made."""
        now = self._versions_now()
        self._changed |= {i for i, version in now.items() if version != self._versions.get(i)}
        numbers = itertools.count()
        call = self._trees.tree_map(lambda leaf: self._copies.get(next(numbers), leaf), self._call)
        return cast("tuple[Any, Mapping[str, Any]]", call)

    def _versions_now(self) -> dict[int, int]:
        """Of each tensor the number that grows with each change; not of tensors of inference mode, which have none."""
        found = {}
        for i, leaf in enumerate(self._trees.tree_leaves(self._call)):
            with contextlib.suppress(RuntimeError, AttributeError):
                found[i] = leaf._version
        return found


class Around:
    """The plain values around a function, such as globals and attributes, from which its guards must keep it."""

    def __init__(self) -> None:
        self._last: dict[str, Any] | None = None
        self._together = Counter[frozenset[str]]()
        self._left = MOST_WALKS

    def is_other(self, fn: Any) -> bool:
        """Whether they are others than the last time, if a guard may have missed that.

        Values that change together do so again and again, such as counters: only the first times count.
        """
        from graphprobe.judge.effects import plain_values

        self._left -= 1
        if self._left < 0:
            return False
        before, self._last = self._last, plain_values(fn)
        now = self._last
        changed = frozenset(k for k in {*now, *(before or now)} if now.get(k) != (before or now).get(k))
        self._together[changed] += 1
        return bool(changed) and self._together[changed] <= MOST_TOGETHER


def is_finite(result: Any) -> bool:
    """Whether no tensor in a result holds a NaN or an infinity; tensors that cannot tell count as finite."""
    import torch

    from graphprobe.diagnose.program import tensors_of
    from graphprobe.engine.values import why_not

    found = (t.detach() for t in tensors_of(result) if why_not(t) is None)
    try:
        finite = [torch.isfinite(t).all() for t in found if t.is_floating_point() or t.is_complex()]
        return not finite or bool(torch.stack([flag.to(finite[0].device) for flag in finite]).all())  # one number
    except Exception:  # a dtype without `isfinite`, a value inside vmap: the program goes on as without the look
        return True


def is_whole(call: tuple[Any, Mapping[str, Any]]) -> bool:
    """Whether a copied call can be made again later: not one with an object that it has changed, such as a cache."""
    import torch

    from graphprobe.internals.tensors import tree_leaves

    kinds = (*PLAIN, torch.Tensor, torch.nn.Module, torch.dtype, torch.device)
    return all(isinstance(leaf, kinds) for leaf in tree_leaves(call))


class CallsSoFar:
    """The calls of one function from the first, to be made again: tensors as they were at each, other objects once.

    Attributes:
        calls: None where something cannot be copied, or there were too many.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any]] | None = []
        self._memo: dict[int, Any] = {}

    def add(self, fn: Callable[..., Any], call: tuple[Any, Mapping[str, Any]]) -> None:
        """One more call of the function, before it is made."""
        if self.calls is None or len(self.calls) >= FIRST:
            self.calls = None
            return
        import torch

        from graphprobe.internals.tensors import tree_leaves

        given: dict[int, Any] = {}
        try:
            pairs = zip(tree_leaves(call), tree_leaves(copied_call(fn, *call)), strict=True)
            given = {id(v): own for v, own in pairs if isinstance(v, (torch.Tensor, torch.nn.Module))}
            self._memo |= given
            self.calls.append(deepcopy((tuple(call[0]), dict(call[1])), self._memo))
        except Exception:  # whatever an object raises where it is copied
            self.calls = None
        for number in given:  # of an object that may be gone at the next call
            del self._memo[number]


@dataclass(eq=False)
class Past:
    """One function's calls that were diagnosed: mode and signature of each, and copies of the arguments.

    `uncompiled`: it crashed, and goes on uncompiled. `wrong`: a fault is known. `so_far`: see `CallsSoFar`.
    `looked_at`, `not_finite`: see `CallsLookedAt`. `raised`: a call has raised compiled, and was looked into. `last`:
    number of the call that was diagnosed last. `raises`: why that raises without a fault: uncompiled, too, or torch
    refuses to compile it. `compiled`: what the function was compiled to, each time. `numbers`: of the last call of each
    thread; `given`: that call; `graphs`: how many were compiled before it. `changes`: which leaves of its arguments
    calls change. `in_all`: of its last call, the number among all calls of the program.
    """

    name: str
    calls: int = 0
    in_all: int = 0
    looked_at: set[int] = field(default_factory=set)
    not_finite: int | None = None
    gradient_not_finite: int | None = None
    raised: bool = False
    given: dict[int, CallBefore] = field(default_factory=dict)
    changes: set[int] = field(default_factory=set)
    graphs: int = 0
    around: Around = field(default_factory=Around)
    last: int = 0
    raises: str = ""
    uncompiled: bool = False
    seen: dict[Any, None] = field(default_factory=dict)
    wrong: bool = False
    so_far: CallsSoFar = field(default_factory=CallsSoFar)
    kept: list[tuple[Any, tuple[Any, Mapping[str, Any]]]] = field(default_factory=list)
    compiled: list[Compiled] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Of the call that this thread makes."""
        return self.numbers.get(threading.get_ident(), self.calls)

    def as_before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """The arguments of the call that this thread has made, as they were ahead of it."""
        given = self.given.pop(threading.get_ident(), None)
        return (args, kwargs) if given is None else given.before()

    def count(self, more: int) -> int:
        """The number of calls, those included that other threads have made meanwhile."""
        for one in self.compiled:
            self.calls, one.beside = self.calls + one.beside, 0
        self.calls += more
        return self.calls

    def explains_exception(self) -> bool:
        """Whether the last diagnosis explains that the call raises: by a fault, or as `raises`."""
        return self.wrong or bool(self.raises)


def unknown(why: str, *, unfinished: bool = False) -> Diagnosis:
    """A diagnosis that could tell nothing, and why."""
    return Diagnosis(verdict="undecided", notes=[why], unfinished=unfinished)


def undiagnosed(unseen: Mapping[str, int], ended: Ended) -> Diagnosis:
    """What Dynamo compiled, or raised, where no call was seen that could be diagnosed."""
    count = sum(unseen.values())
    names = ", ".join(f"{name} ({n} graphs)" if n > 1 else name for name, n in unseen.items())
    notes = [f"{UNSEEN.format(count=count, s='s' * (count > 1))}: {names}"] if count else []
    if ended.compiling:
        notes.insert(0, f"torch's compiler raised {ended.error}, in a call that was not seen")
    return Diagnosis(verdict="undecided", graphs=count or None, notes=notes)


def nothing_compiled(path: str, compiled: int, problem: str | None) -> UsageError:
    """Of a script in which no compiled function was called."""
    given = f"it gave {compiled} function{'s' * (compiled > 1)} to torch.compile and called none"
    what = f"{path} compiled nothing: {given if compiled else 'no call of torch.compile'}"
    hint = "for a function that no script compiles: graphprobe diagnose FILE.py:CALLABLE"
    if problem is not None:
        hint = "run it with python first, and mend that"
    return UsageError(f"{what}; {problem}" if problem else what, hint=hint)


def name_of(fn: Any) -> str:
    """`name (file:line)` of a function; of a module its class and forward; the file relative if below here."""
    owner = getattr(fn, "__self__", fn)
    other = inspect.ismethod(fn) and fn.__name__ not in ("forward", "__call__", "_call_impl", "_wrapped_call_impl")
    module = owner if hasattr(owner, "forward") and not inspect.isroutine(owner) and not other else None
    code = getattr(inspect.unwrap(module.forward if module is not None else fn), "__code__", None)
    plain = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    name = type(module).__qualname__ if module is not None else plain.replace("<locals>.", "")
    if code is None:
        return name
    from graphprobe.engine.naming import short_place

    return f"{name} ({short_place(code.co_filename, code.co_firstlineno)})"
