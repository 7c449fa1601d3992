"""What a rule on graph breaks consists of."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

IDENTITY = "the identity (`id`, `hash`, `is`, `data_ptr`) of something that only exists while tracing is used"


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
        use: what the value is for, as `Line.use` says, or `conversion` in a method such as `__bool__`; empty for any.
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
    use: tuple[str, ...] = ()
    source: str = ""

    def match(self, title: str, text: str, form: str, source: str, use: str = "") -> Mapping[str, str] | None:
        """The named groups, or None where the rule does not apply."""
        if not re.fullmatch(self.title, title, re.DOTALL) or (self.form and form not in self.form):
            return None
        if self.use and use not in self.use:
            return None
        if self.source and not re.search(self.source, source):
            return None
        found = re.search(self.text, text)
        if found is None:
            return None
        more = re.search(self.names, text) if self.names else None
        groups = found.groupdict() | (more.groupdict() if more is not None else {})
        return {name: value for name, value in groups.items() if value}
