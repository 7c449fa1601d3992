"""Rules on graph breaks, second half: gradients, kinds of tensors, modules and objects, larger constructs."""

from __future__ import annotations

from graphprobe.analysis.breaks_rule import IDENTITY, BreakRule

RULES_ON_TYPES: tuple[BreakRule, ...] = (
    BreakRule(
        "higher-order-operator",
        r"torch\.(cond|scan|map|while_loop|associative_scan).*|HOP.*|.*[Hh]igher ?[Oo]rder.*|.*invoke_subgraph.*",
        "an operator that takes functions (`torch.cond` and its like) got one that it cannot take",
        "give it pure functions that take and return tensors of the same shapes, and change nothing else",
    ),
    # -- gradients, state of tensors ----------------------------------------------------------------------------------
    BreakRule(
        "backward",
        r"Unsupported Tensor\.backward\(\) call|backward\(\) with.*|using `torch\.autograd\.grad`.*|.*autograd\.grad.*",
        "`{call}` asks for gradients inside the compiled function",
        "return the loss and call backward outside; or set `torch._dynamo.config.trace_autograd_ops = True`",
        text=r"(?P<name>backward|grad)\b",
    ),
    BreakRule(
        "requires-grad",
        r".*requires_grad.*",
        "`{call}` makes a tensor a leaf that requires gradients inside the compiled function",
        "make that tensor outside the compiled function and pass it in",
        names=r"(?P<name>requires_grad_)\b|fn=<built-in method (?P<other>\w+)",
    ),
    BreakRule(
        "hook",
        r".*[Hh]ook.*",
        "a hook is registered inside the compiled function",
        "register it outside the compiled function, before the first call",
    ),
    BreakRule(
        "hook",
        r"setattr\(\) on unsupported type|Attempted to represent unregistered RemovableHandle",
        "`{call}` registers a hook inside the compiled function",
        "register it outside, before the first call: `{call}`",
        text=r"RemovableHandle",
        source=r"(?P<name>register_\w*hook)",
    ),
    BreakRule(
        "tensor-attribute",
        r"Failed to (mutate tensor data|set tensor) attribute.*|setattr\(\) on Tensor.*",
        "`{target}` of a tensor that was made in the compiled function is assigned to",
        "make a new tensor instead, or write into it: `{owner_of_target}.copy_(…)`",
    ),
    BreakRule(
        "setattr",
        r".*setattr.*|.*__class__ assignment.*|Class attribute mutation.*|.*mutat.*",
        "`{target}` is assigned to on an object whose changes Dynamo cannot follow",
        "assign it outside the compiled function, or return the value",
    ),
    BreakRule(
        "parameter",
        r".*torch\.nn\.Parameter.*|Uninitialized nn\.Module.*",
        "a parameter is made inside the compiled function",
        "make it in `__init__` of the module, or outside the compiled function",
    ),
    # -- kinds of tensors and modules ---------------------------------------------------------------------------------
    BreakRule(
        "rnn",
        r"Attempted to wrap RNN, GRU, or LSTM",
        "the module `{layer}` is not traced by default",
        "set `torch._dynamo.config.allow_rnn = True` before the first call",
        names=r"(?P<layer>(?:RNN|GRU|LSTM)\([^)]*\))",
    ),
    BreakRule(
        "sparse",
        r".*[Ss]parse.*",
        "a sparse tensor is used, which cannot be in a graph",
        "keep sparse tensors outside the compiled function, or make it dense: `.to_dense()`",
    ),
    BreakRule(
        "nested-tensor",
        r".*(NestedTensor|nested_tensor).*",
        "a nested tensor is used that cannot be in a graph",
        "use `torch.nested.nested_tensor(…, layout=torch.jagged)`, or pad",
    ),
    BreakRule(
        "numpy",
        r".*[Nn]um[Pp]y.*|.*ndarray.*",
        "`{call}` is a function of NumPy that torch has nothing for",
        "use the function of torch that does the same; or call it outside the compiled function",
        names=r"(?P<name>numpy[\w.]*)",
    ),
    BreakRule(
        "torchscript",
        r".*(TorchScript|torch\.jit|ScriptModule|wrap_jit).*",
        "the code is compiled with TorchScript already",
        "take `torch.jit.script` or `torch.jit.trace` away, and compile the Python function",
    ),
    BreakRule(
        "tensor-subclass",
        r".*(tensor subclass|as_subclass|__torch_function__|[Ss]ubclass).*",
        "a tensor subclass does something that Dynamo does not follow",
        "use plain tensors inside the compiled function, or call that method outside",
    ),
    BreakRule(
        "autograd-function",
        r".*autograd\.Function.*|.*autograd_function.*|Unsupported custom (jvp|vjp)",
        "a `torch.autograd.Function` uses something that cannot be traced",
        "keep to `ctx.save_for_backward` and static `forward` and `backward`; or register an operator with "
        "`torch.library.custom_op` and `register_autograd`",
    ),
    BreakRule(
        "fake-tensor",
        r".*([Ff]ake tensor|FakeTensor|fake impl|meta kernel).*|TypeError from user code",
        "an operator on the line has no rule for tensors without values, or is called with arguments that it refuses",
        "for an operator of your own: `@torch.library.register_fake` with a function that returns an empty result of "
        "the right shape; else check the arguments by running the line uncompiled",
    ),
    BreakRule(
        "object-identity",
        r".*(\bid\(\)|call_id|FakeIdVariable|compile-time-only id|object identity|hash).*|Failed to convert args/.*",
        IDENTITY,
        "compare values instead, or work it out outside the compiled function",
    ),
    # -- larger constructs --------------------------------------------------------------------------------------------
    BreakRule(
        "functorch",
        r".*functorch.*|.*functional_call.*",
        "`torch.compile` is used inside `vmap`, `grad` or another transform of `torch.func`",
        "put `torch.compile` outermost: compile the function that calls the transform",
    ),
    BreakRule(
        "distributed",
        r".*(P2P|async_op|torch\.distributed|FSDP|collective).*",
        "a collective operation is used in a form that cannot be in a graph",
        "use the functional collectives without `async_op=True`, or call it outside the compiled function",
    ),
    BreakRule(
        "frame-inspection",
        r".*(inspect call|traceback|vars\(\)|__annotations__).*",
        "the line looks at its own frame, which does not exist in compiled code",
        "look at it outside the compiled function",
    ),
    BreakRule(
        "recompile-limit",
        r"Dynamo (re)?(cache|compile) limit exceeded|Dynamo recompile limit exceeded",
        "`{function}` was compiled so often that Dynamo gave up on it",
        "see `graphprobe recompiles`: remove what makes it compile again, or raise "
        "`torch._dynamo.config.recompile_limit`",
    ),
    BreakRule(
        "backend-failure",
        r"Backend compiler exception|.*BackendCompilerFailed.*",
        "the backend refused the graph",
        "see `graphprobe diagnose`, which finds the operation",
    ),
    BreakRule(
        "unsupported-bytecode",
        r"Missing bytecode handler|.*CALL_INTRINSIC.*|.*UNPACK_.*|.*BUILD_.*|SEND with bad type|.*LOAD_FAST_CHECK.*",
        "the line uses a construct of Python that Dynamo does not trace",
        "write it with simpler statements",
    ),
    BreakRule(
        "reconstruction",
        r".*[Rr]econstruct.*|.*closure.*",
        "an object made in the compiled function would have to be given to Python, and Dynamo cannot build it there",
        "make it outside the compiled function, or return tensors and plain containers only",
    ),
    BreakRule(
        "unsupported-object",
        r".*(hasattr|getattr|__getitem__|__setitem__|attribute|iter|super\(|mp_subscript|sq_|nb_|tp_|len).*",
        "Dynamo does not know how objects of this type do what the line asks for",
        "use tensors, numbers, lists and dicts on this line, or move it out of the compiled function",
    ),
    BreakRule(
        "unsupported",
        r".*",
        "{title}",
        "{hint}",
    ),
)
"""The last one matches everything, and gives torch's own words."""
