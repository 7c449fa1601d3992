"""Content of a report as HTML: a template for each kind of it. Every text is escaped."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, StrictUndefined, Template

from graphprobe.report import document as d
from graphprobe.report.document import Content

_TEMPLATES: dict[type, str] = {
    str: "{{ c }}",
    tuple: "{% for one in c %}{{ one | show }}{% endfor %}",
    list: "{% for one in c %}{% if one is block %}{{ one | show }}{% else %}<p>{{ one | show }}</p>{% endif %}\n"
    "{% endfor %}",
    d.Code: '{% if c.text %}<code{% if c.muted %} class="muted"{% endif %}>{{ c.text }}</code>{% endif %}',
    d.Prose: "{% set parts = c.text.split('`') %}{% if parts | length is even %}{{ c.text }}{% else %}"
    "{% for part in parts %}{% if loop.index is even %}<code>{{ part }}</code>{% else %}{{ part }}{% endif %}"
    "{% endfor %}{% endif %}",
    d.Muted: '{% if c.content %}<span class="muted">{{ c.content | show }}</span>{% endif %}',
    d.SourcePlace: '{% if c.anchor %}<a class="src" href="#{{ c.anchor }}"><code>{{ c.text }}</code></a>'
    "{% elif c.text %}<code>{{ c.text }}</code>{% endif %}",
    d.Jump: '<a href="#{{ c.to }}">{{ c.text }}</a>',
    d.Badge: '<span class="badge {{ c.tone }}"><span class="sign" aria-hidden="true">{{ signs[c.tone] }}</span>'
    "{{ c.word }}</span>",
    d.Excerpt: '{% if c.text %}<pre class="culprit"><code>{{ c.text }}</code></pre>{% endif %}',
    d.Command: '<div class="command" data-copy><code>{{ c.text }}</code></div>',
    d.Note: '{% if c.content %}<p class="note">{{ c.content | show }}</p>{% endif %}',
    d.Facts: """{% if c.large %}<dl class="tiles">
{% for label, value in c.rows %}<div><dt>{{ label }}</dt><dd>{{ value | show }}</dd></div>
{% endfor %}</dl>{% elif c.rows %}<dl class="known">
{% for label, value in c.rows %}<dt>{{ label }}</dt><dd>{{ value | show }}</dd>
{% endfor %}</dl>{% endif %}""",
    d.Bullets: """{% if c.entries %}{% if c.title %}<h3>{{ c.title }}</h3>{% endif %}
<ul class="checks">
{% for one in c.entries %}<li>{% if c.tone %}{{ badge(c.tone, "") | show }} {% endif %}{{ one | show }}</li>
{% endfor %}</ul>{% endif %}""",
    d.Grid: """<div class="wrap"><table><thead><tr>
{% for name in c.head %}<th scope="col"{% if loop.index0 in c.numbers %} class="n"{% endif %}>{{ name }}</th>
{% endfor %}
</tr></thead><tbody>
{% for row in c.rows %}<tr>
{% for cell in row %}<td{% if loop.index0 in c.numbers %} class="n"{% endif %}>{{ cell | show }}</td>
{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% if c.left %}<p class="note">{{ c.left }}</p>{% endif %}""",
    d.Card: '<article class="card"><h3>{{ c.title | show }}</h3>{{ c.body | show }}</article>',
    d.Cards: '<div class="cards">{% for card in c.cards %}{{ card | show }}{% endfor %}</div>',
    d.Folded: "<details><summary>{{ c.title }}</summary>{{ c.body | show }}</details>",
    d.Listing: '<div class="scroll fixed" tabindex="0" role="region" aria-label="{{ c.name }}"><pre>{{ c.text }}</pre>'
    "</div>",
}


class Html(str):
    """Text that is HTML already, for what is drawn: it is put in as it is, all other text is escaped."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def rendered(content: Content) -> Html:
    """The HTML of any content."""
    if isinstance(content, Html):
        return content
    return html(_TEMPLATES[type(content)], c=content)


def html(text: str, /, **values: object) -> Html:
    """The HTML of a Jinja template. Every value is escaped unless it is `Html`; a name that is missing is an error.

    The filter `show` renders content.
    """
    return Html(template(text).render(**values))


@cache
def template(text: str) -> Template:
    """A template whose values are escaped; `show` makes HTML of content."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters["show"] = rendered
    environment.tests["block"] = lambda one: isinstance(one, d.Block | Html | list)
    environment.globals |= {"signs": d.SIGNS, "badge": d.Badge}
    return environment.from_string(text)
