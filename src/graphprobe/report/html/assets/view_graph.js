"use strict";
// A window of a graph, laid out already. Every node is focusable and shows what is known of it.
//
// data: { label, culprit: index, total, width, height,
//         nodes: [{name, op, kind, type, source, module, tone, word, z, reason, accused, more: [inputs, users], box: [x, y, w, h]}],
//         edges: [{from, to, points: [[x, y]]}] }
// tone: "0" to "4" as in the heat map, "" where nothing was measured. z: number, "inf", or null.
(() => {
  const EDGE = 16; // pixels around the drawing
  const LETTER = 7.3;
  const cut = (text, width) => {
    const most = Math.floor((width - 18) / LETTER);
    return text.length <= most ? text : text.slice(0, most - 1) + "…";
  };
  const zText = (z, gp) => (z === null || z === undefined ? "" : z === "inf" ? "∞" : gp.number(z));

  GP.views.graph = (root, data, gp) => {
    const { el } = gp;
    const id = root.dataset.of || "graph";
    const before = data.nodes.map(() => []);
    const after = data.nodes.map(() => []);
    for (const { from, to } of data.edges) { after[from].push(to); before[to].push(from); }
    const measured = data.nodes.some((node) => node.z !== null && node.z !== undefined);

    const lines = data.edges.map(({ from, to, points }) => {
      const path = el("path", { d: curve(points), class: "edge", "marker-end": `url(#${id}-tip)` });
      return { path, from, to };
    });
    const boxes = data.nodes.map((node, i) => box(node, i));
    const svg = el("svg", {
      role: "group", "aria-label": `${data.label}: ${data.nodes.length} of ${data.total} nodes, from top to bottom`,
      viewBox: `${-EDGE} ${-EDGE} ${data.width + 2 * EDGE} ${data.height + 2 * EDGE}`,
      width: data.width + 2 * EDGE, height: data.height + 2 * EDGE,
    }, tip(id), el("g", { "aria-hidden": "true" }, lines.map((line) => line.path)), boxes);
    const frame = el("div", { class: "frame-of-graph screen" }, svg);
    const [wide, high] = [data.width + 2 * EDGE, data.height + 2 * EDGE];
    let scale = 1;
    const percent = el("output", { "aria-label": "Size" });
    const zoomTo = (wanted) => {
      const [x, y] = [frame.scrollLeft + frame.clientWidth / 2, frame.scrollTop + frame.clientHeight / 2].map((at) => at / scale);
      scale = Math.min(3, Math.max(0.1, wanted));
      svg.setAttribute("width", wide * scale);
      svg.setAttribute("height", high * scale);
      [frame.scrollLeft, frame.scrollTop] = [x * scale - frame.clientWidth / 2, y * scale - frame.clientHeight / 2];
      percent.textContent = `${Math.round(100 * scale)} %`;
    };
    const fit = () => zoomTo(Math.min(1, (frame.clientWidth - 4) / wide, (parseFloat(getComputedStyle(frame).maxHeight) - 4) / high));
    const zooms = [["−", "Smaller", () => zoomTo(scale / 1.3)], ["+", "Larger", () => zoomTo(scale * 1.3)], ["Fit", "Fit the whole graph", fit], ["1:1", "1:1, as large as text", () => zoomTo(1)]];
    const zoom = el("div", { class: "zoom screen", role: "group", "aria-label": "Size of the graph" },
      zooms.map(([text, title, act]) => el("button", { type: "button", title, "aria-label": `${text} ${title}`, onclick: act }, text)), percent);
    // On paper: strips of at most a page, as wide as it is.
    gp.onPaper(root, () => {
      const strip = Math.max(wide * 1.2, 700);
      return Array.from({ length: Math.ceil(high / strip) }, (_, i) => {
        const copy = svg.cloneNode(true);
        const tall = Math.min(strip, high - i * strip);
        for (const [name, value] of Object.entries({ viewBox: `${-EDGE} ${i * strip - EDGE} ${Math.max(wide, 700)} ${tall}`, role: "presentation", "aria-hidden": "true" })) copy.setAttribute(name, value);
        for (const name of ["width", "height", "aria-label"]) copy.removeAttribute(name);
        return copy;
      });
    });
    const details = el("div", { class: "details", role: "region", "aria-label": "Details of the node", "aria-live": "polite" });
    const key = [["4", "accused"], ["2", "belongs to it: of the same pass, kernel or proof"], ["3", "wrong, too"], ["1", "right, within the noise"], ["0", "right, up to one rounding"], ["", "not measured"]];
    const legend = el("ul", { class: "legend", "aria-label": "Legend" },
      key.filter(([tone]) => data.nodes.some((node) => node.tone === tone)).map(([tone, word]) => el("li", null, el("span", { class: "swatch t" + (tone || "none"), "aria-hidden": "true" }), word)));
    root.append(
      el("p", { class: "note" }, measured
        ? "z is the error of a node alone, given the inputs that it got, in units of the noise that rounding explains. "
        : "", el("span", { class: "screen" }, "Tab reaches the accused node; arrow keys go along the edges and to neighbours; + and − zoom, 0 fits the whole graph.")),
      legend, zoom, el("div", { class: "split" }, frame, details));

    function box(node, i) {
      const [x, y, w, h] = node.box;
      const z = zText(node.z, gp);
      const said = [node.name, node.op !== node.name && node.op, node.word, z && `z ${z}`, node.type].filter(Boolean).join(", ");
      const group = el("g", {
        class: `node t${node.tone || "none"} ${node.accused ? "accused" : ""} kind-${node.kind}`, role: "button", tabindex: i === data.culprit ? 0 : -1,
        transform: `translate(${x},${y})`,
      },
      el("rect", { width: w, height: h, rx: 7 }), el("text", { class: "said" }, said),
      el("text", { x: w / 2, y: 20, class: "name", "aria-hidden": "true" }, cut(node.name, w)),
      el("text", { x: w / 2, y: 37, class: "op", "aria-hidden": "true" }, cut(node.op, w)),
      el("text", { x: w / 2, y: 54, class: "z", "aria-hidden": "true" }, cut(node.accused ? `✗ wrong${z ? `, z ${z}` : ""}` : z ? `${node.tone === "3" ? "✗ " : ""}z ${z}` : node.word === "not compared" ? node.type : node.word, w)));
      group.addEventListener("click", () => go(i));
      group.addEventListener("focus", () => show(i));
      return group;
    }

    let current = data.culprit;
    const show = (i) => {
      current = i;
      boxes.forEach((one, at) => { one.setAttribute("tabindex", at === i ? 0 : -1); one.classList.toggle("chosen", at === i); });
      for (const { path, from, to } of lines) path.classList.toggle("lit", from === i || to === i);
      details.replaceChildren(...describe(i));
    };
    const go = (i) => { boxes[i].focus({ preventScroll: true }); near(i); };
    const near = (i) => {
      const [x, y, w, h] = data.nodes[i].box.map((at) => at * scale);
      const inside = (from, size, begin, view) => (from < begin ? from : from + size > begin + view ? from + size - view : begin);
      frame.scrollTop = inside(y - 30 + EDGE, h + 60, frame.scrollTop, frame.clientHeight);
      frame.scrollLeft = inside(x - 30 + EDGE, w + 60, frame.scrollLeft, frame.clientWidth);
    };

    const describe = (i) => {
      const node = data.nodes[i];
      const links = (others) => others.map((other, at) => [at ? ", " : "", el("button", { type: "button", class: "link", onclick: () => go(other) }, data.nodes[other].name)]);
      const ends = (others, more) => (others.length || more ? el("span", null, links(others), more ? `${others.length ? " and " : ""}${more} outside of this window` : "") : null);
      const rows = [
        ["operation", el("code", null, node.op)], ["verdict", node.accused ? gp.verdict("wrong", "bad") : node.tone === "3" ? gp.verdict("wrong, too", "bad") : node.word === "right" ? gp.verdict("right", "good") : node.word],
        ["z", zText(node.z, gp)], ["why", node.reason], ["line", node.source && gp.source(node.source)], ["module", node.module && el("code", null, node.module)],
        ["value", node.type && el("code", null, node.type)], ["takes", ends(before[i], node.more[0])], ["is used by", ends(after[i], node.more[1])],
      ];
      return [el("h3", null, el("code", null, node.name)), el("dl", null, rows.filter(([, value]) => value).map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value))))];
    };

    // Up and down along the edges, to the side to the next node of the layer.
    const beside = (i, sign) => {
      const [x, y] = data.nodes[i].box;
      const layer = data.nodes.map((node, at) => [node.box[0], at]).filter(([, at]) => data.nodes[at].box[1] === y).sort((a, b) => a[0] - b[0]);
      const next = sign > 0 ? layer.find(([left]) => left > x) : layer.findLast(([left]) => left < x);
      return next?.[1];
    };
    svg.addEventListener("keydown", (event) => {
      if ("+-0".includes(event.key)) return zooms["-+0".indexOf(event.key)][2]();
      const to = {
        ArrowDown: () => after[current][0], ArrowUp: () => before[current][0], ArrowRight: () => beside(current, 1), ArrowLeft: () => beside(current, -1),
        Home: () => data.culprit, Enter: () => current, " ": () => current,
      }[event.key];
      if (!to) return;
      event.preventDefault();
      const next = to();
      if (next !== undefined) go(next);
    });

    show(data.culprit);
    zoomTo(1);
    requestAnimationFrame(() => {
      const [x, y, w, h] = data.nodes[data.culprit].box;
      frame.scrollLeft = x + w / 2 - frame.clientWidth / 2;
      frame.scrollTop = y + h / 2 - frame.clientHeight / 2;
      root.dataset.interactive = "yes";
      performance.mark("interactive:" + id);
    });
  };

  const tip = (id) => {
    const space = "http://www.w3.org/2000/svg";
    const marker = document.createElementNS(space, "marker");
    for (const [name, value] of Object.entries({ id: id + "-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" })) marker.setAttribute(name, value);
    const shape = document.createElementNS(space, "path");
    shape.setAttribute("d", "M0,0.5 L8,4 L0,7.5 z");
    shape.setAttribute("class", "tip");
    marker.append(shape);
    const defs = document.createElementNS(space, "defs");
    defs.append(marker);
    return defs;
  };

  // Through the points, leaving and entering boxes upright.
  const curve = (points) => points.reduce((path, [x, y], i) => {
    if (!i) return `M${x},${y}`;
    const [px, py] = points[i - 1];
    if (Math.abs(px - x) < 0.5) return `${path} L${x},${y}`;
    const bend = (y - py) / 2;
    return `${path} C${px},${py + bend} ${x},${y - bend} ${x},${y}`;
  }, "");
})();
