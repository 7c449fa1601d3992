"use strict";
// What all views share. A view is GP.views.<name> = (root, data, gp) => {…}: it fills `root` with what `data` says.
const GP = { views: {} };

(() => {
  const SIGNS = { bad: "✗", warn: "!", good: "✓", info: "i" };
  const TONES = {
    bad: ["fault", "fail", "failed", "different", "wrong", "candidate_worse", "differs", "error", "bad"],
    warn: ["undecided", "inconclusive", "warn", "warning", "missing", "not_compared", "flaky"],
    good: ["ok", "healthy", "pass", "passed", "same", "candidate_better", "good"],
  };
  const page = JSON.parse(document.getElementById("data-page").textContent);
  const live = document.getElementById("live");

  // A DOM element. `attrs` may hold on<event> functions, `dataset`, `style` properties; children are nodes or text.
  GP.el = (tag, attrs, ...children) => {
    const svg = ["svg", "g", "path", "rect", "line", "text", "circle", "title", "polyline", "polygon"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attrs || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on") && typeof value === "function") node.addEventListener(name.slice(2), value);
      else if (name === "dataset") Object.assign(node.dataset, value);
      else if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      node.append(child instanceof Node ? child : String(child));
    }
    return node;
  };

  // `file:line` as a link to its snippet, or as plain code; `text` is shown instead of it.
  GP.source = (place, text) => {
    if (!place) return document.createTextNode("");
    const code = GP.el("code", null, text || place);
    const anchor = Object.hasOwn(page.sources, place) ? page.sources[place] : "";
    return anchor ? GP.el("a", { class: "src", href: "#" + anchor }, code) : code;
  };

  // The text of a line of Python or C++ in its colours. Strings that run over several lines are not followed.
  const WORDS = "and as assert async auto await bool break case char class const constexpr continue def del double elif else enum except " +
    "extern false finally float for from global if import in inline int int32_t int64_t is lambda long namespace None nonlocal not or pass " +
    "raise return short signed sizeof static struct switch template this True False true try typedef typename uint8_t unsigned using void while with yield";
  const TOKEN = new RegExp([
    /(?<c>(?:^|\s)\/\/.*|#(?!include|pragma|define|if|endif|else|undef).*)/, /(?<s>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')/,
    new RegExp(`(?<k>#\\w+|\\b(?:${WORDS.replaceAll(" ", "|")})\\b)`), /(?<n>\b\d[\w.]*)/,
  ].map((one) => one.source).join("|"), "g");
  GP.paint = (text) => {
    const parts = [];
    let end = 0;
    for (const found of text.matchAll(TOKEN)) {
      const [kind] = Object.entries(found.groups).find(([, word]) => word !== undefined);
      parts.push(text.slice(end, found.index), GP.el("span", { class: "tok-" + kind }, found[0]));
      end = found.index + found[0].length;
    }
    return [...parts, text.slice(end)];
  };

  // What stands on paper only, made by `make` when the page is printed.
  GP.onPaper = (root, make) => addEventListener("beforeprint", () => {
    root.querySelector(":scope > .paper")?.remove();
    root.append(GP.el("div", { class: "paper" }, make()));
  });

  // A verdict's word, coloured, with a sign; `tone` where the word itself does not say it.
  GP.tone = (word) => Object.keys(TONES).find((tone) => TONES[tone].includes(String(word).toLowerCase())) || "info";
  GP.verdict = (word, tone) => {
    const kind = tone || GP.tone(word);
    return GP.el("span", { class: "badge " + kind },
      GP.el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[kind]), String(word).replaceAll("_", " "));
  };

  // Says it to a screen reader.
  GP.announce = (text) => { live.textContent = text; };

  // The value of a colour variable, for a canvas: GP.colour("bad"). Draw again on the document's event "gp:theme".
  GP.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // A number as people write it: 12,345; 1.23e+07; what is text stays as it is.
  GP.number = (value) => {
    if (typeof value !== "number") return value === null || value === undefined ? "" : String(value);
    if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
    return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
  };

  // What is wider than the page is scrolled with the arrow keys too, so it has to be reached with Tab.
  const scrollers = () => {
    for (const box of document.querySelectorAll(".wrap, pre")) {
      if (box.scrollWidth > box.clientWidth && !box.hasAttribute("tabindex")) box.setAttribute("tabindex", "0");
    }
  };

  const render = (holder) => {
    if (holder.dataset.done) return;
    holder.dataset.done = "yes";
    const data = document.getElementById("data-" + holder.dataset.of);
    try {
      GP.views[holder.dataset.view](holder, JSON.parse(data.textContent), GP);
    } catch (error) {
      holder.replaceChildren(GP.el("p", { class: "note bad", role: "alert" }, "This part could not be shown: " + error));
      reportError(error); // to the console, while the rest of the page goes on
    } finally {
      data.remove();
    }
    scrollers();
  };

  // What lies before the target is drawn first: a view that grows later would push the target out of sight.
  const goTo = (id) => {
    const target = id && document.getElementById(id);
    if (!target) return false;
    for (const holder of document.querySelectorAll(".view")) {
      if (holder.compareDocumentPosition(target) & Node.DOCUMENT_POSITION_PRECEDING) break;
      render(holder);
    }
    const own = target.querySelector(".view");
    if (own) render(own);
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target.scrollIntoView({ block: target.classList.contains("line") ? "center" : "start" });
    if (target.classList.contains("line")) target.focus({ preventScroll: true });
    return true;
  };

  const copyButtons = () => {
    for (const block of document.querySelectorAll("[data-copy]")) {
      const button = GP.el("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "Copy");
      button.addEventListener("click", async () => {
        const text = block.querySelector("code").textContent;
        try {
          await navigator.clipboard.writeText(text);
        } catch {
          const range = document.createRange();
          range.selectNodeContents(block.querySelector("code"));
          getSelection().removeAllRanges();
          getSelection().addRange(range);
          button.textContent = "Selected";
          GP.announce("The command is selected");
          return;
        }
        button.textContent = "Copied";
        GP.announce("Copied");
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      block.append(button);
    }
  };

  const themes = () => {
    const button = document.getElementById("theme");
    const names = { "": "as the system", light: "light", dark: "dark" };
    const show = (theme) => {
      if (theme) document.documentElement.dataset.theme = theme;
      else delete document.documentElement.dataset.theme;
      document.getElementById("theme-name").textContent = names[theme];
      document.dispatchEvent(new Event("gp:theme"));
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      const order = Object.keys(names);
      show(order[(order.indexOf(document.documentElement.dataset.theme || "") + 1) % order.length]);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("gp:theme")));
  };

  // Marks the part that is being read in the contents.
  const contents = () => {
    const links = new Map();
    for (const link of document.querySelectorAll(".contents a")) links.set(link.hash.slice(1), link);
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    }, { rootMargin: "-10% 0px -80% 0px" });
    for (const id of links.keys()) seen.observe(document.getElementById(id));
  };

  GP.start = () => {
    themes();
    copyButtons();
    scrollers();
    addEventListener("resize", scrollers);
    for (const line of document.querySelectorAll(".source .line")) line.lastChild.replaceWith(...GP.paint(line.lastChild.textContent));
    const holders = [...document.querySelectorAll(".view")];
    const near = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        near.unobserve(entry.target);
        render(entry.target);
      }
    }, { rootMargin: "600px 0px" });
    holders.forEach((holder, index) => (index ? near.observe(holder) : render(holder)));
    contents();
    document.addEventListener("click", (event) => {
      const link = event.target instanceof Element ? event.target.closest('a[href^="#"]') : null;
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey || link.classList.contains("skip")) return;
      const id = decodeURIComponent(link.hash.slice(1));
      if (!document.getElementById(id)) return;
      event.preventDefault();
      history.pushState(null, "", "#" + id);
      document.querySelector(".line.target")?.classList.remove("target");
      document.getElementById(id).classList.toggle("target", document.getElementById(id).classList.contains("line"));
      goTo(id);
    });
    addEventListener("beforeprint", () => {
      holders.forEach(render);
      for (const box of document.querySelectorAll("details:not([open])")) Object.assign(box, { open: true }).dataset.folded = "yes";
    }, { capture: true });
    addEventListener("afterprint", () => {
      for (const box of document.querySelectorAll("details[data-folded]")) box.open = false;
    });
    // What is far down is drawn too while nothing else is to be done, so that a picture of the whole page has it.
    const next = () => {
      const holder = holders.find((one) => !one.dataset.done);
      if (!holder) return;
      render(holder);
      setTimeout(next);
    };
    setTimeout(next);
    if (location.hash) goTo(decodeURIComponent(location.hash.slice(1)));
    document.documentElement.dataset.ready = "yes";
  };
})();
