// The passes of one graph in order: when, how long, what it did to the graph, and the diff on demand.
// data: {graphs: [{title, begin, passes: [{name, phase, at, took, changed, before, after, added, removed, failed, diff}]}], first}
GP.views.passes = (root, data, gp) => {
  const ms = (ns) => (ns >= 1e9 ? `${(ns / 1e9).toFixed(2)} s` : ns >= 1e6 ? `${(ns / 1e6).toFixed(1)} ms` : `${(ns / 1e3).toFixed(0)} µs`);
  let serial = 0;

  const node = (sign, word, [name, type, text, place]) =>
    gp.el("div", { class: `diff-node ${word}` },
      gp.el("span", { class: "sign", "aria-hidden": "true" }, sign), gp.el("span", { class: "unseen" }, word + " "),
      gp.el("code", null, gp.el("strong", null, name), type ? gp.el("span", { class: "muted" }, `: ${type}`) : null, ` = ${text}`),
      place ? gp.el("span", { class: "place" }, gp.source(place)) : null);

  const more = (count, what) => (count ? gp.el("p", { class: "note" }, `and ${gp.number(count)} more ${what}`) : null);

  const diff = (one, address) => {
    const parts = [];
    for (const graph of one.graphs) {
      parts.push(gp.el("p", { class: "note" }, `${one.graphs.length > 1 ? `${graph.graph}: ` : ""}${gp.number(graph.unchanged)} nodes unchanged${graph.moved ? `, ${graph.moved} moved` : ""}`));
      graph.removed.forEach((found) => parts.push(node("−", "removed", found)));
      parts.push(more(graph.removed_left, "removed"));
      graph.added.forEach((found) => parts.push(node("+", "added", found)));
      parts.push(more(graph.added_left, "added"));
      graph.changed.forEach(([before, after]) => parts.push(node("−", "changed from", before), node("+", "changed to", after)));
      parts.push(more(graph.changed_left, "changed"));
      if (graph.renamed.length) {
        parts.push(gp.el("p", { class: "note" }, "renamed: ", graph.renamed.map(([before, after], index) => [index ? ", " : "", gp.el("code", null, `${before} → ${after}`)])), more(graph.renamed_left, "renamed"));
      }
    }
    if (one.lines.length) parts.push(gp.el("pre", null, one.lines.join("\n")), more(one.lines_left, "lines"));
    if (!parts.length) parts.push(gp.el("p", { class: "note" }, "Only what is not printed of the graph changed: metadata, or the order of nodes that are alike."));
    if (address) parts.push(gp.el("p", { class: "note" }, "in the terminal: ", gp.el("code", null, `graphprobe show RUN ${address}`)));
    return parts;
  };

  const row = (one, scale) => {
    const id = `pass-${serial += 1}`;
    const left = 100 * (one.at - scale.begin) / scale.span;
    const width = 100 * (one.took || 0) / scale.span;
    const bar = gp.el("span", { class: "bar" + (one.changed ? " changed" : ""), "aria-hidden": "true", style: { left: `${left}%`, width: `max(2px, ${width}%)` } });
    const nodes = one.changed ? gp.el("span", { class: "nodes" },
      gp.el("span", { class: "plus" }, `+${one.added}`), " ", gp.el("span", { class: "minus" }, `−${one.removed}`),
      gp.el("span", { class: "unseen" }, " nodes")) : gp.el("span", { class: "nodes muted" }, one.failed ? "" : "unchanged");
    const body = gp.el("div", { class: "diff", id, hidden: true });
    const name = gp.el("span", { class: "name" }, one.name, one.subgraph ? gp.el("span", { class: "muted" }, ` in ${one.subgraph}`) : null);
    const heads = [gp.el("span", { class: "twist", "aria-hidden": "true" }, one.diff || one.failed ? "▸" : ""), name,
      gp.el("span", { class: "track", "aria-hidden": "true" }, bar),
      gp.el("span", { class: "took" }, one.took === null ? "" : ms(one.took)),
      one.failed ? gp.verdict("raised", "bad") : nodes];
    if (!one.diff && !one.failed) return gp.el("li", { class: one.changed ? "" : "idle" }, gp.el("div", { class: "pass" }, heads));
    const button = gp.el("button", { type: "button", class: "pass", "aria-expanded": "false", "aria-controls": id }, heads);
    button.addEventListener("click", () => {
      const open = body.hidden;
      if (open && !body.firstChild) body.append(...(one.failed ? [gp.el("pre", null, one.failed)] : diff(one.diff, one.address)).filter(Boolean));
      body.hidden = !open;
      button.setAttribute("aria-expanded", String(open));
      heads[0].textContent = open ? "▾" : "▸";
    });
    return gp.el("li", null, button, body);
  };

  const list = gp.el("ol", { class: "passes" });
  const summary = gp.el("p", { class: "note", "aria-live": "polite" });
  const idle = gp.el("input", { type: "checkbox", id: `${root.dataset.of}-idle` });
  let graph = data.graphs[data.first];

  const show = () => {
    const end = Math.max(...graph.passes.map((one) => one.at + (one.took || 0)));
    const scale = { begin: graph.begin, span: Math.max(1, end - graph.begin) };
    const shown = graph.passes.filter((one) => one.changed || one.failed || idle.checked);
    const phases = [];
    for (const one of shown) {
      if (!phases.length || phases.at(-1).phase !== one.phase) phases.push({ phase: one.phase, rows: [] });
      phases.at(-1).rows.push(one);
    }
    list.replaceChildren(...phases.map(({ phase, rows }) => gp.el("li", { class: "phase" },
      gp.el("span", { class: "phase-name" }, phase.replaceAll("_", " ")), gp.el("ol", null, rows.map((one) => row(one, scale))))));
    const changed = graph.passes.filter((one) => one.changed).length;
    summary.textContent = `${graph.passes.length} passes in ${ms(scale.span)}; ${changed} changed the graph.`;
    if (!shown.length) list.append(gp.el("li", { class: "note" }, "None of them changed the graph."));
  };

  const controls = gp.el("div", { class: "pass-controls" });
  if (data.graphs.length > 1) {
    const choice = gp.el("select", { id: `${root.dataset.of}-graph` }, data.graphs.map((one, index) =>
      gp.el("option", { value: index, selected: index === data.first }, `${one.title} (${one.passes.filter((found) => found.changed).length} changed)`)));
    choice.addEventListener("change", () => { graph = data.graphs[Number(choice.value)]; show(); });
    controls.append(gp.el("label", { for: choice.id }, "Graph"), choice);
  }
  idle.addEventListener("change", show);
  controls.append(gp.el("label", null, idle, " also those that changed nothing"));
  // On paper the passes that changed something, of the other graphs too.
  gp.onPaper(root, () => data.graphs.filter((one) => one !== graph && one.passes.some((found) => found.changed || found.failed)).map((one) => [
    gp.el("h3", null, one.title),
    gp.el("p", null, one.passes.filter((found) => found.changed || found.failed).map((found, index) => [index ? ", " : "", gp.el("code", null, found.name),
      found.failed ? " raised" : ` (${ms(found.took || 0)}, +${found.added} −${found.removed})`])),
  ]));
  root.append(controls, summary, list);
  show();
};
