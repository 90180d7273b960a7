"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const color = index => `var(--c${index % 8})`;

function add(parent, tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  parent.append(element);
  return element;
}

function addSvg(parent, tag, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== "") element.textContent = text;
  parent.append(element);
  return element;
}

const round = value => Number(value.toPrecision(3)).toString();

// Tables: a click on a header sorts by its column; a second click reverses the order; cells without a value stay last.
function addTable(parent, {columns, rows}) {
  const table = add(add(parent, "div", {class: "scroll"}), "table");
  const head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
  const fill = sorted => {
    body.replaceChildren();
    for (const row of sorted) {
      const line = add(body, "tr");
      for (const cell of row) add(line, "td", cell.mark ? {class: cell.mark} : {}, cell.text);
    }
  };
  columns.forEach((title, column) => {
    const header = add(head, "th", {scope: "col", "aria-sort": "none"});
    add(header, "button", {type: "button"}, title).addEventListener("click", () => {
      const sign = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of head.children) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const hasValue = row => row[column].value !== null;
      const compare = (a, b) => sign * (a[column].value < b[column].value ? -1 : a[column].value > b[column].value ? 1 : 0);
      fill([...rows.filter(hasValue).sort(compare), ...rows.filter(row => !hasValue(row))]);
    });
  });
  fill(rows);
}

function addLegend(figure, names, colors) {
  const legend = add(figure, "div", {class: "legend"});
  names.forEach((name, index) => {
    const entry = add(legend, "span");
    add(entry, "i", {style: `background:${colors[index]}`});
    entry.append(name);
  });
}

// Charts
function linearTicks(from, to) {
  const raw = Math.max(to - from, 1e-9) / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find(size => size * power >= raw * .999);
  const ticks = [];
  for (let k = Math.floor(from / step); k * step < to + step * .999; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(from, to) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power++)
    for (const digit of [1, 2, 5]) ticks.push(digit * 10 ** power);
  const start = ticks.findLastIndex(tick => tick <= from), end = ticks.findIndex(tick => tick >= to);
  return ticks.slice(Math.max(start, 0), end + 1);
}

// The y axis: logarithmic where the means span more than a factor of 8, so that small values can be distinguished.
function yAxis(points) {
  const means = points.map(point => point[1]), low = Math.min(...means), high = Math.max(...points.map(([, mean, sd]) => mean + sd), 1e-9);
  if (low > 0 && Math.max(...means) / low > 8) {
    const ticks = logTicks(low, high), bottom = Math.log(ticks[0]), top = Math.log(ticks[ticks.length - 1]);
    return {ticks, share: value => (Math.log(Math.max(value, ticks[0])) - bottom) / (top - bottom)};
  }
  const lowest = Math.min(...points.map(([, mean, sd]) => mean - sd));
  const ticks = linearTicks(low < 0 ? lowest : 0, high), bottom = ticks[0], top = ticks[ticks.length - 1];
  return {ticks, share: value => (Math.max(value, bottom) - bottom) / (top - bottom)};
}

// Lines of points [x, mean, sd] with a band of mean ± sd, and a tooltip at the nearest x.
function addChart(parent, {title, lines, colors, xLabel, yLabel, describe}) {
  const width = 460, height = 280, left = 52, right = 12, top = 12, bottom = 42;
  const figure = add(parent, "figure");
  add(figure, "figcaption", {}, title);
  const svg = addSvg(figure, "svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yLabel}, ${title}`});
  const points = lines.flatMap(line => line.points), xs = [...new Set(points.map(point => point[0]))];
  const first = Math.min(...xs), last = Math.max(...xs), axis = yAxis(points);
  const X = x => left + (last > first ? (x - first) / (last - first) : .5) * (width - left - right);
  const Y = y => height - bottom - axis.share(y) * (height - top - bottom);
  for (const tick of axis.ticks) {
    addSvg(svg, "line", {x1: left, x2: width - right, y1: Y(tick), y2: Y(tick), class: "grid"});
    addSvg(svg, "text", {x: left - 6, y: Y(tick) + 4, "text-anchor": "end"}, round(tick));
  }
  for (const tick of linearTicks(first, last).filter(tick => tick >= first && tick <= last))
    addSvg(svg, "text", {x: X(tick), y: height - bottom + 16, "text-anchor": "middle"}, round(tick));
  addSvg(svg, "text", {x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle"}, xLabel);
  addSvg(svg, "text", {transform: `translate(12 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle"}, yLabel);
  lines.forEach((line, index) => {
    const upper = line.points.map(([x, mean, sd]) => `${X(x)},${Y(mean + sd)}`);
    const lower = line.points.map(([x, mean, sd]) => `${X(x)},${Y(mean - sd)}`).reverse();
    addSvg(svg, "polygon", {points: [...upper, ...lower].join(" "), class: "band", style: `fill:${colors[index]};opacity:.15`});
  });
  lines.forEach((line, index) => {
    const style = `fill:none;stroke:${colors[index]};stroke-width:2;stroke-linejoin:round`;
    addSvg(svg, "polyline", {points: line.points.map(([x, mean]) => `${X(x)},${Y(mean)}`).join(" "), style});
    if (line.points.length === 1) addSvg(svg, "circle", {cx: X(line.points[0][0]), cy: Y(line.points[0][1]), r: 3, style: `fill:${colors[index]}`});
  });
  const cursor = addSvg(svg, "line", {y1: top, y2: height - bottom, class: "cursor", visibility: "hidden"});
  const tooltip = add(figure, "div", {class: "tooltip", role: "status"});
  const show = event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * width;
    const x = xs.reduce((a, b) => Math.abs(X(b) - at) < Math.abs(X(a) - at) ? b : a);
    const values = lines.map(line => [line.name, line.points.find(point => point[0] === x)]).filter(([, point]) => point);
    values.sort((a, b) => a[1][1] - b[1][1]);
    cursor.setAttribute("x1", X(x));
    cursor.setAttribute("x2", X(x));
    cursor.setAttribute("visibility", "visible");
    const format = ([name, [, mean, sd]]) => `${name}  ${round(mean)}${sd ? ` ± ${round(sd)}` : ""}`;
    tooltip.textContent = [describe(x), ...values.map(format)].join("\n");
    tooltip.style.display = "block";
    const offset = event.clientX - box.left + 24;
    const flipped = offset + tooltip.offsetWidth > box.width ? offset - tooltip.offsetWidth - 36 : offset;
    tooltip.style.left = `${Math.max(0, flipped)}px`;
    tooltip.style.top = `${Math.min(event.clientY - box.top + 24, box.height - tooltip.offsetHeight + 24)}px`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => {
    tooltip.style.display = "none";
    cursor.setAttribute("visibility", "hidden");
  });
  addLegend(figure, lines.map(line => line.name), colors);
}

// Stacked bars: per layer the weights of the mean (left) and of the variance (right).
function addWeights(parent, {title, layers}) {
  const width = 460, height = 240, left = 34, bottom = 40, top = 8, step = (width - left - 6) / layers.length;
  const cuts = [...new Set(layers.flatMap(layer => [...Object.keys(layer.mean), ...Object.keys(layer.var)]))];
  const figure = add(parent, "figure");
  add(figure, "figcaption", {}, title);
  const svg = addSvg(figure, "svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Mixing weights, ${title}`});
  const full = height - bottom - top;
  layers.forEach((layer, index) => ["mean", "var"].forEach((side, k) => {
    let y = height - bottom;
    cuts.forEach((cut, c) => {
      const weight = layer[side][cut] ?? 0;
      y -= weight * full;
      const style = `fill:${color(c)};opacity:${side === "mean" ? 1 : .6}`;
      const bar = addSvg(svg, "rect", {x: left + index * step + (.06 + .45 * k) * step, width: .42 * step, y, height: weight * full, style});
      addSvg(bar, "title", {}, `${layer.path}, ${side === "mean" ? "mean" : "variance"}: ${cut} ${round(weight)}`);
    });
    if (k === 0) addSvg(svg, "text", {x: left + (index + .5) * step, y: height - bottom + 15, "text-anchor": "middle"}, index + 1);
  }));
  for (const value of [0, .5, 1]) addSvg(svg, "text", {x: left - 6, y: height - bottom - value * full + 4, "text-anchor": "end"}, value);
  addSvg(svg, "text", {x: (left + width) / 2, y: height - 6, "text-anchor": "middle"}, "layer (left bar: mean, right bar: variance)");
  addLegend(figure, cuts, cuts.map((_, index) => color(index)));
}

function addPairs(parent, pairs) {
  const list = add(parent, "dl");
  for (const [name, value] of Object.entries(pairs)) {
    add(list, "dt", {}, name);
    add(list, "dd", {}, value || "–");
  }
}

function addCharts(section, heading, note, charts, options) {
  if (!charts.length) return;
  add(section, "h3", {}, heading);
  add(section, "p", {class: "muted"}, note);
  fillCharts(add(section, "div", {class: "charts"}), charts, options);
}

function fillCharts(box, charts, options) {
  for (const {batch_size, lines} of charts)
    addChart(box, {...options, title: `batch size ${batch_size}`, lines, colors: lines.map(line => options.colorOf(line.name))});
}

// Learning curves: the metric of the comparison, and the other recorded ones by a select box.
function addCurves(section, curves, colorOf) {
  if (!curves.length) return;
  add(section, "h3", {}, "Learning curves");
  const note = add(section, "p", {class: "muted"}), control = add(section, "label", {class: "control"}, "Metric");
  const select = add(control, "select"), box = add(section, "div", {class: "charts"});
  const show = ({kind, name, label, charts}) => {
    const when = kind === "test" ? "during training" : "over the steps since the evaluation before";
    note.textContent = `${kind === "test" ? "Test" : "Mean training"} ${name} ${when}: mean over seeds, band of ± 1 sd.`;
    box.replaceChildren();
    fillCharts(box, charts, {xLabel: "epoch", yLabel: label, describe: x => `epoch ${round(x)}`, colorOf});
  };
  curves.forEach((curve, index) => add(select, "option", {value: index}, curve.label));
  control.hidden = curves.length === 1;
  select.addEventListener("change", () => show(curves[select.value]));
  show(curves[0]);
}

// Pictures: one slider per kind selects the evaluation in all its series, so that norms are compared at the same time.
function addPictures(section, series) {
  if (!series.length) return;
  add(section, "h3", {}, "Pictures");
  add(section, "p", {class: "muted"}, "Pictures of the run of the first seed, from its last evaluation; a slider selects earlier ones.");
  for (const kind of new Set(series.map(each => each.kind))) {
    const members = series.filter(each => each.kind === kind), last = Math.max(...members.map(each => each.pictures.length)) - 1;
    const control = add(section, "label", {class: "control"}, `${kind || "pictures"}: evaluation`);
    const slider = add(control, "input", {type: "range", min: 0, max: last, step: 1, value: last});
    control.hidden = last === 0;
    const box = add(section, "div", {class: "pictures"});
    const show = () => {
      box.replaceChildren();
      const share = last ? slider.value / last : 1;
      members.forEach(({title, batch_size, pictures}, index) => {
        const figure = addPicture(box, title, pictures[Math.round(share * (pictures.length - 1))]);
        if (batch_size !== members[index - 1]?.batch_size) figure.style.gridColumn = 1;  // each batch size starts a row
      });
    };
    slider.addEventListener("input", show);
    show();
  }
}

// A small picture is shown at the largest multiple of its size up to 320 pixels.
function addPicture(parent, title, {name, uri, width, height, note}) {
  const figure = add(parent, "figure");
  add(figure, "figcaption", {}, title);
  if (uri) {
    const scale = Math.max(1, Math.floor(320 / Math.max(width, height)));
    add(figure, "img", {src: uri, alt: `${title}: ${name}`, width: scale * width, height: scale * height, class: scale > 1 ? "small" : "large"});
  }
  add(figure, "p", {class: "muted"}, note ? `${name} (${note})` : name);
  return figure;
}

function addSection(main, content) {
  const section = add(main, "section"), colorOf = norm => color(content.norms.indexOf(norm));
  add(section, "h2", {}, content.title);
  add(section, "p", {class: "muted"}, content.settings);
  add(section, "p", {class: "answer"}, content.answer.replaceAll(" %", "\u00a0%"));
  addTable(section, content.results);
  add(section, "p", {class: "muted"}, content.significance);
  addCurves(section, content.curves, colorOf);
  addPictures(section, content.pictures);
  addCharts(section, "Estimation shift by layer",
    "Distance between the running statistics of a layer and the statistics of the test images: 0 means equal. Mean over seeds, ± 1 sd.",
    content.shifts, {xLabel: "layer", yLabel: "estimation shift", describe: x => content.layers[x] ?? `layer ${x}`, colorOf});
  if (content.weights.length) {
    add(section, "h3", {}, "Learned mixing weights");
    add(section, "p", {class: "muted"}, "Share of each statistic in the norms that mix several.");
    const box = add(section, "div", {class: "charts"});
    content.weights.forEach(weights => addWeights(box, weights));
  }
  if (content.cost.columns.length > 1) {
    add(section, "h3", {}, "Cost");
    add(section, "p", {class: "muted"}, "Time of a training step on one thread (the best of several rounds), and memory that the forward pass saves for backward.");
    addTable(section, content.cost);
  }
  add(section, "h3", {}, "Provenance");
  addPairs(section, content.provenance);
  const settings = add(section, "details");
  add(settings, "summary", {}, "Configuration");
  addPairs(settings, content.config);
  const runs = add(section, "details");
  add(runs, "summary", {}, `All ${content.runs.rows.length} runs`);
  addTable(runs, content.runs);
}

document.getElementById("summary").textContent = data.summary;
if (data.sections.length === 1) document.title = `${data.sections[0].title}: comparison of norms`;
for (const content of data.sections) addSection(document.getElementById("main"), content);
