"use strict";
// The explorer's page. Its data says all; this draws it and lights up what belongs together.

const WORDS = {
  python: /^(and|as|class|def|elif|else|for|from|if|import|in|is|not|or|pass|return|while|with|None|True|False)$/,
  llvm: /^(add|alloca|and|ashr|attributes|br|call|declare|define|distinct|fadd|fcmp|fmul|fneg|fsub|getelementptr|icmp|inbounds|insertelement|internal|label|load|mul|nsw|or|phi|poison|ptr|ret|select|sext|shl|shufflevector|store|sub|to|trunc|void|xor|zeroinitializer|zext)$/,
  asm: /^$/,
};
const TOKENS = {
  python: /(#.*)|("(?:[^"\\]|\\.)*")|(\b\d[\w.]*)|([A-Za-z_]\w*)/g,
  llvm: /(;.*)|("(?:[^"\\]|\\.)*")|((?<![%@\w.])-?\b\d[\w.+]*)|((?<![%@\w.])[a-z]+\b)/g,
  asm: /((?:#|\/\/).*)|("(?:[^"\\]|\\.)*")|((?<![\w.])\$?-?\b(?:0x)?\d[\w.]*)|([A-Za-z_]\w*)/g,
};
const KINDS = ["comment", "string", "number", "word"];
const LANGUAGES = { llvm: "llvm", asm: "asm", ptx: "asm" };
const $ = (query) => document.querySelector(query);

let page = JSON.parse($("#data").textContent);
let view = null;
let panes = []; // {name, element, list, rows: [{element, places}], button}
let kept = null; // the {pane, row} whose links stay
let current = null; // the {pane, row} whose links are shown

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function coloured(text, language) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(TOKENS[language])) {
    const kind = KINDS[match.slice(1, 5).findIndex((group) => group !== undefined)];
    if (kind === "word" && !WORDS[language].test(match[0])) continue;
    parts.push(text.slice(end, match.index), make("span", { class: kind }, match[0]));
    end = match.index + match[0].length;
  }
  parts.push(text.slice(end));
  return parts;
}

function fill(pane, rows) {
  pane.rows = rows.map((row, index) => {
    const places = row.places || [];
    const kind = { "+": "add", "-": "cut" }[row.mark] || "";
    const said = { "+": "added: ", "-": "removed: " }[row.mark];
    const element = make("li", {
      role: "option", id: `${pane.name}-${index}`, "aria-selected": "false",
      class: `${places.length ? "linked" : ""} ${kind}`,
      "aria-label": said ? said + row.text : row.text ? null : `${row.label || ""} empty line`,
    });
    if (places.length) element.style.setProperty("--hue", (places[0] * 67) % 360);
    if (pane.name === "source") element.append(make("span", { class: "label", "aria-hidden": "true" }, row.label || ""));
    element.append(...coloured(row.text || " ", LANGUAGES[pane.name] || "python"));
    if (row.time) element.append(make("span", { class: "time" }, row.time));
    element.dataset.row = index;
    return { element, places };
  });
  pane.list.replaceChildren(...pane.rows.map((row) => row.element));
}

function addPane(name, title, head, body) {
  const id = `title-${name}`;
  const count = make("span", { class: "count" });
  const element = make("section", { class: "pane", id: `pane-${name}`, "aria-labelledby": id },
    make("div", { class: "head" }, make("h2", { id }, title), count, ...head), body);
  const button = make("button", { type: "button", "aria-pressed": "true" }, title);
  const pane = { name, title, element, count, button, list: body, rows: [] };
  button.addEventListener("click", () => choose(pane));
  panes.push(pane);
  return pane;
}

function listOf(title) {
  return make("ol", { class: "rows", role: "listbox", tabindex: "0", "aria-label": title, "aria-multiselectable": "true" });
}

const isNarrow = () => matchMedia("(max-width: 44rem)").matches;

function choose(pane) {
  if (isNarrow()) {
    for (const other of panes) {
      other.element.classList.toggle("chosen", other === pane);
      other.button.setAttribute("aria-pressed", String(other === pane));
    }
    show(current || kept, { follow: true });
    return;
  }
  pane.element.hidden = !pane.element.hidden;
  pane.button.setAttribute("aria-pressed", String(!pane.element.hidden));
}

function addSteps(steps) {
  const slider = make("input", { type: "range", min: 0, max: steps.length, value: 0, "aria-label": "Step of the schedule" });
  const said = make("output", { id: "step" });
  const move = (by) => { slider.value = Number(slider.value) + by; draw(); };
  const back = make("button", { type: "button", "aria-label": "Step back" }, "‹");
  const on = make("button", { type: "button", "aria-label": "Next step" }, "›");
  const pane = addPane("steps", "Schedule", [back, slider, on, said], listOf("The program after the step"));
  function draw() {
    const at = Number(slider.value);
    said.textContent = at ? `${at} of ${steps.length}: ${steps[at - 1].text}` : `${steps.length} steps; before the first:`;
    slider.setAttribute("aria-valuetext", said.textContent);
    back.disabled = at === 0;
    on.disabled = at === steps.length;
    const before = steps[0].rows.filter((row) => row.mark !== "+").map((row) => ({ ...row, mark: "" }));
    fill(pane, at ? steps[at - 1].rows : before);
    show(current || kept, {});
    const first = pane.list.querySelector(".add, .cut");
    if (first) pane.list.scrollTop = first.offsetTop - pane.list.offsetTop - 60;
  }
  slider.addEventListener("input", draw);
  back.addEventListener("click", () => move(-1));
  on.addEventListener("click", () => move(1));
  draw();
}

function draw(index) {
  const before = panes.filter((pane) => pane.element.hidden).map((pane) => pane.name);
  const chosen = panes.find((pane) => pane.element.classList.contains("chosen"));
  view = page.views[index];
  panes = [];
  kept = current = null;
  if (!view) return; // a live page of a file that has not compiled yet
  for (const stage of view.panes) fill(addPane(stage.name, stage.title, [], listOf(stage.title)), stage.rows);
  if (view.steps) addSteps(view.steps);
  if (view.forest) {
    const body = make("div", { class: "axes", tabindex: "0", role: "group", "aria-label": "Axes" });
    if (view.forest.startsWith("<svg")) body.innerHTML = view.forest;
    else body.append(make("pre", {}, view.forest));
    addPane("axes", "Axes", [], body);
  }
  if (view.pictures) {
    const body = make("div", { class: "pictures", tabindex: "0", role: "group", "aria-label": "Pictures" });
    view.pictures.forEach(([title, svg]) => {
      const picture = make("figure", {});
      picture.innerHTML = svg;
      picture.firstElementChild.setAttribute("aria-label", title);
      body.append(picture);
    });
    addPane("pictures", "Pictures", [], body);
  }
  for (const pane of panes) {
    pane.element.hidden = before.includes(pane.name);
    pane.button.setAttribute("aria-pressed", String(!pane.element.hidden));
  }
  const first = panes.find((pane) => chosen && pane.name === chosen.name) || panes[0];
  first.element.classList.add("chosen");
  if (isNarrow()) for (const pane of panes) pane.button.setAttribute("aria-pressed", String(pane === first));
  $("nav").replaceChildren(...panes.map((pane) => pane.button));
  $("main").replaceChildren(...panes.map((pane) => pane.element));
  $("#note").hidden = !view.note;
  $("#note").textContent = view.note || "";
  status("Point at a line to see what it became and what it came from.");
}

function status(text) {
  $("#status").textContent = text;
}

function place(element) {
  const line = element && element.closest(".rows li");
  const pane = line && panes.find((candidate) => candidate.list === line.parentElement);
  return pane ? { pane, row: Number(line.dataset.row) } : null;
}

// Light up the lines that share a place with the line `at`; `follow` scrolls to them.
function show(at, { follow = false }) {
  const places = new Set(at && at.pane.rows[at.row] ? at.pane.rows[at.row].places : []);
  const found = [];
  for (const pane of panes) {
    let count = 0;
    let first = null;
    let isVisible = false;
    const frame = pane.list.getBoundingClientRect();
    for (const [index, row] of pane.rows.entries()) {
      const isActive = Boolean(at) && at.pane === pane && at.row === index;
      const isLit = row.places.some((number) => places.has(number));
      row.element.classList.toggle("lit", isLit);
      row.element.classList.toggle("active", isActive);
      row.element.setAttribute("aria-selected", String(isLit));
      if (!isLit) continue;
      count += 1;
      first = first || row.element;
      const box = row.element.getBoundingClientRect();
      isVisible = isVisible || (box.top >= frame.top && box.bottom <= frame.bottom);
    }
    pane.count.textContent = count ? `${count} linked` : "";
    if (count) found.push(`${pane.title} ${count}`);
    if (first && at.pane !== pane && (follow || !isVisible)) {
      pane.list.scrollTop = first.offsetTop - pane.list.offsetTop - pane.list.clientHeight / 3;
    }
  }
  current = at;
  if (at && at.pane.rows[at.row]) at.pane.list.setAttribute("aria-activedescendant", `${at.pane.name}-${at.row}`);
  if (found.length) status(`Linked lines: ${found.join(", ")}.`);
  else if (at) status("This line comes from no line of the source.");
}

function keep(at) {
  const isSame = kept && at && kept.pane === at.pane && kept.row === at.row;
  kept = isSame ? null : at;
  show(kept, { follow: true });
}

function goTo(pane, row, options = { follow: true }) {
  if (!pane.rows.length) return;
  const index = Math.max(0, Math.min(row, pane.rows.length - 1));
  show({ pane, row: index }, options);
  const element = pane.rows[index].element;
  const top = element.offsetTop - pane.list.offsetTop;
  const isAbove = top < pane.list.scrollTop;
  if (isAbove || top + element.offsetHeight > pane.list.scrollTop + pane.list.clientHeight) {
    pane.list.scrollTop = isAbove ? top - 20 : top - pane.list.clientHeight + 40;
  }
}

function beside(pane, by) {
  const others = panes.filter((other) => other.rows.length && (isNarrow() || !other.element.hidden));
  const next = others[others.indexOf(pane) + by];
  if (!next) return;
  if (isNarrow()) choose(next);
  const lit = next.rows.findIndex((row) => row.element.classList.contains("lit"));
  next.list.focus({ preventScroll: true });
  next.element.scrollIntoView({ block: "nearest", inline: "nearest" });
  if (lit >= 0) goTo(next, lit, {});
  else if (current == null) goTo(next, 0, {});
}

function pressed(event) {
  const pane = panes.find((candidate) => candidate.list === event.target);
  if (event.key === "Escape") { kept = null; show(null, {}); status(""); return; }
  if (!pane || !pane.rows.length || event.ctrlKey || event.metaKey || event.altKey) return;
  const row = current && current.pane === pane ? current.row : -1;
  const page_ = Math.floor(pane.list.clientHeight / 18);
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page_, PageUp: -page_ };
  if (event.key in moves) goTo(pane, Math.max(0, row + moves[event.key]));
  else if (event.key === "Home") goTo(pane, 0);
  else if (event.key === "End") goTo(pane, pane.rows.length - 1);
  else if (event.key === "ArrowLeft") beside(pane, -1);
  else if (event.key === "ArrowRight") beside(pane, 1);
  else if (event.key === "Enter" || event.key === " ") keep(current);
  else if (event.key === "n") {
    const lit = pane.rows.map((r, k) => (r.element.classList.contains("lit") ? k : -1)).filter((k) => k >= 0);
    if (lit.length) goTo(pane, lit.find((k) => k > row) ?? lit[0], {});
  } else return;
  event.preventDefault();
}

function begin(index) {
  document.title = page.title;
  $("h1").textContent = page.title;
  const select = $("#programs select");
  select.replaceChildren(...page.views.map((each, k) => make("option", { value: k }, each.name)));
  $("#programs").hidden = page.views.length < 2;
  select.value = index;
  draw(index);
}

// A live page asks its own server, and nothing else, whether the program changed.
async function follow(version) {
  for (;;) {
    try {
      const answer = await (await fetch(`state?after=${version}`)).json();
      const alert = $("#alert");
      alert.hidden = !answer.error;
      alert.textContent = answer.error || "";
      if (answer.page) {
        const name = view && view.name;
        page = answer.page;
        begin(Math.max(0, page.views.findIndex((each) => each.name === name)));
      }
      version = answer.version;
    } catch {
      status("The server has stopped.");
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

const main = $("main");
main.addEventListener("mouseover", (event) => { const at = place(event.target); if (at && !kept) show(at, {}); });
main.addEventListener("click", (event) => { const at = place(event.target); if (at) keep(at); });
document.addEventListener("keydown", pressed);
$("#programs select").addEventListener("change", (event) => draw(Number(event.target.value)));
begin(0);
if (page.live !== undefined) follow(page.live);
