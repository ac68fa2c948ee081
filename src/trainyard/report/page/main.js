// The page, from top to bottom.

function hero() {
  const chips = view.chips.map((chip) => el("code", { class: "chip" }, chip));
  content.append(el("div", { class: "hero" },
    el("div", { class: "sentence" }, el("h1", {}, view.title), el("p", {}, view.subtitle, " ", ...chips.flatMap((chip) => [chip, " "]))),
    el("dl", { class: "figures" }, ...view.figures.map(figure))));
  if (view.warnings.length) {
    content.append(el("aside", { class: "warnings", role: "note", "aria-label": "Warnings" }, ...view.warnings.map((warning) => el("p", {}, warning))));
  }
}

function figure({ label, value, unit, change, better, means }) {
  const arrow = /^\+/.test(change) ? "▲ " : /^[-−]/.test(change) ? "▼ " : "";
  const verdict = better === null ? "" : better ? "better" : "worse";
  const told = change ? el("span", { class: `change ${verdict}` }, " ", arrow, arrow ? change.slice(1) : change, verdict && el("span", { class: "hidden" }, ` (${verdict})`)) : null;
  return el("div", { title: means || null }, el("dt", {}, label, told), el("dd", {}, value, unit ? el("small", {}, unit) : null));
}

function foot() {
  for (const [id, title, note, lines] of [
    ["notes", "Notes", "how the ledger came about", view.notes],
    ["limits", "Limits", "what these numbers cannot say", view.limits],
  ]) {
    if (lines.length) section(id, title, note).append(el("ul", { class: "limits" }, ...lines.map((line) => el("li", {}, line))));
  }
  content.append(el("footer", {}, view.generated));
}

function actions() {
  const copy = document.getElementById("copy");
  copy.addEventListener("click", async () => {
    writeHash();
    const done = await navigator.clipboard.writeText(location.href).then(() => true, () => false);
    copy.textContent = done ? "Copied" : "Copy it from the address bar";
    say(copy.textContent);
    setTimeout(() => (copy.textContent = "Copy link"), 1800);
  });
  document.getElementById("csv").addEventListener("click", saveLedger);
  const isDark = () => (state.theme ? state.theme === "dark" : darkWanted.matches);
  const theme = document.getElementById("theme");
  const named = () => theme.setAttribute("aria-label", `Theme: ${isDark() ? "dark" : "light"}. Switch.`);
  theme.addEventListener("click", () => setState({ theme: isDark() ? "light" : "dark" }));
  watch(named);
  named();
  // Paper is white.
  let before = "";
  addEventListener("beforeprint", () => {
    before = state.theme;
    setState({ theme: "light" }, { write: false });
  });
  addEventListener("afterprint", () => setState({ theme: before }, { write: false }));
}

async function main() {
  Object.assign(state, readHash());
  showTheme(state.theme);
  actions();
  hero();
  waterfall();
  findings();
  ranks();
  const drawn = timeline();
  accounts();
  longest("kernels", "Top kernels", `where device time goes${view.timeline ? "; click a name to find it in the timeline" : ""}`, view.kernels, { nav: "Kernels", find: Boolean(view.timeline) });
  longest("modules", "Top modules", "which parts of the model it belongs to", view.modules);
  foot();
  addEventListener("hashchange", () => {
    if (!/^#[a-z]+$/.test(location.hash)) setState(readHash(), { write: false });
  });
  await drawn;
  if (/^#[a-z]+$/.test(location.hash)) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

main();
