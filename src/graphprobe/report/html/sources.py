"""The lines of code that a report links to, with a few lines around each, so that the file stands alone."""

from __future__ import annotations

import re
import site
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from graphprobe.report.document import Badge, Code, Content, Note, Section, SourcePlace, counted
from graphprobe.report.html.render import Html, html
from graphprobe.store.files import read_file

MOST_LETTERS = 400
"""Of a line that is shown; what stands in one line of a file is sometimes a whole file."""

AROUND = 6
"""Lines shown before and after one that is linked to."""

MOST_LINES = 600
"""Linked lines that get a snippet; the page says how many more there are."""

LARGEST = 16 << 20
"""Bytes of a file that lines are shown of."""

MOST_ELSEWHERE = 10
"""Files that are named because their lines are not shown."""

PROGRAM_TEXT = frozenset(
    {".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".ipynb", ".pxd", ".py", ".pyi", ".pyw", ".pyx"}
)
"""Endings of files that are shown without having been asked for: what a dump names may be any file of the machine."""

_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d{1,9})(?: in .*)?")

_FILE = """<figure class="source" aria-labelledby="{{ id }}-name">
<figcaption id="{{ id }}-name"><code>{{ name }}</code> {{ changed | show }}</figcaption>
<div class="scroll" tabindex="0" role="region" aria-label="Source of {{ name }}">{% for block in blocks %}
<pre>{% for number, text, anchor in block %}
{% if anchor %}<span class="line hit" id="{{ anchor }}" tabindex="-1"><span class="no">{{ number }}</span>{{ text }}
</span>{% else %}<span class="line"><span class="no">{{ number }}</span>{{ text }}
</span>{% endif %}
{% endfor %}</pre>{% endfor %}</div></figure>
"""


class Sources:
    """Gathers `file:line` places while sections are built, and makes the last section of them.

    The places come from files that anybody may have written, and the report may be sent on. So only files are shown
    that lie in a folder which whoever makes the report has chosen: the one it is made in, the Python installation, and
    those given for this. What the files say of themselves, such as the folder that the program ran in, allows nothing.
    """

    def __init__(
        self,
        *roots: Path,
        given: Sequence[Path] = (),
        recorded: Path | None = None,
        since_ns: int | None = None,
    ) -> None:
        """What is at hand.

        Args:
            roots: folders whose program text may be shown.
            given: folders of which any file may be shown.
            recorded: where relative paths are sought first, as the files say; it allows nothing.
            since_ns: when the lines were recorded, wall clock; the page says of a file that was written to since.
        """
        self._trusted = [root.resolve() for root in roots]
        self._given = [root.resolve() for root in given]
        self._roots = [*([recorded] if recorded is not None else []), *roots, *given]
        self.elsewhere: list[Path] = []
        """Files that are there, and whose lines are not shown because nobody allowed it."""
        self._since_ns = since_ns
        self._files: dict[str, Path | None] = {}
        self._texts: dict[Path, list[str]] = {}
        self._lines: dict[Path, dict[int, str]] = {}
        self._anchors: dict[str, str] = {}
        self._long: dict[str, str] = {}
        self._files_long: dict[str, str] = {}
        self._left = 0

    def short(self, place: str | None) -> str:
        """`file:line` as short as a reader needs it: below a root, or below the folder that packages are installed in.

        The short form can be linked like the long one. Empty for no place.
        """
        if not place:
            return ""
        found = _PLACE.fullmatch(place)
        if found is None:
            return place
        file = self._short(Path(found["file"]))
        self._files_long.setdefault(file, found["file"])
        short = f"{file}:{found['line']}"
        self._long.setdefault(short, f"{found['file']}:{found['line']}")
        return short

    def link(self, source: str | None) -> str:
        """The anchor of the snippet of `file:line`, without `#`; empty where the file or the line is not at hand."""
        if not source:
            return ""
        if source not in self._anchors:
            self._anchors[source] = self._anchor(source)
        return self._anchors[source]

    def linked(self, place: str | None) -> str:
        """The place in short, whose line the report will show."""
        short = self.short(place)
        self.link(short)
        return short

    def place(self, source: str | None) -> SourcePlace:
        """The place in short, with the anchor of its snippet and its line as far as they are at hand."""
        short = self.linked(source)
        return SourcePlace(short, self.link(short), self.line(short))

    def line(self, source: str | None) -> str:
        """The text of the line, stripped; empty where it is not at hand."""
        path, number = self._at(source or "")
        return self._text(path)[number - 1].strip() if path is not None else ""

    def text(self, file: str) -> list[str]:
        """The lines of a file, named in short or in full; none where it is not at hand."""
        path = self._path(self._files_long.get(file, file))
        return self._text(path) if path is not None else []

    @property
    def anchors(self) -> dict[str, str]:
        """Every place that has a snippet, with its anchor: what the page's script links by."""
        return {source: anchor for source, anchor in self._anchors.items() if anchor}

    def section(self) -> Section | None:
        """The snippets, a figure for each file; None where there are none."""
        if not self._lines and not self.elsewhere:
            return None
        body: list[Content] = [self._figure(index, path) for index, path in enumerate(self._lines)]
        if self._left:
            body.append(f"{self._left} more lines are named in this report and not shown.")
        if count := len(self.elsewhere):
            named = self.elsewhere[:MOST_ELSEWHERE]
            paths = [part for path in named for part in (", ", Code(str(path)))][1:]
            more = " and others" if count > len(named) else ""
            head = f"{count} more {'file is' if count == 1 else 'files are'} named in this report and not shown: "
            tail = ". A report shows program text below the folder that it is made in and of the Python installation; "
            option = Code("graphprobe report --source-root FOLDER")
            body.append(Note((head, *paths, more, tail, option, " adds a folder.")))
        return Section("sources", "Source lines", body=body, summary=counted(len(self._lines), "file"))

    def _anchor(self, source: str) -> str:
        path, number = self._at(source)
        if path is None:
            return ""
        known = self._lines.get(path, {})
        if number not in known and sum(map(len, self._lines.values())) >= MOST_LINES:
            self._left += 1
            return ""
        lines = self._lines.setdefault(path, {})
        index = list(self._lines).index(path)
        return lines.setdefault(number, f"src-{index}-{number}")

    def _at(self, source: str) -> tuple[Path | None, int]:
        """File and number of a line that is at hand; no file where it is not."""
        found = _PLACE.fullmatch(self._long.get(source, source))
        path = self._path(found["file"]) if found else None
        number = int(found["line"]) if found else 0
        return (path, number) if path is not None and 0 < number <= len(self._text(path)) else (None, 0)

    def _path(self, file: str) -> Path | None:
        if file not in self._files:
            candidates = [Path(file)] if Path(file).is_absolute() else [root / file for root in self._roots]
            there = [path.resolve() for path in candidates if _is_file(path)]
            self._files[file] = next(filter(self._may_be_shown, there), None)
            if there and self._files[file] is None and there[0] not in self.elsewhere:
                self.elsewhere.append(there[0])
        return self._files[file]

    def _may_be_shown(self, path: Path) -> bool:
        if any(path.is_relative_to(root) for root in self._given):
            return True
        trusted = [*self._trusted, *_installation()]
        return path.suffix.lower() in PROGRAM_TEXT and any(path.is_relative_to(root) for root in trusted)

    def _text(self, path: Path) -> list[str]:
        if path not in self._texts:
            try:
                self._texts[path] = read_file(path, most_bytes=LARGEST).decode("utf-8", "replace").splitlines()
            except OSError:
                self._texts[path] = []
        return self._texts[path]

    def _figure(self, index: int, path: Path) -> Html:
        text, hits = self._text(path), self._lines[path]
        blocks: list[list[tuple[int, str, str]]] = []
        last = 0
        for hit in sorted(hits):
            first = max(hit - AROUND, 1)
            if not blocks or first > last + 1:
                blocks.append([])
            for number in range(max(first, last + 1), min(hit + AROUND, len(text)) + 1):
                blocks[-1].append((number, cut(text[number - 1]), hits.get(number, "")))
                last = number
        moved = self._since_ns is not None and path.stat().st_mtime_ns > self._since_ns
        changed = Badge("warn", "written to since: lines may have moved") if moved else ""
        return html(_FILE, id=f"srcfile-{index}", name=self._short(path), blocks=blocks, changed=changed)

    def _short(self, path: Path) -> str:
        for root in self._roots:
            if path.is_relative_to(root):
                path = path.relative_to(root)
        parts = path.parts
        packages = [index for index, part in enumerate(parts) if part in ("site-packages", "dist-packages")]
        return str(Path(*parts[packages[-1] + 1 :])) if packages and packages[-1] + 1 < len(parts) else str(path)


@cache
def _installation() -> tuple[Path, ...]:
    """The folders of Python's own library and of installed packages."""
    paths = sysconfig.get_paths()
    names = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(Path(name).resolve() for name in [*names, *site.getsitepackages(), site.getusersitepackages()])


def cut(line: str) -> str:
    """A line, no longer than `MOST_LETTERS`."""
    return line if len(line) <= MOST_LETTERS else f"{line[:MOST_LETTERS]} …"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, a folder that may not be read
        return False
