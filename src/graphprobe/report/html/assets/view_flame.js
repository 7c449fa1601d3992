// Compile time as boxes inside boxes: the width is time. Click or Enter goes into a box, Escape or Backspace out of it.
// data: {name, kind, ns, count, place, inside: [...], left}
GP.views.flame = (root, tree, gp) => {
  const ms = (ns) => (ns >= 1e9 ? `${(ns / 1e9).toFixed(2)} s` : ns >= 1e6 ? `${(ns / 1e6).toFixed(1)} ms` : `${(ns / 1e3).toFixed(0)} µs`);
  const SMALLEST = 0.0015; // of the width: what is thinner cannot be hit, and is told as a number instead
  const kinds = new Map();
  const tint = (kind) => {
    if (!kinds.has(kind)) kinds.set(kind, kinds.size % 6);
    return kinds.get(kind);
  };
  (function link(box) { for (const one of box.inside || []) { one.up = box; link(one); } })(tree);

  const chart = gp.el("div", { class: "flame", role: "group", "aria-label": "Compile time; the width of a box is its time" });
  const told = gp.el("div", { class: "flame-told" });
  const out = gp.el("button", { type: "button" }, "Zoom out");
  const path = gp.el("span", { class: "muted" });
  let centre = tree;
  let current = tree;

  const label = (box) => `${box.name}, ${ms(box.ns)}, ${(100 * box.ns / tree.ns).toFixed(1)} % of all${box.count > 1 ? `, ${box.count} times` : ""}`;
  const own = (box) => Math.max(0, box.ns - (box.inside || []).reduce((sum, one) => sum + one.ns, 0));

  const tell = (box) => {
    current = box;
    told.replaceChildren(
      gp.el("strong", null, box.name), box.kind ? gp.el("span", { class: "muted" }, ` ${box.kind}`) : "",
      gp.el("span", null, `${ms(box.ns)}, ${(100 * box.ns / tree.ns).toFixed(1)} % of all; ${ms(own(box))} in it alone${box.count > 1 ? `; ${gp.number(box.count)} times` : ""}`),
      box.left ? gp.el("span", { class: "muted" }, `${box.left} smaller parts are not shown`) : "",
      box.place ? gp.source(box.place) : "");
  };

  const draw = (focus) => {
    const rows = [];
    const place = (box, left, width, depth) => {
      (rows[depth] ||= []).push([box, left, width]);
      let at = left;
      let thin = 0;
      for (const one of box.inside || []) {
        const wide = width * one.ns / box.ns;
        if (wide >= SMALLEST) place(one, at, wide, depth + 1);
        else thin += wide;
        at += wide;
      }
      return thin;
    };
    place(centre, 0, 1, 0);
    chart.replaceChildren(...rows.map((row) => gp.el("div", { class: "flame-row" }, row.map(([box, left, width]) => {
      const button = gp.el("button", {
        type: "button", class: `k${tint(box.kind || "")}`, title: label(box), "aria-label": label(box), tabindex: box === focus ? "0" : "-1",
        style: { left: `${100 * left}%`, width: `${100 * width}%` },
      }, width > 0.045 ? box.name : "");
      button.box = box;
      return button;
    }))));
    const names = [];
    for (let box = centre; box; box = box.up) names.unshift(box.name);
    path.textContent = names.length > 1 ? names.join(" › ") : "Click a box, or press Enter, to look into it.";
    out.disabled = centre === tree;
    tell(focus);
    return [...chart.querySelectorAll("button")].find((button) => button.box === focus);
  };

  const zoom = (box, focus) => {
    centre = box;
    const button = draw(focus || box);
    if (button) button.focus({ preventScroll: true });
    gp.announce(label(box));
  };
  const move = (box) => {
    const button = [...chart.querySelectorAll("button")].find((one) => one.box === box);
    if (!button) return;
    chart.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    button.setAttribute("tabindex", "0");
    button.focus();
  };

  chart.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) zoom(button.box === centre && centre.up ? centre.up : button.box, button.box);
  });
  chart.addEventListener("focusin", (event) => { if (event.target.box) tell(event.target.box); });
  chart.addEventListener("pointerover", (event) => { const button = event.target.closest("button"); if (button) tell(button.box); });
  chart.addEventListener("keydown", (event) => {
    const box = event.target.box;
    if (!box) return;
    const siblings = box === centre ? [box] : box.up.inside;
    const index = siblings.indexOf(box);
    const step = {
      ArrowRight: () => move(siblings[index + 1]), ArrowLeft: () => move(siblings[index - 1]),
      ArrowDown: () => move((box.inside || [])[0]), ArrowUp: () => box !== centre && move(box.up),
      Escape: () => centre.up && zoom(centre.up, centre), Backspace: () => centre.up && zoom(centre.up, centre),
    }[event.key];
    if (!step) return;
    event.preventDefault();
    step();
  });
  out.addEventListener("click", () => { if (centre.up) zoom(centre.up, centre); });
  root.append(gp.el("p", { class: "flame-path" }, out, path), chart, told);
  draw(tree);
};
