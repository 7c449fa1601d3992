"""Results that show themselves: `print` gives the text of the terminal, a notebook a card with the verdict first."""

from __future__ import annotations


class Shown:
    """Mixin of a result. The faces are in a room behind that of the results, and the package hands them over."""

    __slots__ = ()

    def __str__(self) -> str:
        from graphprobe import _text_of

        text: str = _text_of(self)
        return text

    def _repr_html_(self) -> str:
        from graphprobe import _html_of

        text: str = _html_of(self)
        return text
