// The charts of a page for which there are data.

import { busBandwidth } from "./bus_bandwidth.js";
import { view } from "./data.js";
import { goodput } from "./goodput.js";
import { memoryTimeline } from "./memory_timeline.js";
import { pipeline } from "./pipeline.js";
import { roofline } from "./roofline.js";
import { series } from "./series.js";

/** Draws them in order: the course of the run, then its steps. */
export function charts() {
  const data = view.charts;
  if (!data) return;
  goodput(data.goodput);
  series(data.series);
  pipeline(data.pipeline);
  memoryTimeline(data.memory);
  roofline(data.roofline);
  busBandwidth(data.bandwidth);
}
