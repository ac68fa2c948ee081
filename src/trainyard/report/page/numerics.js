// The page that compares the recorded tensors of two trainings, from top to bottom.

import { saveCsv } from "./export.js";
import { actions, foot, hero } from "./frame.js";
import { errorHistogram } from "./error_histogram.js";
import { errorsByStep } from "./errors_by_step.js";
import { firstFault } from "./first_fault.js";
import { moduleRows, moduleTable } from "./module_table.js";
import { losses, recordSides, reproducer } from "./recorded_sides.js";
import { readHash, setState, showTheme, state } from "./state.js";

/** Builds the page. */
function main() {
  Object.assign(state, readHash());
  showTheme(state.theme);
  actions(() => saveCsv("modules", moduleRows()));
  hero();
  firstFault();
  moduleTable();
  errorHistogram();
  errorsByStep();
  losses();
  reproducer();
  recordSides();
  foot();
  addEventListener("hashchange", () => {
    if (!/^#[a-z]+$/.test(location.hash)) setState(readHash(), { write: false });
  });
  if (/^#[a-z]+$/.test(location.hash)) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

main();
