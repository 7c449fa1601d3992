"use strict";
// A table of any number of rows, of which only those in sight are in the document.
//
// data: { label, rows, columns: [{name, kind, texts?, help?, hidden?, wide?, tones?}], values: [one array a column],
//         texts?, more?, first? }
//   or { label, rows, first?, packed: base64 of the deflated JSON of {columns, values, more} }.
// kind: "text", "number", "verdict" or "source". Of a column with `texts` the values are indices into them, -1 for none;
// `texts` of the whole table serve columns without their own. A number is a number, null, "inf", "-inf" or "nan".
// first: the row that is in sight at the beginning.
// more: { row: {head: [text], rows: [[cell]]} }, shown with the details of that row.
//
// Another view narrows the table by GP.narrow(id of the section, [[column, value index]], words for it).
(() => {
  const ROW = 27; // height of a row in pixels, as in the style sheet
  const TALLEST = 12e6; // browsers draw no box that is taller than some 17 to 33 million pixels
  const narrowed = {};

  GP.narrow = (table, where, words) => {
    narrowed[table] = { where, words };
    document.dispatchEvent(new CustomEvent("gp:narrow", { detail: table }));
  };

  GP.views.table = (root, data, gp) => {
    if (!data.packed) return build(root, data, gp);
    root.append(gp.el("p", { class: "note" }, `Reading ${gp.number(data.rows)} rows…`));
    return unpacked(data.packed)
      .then((body) => { root.replaceChildren(); build(root, { ...data, ...body }, gp); })
      .catch((error) => {
        root.replaceChildren(gp.el("p", { class: "note bad", role: "alert" }, "The table cannot be shown: " + error));
        throw error;
      });
  };

  const unpacked = async (text) => {
    const letters = atob(text);
    const bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };

  // ---- values ---------------------------------------------------------------------------------------------------

  const asNumber = (value) => (value === "inf" ? Infinity : value === "-inf" ? -Infinity : value === null || value === "nan" ? NaN : value);
  const natural = (text) => text.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(10, "0"));

  // One column: what a row has there, as text and as something to sort by.
  const columnOf = (column, values, shared, gp) => {
    const texts = column.texts || (column.kind === "number" ? null : shared);
    const numbers = column.kind === "number";
    const raw = (row) => values[row];
    const text = numbers
      ? (row) => (values[row] === "inf" ? "∞" : values[row] === "-inf" ? "−∞" : values[row] === "nan" ? "NaN" : gp.number(values[row]))
      : (row) => (texts && typeof values[row] === "number" ? (values[row] < 0 ? "" : texts[values[row]]) : values[row] ?? "");
    let keys = null;
    let written = null;
    return {
      ...column, raw, text, texts, numbers,
      // Ascending; rows without a value are NaN, which always comes last.
      keys: () => {
        if (keys) return keys;
        const count = values.length;
        keys = new Float64Array(count);
        if (numbers) {
          for (let row = 0; row < count; row++) keys[row] = asNumber(values[row]);
        } else if (texts) {
          const rank = ranks(texts);
          for (let row = 0; row < count; row++) keys[row] = values[row] < 0 || texts[values[row]] === "" ? NaN : rank[values[row]];
        } else {
          const rank = ranks(values);
          for (let row = 0; row < count; row++) keys[row] = values[row] ? rank[row] : NaN;
        }
        return keys;
      },
      // Sets mask[row] where the row's text has `term` in it.
      find: (term, mask) => {
        if (texts) {
          const hits = new Uint8Array(texts.length);
          for (let i = 0; i < texts.length; i++) hits[i] = texts[i].toLowerCase().includes(term) ? 1 : 0;
          for (let row = 0; row < values.length; row++) if (values[row] >= 0 && hits[values[row]]) mask[row] = 1;
          return;
        }
        // Numbers are sought as they stand in the data: to write 100,000 as they are shown takes seconds.
        if (numbers && !/^[-+\d.,e∞inf]+$/.test(term)) return;
        const wanted = numbers ? term.replaceAll(",", "").replace("∞", "inf") : term;
        written ??= numbers ? values.map((value) => (value === null ? "" : String(value))) : values.map((value) => String(value ?? "").toLowerCase());
        for (let row = 0; row < written.length; row++) if (written[row].includes(wanted)) mask[row] = 1;
      },
    };
  };

  const ranks = (texts) => {
    const keyed = texts.map((text) => natural(text || ""));
    const order = Array.from(texts.keys()).sort((a, b) => (keyed[a] < keyed[b] ? -1 : keyed[a] > keyed[b] ? 1 : 0));
    const rank = new Float64Array(texts.length);
    order.forEach((index, place) => { rank[index] = place && keyed[index] === keyed[order[place - 1]] ? rank[order[place - 1]] : place; });
    return rank;
  };

  const widthOf = (column, count) => {
    let longest = 0;
    const step = Math.max(1, Math.floor(count / 400));
    if (column.texts) for (const text of column.texts.slice(0, 4000)) longest = Math.max(longest, text.length);
    else for (let row = 0; row < count; row += step) longest = Math.max(longest, column.text(row).length);
    const most = column.wide ? 40 : column.kind === "source" ? 34 : 22;
    return Math.min(most, Math.max(longest + (column.kind === "verdict" ? 5 : 3), column.name.length + 5));
  };

  // ---- which rows, in which order ---------------------------------------------------------------------------------

  const COMPARED = /^([^<>=:]+)(<=|>=|<|>|=|:)(.+)$/;

  const matching = (columns, count, given, word, narrow) => {
    const keep = new Uint8Array(count).fill(1);
    const and = (mask) => { for (let row = 0; row < count; row++) keep[row] &= mask[row]; };
    for (const term of given.toLowerCase().split(/\s+/).filter(Boolean)) {
      const mask = new Uint8Array(count);
      const [, name, sign, value] = COMPARED.exec(term) || [];
      const column = name && columns.find((one) => !one.hidden && one.name.toLowerCase().replaceAll(" ", "_") === name);
      if (column && column.numbers && sign !== ":") {
        const limit = asNumber({ "∞": "inf", inf: "inf" }[value] ?? Number(value));
        const keys = column.keys();
        const holds = { "<": (k) => k < limit, ">": (k) => k > limit, "<=": (k) => k <= limit, ">=": (k) => k >= limit, "=": (k) => k === limit }[sign];
        for (let row = 0; row < count; row++) mask[row] = holds(keys[row]) ? 1 : 0;
      } else if (column && (sign === ":" || sign === "=")) column.find(value, mask);
      else for (const one of columns) if (!one.hidden) one.find(term, mask);
      and(mask);
    }
    const equal = (column, wanted) => {
      for (let row = 0; row < count; row++) if (column.raw(row) !== wanted) keep[row] = 0;
    };
    if (word) {
      const column = columns.find((one) => one.kind === "verdict");
      for (let row = 0; row < count; row++) if (column.text(row) !== word) keep[row] = 0;
    }
    for (const [name, wanted] of narrow?.where || []) equal(columns.find((one) => one.name === name), wanted);
    return keep;
  };

  const sorted = (columns, count, sort) => {
    const order = Int32Array.from({ length: count }, (_, row) => row);
    if (!sort) return order;
    const keys = sort.column.keys();
    const sign = sort.descending ? -1 : 1;
    return order.sort((a, b) => {
      const left = keys[a], right = keys[b];
      if (left === right) return a - b;
      if (left !== left) return right !== right ? a - b : 1;
      if (right !== right) return -1;
      return left < right ? -sign : sign;
    });
  };

  // ---- what is seen -------------------------------------------------------------------------------------------------

  const build = (root, data, gp) => {
    const { el } = gp;
    const id = root.dataset.of || "table";
    const count = data.rows ?? data.values[0].length;
    const columns = data.columns.map((column, i) => columnOf(column, data.values[i], data.texts, gp));
    const shown = columns.filter((column) => !column.hidden);
    const naming = shown.find((column) => column.wide);
    const verdicts = shown.find((column) => column.kind === "verdict");
    const state = { query: "", word: "", narrow: null, sort: null, order: null, rows: null, row: 0, column: 0, open: -1 };

    // -- controls
    const search = el("input", { type: "search", id: id + "-search", autocomplete: "off", spellcheck: "false", placeholder: "words, or column:word, column>number" });
    const counts = el("output", { class: "count", for: id + "-search" });
    const clear = el("button", { type: "button", class: "quiet", onclick: () => reset() }, "Show all");
    const only = el("span", { class: "only" });
    const choice = verdicts ? verdictChoice(verdicts, count, gp) : null;
    const tools = el("div", { class: "tools", role: "search", "aria-label": "Filter " + data.label },
      el("label", { for: id + "-search" }, "Search"), search,
      choice && [el("label", { for: id + "-word" }, verdicts.name), Object.assign(choice, { id: id + "-word" })],
      only, clear, counts);

    // -- the grid
    const widths = shown.map((column) => widthOf(column, count));
    const template = shown.map((column, i) => `minmax(${widths[i]}ch, ${column.wide ? 3 : 1}fr)`).join(" ");
    const wide = widths.reduce((sum, width) => sum + width, 0) + "ch";
    const heads = shown.map((column, i) => headOf(column, i));
    const head = el("div", { class: "head", role: "rowgroup" }, el("div", { class: "row", role: "row", "aria-rowindex": 1 }, heads));
    const body = el("div", { class: "body", role: "rowgroup" });
    const help = el("p", { class: "unseen", id: id + "-help" }, "Arrow keys move. Enter on a heading sorts, on a row shows its details. Escape closes them.");
    const grid = el("div", {
      class: "grid", role: "grid", tabindex: 0, "aria-label": data.label, "aria-describedby": id + "-help",
      "aria-colcount": shown.length, style: { "--columns": template, "--wide": wide },
    }, head, body);
    const details = el("div", { class: "details", role: "region", "aria-label": "Details of the row", tabindex: -1, hidden: true });
    for (const one of [tools, grid, details]) one.classList.add("screen");
    root.append(tools, help, grid, details);

    function headOf(column, i) {
      return el("div", {
        class: "cell k-" + column.kind, role: "columnheader", id: `${id}-h-${i}`, "aria-colindex": i + 1, title: column.help || null,
        onclick: () => { state.row = -1; state.column = i; sortBy(column); },
      }, el("span", { class: "name" }, column.name), el("span", { class: "arrow", "aria-hidden": "true" }));
    }

    // -- rows that are drawn: as many as fit, again and again
    const pool = [];
    const fits = () => Math.max(1, Math.floor((grid.clientHeight - head.offsetHeight) / ROW));
    const squeezed = () => state.rows.length * ROW > TALLEST;
    // The first row in sight; where the rows together are too tall for a browser, the scrollbar is a share of them.
    const top = () => {
      if (!squeezed()) return Math.floor(grid.scrollTop / ROW);
      const share = grid.scrollTop / Math.max(1, grid.scrollHeight - grid.clientHeight);
      return Math.round(share * Math.max(0, state.rows.length - fits()));
    };
    const scrollTo = (place) => {
      const wanted = Math.max(0, Math.min(place, state.rows.length - fits()));
      if (!squeezed()) grid.scrollTop = wanted * ROW;
      else grid.scrollTop = (wanted / Math.max(1, state.rows.length - fits())) * (grid.scrollHeight - grid.clientHeight);
    };

    let asked = false;
    const later = () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => { asked = false; draw(); });
    };

    const draw = () => {
      const begin = Math.max(0, top() - (squeezed() ? 0 : 4));
      const many = Math.min(fits() + (squeezed() ? 1 : 9), state.rows.length - begin);
      while (pool.length < many) pool.push(rowElement());
      pool.forEach((row, i) => {
        row.element.hidden = i >= many;
        if (i < many) fill(row, begin + i, squeezed() ? grid.scrollTop + i * ROW : (begin + i) * ROW);
      });
      mark();
    };

    const rowElement = () => {
      const cells = shown.map((column, i) => el("div", { class: "cell k-" + column.kind, role: "gridcell", "aria-colindex": i + 1 }));
      const element = el("div", { class: "row", role: "row" }, cells);
      body.append(element);
      const row = { element, cells, place: -1, data: -1 };
      element.addEventListener("click", (event) => {
        if (event.target.closest("a")) return;
        state.row = row.place;
        state.column = Math.max(0, cells.indexOf(event.target.closest(".cell")));
        grid.focus({ preventScroll: true });
        show(row.data);
        mark();
      });
      return row;
    };

    const fill = (row, place, offset) => {
      row.element.style.transform = `translateY(${offset}px)`;
      row.place = place;
      row.element.setAttribute("aria-rowindex", place + 2);
      row.element.classList.toggle("odd", place % 2 === 1);
      const wanted = state.rows[place];
      if (row.data === wanted) return;
      row.data = wanted;
      row.element.id = `${id}-r-${wanted}`;
      row.element.dataset.tone = verdicts ? toneOf(verdicts, wanted, gp) : "";
      shown.forEach((column, i) => fillCell(row.cells[i], column, wanted, `${id}-c-${wanted}-${i}`, gp));
    };

    // -- the cell that the keyboard is on
    const mark = () => {
      for (const old of grid.querySelectorAll(".active, .open")) old.classList.remove("active", "open");
      const row = pool.find((one) => !one.element.hidden && one.place === state.row);
      const open = pool.find((one) => !one.element.hidden && one.data === state.open);
      open?.element.classList.add("open");
      const cell = state.row < 0 ? heads[state.column] : row?.cells[state.column];
      cell?.classList.add("active");
      if (cell) grid.setAttribute("aria-activedescendant", cell.id);
      else grid.removeAttribute("aria-activedescendant");
    };

    const move = (row, column) => {
      state.row = Math.max(-1, Math.min(row, state.rows.length - 1));
      state.column = Math.max(0, Math.min(column, shown.length - 1));
      const begin = top();
      if (state.row >= 0 && state.row < begin) scrollTo(state.row);
      else if (state.row >= begin + fits()) scrollTo(state.row - fits() + 1);
      const cell = heads[state.column];
      if (cell.offsetLeft < grid.scrollLeft) grid.scrollLeft = cell.offsetLeft;
      else if (cell.offsetLeft + cell.offsetWidth > grid.scrollLeft + grid.clientWidth) grid.scrollLeft = cell.offsetLeft + cell.offsetWidth - grid.clientWidth;
      draw();
    };

    grid.addEventListener("keydown", (event) => {
      const page = Math.max(1, fits() - 1);
      const far = event.ctrlKey || event.metaKey;
      const steps = {
        ArrowDown: [state.row + 1, state.column], ArrowUp: [state.row - 1, state.column],
        ArrowRight: [state.row, state.column + 1], ArrowLeft: [state.row, state.column - 1],
        PageDown: [Math.max(0, state.row) + page, state.column], PageUp: [Math.max(0, state.row - page), state.column],
        Home: [far ? 0 : state.row, 0], End: [far ? state.rows.length - 1 : state.row, shown.length - 1],
      };
      if (Object.hasOwn(steps, event.key)) move(...steps[event.key]);
      else if (event.key === "Enter" && state.row < 0) sortBy(shown[state.column]);
      else if (event.key === "Enter" && state.rows.length) enter();
      else if (event.key === "Escape" && !details.hidden) close();
      else return;
      event.preventDefault();
    });

    const enter = () => {
      const cell = pool.find((one) => one.place === state.row)?.cells[state.column];
      const link = cell?.querySelector("a");
      if (link) link.click();
      else { show(state.rows[state.row]); details.focus({ preventScroll: true }); }
    };

    // -- details of one row
    const show = (row) => {
      state.open = row;
      const list = shown.map((column) => {
        const text = column.text(row);
        const value = column.kind === "source" ? gp.source(text) : column.kind === "verdict" && text ? gp.verdict(text, column.tones?.[text]) : text;
        return text === "" ? null : el("div", null, el("dt", null, column.name), el("dd", null, value));
      });
      const more = data.more?.[row];
      details.replaceChildren(
        el("button", { type: "button", class: "quiet close", onclick: () => close() }, "Close"),
        el("h3", null, (naming && naming.text(row)) || `Row ${gp.number(row + 1)}`), el("dl", null, list), more ? small(more, gp) : "");
      details.hidden = false;
      root.classList.add("detailed"); // the table makes room, so that the row and its details are in sight together
      const place = state.rows.indexOf(row);
      if (place < top() || place >= top() + fits()) scrollTo(place - Math.floor(fits() / 3));
      draw();
      details.scrollIntoView({ block: "nearest" });
      mark();
    };

    const close = () => {
      details.hidden = true;
      root.classList.remove("detailed");
      state.open = -1;
      grid.focus({ preventScroll: true });
      mark();
    };
    details.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });

    // -- sorting and filtering
    const sortBy = (column) => {
      if (state.sort?.column === column && state.sort.descending !== (column.numbers || false)) state.sort = null;
      else if (state.sort?.column === column) state.sort = { column, descending: !state.sort.descending };
      else state.sort = { column, descending: column.numbers };
      state.order = null;
      refresh();
      gp.announce(state.sort ? `Sorted by ${column.name}, ${state.sort.descending ? "descending" : "ascending"}` : "In the order of the program");
    };

    const reset = () => {
      search.value = state.query = state.word = "";
      if (choice) choice.value = "";
      state.narrow = null;
      refresh();
      search.focus();
    };

    const refresh = () => {
      const keep = matching(columns, count, state.query, state.word, state.narrow);
      state.order ??= sorted(columns, count, state.sort);
      state.rows = state.order.filter((row) => keep[row]);
      state.row = Math.min(state.row, 0);
      grid.scrollTop = 0;
      body.style.height = Math.max(ROW, Math.min(state.rows.length * ROW, TALLEST)) + "px";
      grid.style.setProperty("--rows", Math.max(1, state.rows.length));
      grid.setAttribute("aria-rowcount", state.rows.length + 1);
      heads.forEach((cell, i) => {
        const on = state.sort?.column === shown[i];
        cell.setAttribute("aria-sort", on ? (state.sort.descending ? "descending" : "ascending") : "none");
        cell.querySelector(".arrow").textContent = on ? (state.sort.descending ? "▼" : "▲") : "";
      });
      const all = state.rows.length === count;
      const rows = count === 1 ? "row" : "rows";
      counts.textContent = all ? `${gp.number(count)} ${rows}` : `${gp.number(state.rows.length)} of ${gp.number(count)} ${rows}`;
      clear.hidden = all && !state.query && !state.word && !state.narrow;
      only.replaceChildren(...(state.narrow ? ["Only ", el("b", null, state.narrow.words)] : []));
      root.querySelector(".none")?.remove();
      if (!state.rows.length) grid.after(el("p", { class: "none note" }, count ? "No row has this. “Show all” takes the filters away." : "There are no rows."));
      draw();
    };

    let wait = 0;
    search.addEventListener("input", () => {
      clearTimeout(wait);
      wait = setTimeout(() => { state.query = search.value; refresh(); gp.announce(counts.textContent); }, 120);
    });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown" && event.key !== "Enter") return;
      event.preventDefault();
      grid.focus({ preventScroll: true });
      move(0, state.column);
    });
    choice?.addEventListener("change", () => { state.word = choice.value; refresh(); gp.announce(counts.textContent); });

    const takeNarrowed = () => {
      if (!narrowed[id]) return;
      state.narrow = narrowed[id];
      delete narrowed[id];
      state.query = state.word = search.value = "";
      if (choice) choice.value = "";
      refresh();
      grid.focus({ preventScroll: true });
      gp.announce(`${counts.textContent}: ${state.narrow.words}`);
    };
    document.addEventListener("gp:narrow", (event) => { if (event.detail === id) takeNarrowed(); });

    grid.addEventListener("scroll", later, { passive: true });
    new ResizeObserver(later).observe(grid);
    refresh();
    if (data.first) {
      state.row = state.rows.indexOf(data.first);
      scrollTo(state.row - 3);
      draw();
    }
    takeNarrowed();
    gp.onPaper(root, () => paper(state.rows, shown, widths, verdicts, gp));
    root.dataset.interactive = "yes";
    performance.mark("interactive:" + id);
  };

  // On paper all rows are there, or of very many those that say most; columns that say nothing are left out.
  const MOST_ON_PAPER = 250, LETTERS_ON_PAPER = 90, ACROSS = 150; // rows; letters of a cell, and of a line
  const paper = (rows, columns, widths, verdicts, gp) => {
    const { el } = gp;
    const wrong = rows.length > MOST_ON_PAPER && verdicts ? rows.filter((row) => ["bad", "warn"].includes(toneOf(verdicts, row, gp))) : [];
    const kept = [...(wrong.length ? wrong : rows).slice(0, MOST_ON_PAPER)];
    const wide = (column) => widths[columns.indexOf(column)] - (column.kind === "number" ? 1 : 0);
    const filled = columns.filter((column) => kept.some((row) => column.text(row) !== ""));
    let across = 0;
    const used = filled.filter((column) => (across + wide(column) <= ACROSS ? (across += wide(column)) : 0));
    const missing = filled.filter((column) => !used.includes(column)).map((column) => column.name);
    const left = kept.length < rows.length && `${gp.number(kept.length)} of ${gp.number(rows.length)} rows${wrong.length ? `; ${gp.number(wrong.length)} are not right` : ""}. The file has all.`;
    return [el("table", { class: "paper" },
      el("colgroup", null, used.map((column) => el("col", { style: { width: `${100 * wide(column) / across}%` } }))),
      el("thead", null, el("tr", null, used.map((column) => el("th", { scope: "col", class: column.numbers ? "n" : null }, column.name)))),
      el("tbody", null, kept.map((row) => el("tr", null, used.map((column) => {
        const text = column.text(row);
        return el("td", { class: column.numbers ? "n" : null }, column.kind === "verdict" && text ? gp.verdict(text, column.tones?.[text]) : text.length > LETTERS_ON_PAPER ? text.slice(0, LETTERS_ON_PAPER) + "…" : text);
      }))))), left && el("p", { class: "note" }, left),
      missing.length > 0 && el("p", { class: "note" }, `Not on paper for want of room: ${missing.join(", ")}.`)];
  };

  const toneOf = (column, row, gp) => {
    const word = column.text(row);
    return word ? column.tones?.[word] || gp.tone(word) : "";
  };

  const fillCell = (cell, column, row, id, gp) => {
    const text = column.text(row);
    cell.id = id;
    if (column.kind === "source") {
      const link = gp.source(text);
      if (link.tagName === "A") link.tabIndex = -1; // Enter on the cell follows it
      cell.replaceChildren(link);
    } else if (column.kind === "verdict") cell.replaceChildren(text ? gp.verdict(text, column.tones?.[text]) : "");
    else cell.textContent = text;
    if (text.length > 18) cell.title = text;
    else cell.removeAttribute("title");
  };

  const verdictChoice = (column, count, gp) => {
    const numbers = new Map();
    for (let row = 0; row < count; row++) {
      const word = column.text(row);
      if (word) numbers.set(word, (numbers.get(word) || 0) + 1);
    }
    return gp.el("select", null, gp.el("option", { value: "" }, "all"),
      [...numbers].sort((a, b) => b[1] - a[1]).map(([word, many]) => gp.el("option", { value: word }, `${word.replaceAll("_", " ")} (${gp.number(many)})`)));
  };

  const small = (more, gp) => {
    const { el } = gp;
    const used = more.head.map((_, i) => more.rows.some((row) => row[i] !== null && row[i] !== ""));
    const kept = (list) => list.filter((_, i) => used[i]);
    const cell = (value) => (typeof value === "number" || value === "inf" ? el("td", { class: "number" }, value === "inf" ? "∞" : gp.number(value)) : el("td", null, value ?? ""));
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Values of the row" }, el("table", null,
      el("thead", null, el("tr", null, kept(more.head).map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", null, more.rows.map((row) => el("tr", null, kept(row).map(cell))))));
  };
})();
