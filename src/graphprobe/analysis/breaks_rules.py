"""What each kind of graph break is called, why it happens, and what to write instead: one table, read from the top."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

OUTSIDE = (
    "call `{call}` outside the compiled function: before it, with the result as an argument, or behind it, on what it "
    "returns"
)
CHOOSE = (
    "compute both ways and choose: `torch.where({choice}, a, b)`; or `torch.cond({choice}, true_fn, false_fn, (…,))`"
)
LOOP = (
    "use `torch.while_loop(cond_fn, body_fn, (…,))` with `{choice}` returned by cond_fn; or keep the loop outside and "
    "compile its body"
)
ANY_SHAPE = "set `torch._dynamo.config.capture_dynamic_output_shape_ops = True`"
ANY_NUMBER = "set `torch._dynamo.config.capture_scalar_outputs = True`"
IS_COMPILING = "`if not torch.compiler.is_compiling():` in front of it leaves it out of compiled code"
VALUES = "depends on the values of a tensor"
WHICH_WAY = "which way the program goes, `{condition}`, depends on "
IDENTITY = (
    "the identity (`id`, `hash`, `is`, `data_ptr`) of something that only exists while tracing is used",
    "compare values instead, or work it out outside the compiled function",
)

JUMP = r"Data-dependent branching.*|Data-dependent assertion.*"
SKIPPED = r"Attempted to (call|inline) function marked as skipped.*"
BUILTIN = r"Failed to trace builtin operator"
SCALAR = r"Unsupported Tensor\.item\(\) call.*|Data dependent operator"
SHAPES = r"Dynamic shape operator.*"
COPY = r"Attempted to copy\.deepcopy a tensor|copy\.deepcopy\(\).*"
AS_NUMBER = r"\.(?P<name>item)\(|\b(?P<function_>float|int|bool|complex)\(|\b(?P<compared>allclose|equal)\("

CONSEQUENCES = {
    "graph break in loop": "the break is inside a loop",
    "Graph break under GenericContextWrappingVariable": (
        "the break is inside a `with` that Dynamo cannot leave and enter again"
    ),
}
"""Why torch could not go on behind the break, by its name of the second break."""


class BreakRule(msgspec.Struct, frozen=True):
    """One kind of break.

    Attributes:
        kind: our name for it, which does not change with torch's.
        title: pattern of torch's name of the type of break; all of it must match.
        cause: one sentence.
        remedy: what to write instead.
        text: pattern that is looked for in explanation and context; its named groups can be used in the sentences.
        names: pattern whose named groups can be used too, where it is found there.
        form: classes of `ast` of the line's statement; empty for any.
        use: what the value is for, as `BreakLine.use` says, or `conversion` in a method such as `__bool__`.
        source: pattern that is looked for in the expression, or in the line where that is not known.

    In the sentences stand, in braces, names of the user's line: `condition`, `choice` (the same as a tensor), `call`
    (of what the group `name` says), `owner` (what that is called on), `argument` (the same without brackets), `number`
    and `tensor` (of a conversion), `holder` and `indexed` (of an index), `line`, `target`, `manager`, `defined`,
    `masked`, `mask`, and `function`, in which the line stands. See `fill`.
    """

    kind: str
    title: str
    cause: str
    remedy: str
    text: str = ""
    names: str = ""
    form: tuple[str, ...] = ()
    use: str = ""
    source: str = ""

    def match(self, title: str, text: str, form: str, source: str, use: str = "") -> Mapping[str, str] | None:
        """The named groups, or None where the rule does not apply."""
        if (self.form and form not in self.form) or (self.use and use != self.use):
            return None
        if not re.fullmatch(self.title, title, re.DOTALL) or (self.source and not re.search(self.source, source)):
            return None
        found, more = re.search(self.text, text), re.search(self.names, text)
        if found is None:
            return None
        groups = found.groupdict() | (more.groupdict() if more is not None else {})
        return {name: value for name, value in groups.items() if value}


# fmt: off
RULES: tuple[BreakRule, ...] = (
    BreakRule("dynamo-error", r"Dynamo failed with (?!BackendCompilerFailed).*", "{title}",
        "take what is on this line out of compiled code: into a function with `@torch.compiler.disable`, or outside; "
        "and report it to PyTorch"),
    # -- the program asks a tensor for its values
    BreakRule("data-dependent-assert", JUMP + "|assert with non-string message",
        "the assertion `{condition}` " + VALUES + ", and its message is computed",
        'make the message a plain string: `assert {condition}, "…"`; or use `torch._assert_async({choice})`',
        form=("Assert",)),
    BreakRule("data-dependent-loop", JUMP, "how often the loop runs, `{condition}`, " + VALUES, LOOP,
        form=("While", "For")),
    BreakRule("data-dependent-branch", JUMP, WHICH_WAY + "a size that the values of a tensor decide",
        "leave out `if {condition}`: where nothing is selected, the lines that it guards change nothing; or ask for no "
        "size: compute with every row, and multiply with the mask (of experts: with their weight, 0 where none is "
        "chosen)",
        source=r"\blen\(|\.(?:shape|ndim)\b|\.(?:size|numel)\("),
    BreakRule("data-dependent-branch", JUMP, WHICH_WAY + "the values of a tensor", CHOOSE),
    BreakRule("random", SCALAR + "|.*numpy.*random.*|random.Random.*|" + SKIPPED + "|Unsupported method call",
        "`{call}` draws a random number that is not torch's",
        "draw it with torch: `torch.rand(())` in the place of `{call}`; or " + OUTSIDE,
        source=r"\b(?P<name>(?:np|numpy)\.random\.rand|(?:(?:np|numpy)\.)?random\.random)\(\)"),
    BreakRule("random", SCALAR + "|.*numpy.*random.*|random.Random.*|" + SKIPPED + "|Unsupported method call",
        "`{call}` draws a random number that is not torch's",
        "draw it with torch, whose random numbers can be part of the graph; or " + OUTSIDE,
        source=r"\b(?P<name>(?:np|numpy)\.random\.\w+|random\.\w+)\("),
    BreakRule("tensor-item", SCALAR, "how often the loop runs depends on a value of a tensor, `{call}`",
        "pass that number in as an argument that is an int, or keep the loop outside and compile its body",
        use="count", source=AS_NUMBER),
    BreakRule("tensor-item", SCALAR, "a size depends on the value of a tensor, `{number}`",
        "pass that number in as an argument that is an int; or keep the size, and put zeros with `torch.where` where "
        "nothing is to be; or " + ANY_NUMBER,
        use="size", source=AS_NUMBER),
    BreakRule("tensor-item", SCALAR, "where `{statement}` writes depends on the value of a tensor",
        "write with `index_copy_`, which takes a tensor: `{holder}.index_copy_(0, {tensor}.reshape(1), "
        "torch.unsqueeze({assigned}, 0))` in the place of `{statement}`; or " + ANY_NUMBER,
        form=("Assign",), use="stored-index", source=AS_NUMBER),
    BreakRule("tensor-item", SCALAR, "`{indexed}` needs the value of a tensor as an index",
        "use `torch.index_select({holder}, 0, {tensor}.reshape(1)).squeeze(0)` in the place of `{indexed}`",
        use="index", source=AS_NUMBER),
    BreakRule("tensor-item", SCALAR, "how often the loop runs, `{condition}`, " + VALUES, LOOP,
        use="loop", source=AS_NUMBER),
    BreakRule("tensor-item", SCALAR, WHICH_WAY + "the values of a tensor", CHOOSE, use="test", source=AS_NUMBER),
    BreakRule("tensor-item", SCALAR,
        "`{function}` must return a number of Python's, and `{number}` has it from the values of a tensor",
        "use the tensor, `{tensor}`, where `{function}` is asked for: `torch.where({tensor}, a, b)`, and no `if`",
        use="conversion", source=AS_NUMBER),
    BreakRule("tensor-item", SCALAR, "`{number}` needs the value of a tensor as a number of Python's",
        "keep it a tensor: use `{tensor}` in the place of `{number}`; or " + ANY_NUMBER, source=AS_NUMBER),
    BreakRule("tensor-item",
        SCALAR + r"|Dynamic slicing with Tensor arg.*|Indexing .* with non-scalar tensor|unsupported index\(Tensor\)",
        "the line needs the value of a tensor as a number of Python's",
        "keep the number a tensor, or work it out before the compiled function; or " + ANY_NUMBER),
    BreakRule("tensor-tolist", r"Tensor\.tolist\(\).*", "`{call}` turns a tensor into numbers of Python's",
        "loop over the tensor itself, `{argument}`: use `{argument}` in the place of `{call}`; or call it outside the "
        "compiled function",
        text=r"(?P<name>to_?list)", use="count"),
    BreakRule("tensor-tolist", r"Tensor\.tolist\(\).*", "`{call}` turns a tensor into numbers of Python's",
        "index the tensor, `{owner}[i]`: use `{argument}` in the place of `{call}`; or call it outside the compiled "
        "function; or " + ANY_NUMBER,
        text=r"(?P<name>to_?list)"),
    BreakRule("dynamic-shape-operator", SHAPES, "how large the result of `{masked}[{mask}]` is " + VALUES,
        "keep the shape: `torch.where({mask}, {masked}, 0)` in the place of `{masked}[{mask}]`; or " + ANY_SHAPE,
        text=r"aten\.nonzero", source=r"\w\[[^\]]*[<>=~&|!][^\]]*\]|\[\w*mask\w*\]"),
    BreakRule("dynamic-shape-operator", SHAPES, "how large the result of `{call}` is " + VALUES,
        "give the size: `torch.nonzero_static({argument}, size=N)`; or " + ANY_SHAPE,
        text=r"aten\.(?P<name>nonzero)", source=r"\bnonzero\("),
    BreakRule("dynamic-shape-operator", SHAPES + "|.*data-dependent output shape",
        "how large the result of `{name}` is " + VALUES,
        ANY_SHAPE + "; or use an operator whose result has the same size for all values",
        names=r"(?P<name>aten\.\w+|(?<=Operator `)[\w.]+)"),
    # -- output
    BreakRule("print", BUILTIN, "`print` writes something in the middle of the compiled code",
        IS_COMPILING + "; `torch._dynamo.config.reorderable_logging_functions.add(print)` prints it when the graph has "
        "run",
        text=r"builtin (operator `)?(?P<name>print)\b"),
    BreakRule("logging", r"logging\.Logger method.*|attempted to reorder a debugging function.*",
        "the logger's method `{call}` writes something in the middle of the compiled code",
        IS_COMPILING + "; `torch._dynamo.config.ignore_logging_functions.add({method})` leaves out every call of it",
        names=r"method: <[^>]*>\.(?P<name>\w+)"),
    BreakRule("warning", SKIPPED, "`{call}` warns in the middle of the compiled code",
        IS_COMPILING + "; `torch._dynamo.config.reorderable_logging_functions.add(warnings.warn)` warns when the graph "
        "has run",
        text=r"Python builtin `_warnings\.(?P<name>warn)`"),
    # -- calls that Dynamo does not follow
    BreakRule("disabled",
        r"Skip (calling|inlining) `torch\.compiler\.disable\(\)`d function|Forced graph break on leaf function",
        "`{name}` is marked with `torch.compiler.disable`",
        "remove `torch.compiler.disable` from `{name}`; or call `{name}` before or after the compiled function",
        names=r"<(?:bound method|function) (?P<name>[\w.<>]+)"),
    BreakRule("explicit-break",
        r"Call to `torch\._dynamo\.(graph_break|skip_frame|step_unsupported)\(\)`|ComptimeContext graph break",
        "the program itself asks for a break with `{name}`", "remove the call of `{name}`",
        names=r"(?P<name>torch\._dynamo\.\w+\(\))"),
    BreakRule("class-definition", r"Invalid call to __build_class__|LOAD_BUILD_CLASS.*",
        "`class {defined}` is defined inside the compiled function",
        "define `class {defined}` at the top of the module", form=("ClassDef",)),
    BreakRule("deepcopy", COPY, "`{call}` copies an object that holds tensors by way of Python",
        "make the copy outside the compiled function, and use it in there", text=r"in _(?:reconstruct|deepcopy_\w+)"),
    BreakRule("deepcopy", COPY, "`{call}` copies a tensor by way of Python",
        "write `{owner}.clone()` in the place of `{call}`", text=r"(?P<name>deepcopy)"),
    BreakRule("frame-inspection", SKIPPED, "`{line}` looks at its own frame, which does not exist in compiled code",
        "look at it outside the compiled function", text=r"sys\._getframe"),
    BreakRule("c-function",
        SKIPPED + r"|can't handle functions not implemented in python.*|vectorcall_maybe on C method.*",
        "`{name}` is written in C, so Dynamo cannot look into it",
        OUTSIDE + "; if it computes on tensors, make it an operator with `torch.library.custom_op`",
        text=r"Python builtin `(?P<name>[^`]+?)\.?`|the builtin `(?:<unknown module>\.)?(?P<other>[^`]+?)\.?`"),
    BreakRule("skipped-function", SKIPPED + r"|Unsupported function call.*",
        "`{name}` is on the list of functions that Dynamo does not trace",
        "call `{call}` before or after the compiled function",
        names=r"(?s)(?:.*module: (?P<module>[\w.]+), qualname: (?P<name>[\w.]+))|function `(?P<other>[^`]+)`"),
    BreakRule("file", BUILTIN, "`{call}` opens a file in the middle of the compiled code",
        "read the file before the compiled function, and pass in what it holds",
        text=r"builtin (operator `)?(?P<name>open)\b"),
    BreakRule("unsupported-builtin", BUILTIN + r"|invalid call to builtin op handler|unimplemented builtin op.*",
        "Dynamo cannot trace Python's `{name}` with these arguments", OUTSIDE,
        names=r"builtin (?:operator )?`?(?P<name>\w+)`?"),
    BreakRule("random", r"torch\.Generator method|random\.Random\(\).*|Tensor\.(random_|uniform_) .*",
        "`{call}` draws random numbers in a way that cannot be part of a graph",
        "use `torch.rand`, `torch.randn` or `torch.randint` without a generator; or draw outside the compiled "
        "function"),
    BreakRule("c-function", r"Unsupported method call",
        "`{call}` makes an object of a class that is written in C, so Dynamo cannot look into it", OUTSIDE,
        text="method `__new__` of class `type`"),
    BreakRule("unsupported-method",
        r"Unsupported method call|Unhandled tensor method|Unsupported Tensor\.\w+\(\) call(?<!backward\(\) call)"
        r"(?<!requires_grad_\(\) call)|Unhandled args for method|constant-like method call.*|Unsupported \w+ method.*",
        "Dynamo cannot trace the method `{name}` of {class}",
        "move `{line}` out of the compiled function; what it gives can be passed in as an argument",
        names=r"method `(?P<name>[^`]+)` of class (?P<class>`[^`]+`)|Tensor\.(?P<other>\w+)"),
    # -- with, generators, exceptions
    BreakRule("context-manager",
        r"Unsupported context manager|.*contextlib.*|.*context ?manager.*|.*escaped from compiled.*",
        "Dynamo does not know the context manager `{manager}`",
        "put `with {manager}:` around the call of the compiled function", names=r"enter a `(?P<class>[^`]+)`"),
    BreakRule("generator", r"Attempt to trace generator|.*[Gg]enerator.*",
        "`{function}` is a generator, which cannot be compiled itself",
        "compile the function that uses the generator, or return a list: `return [ … ]` in the place of `yield`"),
    BreakRule("formatting", r"Observed exception.*",
        "`{call}` asks for the text of a tensor's value, which there is only when the code has run",
        "make the text outside the compiled function, of what it returns",
        text=r"TypeError\(\"object of type 'str' has no len"),
    BreakRule("object-identity", r"Observed exception.*", *IDENTITY, source=r"\b(id|hash)\(|\.data_ptr\("),
    BreakRule("generator", r"Read uninitialized cell",
        "`{function}` goes on behind an earlier break, where Dynamo has lost the variables from around it",
        "mend the break before it in `{function}`: this one comes of it"),
    # -- gradients, state of tensors
    BreakRule("backward",
        r"Unsupported Tensor\.backward\(\) call|backward\(\) with.*|using `torch\.autograd\.grad`.*|.*autograd\.grad.*",
        "`{call}` asks for gradients inside the compiled function",
        "return the loss and call backward outside; or set `torch._dynamo.config.trace_autograd_ops = True`",
        text=r"(?P<name>backward|grad)\b"),
    BreakRule("requires-grad", r".*requires_grad.*",
        "`{call}` makes a tensor a leaf that requires gradients inside the compiled function",
        "make that tensor outside the compiled function and pass it in",
        names=r"(?P<name>requires_grad_)\b|fn=<built-in method (?P<other>\w+)"),
    BreakRule("hook", r".*[Hh]ook.*", "a hook is registered inside the compiled function",
        "register it outside the compiled function, before the first call"),
    BreakRule("hook", r"setattr\(\) on unsupported type|Attempted to represent unregistered RemovableHandle",
        "`{call}` registers a hook inside the compiled function",
        "register it outside, before the first call: `{call}`",
        text=r"RemovableHandle", source=r"(?P<name>register_\w*hook)"),
    BreakRule("tensor-attribute", r"Failed to (mutate tensor data|set tensor) attribute.*|setattr\(\) on Tensor.*",
        "`{target}` of a tensor that was made in the compiled function is assigned to",
        "write into it: `{owner_of_target}.copy_({assigned})` in the place of `{statement}`; or make a new tensor"),
    # -- kinds of tensors and modules
    BreakRule("rnn", r"Attempted to wrap RNN, GRU, or LSTM", "the module `{layer}` is not traced by default",
        "set `torch._dynamo.config.allow_rnn = True` before the first call",
        names=r"(?P<layer>(?:RNN|GRU|LSTM)\([^)]*\))"),
    BreakRule("sparse", r".*[Ss]parse.*", "a sparse tensor is used, which cannot be in a graph",
        "keep sparse tensors outside the compiled function; or make it dense: `.to_dense()`"),
    BreakRule("numpy", r".*[Nn]um[Pp]y.*|.*ndarray.*", "`{call}` is a function of NumPy that torch has nothing for",
        "use the function of torch that does the same; or call it outside the compiled function",
        names=r"(?P<name>numpy[\w.]*)"),
    BreakRule("fake-tensor", r".*([Ff]ake tensor|FakeTensor|fake impl|meta kernel).*|TypeError from user code",
        "an operator on the line has no rule for tensors without values, or is called with arguments that it refuses",
        "for an operator of your own: `@torch.library.register_fake` with a function that returns an empty result of "
        "the right shape; else check the arguments by running the line uncompiled"),
    BreakRule("object-identity",
        r".*(\bid\(\)|call_id|FakeIdVariable|compile-time-only id|object identity|hash).*|Failed to convert args/.*",
        *IDENTITY),
    # -- the whole function
    BreakRule("recompile-limit", r"Dynamo (re)?(cache|compile) limit exceeded|Dynamo recompile limit exceeded",
        "`{function}` was compiled so often that Dynamo gave up on it",
        "see `graphprobe recompiles`: remove what makes it compile again, or raise "
        "`torch._dynamo.config.recompile_limit`"),
    BreakRule("backend-failure", r"Backend compiler exception|.*BackendCompilerFailed.*",
        "the backend refused the graph",
        "see `graphprobe diagnose`, which finds the operation"),
    BreakRule("unsupported", r".*", "{title}", "{hint}"),
)
"""The first that matches counts; the last one matches everything, and gives torch's own words."""
# fmt: on
