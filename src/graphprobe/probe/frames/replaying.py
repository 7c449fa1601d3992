"""Traces a recorded frame again and compares how it fails. The part between the marks is copied into `replay.py`."""

from __future__ import annotations

# <replaying>
import argparse
import contextlib
import importlib
import json
import re
import sys
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphprobe.engine.replay import Undecided, say
from graphprobe.program_text.loading import ProgramFile

MAIN, FUNCTION, DYNAMIC = "__main__", "<function>", "<dynamic>"
DYNAMO, SETTINGS, CONVERT_FRAME = "torch._dynamo", "torch._dynamo.config", "torch._dynamo.convert_frame"
REGISTRY = "torch._dynamo.backends.registry"
REPRODUCED, GONE, UNDECIDED = 1, 0, 125
FROM_USER = re.compile(r'File "([^"\n]+)", line (\d+), in ([^\n]+)')


class Traced(BaseException):
    """Ends a replay as soon as the frame was traced: nothing of the program is run."""


class Suppressed(BaseException):
    """Carries out an error that torch would keep to itself."""


@contextlib.contextmanager
def configured(state: Mapping[str, Any], device: str | None) -> Iterator[None]:
    """torch as it was when the frame failed."""
    config = importlib.import_module(SETTINGS)
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in state["dynamo"].items():
            try:
                before = getattr(config, name)
                setattr(config, name, value)
            except (AttributeError, TypeError) as error:
                raise Undecided(f"this torch does not take the setting {SETTINGS}.{name} = {value!r}") from error
            stack.callback(setattr, config, name, before)
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(getattr(torch, state["default_dtype"]))
        # What is so already is not set: torch's caches would have other keys.
        if state["float32_matmul_precision"] != (precision := torch.get_float32_matmul_precision()):
            stack.callback(torch.set_float32_matmul_precision, precision)
            torch.set_float32_matmul_precision(state["float32_matmul_precision"])
        if state["deterministic"] != (deterministic := torch.are_deterministic_algorithms_enabled()):
            stack.callback(torch.use_deterministic_algorithms, deterministic)
            torch.use_deterministic_algorithms(state["deterministic"], warn_only=True)
        if state["default_device"] != "cpu":
            stack.enter_context(torch.device(device or state["default_device"]))
        for kind, dtype in state["autocast"].items():
            stack.enter_context(torch.autocast(kind, getattr(torch, dtype)))
        stack.enter_context(torch.set_grad_enabled(state["grad_enabled"]))
        if state["inference_mode"]:
            stack.enter_context(torch.inference_mode())
        yield


def values_of(program: ProgramFile, *, in_place: bool = False) -> dict[str, Any]:
    """What a text leaves, made outside of the modes that are on: each of its values says all of itself."""
    with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
        return program.run(in_place=in_place)


def arguments_of(known: Mapping[str, Any], code: types.CodeType) -> tuple[list[Any], dict[str, Any]]:
    """The call that begins the frame, from its local names."""
    names = code.co_varnames[: code.co_argcount]
    count = code.co_argcount + code.co_kwonlyargcount
    named = code.co_varnames[code.co_argcount : count]
    lacking = [name for name in (*names, *named) if name not in known]
    if lacking:
        raise Undecided(f"{code.co_qualname} now takes {', '.join(lacking)}, which was not recorded")
    args = [known[name] for name in names]
    kwargs = {name: known[name] for name in named}
    rest = list(code.co_varnames[count:])
    if code.co_flags & 0x04:
        args += known.get(rest.pop(0), ())
    if code.co_flags & 0x08:
        kwargs |= known.get(rest.pop(0), {})
    return args, kwargs


def backend_of(name: str | None) -> Any:
    """The backend of that name; without one, what ends the replay before the graph is run."""
    if name is None:

        def ends_here(*_: Any) -> Any:
            raise Traced

        return lambda graph, example_inputs: ends_here
    known = importlib.import_module(REGISTRY).list_backends(exclude_tags=())
    if name not in known:
        raise Undecided(f"there is no backend {name!r}; known: {', '.join(sorted(known))}")
    return name


@contextlib.contextmanager
def watched(code: types.CodeType, *, keep: bool) -> Iterator[list[BaseException | None]]:
    """Lists what became of each conversion of the code: None or the error, which is carried out if `keep`."""
    module: Any = importlib.import_module(CONVERT_FRAME)
    seen: list[BaseException | None] = []
    original = getattr(module, "_compile", None)
    if original is None:
        yield [None]
        return

    def convert(converted: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(converted, *args, **kwargs)
        except Exception as error:
            if converted is code:
                seen.append(error)
                if keep:
                    raise Suppressed from error
            raise
        if converted is code:
            seen.append(None)
        return result

    module._compile = convert
    try:
        yield seen
    finally:
        module._compile = original


def error_of(function: Any, call: tuple[list[Any], dict[str, Any]], fullgraph: bool, keep: bool, backend: Any) -> Any:
    """What tracing the function raises, None when it does not fail."""
    with watched(function.__code__, keep=keep) as seen:
        try:
            compiled: Any = torch.compile(function, fullgraph=fullgraph, backend=backend)
            compiled(*call[0], **call[1])
        except Traced:
            return None
        except Suppressed as carried:
            return carried.__cause__
        except Exception as error:
            return error
    if not seen:
        raise Undecided("Dynamo did not trace the function: it found no tensor in its arguments")
    return None


def user_line(error: BaseException) -> tuple[str, int, str] | None:
    """File, line and function of the innermost line of the program, as torch tells it."""
    stack = getattr(error, "real_stack", None)
    if stack:
        return stack[-1].filename, stack[-1].lineno, stack[-1].name
    found = FROM_USER.findall(str(error).partition("from user code:")[2])
    return (found[-1][0], int(found[-1][1]), found[-1][2].strip()) if found else None


def essence(message: str) -> str:
    """A message without what differs from process to process: addresses, folders, long numbers, the stack."""
    text = re.split(r"\n+from user code:|\n+Set TORCHDYNAMO_VERBOSE|\n+Last frame execution written", message)[0]
    text = re.sub(r"0x[0-9a-fA-F]+", "0x", text)
    text = re.sub(r"(?:/[^\s\"':,()<>]+)*/([^/\s\"':,()<>]+)", r"\1", text)
    return " ".join(re.sub(r"\d{9,}", "N", text).split())


def in_own_files(message: str, program: ProgramFile) -> str:
    """A message with lines of the text as lines of the program's own files."""

    def own(found: re.Match[str]) -> str:
        place = program.place_of(int(found[2]))
        return found[0] if place is None else f"{place[0]}{found[1]}{place[1]}"

    return re.sub(re.escape(str(program.path)) + r"(:|\", line )(\d+)", own, message)


def compare(doc: Mapping[str, Any], error: BaseException, program: ProgramFile) -> list[str]:
    """How the failure differs from the recorded one, one line each."""
    recorded, found = doc["failure"], []
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    if kind != recorded["type"]:
        found.append(f"type: {kind}, recorded {recorded['type']}")
    was, now = essence(recorded["message"]), essence(in_own_files(str(error), program))
    if was != now:
        found.append(f"message: {now[:200]!r}, recorded {was[:200]!r}")
    line, stack = user_line(error), recorded["stack"]
    if stack and line is None:
        found.append(f"line: none, recorded {stack[-1]['file']}:{stack[-1]['line']}")
    elif stack and line is not None:
        place = program.place_of(line[1]) if line[0] == str(program.path) else line[:2]
        expected = (stack[-1]["file"], stack[-1]["line"])
        same = place is None or (Path(place[0]).name, place[1]) == (Path(expected[0]).name, expected[1])
        if not same or line[2] != stack[-1]["function"]:
            shown = (*(place or line[:2]), line[2], *expected, stack[-1]["function"])
            found.append("line: {}:{} in {}, recorded {}:{} in {}".format(*shown))
    return found


def result_of(
    verdict: str, text: str, caveats: Sequence[str] = (), differences: Sequence[str] = (), error: Any = None
) -> dict[str, Any]:
    return {"verdict": verdict, "text": text, "caveats": caveats, "differences": differences, "error": error}


def verdict_of(doc: Mapping[str, Any], folder: Path, options: Any) -> dict[str, Any]:
    """Rebuilds the frame, traces it, and says what became of it."""
    program = ProgramFile(folder / "program.py", folder / "values.safetensors", doc["zeros"], options.device)
    with configured(doc["settings"], options.device):
        known = values_of(program)
        function = known[FUNCTION]
        call = arguments_of(known, function.__code__)
        for tensor, dims in known[DYNAMIC]:
            for dim in dims:
                importlib.import_module(DYNAMO).maybe_mark_dynamic(tensor, dim)
        error = error_of(function, call, doc["fullgraph"], doc["failure"]["suppressed"], backend_of(options.backend))
    caveats = [f"{p['path']} ({p['type']}): {p['reason']}" for p in doc["placeholders"]] + list(doc["notes"])
    if error is None:
        lost = ", but not all of it was recorded" if doc["placeholders"] else ""
        return result_of("undecided" if lost else "gone", f"the frame is traced without an error{lost}", caveats)
    line = user_line(error)
    facts = {
        "type": f"{type(error).__module__}.{type(error).__qualname__}",
        "message": str(error),
        "line": None if line is None else {"file": line[0], "line": line[1], "function": line[2]},
    }
    different = compare(doc, error, program)
    verdict, how = ("undecided", ", but not") if different else ("reproduced", "")
    return result_of(verdict, f"the frame fails{how} as it was recorded", caveats, different, facts)


def replay_frame(folder: Path, argv: Sequence[str] | None = None) -> int:
    """`replay.py` from its command line to its exit code: 1 the same failure, 0 none, 125 could not decide."""
    parser = argparse.ArgumentParser(description="Traces the recorded frame again. Exits 1 if it fails as recorded.")
    parser.add_argument("--backend", metavar="NAME", help="compile with this backend and run; else only trace")
    parser.add_argument("--device", metavar="DEVICE", help="put all tensors there, e.g. cpu")
    parser.add_argument("--import", metavar="MODULE", dest="modules", action="append", default=[], help="import first")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result")
    options = parser.parse_args(argv)
    begun, main = time.perf_counter(), sys.modules.get(MAIN)
    try:
        doc = json.loads((folder / "record.json").read_text("utf-8"))
        for module in options.modules:
            importlib.import_module(module)
        result = verdict_of(doc, folder, options)
    except Undecided as reason:
        result = result_of("undecided", str(reason))
    except Exception as error:
        result = result_of("undecided", f"the frame could not be rebuilt: {type(error).__name__}: {error}")
    finally:
        if main is not None:
            sys.modules[MAIN] = main
    result["seconds"] = round(time.perf_counter() - begun, 3)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    tell(result)
    return {"reproduced": REPRODUCED, "gone": GONE}.get(result["verdict"], UNDECIDED)


def tell(result: Mapping[str, Any]) -> None:
    error = result["error"]
    if error is not None:
        say(f"{error['type']}: {error['message'].rstrip()}\n")
    for line in result["differences"]:
        say(f"different {line}")
    for line in result["caveats"]:
        say(f"not recorded: {line}")
    say({"reproduced": "REPRODUCED", "gone": "GONE"}.get(result["verdict"], "CANNOT DECIDE") + f": {result['text']}")


# </replaying>
