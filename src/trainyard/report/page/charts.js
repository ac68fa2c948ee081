// The charts of a page for which there are data.

import { busBandwidth } from "./bus_bandwidth.js";
import { view } from "./data.js";
import { expertLoad, expertTable } from "./expert_load.js";
import { goodput } from "./goodput.js";
import { heldTable, memoryTimeline } from "./memory_timeline.js";
import { pipeline } from "./pipeline.js";
import { roofline } from "./roofline.js";
import { series } from "./series.js";

/** Whether a table is drawn below the chart that it belongs to. */
export const isChartTable = (table) => table === heldTable() || table === expertTable();

/** Draws them in order: the course of the run, then its steps. */
export function charts() {
  const data = view.charts;
  if (!data) return;
  goodput(data.goodput);
  series(data.series);
  pipeline(data.pipeline);
  memoryTimeline(data.memory);
  expertLoad(data.experts);
  roofline(data.roofline);
  busBandwidth(data.bandwidth);
}
