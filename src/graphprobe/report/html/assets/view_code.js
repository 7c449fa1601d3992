// Source, FX graph and kernel side by side; what belongs together is marked in all of them at once.
// data: [{title, panes: [{title, name, lines: [[number, text, place]], left}], links: [{label, marks: [[index]]}]}]
GP.views.code = (root, graphs, gp) => {
  const holder = gp.el("div", { class: "code-graph" });
  const MOST_PAINTED = 2000, WHOLE = 70, AROUND = 8; // lines: of a text in colours; of one that is printed whole, or around its marks
  let number = 0;

  // Of a long text paper has the marked lines and what is around them, or its beginning.
  const onPaper = (lines, marks) => {
    const near = new Set(lines.length <= WHOLE ? lines.keys() : marks.length ? [] : Array(WHOLE).keys());
    for (const mark of marks) for (let index = mark - AROUND; index <= mark + AROUND; index++) near.add(index);
    lines.forEach((line, index) => {
      line.classList.toggle("far", !near.has(index));
      line.classList.toggle("gap", near.has(index) && index > 0 && !near.has(index - 1));
    });
  };

  const pane = (one, choose) => {
    const lines = one.lines.map(([label, text, place], index) => {
      const at = place ? text.indexOf(place) : -1;
      const paint = one.lines.length <= MOST_PAINTED ? gp.paint : (plain) => plain;
      const content = at < 0 ? paint(text || " ") : [text.slice(0, at), gp.source(place), text.slice(at + place.length)];
      const comment = /^\s*(#|\/\/)/.test(text);
      return gp.el("span", { class: "line" + (comment ? " muted" : ""), dataset: { index } },
        gp.el("span", { class: "no" }, label), content, "\n");
    });
    const id = `code-pane-${number += 1}`;
    const scroll = gp.el("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": id },
      gp.el("pre", null, lines), one.left ? gp.el("p", { class: "note" }, `${gp.number(one.left)} more lines are in ${one.name}.`) : null);
    scroll.addEventListener("click", (event) => {
      const line = event.target.closest(".line");
      if (line && !event.target.closest("a")) choose(Number(line.dataset.index));
    });
    const figure = gp.el("figure", { class: "pane" },
      gp.el("figcaption", { id }, gp.el("strong", null, one.title), one.name ? gp.el("span", { class: "muted" }, one.name) : null), scroll);
    return { figure, lines, scroll };
  };

  const show = (graph) => {
    let buttons = [];
    const panes = graph.panes.map((one, at) => pane(one, (index) => {
      const found = graph.links.findIndex((link) => link.marks[at].includes(index));
      if (found >= 0) select(found);
    }));
    const select = (chosen, quietly) => {
      const link = graph.links[chosen];
      buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === chosen)));
      panes.forEach(({ lines, scroll }, at) => {
        for (const line of scroll.querySelectorAll(".marked")) line.classList.remove("marked");
        const marks = link.marks[at] || [];
        for (const index of marks) if (lines[index]) lines[index].classList.add("marked");
        onPaper(lines, marks);
        const first = lines[marks[0]];
        if (first) scroll.scrollTop = first.offsetTop - scroll.clientHeight / 3;
      });
      if (!quietly) gp.announce(`${link.label}: ${graph.panes.map((one, at) => `${(link.marks[at] || []).length} lines of ${one.title}`).join(", ")}`);
    };
    const many = graph.links.length > 1;
    buttons = many ? graph.links.map((link, index) => gp.el("button", { type: "button", "aria-pressed": "false", onclick: () => select(index) },
      gp.el("span", { class: "muted" }, `${index + 1} `), link.label)) : [];
    holder.replaceChildren(
      many ? gp.el("div", { class: "launches", role: "group", "aria-label": "Launches, in the order in which they run" }, buttons) : "",
      gp.el("div", { class: "panes", style: { "--panes": panes.length } }, panes.map((one) => one.figure)));
    if (!graph.links.length) panes.forEach(({ lines }) => onPaper(lines, []));
    else select(0, true);
  };

  if (graphs.length > 1) {
    const choice = gp.el("select", { id: `${root.dataset.of}-choice` }, graphs.map((graph, index) => gp.el("option", { value: index }, graph.title)));
    choice.addEventListener("change", () => show(graphs[Number(choice.value)]));
    root.append(gp.el("p", { class: "choice" }, gp.el("label", { for: choice.id }, "Graph "), choice));
  }
  root.append(holder);
  show(graphs[0]);
};
