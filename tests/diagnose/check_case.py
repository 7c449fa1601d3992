#!/usr/bin/env python
"""check_case.py NAME [NAME ...] [--folder planted]: is a case what it says?

Runs each one uncompiled and compiled, with its fault and, for a planted one, also without, each in a child of its own,
and compares with plain tolerances. A line of JSON per case: `ok` says that a fault shows and that without its plant it
does not. A control may differ; `ok` then only says that it ran.

Verdicts: same | same_within_tol | wrong_value | wrong_dtype | wrong_shape | wrong_stride | missing_exception |
extra_exception | crash_compile | crash_runtime | both_exception | timeout | broken
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diagnose import cases

RTOL = {"torch.float32": 1.3e-6, "torch.float64": 1e-7, "torch.float16": 1e-3, "torch.bfloat16": 1.6e-2}
ATOL = {"torch.float64": 1e-7}
HEALTHY = ("same", "same_within_tol", "both_exception")


def tensors(tree):
    import torch
    from torch.utils._pytree import tree_leaves

    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def one_call(run, args, kwargs, grad, module):
    """What a call gave: leaves of the output, the tensors among its arguments afterwards, gradients, buffers."""
    import torch
    from torch.utils._pytree import tree_leaves

    torch.manual_seed(1234)
    given = tensors((args, kwargs))
    try:
        with contextlib.nullcontext() if grad else torch.no_grad():
            out = run(*args, **kwargs)
        grads = []
        if grad:
            loss = 0.0
            for t in tensors(out):
                if t.requires_grad:
                    weight = torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64).reshape(t.shape).to(t.dtype)
                    loss = loss + (t * weight).sum()
            loss.backward()
            grads = [t.grad for t in given if t.requires_grad]
            grads += [p.grad for p in module.parameters()] if module is not None else []
            grads = [g.clone() if g is not None else None for g in grads]
        leaves = [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in tree_leaves(out)]
        strides = [t.stride() for t in tensors(out)]
        buffers = [b.detach().clone() for b in module.buffers()] if module is not None else []
        after = [t.detach().clone() for t in given]
        return {"out": leaves, "arg": after, "grad": grads, "buffer": buffers, "strides": strides}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:400]}", "trace": traceback.format_exc()}


def leaf(x, y):
    """None, or what is different."""
    import torch

    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        both_nan = isinstance(x, float) and isinstance(y, float) and x != x and y != y
        return None if both_nan or (type(x) is type(y) and x == y) else {"what": "value", "eager": str(x)[:80]}
    if x.dtype != y.dtype:
        return {"what": "dtype", "eager": str(x.dtype), "compiled": str(y.dtype)}
    if x.shape != y.shape:
        return {"what": "shape", "eager": list(x.shape), "compiled": list(y.shape)}
    wide = (lambda t: t) if x.is_complex() or not x.is_floating_point() else (lambda t: t.double())
    a, b = wide(x), wide(y)
    if torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True):
        return None
    rtol, atol = RTOL.get(str(x.dtype), 0.0), ATOL.get(str(x.dtype), 1e-5)
    if x.dtype in (torch.bfloat16, torch.float16):  # small elements inherit the rounding of large ones
        atol = max(atol, 2 * rtol * float(a[a.isfinite()].square().mean().sqrt()))
    close = torch.isclose(b, a, rtol=rtol, atol=atol, equal_nan=True)
    if not x.is_floating_point():
        close = a == b
    finite = (a.isfinite() & b.isfinite()) if a.is_floating_point() else torch.ones_like(close)
    gap = (a.double() - b.double()).abs()[finite] if not x.is_complex() else (a - b).abs()
    return {
        "what": "rounding" if bool(close.all()) else "value",
        "max_abs": float(gap.max()) if gap.numel() else 0.0,
        "bad": int((~close).sum()),
        "numel": x.numel(),
        "nonfinite": [int((~t.isfinite()).sum()) for t in (x, y)],
    }


COMPILING = ("InductorError", "BackendCompilerFailed", "TorchRuntimeError", "InternalTorchDynamoError")
RANK = ("same", "same_within_tol", "wrong_stride", "wrong_value", "wrong_dtype", "wrong_shape")
WHAT = {"rounding": 1, "value": 3, "dtype": 4, "shape": 5}


def compare(eager, compiled):
    if "error" in eager or "error" in compiled:
        if "error" in eager:
            verdict = "both_exception" if "error" in compiled else "missing_exception"
        elif any(word in compiled["trace"] for word in COMPILING):
            verdict = "crash_compile"
        else:
            verdict = "extra_exception"
        return verdict, [{"eager": eager.get("error"), "compiled": compiled.get("error")}]
    found, rank = [], 0
    for part in ("out", "arg", "grad", "buffer"):
        if len(eager[part]) != len(compiled[part]):
            return "wrong_value", [{"where": part, "what": "arity"}]
        for i, (x, y) in enumerate(zip(eager[part], compiled[part], strict=True)):
            different = leaf(x, y)
            if different:
                rank = max(rank, WHAT[different["what"]])
                found.append({"where": f"{part}[{i}]", **different})
    if eager["strides"] != compiled["strides"]:
        rank = max(rank, 2)
        found.append({"where": "strides", "eager": eager["strides"], "compiled": compiled["strides"]})
    return RANK[rank], found[:6]


def child(name, planted):
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(2)
    case = cases.load(name)
    grad, settings = getattr(case, "GRAD", False), dict(getattr(case, "COMPILE", {}))
    plant = case.plant if planted else contextlib.nullcontext

    def calls(wrap):
        fn, args, kwargs = case.make()
        run, module = wrap(fn), fn if isinstance(fn, torch.nn.Module) else None
        results = []
        for i, (a, k) in enumerate([(args, kwargs), *(case.extra_calls() if hasattr(case, "extra_calls") else [])]):
            if i and hasattr(case, "between"):
                case.between(fn, i)
            results.append(one_call(run, a, k, grad, module))
        return results

    eager = calls(lambda fn: fn)
    print("COMPILING", flush=True)
    with plant():
        torch._dynamo.reset()
        compiled = calls(lambda fn: torch.compile(fn, **settings))
    verdicts = [compare(a, b) for a, b in zip(eager, compiled, strict=True)]
    wrong = [v for v, _ in verdicts if v not in HEALTHY]
    verdict = wrong[0] if wrong else max((v for v, _ in verdicts), key=HEALTHY.index)
    print("JSON " + json.dumps({"verdict": verdict, "calls": [v for v, _ in verdicts], "detail": verdicts}))


def run(path, planted, timeout):
    """One run, in a child that a fork makes: torch is imported once for all, and plants must work there."""
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()
                log = os.open(output, os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                child(path, planted)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        done = 0
        while not done and time.time() - start < timeout:
            time.sleep(0.1)
            done, status = os.waitpid(pid, os.WNOHANG)
        if not done:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"verdict": "timeout", "seconds": timeout}
        text = output.read_text(errors="replace")
    seconds = round(time.time() - start, 1)
    found = [line for line in text.splitlines() if line.startswith("JSON ")]
    if found and status == 0:
        return {**json.loads(found[-1][5:]), "seconds": seconds}
    verdict = "crash_runtime" if "COMPILING" in text else "broken"
    code = os.waitstatus_to_exitcode(status)
    return {"verdict": verdict, "seconds": seconds, "rc": code, "stderr": text.strip().splitlines()[-4:]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="*")
    parser.add_argument("--folder")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401

    paths = [cases.path(options.folder, n) for n in cases.names(options.folder)] if options.folder else []
    paths += [Path(cases.load(n).__file__) for n in options.name]
    bad = 0
    for path in paths:
        case = cases.load(path)
        ill = run(path, hasattr(case, "plant"), options.timeout)
        line = {"name": path.stem, "expect": case.EXPECT["kind"], "verdict": ill["verdict"], "seconds": ill["seconds"]}
        ok = ill["verdict"] not in (*HEALTHY, "broken", "timeout")
        if case.EXPECT["kind"] == "control":
            ok = ill["verdict"] not in ("broken", "timeout", "crash_compile", "crash_runtime", "extra_exception")
        if hasattr(case, "plant"):
            well = run(path, False, options.timeout)
            line["without"] = well["verdict"]
            ok = ok and well["verdict"] in HEALTHY
            if options.verbose or well["verdict"] not in HEALTHY:
                line["detail_without"] = well.get("detail", well.get("stderr"))
        if options.verbose or not ok:
            line["detail"] = ill.get("detail", ill.get("stderr"))
        line["calls"] = ill.get("calls")
        bad += not ok
        print(json.dumps({"ok": ok, **line}), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
