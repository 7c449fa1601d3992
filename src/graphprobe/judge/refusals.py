"""What torch documents that it does not compile, and the remedy: such a refusal is no fault of a stage."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from graphprobe.engine.naming import is_library
from graphprobe.errors import Raised


@dataclass(frozen=True)
class Refusal:
    """One kind of program that torch does not compile.

    Attributes:
        types: what the exception's class may be called, as a pattern.
        text: what its message says, as a pattern.
        remedy: what to do, as a sentence.
    """

    types: str
    text: str
    remedy: str


REFUSALS = (
    Refusal(
        r"RuntimeError$",
        r"does not currently support double backward",
        "Take the second derivative in the uncompiled function, or compile the function that takes both.",
    ),
    Refusal(
        r"\.(UncapturedHigherOrderOpError)$",
        r"",
        "Write the body of the operator so that it can be traced in one graph: no side effects, no graph breaks.",
    ),
    Refusal(
        r"\.(FailOnRecompileLimitHit|RecompileLimitExceeded)$",
        r"",
        "Mark what changes as dynamic, or raise the limit; `graphprobe recompiles` says why.",
    ),
    Refusal(
        r"",
        r"(no fake impl|no meta kernel|meta kernel|fake impl(ementation)?\b.*not|There was no fake impl|"
        r"could not run '[^']+' with arguments from the 'Meta' backend|UnsupportedOperatorException|"
        r"unsupported operator: )",
        "Register what the operator's result looks like with torch.library.register_fake.",
    ),
    Refusal(
        r"\.(Unsupported|UserError)$",
        r"",
        "Leave out fullgraph=True, or remove the graph break; `graphprobe explain` names it and what to write instead.",
    ),
)


def user_line(message: str) -> str | None:
    """`file:line` of the user's innermost code that torch's message ends with, or else a library's; or else None."""
    *_, stack = ["", *re.split(r"from user code:|Found from ?:", message)[1:]]
    found = re.findall(r'File "([^"]+)", line (\d+)', stack)
    own = [place for place in found if not is_library(place[0])]
    return ":".join((own or found)[-1]) if found else None


def refusal_of(raised: Raised) -> str | None:
    """Torch's words and the remedy, where the exception is a refusal that torch documents; else None."""
    for refusal in REFUSALS:
        if re.search(refusal.types, raised.type) and re.search(refusal.text, raised.message, re.IGNORECASE):
            words = textwrap.shorten(" ".join(raised.message.strip().splitlines()[:3]), 300, placeholder=" …").rstrip(
                "."
            )
            return f"torch does not compile this: {words}. {refusal.remedy}"
    return None
