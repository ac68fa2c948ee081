// The page, from top to bottom.

import { charts } from "./charts.js";
import { view } from "./data.js";
import { actions, foot, hero } from "./frame.js";
import { ranks } from "./ranks.js";
import { readHash, setState, showTheme, state } from "./state.js";
import { accounts, facts, findings, longest, saveLedger } from "./tables.js";
import { selectLongest, timeline } from "./timeline.js";
import { waterfall } from "./waterfall.js";
import { whatIf, whatIfButton } from "./what_if.js";

/** Builds the page of an analysis. */
async function main() {
  Object.assign(state, readHash());
  showTheme(state.theme);
  actions(saveLedger);
  hero();
  waterfall();
  findings(selectLongest, whatIfButton);
  whatIf();
  ranks();
  const drawn = timeline();
  charts();
  accounts();
  longest("kernels", "Top kernels", `where device time goes${view.timeline ? "; click a name to find it in the timeline" : ""}`, view.kernels, { nav: "Kernels", find: Boolean(view.timeline) });
  longest("modules", "Top modules", "device time by the module of the model that launched it", view.modules);
  view.tables.forEach((table, at) => facts(table, at));
  foot();
  addEventListener("hashchange", () => {
    if (!/^#[a-z]+$/.test(location.hash)) setState(readHash(), { write: false });
  });
  await drawn;
  if (/^#[a-z]+$/.test(location.hash)) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

main();
