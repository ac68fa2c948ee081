// The page, from top to bottom.

import { charts, isChartTable } from "./charts.js";
import { view } from "./data.js";
import { actions, foot, hero } from "./frame.js";
import { ranks } from "./ranks.js";
import { readHash, setState, showTheme, state } from "./state.js";
import { accounts, facts, findings, longest, saveLedger } from "./tables.js";
import { selectLongest, timeline, unpackSlices } from "./timeline.js";
import { waterfall } from "./waterfall.js";
import { whatIf, whatIfButton } from "./what_if.js";

/** Builds the page of an analysis: the sections up to the timeline, then, once that is drawn, those below it. */
async function main() {
  const slices = unpackSlices();  // in parallel with the sections
  Object.assign(state, readHash());
  showTheme(state.theme);
  actions(saveLedger);
  hero();
  waterfall();
  findings(selectLongest, whatIfButton);
  whatIf();
  ranks();
  const drawn = timeline(slices);
  const below = [charts, accounts, ...tables(), foot];
  const buildBelow = () => below.splice(0).forEach((build) => build());
  addEventListener("beforeprint", buildBelow);
  addEventListener("hashchange", () => {
    if (!/^#[a-z]+$/.test(location.hash)) setState(readHash(), { write: false });
  });
  await drawn;
  await new Promise((resolve) => setTimeout(resolve));  // the browser can show what is there
  buildBelow();
  if (/^#[a-z]+$/.test(location.hash)) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

/** Functions that build the tables below the ledger. */
function tables() {
  const find = Boolean(view.timeline);
  return [
    () => longest("kernels", "Top kernels", `where device time goes${find ? "; click a name to find it in the timeline" : ""}`, view.kernels, { nav: "Kernels", find }),
    () => longest("modules", "Top modules", "device time by the module of the model that launched it", view.modules),
    ...view.tables.map((table, at) => () => isChartTable(table) || facts(table, at)),
  ];
}

main();
