// The categories of memory at the peak in one bar.

import { darkWanted, tuned } from "./colours.js";
import { css, onto } from "./contrast.js";
import { el } from "./dom.js";
import { share, size, whole } from "./numbers.js";
import { watch } from "./state.js";
import { explain } from "./tooltip.js";

/** The bar: `held` has the bytes of each label of `kinds` that holds any. */
export function heldBar({ held, kinds }) {
  const total = Object.values(held).reduce((sum, bytes) => sum + bytes, 0);
  const bar = el("div", { class: "held", role: "img", "aria-label": `At the peak: ${Object.entries(held).map(([label, bytes]) => `${label} ${size(bytes)}`).join(", ")}` });
  for (const { label, colour } of kinds) {
    if (!held[label]) continue;
    const part = el("span", {}, el("b", {}, label), ` ${size(held[label])}`);
    const show = () => {
      const fill = tuned(colour);
      part.style.background = css(fill);
      part.style.color = onto(fill);
    };
    part.style.flexGrow = String(held[label] / total);
    watch((changed) => changed.includes("theme") && show());
    darkWanted.addEventListener("change", show);
    show();
    bar.append(explain(part, () => [label, `${whole(held[label])} bytes, ${share(held[label], total)} of the peak`]));
  }
  return bar;
}
