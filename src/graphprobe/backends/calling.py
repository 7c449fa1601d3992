"""How every debug backend takes its options: as keywords, and as `torch.compile(options={…})` hands them over."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from graphprobe.errors import GraphprobeWarning, UsageError

BackendFunction = Callable[..., Any]


def accepted_options(function: BackendFunction) -> dict[str, bool]:
    """The keyword-only parameters of a backend, each with whether it must be given."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}


def debug_backend(function: BackendFunction) -> BackendFunction:
    """A backend `(gm, example_inputs, *, options…)` that names in a warning what it was given and does not know.

    `options`, a dict, is what `torch.compile(options=…)` passes; it is read as keywords.

    Raises:
        UsageError: an option that must be given is missing.
    """
    accepted = accepted_options(function)
    name = function.__name__.removesuffix("_backend")  # as it is registered

    @functools.wraps(function)
    def backend(gm: Any, example_inputs: Any, **given: Any) -> Any:
        options = given.pop("options", None) or {}
        given = {**given, **options}
        ignored = {option: value for option, value in given.items() if option not in accepted}
        if ignored:
            listed = ", ".join(f"{option}={value!r}" for option, value in ignored.items())
            warnings.warn(f"backend {name} ignores {listed}", GraphprobeWarning, stacklevel=2)
        missing = [option for option, required in accepted.items() if required and option not in given]
        if missing:
            given_so = f"graphprobe.backends.get({name!r}, {missing[0]}=…)"  # torch tells the message alone
            raise UsageError(f"backend {name} needs {', '.join(missing)}, as in {given_so}")
        return function(gm, example_inputs, **{option: given[option] for option in accepted if option in given})

    return backend
