// What all of the server's pages have: the theme, forms that answer while they are filled in, sliders.

const root = document.documentElement;
const darkWanted = matchMedia("(prefers-color-scheme: dark)");
const WAIT_MS = 200;

/** Applies the theme that was chosen on this server, and passes it on to reports, which take it from their address. */
function theme() {
  const button = document.getElementById("theme");
  const chosen = () => localStorage.getItem("theme") ?? "";
  const show = () => {
    root.dataset.theme = chosen();
    const dark = chosen() ? chosen() === "dark" : darkWanted.matches;
    button.setAttribute("aria-label", `Theme: ${dark ? "dark" : "light"}. Switch.`);
    button.dataset.next = dark ? "light" : "dark";
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    localStorage.setItem("theme", button.dataset.next);
    show();
  });
  darkWanted.addEventListener("change", show);
  show();
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (link?.href && chosen() && !link.hash && link.origin === location.origin) link.hash = `theme=${chosen()}`;
  });
}

/** Reloads the results of a form while it is filled in: the server answers with a page, of which this takes one part. */
function answering(form) {
  const id = form.dataset.live;
  let timer = 0;
  let request = new AbortController();
  const load = async () => {
    if (!form.checkValidity()) return;
    request.abort();
    request = new AbortController();
    const query = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, String(value)]).filter(([, value]) => value));
    const url = `${form.getAttribute("action")}?${query}`;
    document.getElementById(id)?.setAttribute("aria-busy", "true");
    try {
      const response = await fetch(url, { signal: request.signal });
      const part = new DOMParser().parseFromString(await response.text(), "text/html").getElementById(id);
      if (!part) return location.assign(url);
      document.getElementById(id).replaceWith(document.adoptNode(part));
      history.replaceState(null, "", url);
    } catch (error) {
      if (error.name !== "AbortError") document.getElementById(id)?.removeAttribute("aria-busy");
    }
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(load, WAIT_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    load();
  });
}

/** Connects a slider over powers of two with the number that it sets. */
function slider(range) {
  const number = range.form.elements[range.dataset.powerOf];
  const follow = () => (range.value = Math.round(Math.log2(Math.max(1, number.value))));
  range.hidden = false;
  range.addEventListener("input", () => (number.value = 2 ** range.value));
  number.addEventListener("input", follow);
  follow();
}

theme();
document.querySelectorAll("form[data-live]").forEach(answering);
document.querySelectorAll("input[data-power-of]").forEach(slider);
