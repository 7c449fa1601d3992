"""Texts as they can be posted: without the folders of this machine, and logs without what nobody reads."""

from __future__ import annotations

import io
import re
import tokenize

LOG_LINES = 40

FIRST = "(most recent call first)"
"""In what `faulthandler` prints above the frames of each thread; the main thread comes last."""

PATH = re.compile(r"(?:file://|(?<![\w.:/<])|(?<=-[IL]))(?:/[\w.+@~%-]+){2,}/?")
INSTALLED = re.compile(r".*/(?:(?:site|dist)-packages|lib/python3\.\d+)/(?=.)")
HOME = re.compile(r"/(?:home|Users)/[^/]+/?")
CACHE = re.compile(r"\btorchinductor_[\w.-]+")

ADVICE = re.compile(
    r"\s*(?:Set TORCHDYNAMO_VERBOSE=1|Set TORCH_LOGS=|For even more developer context|You can suppress this exception"
    r"|import torch\._dynamo$|torch\._dynamo\.config\.suppress_errors)"
)
"""What torch says under every error."""

OWN_FRAME = re.compile(r'^  File "[^"\n]*/graphprobe/[^"\n]+", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)
CARETS = re.compile(r"^ +[~^]+\n", re.MULTILINE)
"""Parts of a traceback that say nothing of the fault."""

RAISED = re.compile(r"(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|Failed|Unsupported)\b")
ERROR = re.compile(r":\d+(?::\d+)?: (?:fatal )?error: ")
AROUND = re.compile(r": (?:In (?:\w+ )?(?:function|constructor|lambda)|At global scope)")
OTHER = re.compile(r": (?:warning|note): |^In file included from |In instantiation of|required from|^\s+from ")


def scrubbed(text: str) -> str:
    """A text in which a path of this machine is its last part, or what lies in an installed package: `torch/…`."""
    return CACHE.sub("torchinductor", PATH.sub(lambda match: _short(match.group()), text))


def scrubbed_code(code: str) -> str:
    """The same of a script: only comments and strings change, so that it still runs."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return scrubbed(code)
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in reversed(tokens):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
            code = code[:begin] + scrubbed(code[begin:end]) + code[end:]
    return code


def trimmed(log: str) -> str:
    """The part of a log that a person reads: of a C++ compiler its errors, else the last lines; paths are scrubbed."""
    log = OWN_FRAME.sub("", CARETS.sub("", log))
    if FIRST in log:
        head, _, others = log.partition("Thread ")
        log = f"{head}Thread {others.rpartition('Thread ')[2]}"
    lines = [line.rstrip() for line in log.strip().splitlines() if not ADVICE.match(line)]
    found = _compiler_errors(lines)
    if found:
        head = next((line for line in lines if RAISED.match(line)), "")
        lines = [*([head, ""] if head else []), *found]
        if len(lines) > LOG_LINES:
            lines = [*lines[:LOG_LINES], f"… {len(lines) - LOG_LINES} more lines"]
    elif len(lines) > LOG_LINES and FIRST in log:
        lines = [*lines[:LOG_LINES], f"… {len(lines) - LOG_LINES} more lines"]
    elif len(lines) > LOG_LINES:
        lines = [f"… {len(lines) - LOG_LINES} lines before", *lines[-LOG_LINES:]]
    return re.sub(r"\n{3,}", "\n\n", scrubbed("\n".join(lines))).strip("\n")


def _compiler_errors(lines: list[str]) -> list[str]:
    """The errors among what a C++ compiler says, each with its function and the lines that it quotes."""
    kept: list[str] = []
    inside = False
    for i, line in enumerate(lines):
        if ERROR.search(line):
            if i and AROUND.search(lines[i - 1]):
                kept.append(lines[i - 1])
            inside = True
        elif OTHER.search(line) or AROUND.search(line) or not line.strip():
            inside = False
        if inside:
            kept.append(line)
    return kept


def _short(path: str) -> str:
    path = path.removeprefix("file://")
    if HOME.fullmatch(path):
        return "~"
    installed = INSTALLED.sub("", path)
    return installed if installed != path else path.rstrip("/").rpartition("/")[2]
