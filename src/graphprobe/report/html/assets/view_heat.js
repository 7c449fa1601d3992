"use strict";
// Health of each layer in each step. Every cell has a number or a sign, and says in words what it means.
//
// data: { label, table, keys: [name of the hidden column of rows, of columns], rows: [text], row_name, columns: [text],
//         groups?: [[first column, text]], metrics: [{name, help, classes: [{word, upto, tone}], values: [[number|null|"inf"]]}] }
// `upto` is the largest value of a class, null of the last; tones are 0 (nothing) to 4 (worst). `values` has a list a row.
(() => {
  const asNumber = (value) => (value === "inf" ? Infinity : value);
  const classOf = (metric, value) => metric.classes.findIndex((one) => one.upto === null || asNumber(value) <= one.upto);
  const short = (value) => {
    if (value === "inf") return "∞";
    if (value === 0) return "0";
    if (Math.abs(value) >= 1e4 || Math.abs(value) < 0.01) return value.toExponential(0).replace("e+", "e");
    return String(Number(value.toPrecision(value >= 100 ? 3 : 2)));
  };

  GP.views.heat = (root, data, gp) => {
    const { el } = gp;
    const names = data.rows.map((text) => text || "(no module)");
    const id = root.dataset.of || "heat";
    const state = { metric: 0, row: 0, column: 0 };
    const choice = el("select", { id: id + "-metric" }, data.metrics.map((metric, i) => el("option", { value: i }, metric.name)));
    const help = el("p", { class: "note" });
    const legend = el("ul", { class: "legend", "aria-label": "Legend" });
    const said = el("p", { class: "said", "aria-hidden": "true" });
    const grid = el("div", {
      class: "map", role: "grid", tabindex: 0, "aria-label": data.label, "aria-rowcount": data.rows.length + 1,
      "aria-colcount": data.columns.length + 1, "aria-describedby": id + "-help",
    });
    const keys = el("p", { class: "unseen", id: id + "-help" }, `Arrow keys move.${data.table ? " Enter shows the rows of a cell in the table." : ""}`);
    root.append(
      el("div", { class: "tools" }, data.metrics.length > 1 && [el("label", { for: id + "-metric" }, "Show"), choice], legend),
      help, keys, grid, said);

    const cells = data.rows.map((_, r) => data.columns.map((_, c) => el("div", { role: "gridcell", class: "c", id: `${id}-${r}-${c}`, "aria-colindex": c + 2, dataset: { r, c } })));
    const widest = Math.max(...data.columns.flatMap((text) => text.split(", ").map((part) => part.length)), 5);
    grid.style.setProperty("--across", data.columns.length);
    grid.style.setProperty("--cell", `${Math.min(widest, 14) + 1}ch`);
    grid.style.setProperty("--names", `${Math.min(40, Math.max(...names.map((text) => text.length), 8) + 4)}ch`);
    grid.append(
      el("div", { role: "row", class: "r head", "aria-rowindex": 1 },
        el("div", { role: "columnheader", class: "name" }, data.row_name),
        data.columns.map((text, c) => el("div", { role: "columnheader", class: "h", "aria-colindex": c + 2, title: text }, text.split(", ").map((part) => el("span", null, part))))),
      ...names.map((text, r) => el("div", { role: "row", class: "r", "aria-rowindex": r + 2 },
        el("div", { role: "rowheader", class: "name", title: text }, el("span", null, text)), cells[r])));

    const words = (r, c) => {
      const metric = data.metrics[state.metric];
      const value = metric.values[r][c];
      const place = `${names[r]}, ${data.columns[c]}`;
      return value === null ? `${place}: nothing recorded` : `${place}: ${metric.name} ${value === "inf" ? "∞" : gp.number(value)}, ${metric.classes[classOf(metric, value)].word}`;
    };

    const paint = () => {
      const metric = data.metrics[state.metric];
      help.textContent = metric.help + (data.table ? " Choose a cell to see its rows in the table." : "");
      legend.replaceChildren(...metric.classes.map((one) => el("li", null, el("span", { class: "swatch t" + one.tone, "aria-hidden": "true" }), one.word)),
        el("li", null, el("span", { class: "swatch none", "aria-hidden": "true" }), "nothing recorded"));
      cells.forEach((line, r) => line.forEach((cell, c) => {
        const value = metric.values[r][c];
        cell.className = "c " + (value === null ? "none" : "t" + metric.classes[classOf(metric, value)].tone);
        cell.replaceChildren(el("span", { "aria-hidden": "true" }, value === null ? "" : short(value)), el("span", { class: "unseen" }, words(r, c)));
      }));
      mark();
    };

    const mark = () => {
      grid.querySelector(".active")?.classList.remove("active");
      const cell = cells[state.row]?.[state.column];
      if (!cell) return;
      cell.classList.add("active");
      grid.setAttribute("aria-activedescendant", cell.id);
      said.textContent = words(state.row, state.column);
    };

    const choose = () => {
      if (!data.table || data.metrics[state.metric].values[state.row][state.column] === null) return;
      const words = `${names[state.row]}, ${data.columns[state.column]}`;
      const link = el("a", { href: "#" + data.table, hidden: true });
      root.append(link);
      link.click();
      link.remove();
      GP.narrow(data.table, [[data.keys[0], state.row], [data.keys[1], state.column]], words);
    };

    grid.addEventListener("keydown", (event) => {
      const steps = {
        ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], PageDown: [10, 0], PageUp: [-10, 0],
        Home: [event.ctrlKey ? -1e9 : 0, -1e9], End: [event.ctrlKey ? 1e9 : 0, 1e9],
      };
      if (Object.hasOwn(steps, event.key)) {
        const [down, right] = steps[event.key];
        state.row = Math.max(0, Math.min(state.row + down, data.rows.length - 1));
        state.column = Math.max(0, Math.min(state.column + right, data.columns.length - 1));
        mark();
        cells[state.row][state.column].scrollIntoView({ block: "nearest", inline: "nearest" });
      } else if (event.key === "Enter" || event.key === " ") choose();
      else return;
      event.preventDefault();
    });
    const at = (event) => {
      const cell = event.target.closest(".c");
      if (!cell) return false;
      [state.row, state.column] = [Number(cell.dataset.r), Number(cell.dataset.c)];
      mark();
      return true;
    };
    grid.addEventListener("click", (event) => { if (at(event)) choose(); });
    grid.addEventListener("pointerover", (event) => {
      const cell = event.target.closest(".c");
      if (cell) said.textContent = words(Number(cell.dataset.r), Number(cell.dataset.c));
    });
    grid.addEventListener("pointerleave", mark);
    choice.addEventListener("change", () => { state.metric = Number(choice.value); paint(); });
    // At first where it is worst.
    const worst = data.metrics[0];
    let most = -1;
    worst.values.forEach((line, r) => line.forEach((value, c) => {
      if (value !== null && asNumber(value) > most) [most, state.row, state.column] = [asNumber(value), r, c];
    }));
    paint();
    root.dataset.interactive = "yes";
    performance.mark("interactive:" + id);
  };
})();
