// The kinds of a chart as buttons.

import { darkWanted, tuned } from "./colours.js";
import { css } from "./contrast.js";
import { el } from "./dom.js";
import { setState, state, watch } from "./state.js";

export const KINDS_LABEL = "Kinds; select one to dim the others";

/** A legend of `entries` ({label, colour, means}) as buttons: selecting one dims the others. `least`: contrast of the colours to the card; `choice`: the part of the state that holds the selected label. */
export function legendKeys(entries, { label: called, least = 1.6, compact = true, choice = "kind" }) {
  const list = el("div", { class: compact ? "legend" : "legend keys", role: "group", "aria-label": called });
  for (const { label, colour, means } of entries) {
    const dot = el("i", { "aria-hidden": "true" });
    const key = el("button", { type: "button", title: means || null, onclick: () => setState({ [choice]: state[choice] === label ? "" : label }) }, dot, label);
    const show = () => {
      dot.style.background = css(tuned(colour, least));
      key.setAttribute("aria-pressed", String(state[choice] === label));
    };
    watch(show);
    darkWanted.addEventListener("change", show);
    show();
    list.append(key);
  }
  return list;
}
