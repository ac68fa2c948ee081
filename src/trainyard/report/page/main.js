// The page, from top to bottom.

/** Builds the page of an analysis. */
async function main() {
  Object.assign(state, readHash());
  showTheme(state.theme);
  actions(saveLedger);
  hero();
  waterfall();
  findings();
  ranks();
  const drawn = timeline();
  accounts();
  longest("kernels", "Top kernels", `where device time goes${view.timeline ? "; click a name to find it in the timeline" : ""}`, view.kernels, { nav: "Kernels", find: Boolean(view.timeline) });
  longest("modules", "Top modules", "the modules of the model that allocated it", view.modules);
  view.tables.forEach((table, at) => facts(table, at));
  foot();
  addEventListener("hashchange", () => {
    if (!/^#[a-z]+$/.test(location.hash)) setState(readHash(), { write: false });
  });
  await drawn;
  if (/^#[a-z]+$/.test(location.hash)) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

main();
