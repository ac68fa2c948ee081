// The timeline by rank: lanes on a canvas, zoomed and panned.

const RULER = 36;
const TALLEST = 680;

/** Draws the section "Timeline" once its packed slices are unpacked; a note if there are none. */
async function timeline() {
  const packed = view.timeline;
  if (!packed || !packed.lanes.some(([, , count]) => count)) {
    section("timeline", "Timeline", "", { nav: "Timeline" }).append(el("p", { class: "empty" }, "No events were recorded, so there is no timeline. The ledger above does not need one."));
    return;
  }
  const card = section("timeline", "Timeline", "", {
    nav: "Timeline",
    csv: () => saveCsv("timeline", line.slices()),
    png: () => line.canvas.toBlob((blob) => save("timeline.png", blob)),
  });
  card.querySelector(".note").append("", ...["W", "S"].map((key) => el("kbd", {}, key)), " zoom ", ...["A", "D"].map((key) => el("kbd", {}, key)), " pan ", el("kbd", {}, "F"), " fit ", el("kbd", {}, "/"), " search ", el("kbd", {}, "?"), " help");
  const stage = el("div", { class: "stage" });
  const facts = el("p", { class: "facts" });
  const picked = el("p", { class: "picked" });
  const controls = el("div", { class: "controls" });
  const count = new Set(packed.lanes.map(([rank]) => rank)).size;
  if (packed.aligned === "no" && count > 1) card.append(el("p", { class: "notice" }, "The clocks of the ranks are not aligned: compare times within a rank, not between ranks. ", packed.alignment));
  card.append(controls, stage, picked, facts);
  const line = new Line(packed, stage, facts, picked);
  line.fill(await unpack(packed));
  attachControls(line, controls);
  redrawn(stage, () => line.resize());
  card.append(details("Slices in view, by name", () => line.summary()));
  watch((changed) => changed.some((name) => name !== "theme") && line.changed(changed));
}

/** The timeline: lanes of slices on a canvas, and the range [from, to) ns in view, which is part of the page's state. */
class Line {
  /** `packed`: the timeline as stored in the page; the elements: the canvas's parent, and lines on the view and on the selected slice. */
  constructor(packed, stage, facts, picked) {
    Object.assign(this, { packed, stage, facts, picked, hover: null, chosen: null, scroll: 0, frames: [], waiting: false });
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-roledescription": "timeline", "aria-label": "Timeline by rank. W and S zoom, A and D pan, up and down choose a rank, F fits, slash searches. A table of the slices in view follows." });
    this.raster = document.createElement("canvas");
    const hosts = new Map((view.heat?.ranks ?? []).map((rank, column) => [rank, view.heat.nodes[column]]));
    this.hostOf = (rank) => hosts.get(rank);
    stage.append(this.canvas);
  }

  /** Takes the unpacked slices. `names`: of each kind; `lanes`: with starts, ends and kinds of slices. */
  fill({ names, lanes }) {
    Object.assign(this, { names, lanes });
    this.length = Math.max(1, this.packed.length, ...lanes.map((lane) => lane.ends.at(-1) ?? 0));
    this.lower = names.map((name) => name.toLowerCase());
  }

  get from() { return state.from ?? -this.length * 0.004; }
  get to() { return state.to ?? this.length * 1.012; }

  /** Lays out lanes: thin if there are many, but tall enough for names for the selected rank. */
  layout() {
    const thin = Math.max(5, Math.min(28, Math.floor(460 / this.lanes.length)));
    this.named = thin >= 11;
    this.gutter = this.named ? Math.min(170, 22 + Math.max(...this.lanes.map((lane) => textWidth(this.laneName(lane), SMALL)))) : 66;
    let y = 0;
    this.rows = this.lanes.map((lane, at) => {
      if (at && lane.rank !== this.lanes[at - 1].rank && thin > 8) y += 3;
      const height = lane.rank === state.rank ? Math.max(thin, 22) : thin;
      const row = { lane, y, height };
      y += height;
      return row;
    });
    this.tall = y;
    this.height = Math.min(y, TALLEST);
    this.scroll = Math.max(0, Math.min(this.scroll, y - this.height));
  }

  laneName(lane) { return `rank ${lane.rank} · ${lane.label}`; }

  /** Fits the canvas to the width of its parent, and draws. */
  resize() {
    this.layout();
    this.ratio = devicePixelRatio || 1;
    this.width = this.stage.clientWidth;
    const tall = RULER + this.height + 10;
    Object.assign(this.canvas, { width: Math.round(this.width * this.ratio), height: Math.round(tall * this.ratio) });
    this.canvas.style.height = `${tall}px`;
    this.inner = Math.max(50, this.width - this.gutter - 10);
    this.draw();
  }

  /** Draws on the next frame, once, however many asked. */
  ask() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  /** Handles a change of the page's state. `names`: the names that changed. */
  changed(names) {
    if (names.includes("rank")) {
      this.layout();
      const row = this.rows.find(({ lane }) => lane.rank === state.rank);
      if (row) this.scroll = Math.max(0, Math.min(row.y - this.height / 2, this.tall - this.height));
      this.resize();
    } else this.ask();
  }

  /** Whether the slices of a kind match the search text and the selected label. */
  matches(kind) {
    const label = this.packed.legend[this.packed.looks[kind]].label;
    return (!state.q || this.lower[kind].includes(state.q.toLowerCase())) && (!state.kind || label === state.kind);
  }

  /** Colour, weight and emphasis of each kind, as `paintRow` takes them; with a filter, other kinds are pale. */
  paint() {
    const colours = this.packed.legend.map(({ colour }) => tuned(colour, 1.9));
    const filtered = Boolean(state.q || state.kind);
    return this.packed.looks.map((look, kind) => [...colours[look], filtered && !this.matches(kind) ? 0.015 : 1, filtered && this.matches(kind)]);
  }

  x(ns) { return this.gutter + ((ns - this.from) / (this.to - this.from)) * this.inner; }
  ns(x) { return this.from + ((x - this.gutter) / this.inner) * (this.to - this.from); }

  /** Draws everything, and records the time that it took. */
  draw() {
    const began = performance.now();
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.fillStyle = ink("--card");
    pen.fillRect(0, 0, this.width, RULER + this.height + 10);
    drawRuler(this, pen);
    pen.save();
    pen.beginPath();
    pen.rect(0, RULER, this.width, this.height);
    pen.clip();
    const seen = this.drawLanes(pen);
    drawMarks(this, pen);
    pen.restore();
    drawOverview(this, pen);
    this.frames = [...this.frames.slice(-7), performance.now() - began];
    if (!performance.getEntriesByName("trainyard-drawn").length) performance.mark("trainyard-drawn");
    this.tell(seen);
  }

  /** Draws the lanes in view: each into a row of pixels, which is stretched to the lane's height. Returns the number of slices in view. */
  drawLanes(pen) {
    const shown = this.rows.filter(({ y, height }) => y + height > this.scroll && y < this.scroll + this.height);
    const wide = Math.round(this.inner * this.ratio);
    Object.assign(this.raster, { width: wide, height: shown.length });
    const soft = this.raster.getContext("2d");
    const image = soft.createImageData(wide, shown.length);
    const sums = new Float32Array(wide * 4);
    const paint = this.paint();
    let seen = 0;
    shown.forEach(({ lane }, at) => {
      seen += paintRow(lane, this.from, this.to, image.data.subarray(at * wide * 4, (at + 1) * wide * 4), sums, paint);
    });
    soft.putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    const snap = (value) => Math.round(value * this.ratio) / this.ratio;
    shown.forEach(({ lane, y, height }, at) => {
      const top = snap(RULER + y - this.scroll);
      if (lane.rank === state.rank) {
        pen.fillStyle = ink("--chosen");
        pen.fillRect(0, top, this.width, height);
      }
      pen.drawImage(this.raster, 0, at, wide, 1, this.gutter, top, this.inner, Math.max(1, height - (height > 12 ? 3 : 1.5)));
      if (height >= 16) drawNames(this, pen, lane, top, height, paint);
    });
    return seen;
  }

  /** Writes the numbers of events and slices below the timeline. `seen`: slices in view. */
  tell(seen) {
    const { events, merged } = this.packed;
    const pace = this.frames.reduce((sum, ms) => sum + ms, 0) / this.frames.length;
    this.facts.textContent = [plural(events, "event"), merged && `${whole(merged)} folded into neighbours`, `${plural(seen, "slice")} in view`, `${fixed(pace, 1)} ms/frame`].filter(Boolean).join(" · ");
  }

  /** The slice under a point of the canvas, or the nearest within two pixels. */
  at(x, y) {
    const deep = y - RULER + this.scroll;
    const row = y >= RULER && y < RULER + this.height && x >= this.gutter ? this.rows.find((one) => deep >= one.y && deep < one.y + one.height) : null;
    if (!row) return null;
    const slack = (2 * (this.to - this.from)) / this.inner;
    const ns = this.ns(x);
    const index = firstAfter(row.lane, ns - slack);
    const near = [index, index + 1, index + 2].filter((one) => one < row.lane.starts.length && row.lane.starts[one] <= ns + slack);
    if (!near.length) return null;
    const away = (one) => Math.max(0, row.lane.starts[one] - ns, ns - row.lane.ends[one]);
    return { lane: row.lane, index: near.reduce((best, one) => (away(one) < away(best) ? one : best)) };
  }

  /** The lines of a slice's tooltip. */
  about({ lane, index }) {
    const kind = lane.kinds[index];
    const [start, length] = [lane.starts[index], lane.ends[index] - lane.starts[index]];
    return [this.names[kind], `${time(length)} · ${this.packed.legend[this.packed.looks[kind]].label}`, this.laneName(lane), `starts at ${fixed(start / 1e6, 6)} ms · ${whole(length)} ns`];
  }

  /** Shows [from, to) ns, kept within reason; the whole when there is no more to see. */
  show(from, to) {
    const span = Math.max(50, to - from);
    if (span >= this.length) return this.fit();
    const start = Math.max(0, Math.min((from + to - span) / 2, this.length * 1.012 - span));
    return setState({ from: start, to: start + span });
  }

  fit() { setState({ from: null, to: null }); }
  zoom(factor, about = (this.from + this.to) / 2) { this.show(about - (about - this.from) * factor, about + (this.to - about) * factor); }
  pan(part) { const by = part * (this.to - this.from); this.show(this.from + by, this.to + by); }

  /** Every slice in view, for the CSV. */
  slices() {
    const lines = [["rank", "lane", "name", "kind", "start_ns", "ns"]];
    for (const lane of this.lanes) {
      for (let at = firstAfter(lane, this.from); at < lane.starts.length && lane.starts[at] < this.to; at += 1) {
        const kind = lane.kinds[at];
        lines.push([lane.rank, lane.label, this.names[kind], this.packed.legend[this.packed.looks[kind]].label, lane.starts[at], lane.ends[at] - lane.starts[at]]);
      }
    }
    return lines;
  }

  /** Slices in view, by name, longest first. */
  summary() {
    const { counts, lengths } = totals(this.lanes, this.names.length, this.from, this.to);
    const kinds = [...counts.keys()].filter((kind) => counts[kind]).sort((a, b) => lengths[b] - lengths[a]);
    return [["name", "kind", "count", "ns, all lanes"], ...kinds.slice(0, 200).map((kind) => [this.names[kind], this.packed.legend[this.packed.looks[kind]].label, counts[kind], lengths[kind]])];
  }
}
