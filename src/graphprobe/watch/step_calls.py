"""The calls of compiled functions and modules that a step makes, kept so that each can be made again as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from graphprobe.diagnose.program import Program, tensors_of
from graphprobe.diagnose.script_calls import CallBefore, copied_call, gradients_of, is_finite
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.values import one_file_bytes
from graphprobe.errors import Raised, raised_from
from graphprobe.internals.dynamo.compile_calls import Compiled
from graphprobe.internals.operators.api_calls import running_modules
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import tree_leaves
from graphprobe.judge.observation import reachable_modules
from graphprobe.probe.api.overflow import Overflow, OverflowWatch
from graphprobe.settings.limits import STEP_LIMIT_S, TimeBudget
from graphprobe.store.files import replace_file
from graphprobe.store.watch_file import FirstOperation
from graphprobe.watch.observation import all_modules

Form = TypeVar("Form")

MOST_OPERATIONS = 8
"""Operations that are kept of a call that is made again; those behind the first one mostly pass it on."""

MOST_COPIED_BYTES = 64 << 20
"""Of arguments, or of buffers, that calls change: more of them are not kept, as a cache of keys and values is not."""

NOT_KEPT = (
    "{what} that the calls of {name} change are more than 64 MiB: they are not copied, and are as the calls left them"
)

DEVICES = ("cpu", "cuda")


class Again(msgspec.Struct):
    """What came of a call that was made again.

    Attributes:
        finite: whether its results are, and the gradients that its backward leaves.
        behind: the gradients that came to its results were not finite already, and no backward ran.
        operations: that made non-finite values of finite ones, in order.
        raised: the exception that ended it; None where it ended well.
        source, module: where an exception came from.
    """

    finite: bool = True
    behind: bool = False
    operations: list[FirstOperation] = []
    raised: str | None = None
    source: str = ""
    module: str = ""


class WatchedFunction:
    """A function that the program calls, with its buffers and what its calls change.

    Attributes:
        compiled: how it was compiled; of a module that was not, how torch would compile it.
        called: what the program calls.
        tolerated: by how many roundings values may be apart from the uncompiled ones.
        judged: how often that was asked.
        not_kept: what calls change and is too large to be copied, in words; empty where there is none.
    """

    def __init__(self, compiled: Compiled, called: Callable[..., Any], name: str) -> None:
        self.compiled, self.called, self.name = compiled, called, name
        self.calls = 0
        self.changed: set[int] = set()
        self._modules = reachable_modules(compiled.fn, ())
        owned = [(part, b) for m in self._modules for part in m.modules() for b in part.buffers(recurse=False)]
        self._owners = list({id(buffer): part for part, buffer in owned}.values())
        self._buffers = list({id(buffer): buffer for _, buffer in owned}.values())
        self._renewed: set[int] = set()
        self._versions = self._versions_now()
        self.tolerated: dict[str, float] = {}
        self.judged = 0
        self.not_kept = ""

    def buffers_before(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The buffers that calls change, each with a copy.

        A normalisation changes its statistics unseen by version counters: what is beside a changed one counts, too.
        """
        now = self._versions_now()
        if now != self._versions:
            owners = {id(self._owners[i]) for i, version in enumerate(now) if version != self._versions[i]}
            self._renewed |= {i for i, owner in enumerate(self._owners) if id(owner) in owners}
            if _is_much(self._buffers, self._renewed):
                self._renewed.clear()
                self.not_kept = NOT_KEPT.format(what="buffers", name=self.name)
            self._versions = now
        with quiet():
            return [(self._buffers[i], self._buffers[i].clone()) for i in self._renewed]

    def are_kept(self) -> bool:
        """Whether there are copies of all buffers that the call which is just over has changed."""
        pairs = enumerate(zip(self._versions, self._versions_now(), strict=True))
        return all(before == now or i in self._renewed for i, (before, now) in pairs)

    def _versions_now(self) -> list[int]:
        return [0 if buffer.is_inference() else buffer._version for buffer in self._buffers]

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers by their names."""
        seen: set[int] = set()
        for module in self._modules:
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield name, tensor


class StepCall:
    """One outermost call of a step, with arguments, buffers and random generators as they are before it.

    Attributes:
        whole: there are copies of all arguments and buffers that it has changed.
        grad: gradients are on.
    """

    def __init__(self, function: WatchedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        function.calls += 1
        self.function, self.number = function, function.calls
        if function.changed and _is_much(tree_leaves((tuple(args), dict(kwargs))), function.changed):
            function.changed.clear()
            function.not_kept = NOT_KEPT.format(what="arguments", name=function.name)
        self._given: CallBefore | None = CallBefore(args, kwargs, function.changed)
        self.args: tuple[Any, ...] = args
        self.kwargs: Mapping[str, Any] = kwargs
        self.grad = torch.is_grad_enabled()
        self._autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES]
        self._random = torch.get_rng_state()
        self._random_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self._buffers = function.buffers_before()
        self._upstream: dict[int, torch.Tensor] = {}
        self.whole = True

    @property
    def name(self) -> str:
        """The function and the number of the call, from 1."""
        return f"{self.function.name}, call {self.number}"

    def ended(self, result: Any) -> None:
        """Take note of the result: the gradients that come to it are kept, too."""
        self.settle()
        for i, tensor in enumerate(tensors_of(result)):
            if tensor.grad_fn is not None:
                tensor.register_hook(partial(self._upstream.__setitem__, i))  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        """Put the arguments in the place of what the call has changed, once it is over."""
        given, self._given = self._given, None
        if given is not None:
            known = len(self.function.changed)
            self.args, self.kwargs = given.before()
            self.whole = known == len(self.function.changed) and self.function.are_kept()

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters, buffers and tensors among the arguments by their names, as they were before the call."""
        kept = {id(buffer): copy for buffer, copy in self._buffers}
        for name, tensor in self.function.state():
            yield name, kept.get(id(tensor), tensor)
        for i, tensor in enumerate(tensors_of((self.args, self.kwargs))):
            yield f"tensor {i} of the arguments of {self.name}", tensor

    @contextlib.contextmanager
    def as_then(self) -> Iterator[None]:
        """Within the block, modes, generators and buffers are as they were ahead of the call; behind it as before."""
        random, cuda = torch.get_rng_state(), torch.cuda.get_rng_state_all() if self._random_cuda else []
        with quiet():
            now = [(buffer, buffer.clone()) for buffer, _ in self._buffers]
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, enabled, dtype in self._autocast:
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled=enabled))
            torch.set_rng_state(self._random)
            torch.cuda.set_rng_state_all(self._random_cuda)
            _put(self._buffers)
            try:
                yield
            finally:
                _put(now)
                torch.set_rng_state(random)
                torch.cuda.set_rng_state_all(cuda)

    def again(self, *, compiled: bool, keep: Path | None = None) -> Again:
        """Make the call again, with its backward; what it changes stays changed: call it in a child process.

        Args:
            compiled: as the program does, with the code that is compiled; else uncompiled, each operation looked at.
            keep: the file that takes the inputs of the first operation; None: they are not kept.
        """
        fn, found = self.function.compiled.fn, Again()
        args, kwargs = copied_call(fn, self.args, self.kwargs)
        Program(fn, [(args, kwargs)]).drop_gradients()
        if not compiled:
            torch.compiler.set_stance("force_eager")
        modules = ModuleNames(reachable_modules(fn, ()))
        watched = FirstOperations(found.operations, keep)
        look = contextlib.nullcontext() if compiled else OverflowWatch(watched, within=modules.innermost)
        with self.as_then(), look:
            try:
                self._run(self.function.called if compiled else fn, args, kwargs, found)
            except Exception as error:
                raised: Raised = raised_from(error)
                found.raised, found.source, found.module = raised.line, place_of(error), modules.last
        return found

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any, found: Again) -> None:
        result = function(*args, **kwargs)
        found.finite = is_finite(result)
        outputs = tensors_of(result)
        pairs = [(outputs[i], given) for i, given in sorted(self._upstream.items()) if outputs[i].requires_grad]
        if not found.finite or not pairs:
            return
        if not is_finite([given for _, given in pairs]):
            found.behind = True
            return
        torch.autograd.backward([output for output, _ in pairs], [given.detach() for _, given in pairs])
        found.finite = is_finite(gradients_of(self.function.compiled.fn, args, kwargs))


def in_child(step: Callable[[], Form], form: type[Form], budget: TimeBudget) -> Form | str:
    """What a step returns in a child process; where it comes to no end there, why, in words.

    Raises:
        NoTimeLeft: the budget is spent.
    """
    budget.check()
    outcome = isolated(step, timeout_s=min(STEP_LIMIT_S, budget.left_s), wait=budget.check)
    if outcome.died or outcome.raised is not None:
        return outcome.end if outcome.raised is None else outcome.raised.line
    return "nothing came" if outcome.value is None else msgspec.convert(outcome.value, form)


def _put(copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Put copies back, unseen by version counters: a backward that is yet to come may look at these."""
    with quiet():
        for tensor, copy in copies:
            tensor.data.copy_(copy)


def _is_much(values: Sequence[Any], numbers: Collection[int]) -> bool:
    tensors = [values[i] for i in numbers if i < len(values) and isinstance(values[i], torch.Tensor)]
    return bool(sum(tensor.numel() * tensor.element_size() for tensor in tensors) > MOST_COPIED_BYTES)


class FirstOperations:
    """Takes what the overflow check finds, and the inputs of the first operation into a file, if there is to be one."""

    def __init__(self, operations: list[FirstOperation], file: Path | None) -> None:
        self._operations, self._file = operations, file

    def __call__(self, found: Overflow) -> None:
        if len(self._operations) >= MOST_OPERATIONS:
            return
        if not self._operations and self._file is not None:
            with contextlib.suppress(OSError):  # a full disk
                replace_file(self._file, one_file_bytes(dict(found.inputs)))
        self._operations.append(
            FirstOperation(
                op=found.api if not found.api.startswith("torch.ops.") else found.op,
                direction=found.direction,
                source=found.source,
                module=found.module,
                problems=list(found.problems),
            )
        )


class ModuleNames:
    """Names the module that runs on the calling thread, as its stack tells."""

    def __init__(self, roots: Sequence[torch.nn.Module] | None = None) -> None:
        """`roots`: the modules whose parts are named by their paths; None: all that there are, the outermost."""
        self._names: dict[int, str] = {}
        self.last = ""
        for root in all_modules() if roots is None else roots:
            for name, module in root.named_modules():
                named = f"{name} ({type(module).__name__})".replace("_orig_mod.", "") if name else ""
                self._names.setdefault(id(module), named)

    def innermost(self) -> str:
        """The module that runs; empty of the outermost, and outside of all."""
        module = next(running_modules(), None)
        self.last = "" if module is None else self._names.get(id(module), type(module).__name__)
        return self.last


def place_of(error: BaseException) -> str:
    """`file.py:12`, the innermost line of an exception that is neither torch's nor graphprobe's; empty if none is."""
    place, trace = "", error.__traceback__
    while trace is not None:
        owner = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if owner not in ("torch", "graphprobe") and not trace.tb_frame.f_code.co_filename.startswith("<"):
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
