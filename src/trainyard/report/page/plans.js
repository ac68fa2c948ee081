// The page of plans, from top to bottom.

import { charts } from "./charts.js";
import { view } from "./data.js";
import { actions, foot, hero } from "./frame.js";
import { front } from "./front.js";
import { scaling } from "./scaling.js";
import { stacks } from "./stacks.js";
import { readHash, setState, showTheme, state } from "./state.js";
import { accounts, facts, saveLedger } from "./tables.js";
import { waterfall } from "./waterfall.js";

const NAVS = { Layouts: "Layouts", Assumptions: "Sources" };

/** Builds the page of plans. */
function main() {
  Object.assign(state, readHash());
  showTheme(state.theme);
  actions(saveLedger);
  const [layouts, ...rest] = view.tables;
  hero();
  waterfall();
  facts(layouts, 0, NAVS[layouts.title]);
  charts();
  stacks();
  front();
  scaling();
  rest.forEach((table, at) => facts(table, at + 1, NAVS[table.title]));
  accounts();
  foot();
  addEventListener("hashchange", () => {
    if (!/^#[a-z]+$/.test(location.hash)) setState(readHash(), { write: false });
  });
  if (/^#[a-z]+$/.test(location.hash)) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

main();
