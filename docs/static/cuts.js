// The live picture of cuts: which values of a block (samples, channels, space) share a mean and a variance, for a typed spec.
//
// The table of norms, suffixes and regular expressions comes from docs/live_cuts.py, which reads it from the registry; the grammar is
// that of anynorm/core/grammar.py, and tests/docs/test_live_cuts.py compares both. ALL = 0 is one part per index, as in Python.
"use strict";

const ALL = 0;

class SpecError extends Error {}

const gcd = (a, b) => (b ? gcd(b, a % b) : a);
const divisors = (number) => Array.from({ length: number }, (_, k) => k + 1).filter((k) => number % k === 0);

function formatNumbers(numbers, limit = 12) {
  const text = numbers.slice(0, limit).join(" ");
  return numbers.length <= limit ? text : `${text} … ${numbers[numbers.length - 1]}`;
}

function cutName(cut) {
  if (cut.name) return cut.name;
  const samples = cut.perPart > 1 ? `/${cut.perPart}` : cut.samples || "*";
  return cut.joint ? `[${samples},${cut.joint}]` : `[${samples},${cut.channels || "*"},${cut.space || "*"}]`;
}

const sameCut = (a, b) =>
  ["samples", "channels", "space", "perPart", "joint", "crosses"].every((key) => (a[key] || 0) === (b[key] || 0));

// The grammar

function parse(text, table) {
  const source = text;
  const tokens = text.trim().toLowerCase().match(new RegExp(table.patterns.token, "gs")) || [];
  const terms = [];
  let position = 0;
  const fail = (message) => {
    throw new SpecError(message);
  };
  const malformed = () =>
    fail(
      `'${source}' is malformed. A spec is a name (bn, hn:32, sabn@10), cuts for mean/variance (bn/en:32), or cuts to mix ` +
        "(in+ln+bn), or 0 for the mean (0/pn); suffixes may follow (.none, .sa@10, .hard).",
    );
  const zero = () =>
    fail(
      `'${source}': 0 must be the whole side of the mean, as in '0/pn' or '0/bn+ln'. A variance needs cuts, and 0 cannot be mixed with cuts.`,
    );
  const accept = (symbols) => {
    const token = tokens[position];
    if (token === undefined || !symbols.includes(token)) return "";
    position += 1;
    return token;
  };
  const next = () => {
    if (position === tokens.length) malformed();
    position += 1;
    return tokens[position - 1];
  };
  const positive = (number) => (Number(number) < 1 ? fail(`'${source}': numbers must be at least 1; got ${number}.`) : Number(number));
  const isPlain = (term) => term.stages.join() === "channel" && !term.domains;
  const isChannel = (term) => term.stages.join() === "channel" || term.stages.join() === "scale";

  const side = () => {
    const mean = [];
    const variance = [];
    const hasMean = new Set();
    for (let sign = "+"; sign; sign = accept("+-")) {
      const term = readTerm();
      hasMean.add(term.mean.length > 0);
      for (const [cuts, added] of [[mean, term.mean], [variance, term.var]]) {
        for (const cut of added) {
          const found = cuts.findIndex((each) => sameCut(each, cut));
          if (sign === "+" && found >= 0) fail(`'${source}' contains ${cutName(cut)} twice; each cut may occur once per side.`);
          if (sign === "-" && found < 0) fail(`'${source}' removes ${cutName(cut)}, which is not among the cuts before it.`);
          if (sign === "+") cuts.push(cut);
          else cuts.splice(found, 1);
        }
      }
    }
    if (hasMean.size > 1) zero();
    const isCustom = terms[terms.length - 1].isCustom;
    if (((hasMean.has(true) && !mean.length) || !variance.length) && !isCustom) {
      fail(`'${source}' leaves no cut. A norm needs at least one cut for the mean and one for the variance.`);
    }
    return { mean, var: variance };
  };

  const readTerm = () => {
    const token = next();
    if (token === "0") zero();
    let term;
    if (token[0] === "[") {
      const cut = readCut(token);
      term = { mean: [cut], var: [cut], groups: 1, isHard: false, stages: ["channel"], classes: 0, domains: 0, name: token };
    } else term = named(token);
    terms.push(term);
    return term;
  };

  const readCut = (token) => {
    const joint = token.match(new RegExp(`^${table.patterns.joint}$`));
    if (joint) return { samples: joint[1] === "*" ? ALL : 1, joint: positive(joint[2]) };
    const match = token.match(new RegExp(`^${table.patterns.cut}$`));
    if (!match) {
      fail(
        `'${source}': ${token} is malformed. A cut is [samples,channels,space]: samples is 1, * or /m (m per part), the others are ` +
          "numbers or *; [samples,groups] cuts channels and space jointly.",
      );
    }
    const [samples, perPart, channels, space] = match
      .slice(1)
      .map((part) => (part === undefined || part === "*" ? ALL : positive(part)));
    return { samples, channels, space, perPart: perPart || 1 };
  };

  const matchName = (token) => token.match(new RegExp(`^${table.patterns.name}$`));

  const named = (token) => {
    const match = matchName(token);
    if (!match) malformed();
    const [, name, numbers, classes] = match;
    if (!Object.hasOwn(table.norms, name)) {
      fail(`'${source}': unknown norm '${name}'. Known: ${Object.keys(table.norms).join(" ")}.`);
    }
    const norm = table.norms[name];
    const given = numbers ? numbers.split(",").map(Number) : [];
    if (given.length > norm.afterColon.length || (classes && !norm.afterAt.length)) {
      fail(`${token} has too many numbers: write ${norm.usage}.`);
    }
    const values = {};
    norm.afterColon.forEach((argument, k) => (values[argument] = given[k]));
    if (classes) values[norm.afterAt[0]] = Number(classes);
    for (const [argument, fallback] of Object.entries(norm.arguments)) {
      if (values[argument] === undefined && fallback === null) fail(`${name} needs ${argument}: write ${norm.usage}.`);
      values[argument] = values[argument] ?? fallback;
      if (values[argument] < 1) fail(`${argument} of ${name} must be an integer of at least 1; got ${values[argument]}.`);
    }
    const number = (value) => (typeof value === "string" ? values[value] : value);
    const cut = (each) => {
      const made = {};
      for (const key of ["samples", "channels", "space", "perPart", "joint"]) if (key in each) made[key] = number(each[key]);
      made.name = specName(each.name, each.numbers.map(number), table);
      return made;
    };
    return {
      mean: norm.mean.map(cut),
      var: norm.var.map(cut),
      groups: number(norm.groups),
      isHard: norm.isHard,
      stages: norm.stages,
      classes: number(norm.classes),
      domains: number(norm.domains),
      isCustom: norm.isCustom,
      norm: name,
      name: token,
    };
  };

  const combine = (mean, variance) => {
    const groups = new Set(terms.map((term) => term.groups).filter((each) => each > 1));
    for (const term of terms) {
      if (term.isCustom) fail(`'${source}': ${term.name} cannot be combined with other terms; it is not made of cuts.`);
      if (!isPlain(term) || term.isHard || groups.size > 1) {
        fail(
          `'${source}': ${term.name} has more than cuts, so it cannot be combined with other terms. Write the rest as a suffix, as in ` +
            "'bn+in.sa@10' or 'in+ln.groups:2'.",
        );
      }
    }
    return {
      mean,
      var: variance,
      groups: [...groups][0] || 1,
      isHard: false,
      stages: ["channel"],
      classes: 0,
      domains: 0,
      isCustom: false,
    };
  };

  const suffix = (spec, kinds) => {
    const token = next();
    const [, name, numbers, classes] = matchName(token) || ["", "", undefined, undefined];
    const kind = name === "groups" || name === "hard" ? name : "affine";
    const changed = { ...spec };
    if (spec.isCustom && name !== "none") fail(`'${source}': ${spec.name} takes no suffix except .none; got .${token}.`);
    if (kind === "affine") {
      const known = table.suffixes[Object.hasOwn(table.suffixes, name) ? name : ""];
      if (!known || numbers || Boolean(classes) !== Boolean(known.classes)) {
        if (known && known.classes && !classes) {
          fail(`'${source}': .${name} needs a number of classes or domains, as in '.${name}@10'.`);
        }
        const listed = Object.entries(table.suffixes).map(([key, each]) => `.${key}${each.classes ? "@k" : ""}`);
        fail(`'${source}': unknown suffix '.${token}'. Known: .groups:k .hard ${listed.join(" ")}.`);
      }
      const number = (value) => (value === "number" ? positive(classes) : value);
      Object.assign(changed, { stages: known.stages, classes: number(known.classes), domains: number(known.domains) });
    } else {
      if (classes || Boolean(numbers) !== (name === "groups")) {
        fail(`'${source}': write .groups with a number and .hard without, as in 'sn.groups:2' or 'sn.hard'.`);
      }
      if (Math.max(spec.mean.length, spec.var.length) === 1) {
        fail(`'${source}': .groups:k and .hard need several cuts to mix, as in 'sn.groups:2' or 'sn.hard'.`);
      }
      if (numbers) changed.groups = positive(numbers);
      else changed.isHard = true;
    }
    if (kinds.has(kind)) {
      fail(`'${source}': a norm takes one .hard, one .groups and one affine suffix; .${token} is the second of its kind.`);
    }
    kinds.add(kind);
    return changed;
  };

  let spec;
  if (accept("0")) {
    if (!accept("/")) zero();
    spec = combine([], side().var);
  } else {
    const first = side();
    const variance = accept("/") ? side().var : first.var;
    spec = terms.length === 1 ? terms[0] : combine(first.mean, variance);
  }
  const kinds = new Set();
  if (!isChannel(spec) || spec.domains) kinds.add("affine");
  if (spec.groups > 1) kinds.add("groups");
  while (accept(".")) spec = suffix(spec, kinds);
  if (position < tokens.length) malformed();
  return spec;
}

// A norm with its numbers; a single number that is its default of 1 is left out: en, not en:1.
function specName(name, numbers, table) {
  if (!name) return ""; // a cut without a name is written in brackets
  const defaults = Object.values(table.norms[name].arguments);
  return numbers.length && !(numbers.length === 1 && defaults.length === 1 && numbers[0] === 1 && defaults[0] === 1)
    ? `${name}:${numbers.join(",")}`
    : name;
}

// Cuts of a block of n samples, c channels and s positions

function resolveCut(cut, c) {
  const name = cutName(cut);
  if (cut.joint) {
    const units = gcd(cut.joint, c);
    const strips = cut.joint / units;
    const joint = { samples: cut.samples, perPart: 1, name };
    if (strips === 1) return { ...joint, channels: units, space: 1 };
    if (units === c) return { ...joint, channels: ALL, space: strips };
    return { ...joint, channels: units, space: strips, crosses: true };
  }
  if (cut.channels !== ALL && c % cut.channels) {
    throw new SpecError(
      `${name} cuts ${c} channels into ${cut.channels} equal parts; ${c} is not divisible by ${cut.channels}. ` +
        `Usable: ${formatNumbers(divisors(c))}.`,
    );
  }
  return { ...cut, name };
}

const poolsSamples = (cut) => cut.samples !== ALL || cut.perPart > 1;

// The distinct cuts of a norm, and the indices of those of the mean and of the variance.
function resolve(spec, c) {
  if (spec.groups > 1 && c % spec.groups) {
    throw new SpecError(
      `The mixing weights of ${spec.groups} channel groups need a channel count divisible by ${spec.groups}; got ${c} channels. ` +
        `Usable: ${formatNumbers(divisors(c))}.`,
    );
  }
  const cuts = [];
  const index = (side) => {
    const indices = [];
    for (const cut of side) {
      let place = cuts.findIndex((each, k) => sameCut(each, cut) && !indices.includes(k));
      if (place < 0) place = cuts.push(cut) - 1;
      indices.push(place);
    }
    return indices;
  };
  const resolved = [spec.mean, spec.var].map((side) => side.map((cut) => resolveCut(cut, c)));
  const [mean, variance] = resolved.map(index);
  if (spec.domains && !cuts.some(poolsSamples) && !spec.stages.includes("class")) {
    throw new SpecError("domains select running statistics, but no cut of this norm pools samples. Use .cc@K for an affine per domain.");
  }
  for (const cut of cuts) {
    if (cut.perPart > 1 && spec.domains) {
      throw new SpecError(`${cutName(cut)} divides the batch, and so do domains. Use only one of them.`);
    }
    if (poolsSamples(cut) && cut.space === ALL) {
      throw new SpecError(
        `${cutName(cut)} pools samples separately at each position, so its running statistics would depend on the image size. Use a ` +
          "number of strips instead of * for the space axis.",
      );
    }
  }
  return { cuts, mean, var: variance };
}

function checkShape(cut, [n, c, s]) {
  const nearest = (number, parts) => divisors(number).reduce((best, k) => (Math.abs(k - parts) < Math.abs(best - parts) ? k : best), 1);
  if (cut.perPart > 1 && n % cut.perPart) {
    throw new SpecError(
      `${cutName(cut)} takes statistics over ${cut.perPart} samples each; the batch size must be a multiple of ${cut.perPart}; got ${n}.`,
    );
  }
  if (cut.space === ALL || s % cut.space === 0) return;
  if (cut.crosses) {
    const groups = cut.channels * cut.space;
    throw new SpecError(
      `${cutName(cut)} cuts ${c} channels × ${s} positions = ${c * s} values into ${groups} equal groups; ${c * s} is not divisible by ` +
        `${groups}. Nearest usable: ${nearest(c * s, groups)}.`,
    );
  }
  const strips = nearest(s, cut.space);
  const usable = cut.samples === 1 && cut.channels === ALL ? `bgn:${strips * c}` : `${strips} strips`;
  throw new SpecError(
    `${cutName(cut)} cuts the ${s} positions of each of ${c} channels into ${cut.space} equal strips; ${s} is not divisible by ` +
      `${cut.space}. Nearest usable: ${usable}.`,
  );
}

function parts(cut, [n, c, s]) {
  return [cut.samples === ALL ? Math.floor(n / cut.perPart) : cut.samples, cut.channels || c, cut.space || s];
}

// The number of the part of a cut that has a value.
function partOf(cut, [i, j, k], shape) {
  const counts = parts(cut, shape);
  let index = [i, j, k];
  let sizes = shape;
  if (cut.crosses) {
    const width = shape[1] / cut.channels;
    index = [i, Math.floor(j / width), (j % width) * shape[2] + k];
    sizes = [shape[0], cut.channels, width * shape[2]];
  }
  const [a, b, d] = index.map((each, axis) => Math.floor((each * counts[axis]) / sizes[axis]));
  return (a * counts[1] + b) * counts[2] + d;
}

// What is said about a norm

function formula(spec, table) {
  const mixture = (cuts, symbol, weight) =>
    (cuts.length === 1
      ? `${symbol}[${cutName(cuts[0])}]`
      : cuts.map((cut) => `${weight}[${cutName(cut)}] ${symbol}[${cutName(cut)}]`).join(" + ")) || "0";
  const hasMean = spec.mean.length > 0;
  let y = hasMean ? "(x − mean)/√(var + ε)" : "x/√(var + ε)";
  for (const stage of spec.stages) {
    const inner = y.startsWith("(x") || y.startsWith("x") ? y : `(${y})`;
    y = table.stages[stage].form.replace("{}", inner);
  }
  const lines = [`mean = ${mixture(spec.mean, "μ", "w")}`, `var  = ${mixture(spec.var, hasMean ? "σ²" : "rms²", "w′")}`, `y    = ${y}`];
  if (Math.max(spec.mean.length, spec.var.length) > 1) {
    const groups = spec.groups > 1 ? `, for each of ${spec.groups} channel groups` : "";
    lines.push(`${hasMean ? "w, w′" : "w′"} = ${spec.isHard ? "one-hot(argmax λ)" : "softmax(λ)"}${groups}`);
  }
  return lines;
}

function count(spec, { cuts, mean, var: variance }, table, shape) {
  const [, c] = shape;
  const rows = { channel: 1, scale: 1, class: spec.classes, style: 0 };
  let parameters = 0;
  for (const stage of spec.stages) parameters += table.stages[stage].tensors * rows[stage] * c;
  let running = 0;
  let statistics = 0;
  for (const side of [mean, variance]) {
    if (side.length > 1) parameters += spec.groups * side.length;
    for (const index of side) {
      statistics += parts(cuts[index], shape).reduce((a, b) => a * b);
      if (poolsSamples(cuts[index])) running += (spec.domains || 1) * parts(cuts[index], [1, c, 1]).slice(1).reduce((a, b) => a * b);
    }
  }
  return { parameters, statistics, running };
}

// All that the page shows for a spec and a shape; throws SpecError.
function describe(text, table, shape) {
  const spec = parse(text, table);
  if (spec.isCustom) {
    const error = new SpecError(`${spec.norm} is a norm outside the algebra: ${table.norms[spec.norm].summary}.`);
    error.norm = spec.norm;
    throw error;
  }
  const resolved = resolve(spec, shape[1]);
  resolved.cuts.forEach((cut) => checkShape(cut, shape));
  return { spec, ...resolved, formula: formula(spec, table), ...count(spec, resolved, table, shape) };
}

// The page

const SVG = "http://www.w3.org/2000/svg";
const CELL = 10;
const GAP = 8;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function plural(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

// A figure of one cut: a panel per sample, a row per channel, a column per position; colors are parts.
function figure(cut, title, shape, select) {
  const [n, c, s] = shape;
  const svg = document.createElementNS(SVG, "svg");
  const width = n * s * CELL + (n - 1) * GAP;
  svg.setAttribute("viewBox", `-1 -1 ${width + 2} ${c * CELL + 2}`);
  svg.setAttribute("style", `max-width: ${width * 1.6}px`);
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}: values that share a statistic. Arrow keys choose a value.`);
  const cells = [];
  for (let i = 0; i < n; i += 1)
    for (let j = 0; j < c; j += 1)
      for (let k = 0; k < s; k += 1) {
        const part = partOf(cut, [i, j, k], shape);
        const cell = document.createElementNS(SVG, "rect");
        const place = { x: i * (s * CELL + GAP) + k * CELL, y: j * CELL, width: CELL - 1, height: CELL - 1 };
        for (const [key, value] of Object.entries(place)) cell.setAttribute(key, value);
        cell.setAttribute("fill", `hsl(${Math.round(205 + part * 137.508) % 360} 62% ${[58, 46, 70][part % 3]}%)`);
        const index = cells.length;
        cell.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && select(index, false));
        cell.addEventListener("click", () => select(index, true));
        cells.push({ cell, part });
        svg.append(cell);
      }
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && select(null, false));
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -s, ArrowDown: s, PageUp: -c * s, PageDown: c * s };
  svg.addEventListener("keydown", (event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    select((current) => Math.min(Math.max((current ?? 0) + steps[event.key], 0), cells.length - 1), true);
  });
  const highlight = (index) => {
    const part = index === null ? null : cells[index].part;
    let size = 0;
    cells.forEach((each, k) => {
      const isShared = part === null || each.part === part;
      size += isShared ? 1 : 0;
      each.cell.setAttribute("class", k === index ? "chosen" : isShared ? "" : "other");
    });
    return size;
  };
  return { node: element("figure", {}, element("figcaption", {}, title), svg), highlight };
}

function start(root, table) {
  const input = element("input", {
    id: "live-cuts-spec",
    type: "text",
    value: "gn:4/en",
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
  });
  const sizes = [["samples", 4, 8], ["channels", 8, 64], ["positions", 6, 32]].map(([name, value, max]) => ({
    name,
    node: element("input", { type: "number", min: "1", max: String(max), value: String(value), "aria-label": `number of ${name}` }),
    max,
  }));
  const message = element("p", { class: "message", role: "alert" });
  const figures = element("div", { class: "figures" });
  const status = element("p", { class: "status", "aria-live": "polite" });
  const equations = element("pre");
  const numbers = element("p", { class: "numbers" });
  const examples = element("p", { class: "examples" });
  for (const spec of table.examples) {
    const button = element("button", { type: "button" }, spec);
    button.addEventListener("click", () => {
      input.value = spec;
      draw();
    });
    examples.append(button, " ");
  }
  const form = element("div", { class: "form" }, element("label", { for: "live-cuts-spec" }, "spec"), input);
  const shapeFields = element("span", { class: "shape" }, ...sizes.flatMap(({ name, node }, k) => [k ? " × " : "", node, ` ${name}`]));
  root.replaceChildren(form, examples, message, figures, status, equations, numbers, shapeFields);

  let shown = [];
  let pinned = null;
  let last = null;

  const select = (choice, isPinned) => {
    const index = typeof choice === "function" ? choice(pinned) : (choice ?? (isPinned ? null : pinned));
    if (isPinned) pinned = typeof choice !== "function" && pinned === index ? null : index;
    const chosen = isPinned ? pinned : index;
    const shared = shown.map(({ highlight, title }) => `${highlight(chosen).toLocaleString("en")} in ${title}`);
    const [, c, s] = last.shape;
    status.textContent =
      chosen === null
        ? "One color: values that share a statistic. Point at a value, or tap it, to see those that share its statistics."
        : `Sample ${Math.floor(chosen / (c * s)) + 1}, channel ${(Math.floor(chosen / s) % c) + 1}, position ${(chosen % s) + 1} shares its ` +
          `statistic with all highlighted values, itself included: ${shared.join("; ")}.`;
  };

  const fail = (error) => {
    message.textContent = error.message;
    const needed = error.message.match(/ cuts \d+ channels into (\d+) equal parts/);
    const fitting = needed && Number(needed[1]) <= sizes[1].max ? Number(needed[1]) : null;
    if (error.norm) message.append(" ", element("a", { href: `norms/${error.norm}.html` }, `Page of ${error.norm}`));
    if (fitting) {
      const button = element("button", { type: "button" }, `Draw ${fitting} channels`);
      button.addEventListener("click", () => {
        sizes[1].node.value = String(fitting);
        draw();
      });
      message.append(" ", button);
    }
    figures.replaceChildren();
    [status, equations, numbers].forEach((node) => (node.textContent = ""));
  };

  const draw = () => {
    message.textContent = "";
    input.removeAttribute("aria-invalid");
    try {
      const shape = sizes.map(({ name, node, max }) => {
        const value = Number(node.value);
        if (!Number.isInteger(value) || value < 1 || value > max) throw new SpecError(`The number of ${name} must be from 1 to ${max}.`);
        return value;
      });
      last = { ...describe(input.value, table, shape), shape };
    } catch (error) {
      if (!(error instanceof SpecError)) throw error;
      input.setAttribute("aria-invalid", "true");
      fail(error);
      return;
    }
    const { spec, cuts, shape } = last;
    pinned = null;
    shown = cuts.map((cut, k) => {
      const name = cutName(cut);
      const symbols = [last.mean.includes(k) ? "mean" : "", last.var.includes(k) ? (spec.mean.length ? "variance" : "mean of x²") : ""];
      const title = `${symbols.filter(Boolean).join(" and ")} [${name.replace(/^\[|\]$/g, "")}]`;
      return { title, ...figure(cut, title, shape, select) };
    });
    figures.replaceChildren(...shown.map(({ node }) => node));
    equations.textContent = last.formula.join("\n");
    numbers.textContent =
      `For ${shape[1]} channels: ${plural(last.parameters, "parameter")}, ${plural(last.running, "running statistic")}; ` +
      `${plural(last.statistics, "statistic")} of a batch.`;
    select(null, true);
  };

  input.addEventListener("input", draw);
  sizes.forEach(({ node }) => node.addEventListener("input", draw));
  draw();
}

if (typeof document !== "undefined") {
  start(document.getElementById("live-cuts"), JSON.parse(document.getElementById("live-cuts-table").textContent));
} else {
  module.exports = { describe, partOf, SpecError };
}
