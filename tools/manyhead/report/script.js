'use strict';
// Everything shown comes out of #data and #weights and goes into the page as text, never as markup.

const data = JSON.parse(document.getElementById('data').textContent);
const weights = document.getElementById('weights');
const T = data.tokens.length;
const TRIANGLE = T * (T + 1) / 2;
const heads = [];  // in the order of the data: layer by layer
data.layers.forEach((layer, l) => {
  for (let h = 0; h < layer.heads; h++)
    heads.push({layer: l, head: h, kv: Math.floor(h / (layer.heads / layer.kv_heads)), index: heads.length});
});

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== 'role') made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function byId(id) { return document.getElementById(id); }

/* Numbers and colours. */

function format(value, digits) {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e6 || size < 1e-4)) return value.toExponential(2);
  return value.toFixed(size >= 1000 ? 0 : size >= 100 ? Math.min(1, digits) : digits);
}

/** Few characters, for a cell. */
function brief(value) {
  if (value === null) return '';
  const size = Math.abs(value);
  if (value === 0) return '0';
  if (size >= 1e4) {
    const power = Math.min(4, Math.floor(Math.log10(size) / 3));
    return (value / 1000 ** power).toFixed(0) + ' kMGT'[power];
  }
  if (size < 0.001) return value.toExponential(0);
  if (size < 1) return value.toFixed(size < 0.1 ? 3 : 2).replace('0.', '.');
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

let palette = {};

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const rgb = name => style.getPropertyValue(name).trim().split(' ').map(Number);
  const plain = name => style.getPropertyValue(name).trim();
  palette = {cold: rgb('--cold'), hot: rgb('--hot'), below: rgb('--below'), ink: plain('--ink'),
             paper: plain('--paper'), line: plain('--line'), focus: plain('--focus'), faint: plain('--faint')};
}

function mix(from, to, share) { return from.map((c, i) => Math.round(c + (to[i] - c) * share)); }
function css(rgb) { return `rgb(${rgb.join(' ')})`; }

/** Black or white, whichever is easier to read on it. */
function inkOn(rgb) {
  const linear = rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.18 ? '#000' : '#fff';
}

// Hues far apart; cells also show letters.
const CLASS_COLOURS = new Map([
  ['induction', [176, 36, 36]], ['retrieval', [8, 105, 218]], ['previous-token', [26, 127, 55]],
  ['fixed-offset', [154, 103, 0]], ['duplicate-token', [130, 80, 223]], ['syntactic', [191, 57, 137]],
  ['sink', [27, 124, 131]], ['collapsed', [87, 96, 106]], ['local', [188, 76, 0]], ['mixed', [110, 119, 129]]]);

function classColour(name) { return CLASS_COLOURS.get(name) || [150, 150, 150]; }

function classLetters(name) {
  const parts = name.split('-');
  return parts.length > 1 ? parts.map(part => part[0].toUpperCase()).join('')
                          : name.slice(0, 2).replace(/^./, c => c.toUpperCase());
}

/* The grid of heads. */

const cells = [];
let metric = null;
let focused = 0;  // the cell that Tab goes to

function valueOf(head, key) {
  const index = data.metrics.findIndex(one => one.key === key);
  return index < 0 ? null : data.heads[head.index][index];
}

function className(head) { return data.classes ? data.classes.names[data.classes.of[head.index]] : null; }

function nameOf(head) { return `layer ${head.layer}, head ${head.head}`; }

function capital(text) { return text[0].toUpperCase() + text.slice(1); }

function buildGrid() {
  const grid = byId('grid');
  const widest = Math.max(...data.layers.map(layer => layer.heads));
  const top = element('div', {role: 'row'}, element('div', {role: 'columnheader', textContent: 'layer'}));
  for (let h = 0; h < widest; h++) top.append(element('div', {role: 'columnheader', textContent: h}));
  grid.append(top);
  let row = null;
  for (const head of heads) {
    if (head.head === 0) {
      row = element('div', {role: 'row'}, element('div', {role: 'rowheader', textContent: head.layer}));
      grid.append(row);
    }
    const cell = element('div', {role: 'gridcell', tabIndex: head.index === 0 ? 0 : -1, className: 'cell'});
    const before = heads[head.index - 1];
    if (head.head > 0 && before.kv !== head.kv) cell.classList.add('first');
    cell.addEventListener('click', event => show(event.shiftKey ? 1 : 0, head));
    cell.addEventListener('mousemove', event => tip(event, cell.getAttribute('aria-label')));
    cell.addEventListener('mouseleave', hideTip);
    row.append(cell);
    cells.push(cell);
  }
  grid.addEventListener('keydown', gridKey);
}

function headAt(layer, head) {
  const wanted = data.layers[layer];
  return wanted && heads.find(one => one.layer === layer && one.head === Math.min(head, wanted.heads - 1));
}

function gridKey(event) {
  const at = heads[focused];
  const last = data.layers[at.layer].heads - 1;
  const moves = {
    ArrowLeft: () => heads[focused - 1], ArrowRight: () => heads[focused + 1],
    ArrowUp: () => headAt(at.layer - 1, at.head), ArrowDown: () => headAt(at.layer + 1, at.head),
    Home: () => headAt(at.layer, 0), End: () => headAt(at.layer, last),
    PageUp: () => headAt(Math.max(0, at.layer - 8), at.head),
    PageDown: () => headAt(Math.min(data.layers.length - 1, at.layer + 8), at.head),
  };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (moves[event.key]) focusCell(moves[event.key]());
  else if (event.key === 'Enter' || event.key === ' ') show(event.shiftKey ? 1 : 0, at);
  else if (event.key === 'b' || event.key === 'B') show(1, at);
  else if (event.key === 'Escape') show(1, null);
  else return;
  event.preventDefault();
}

function focusCell(head) {
  if (!head) return;
  cells[focused].tabIndex = -1;
  focused = head.index;
  cells[focused].tabIndex = 0;
  cells[focused].focus();
}

function metricChoices() {
  const choices = data.metrics.map(one => [one.key, one.name]);
  return data.classes ? [['class', 'Class'], ...choices] : choices;
}

function paintGrid() {
  const byClass = metric === 'class';
  const info = data.metrics.find(one => one.key === metric);
  const values = heads.map(head => byClass ? data.classes.of[head.index] : valueOf(head, metric));
  const known = values.filter(value => value !== null);
  // Changes are measured from 0, both ways; the rest from the least to the most.
  const signed = Boolean(info && info.signed);
  const most = Math.max(...(signed ? known.map(Math.abs) : known)), least = signed ? 0 : Math.min(...known);
  heads.forEach((head, i) => {
    const value = values[i], cell = cells[i];
    let colour = null, text = '', spoken = 'not known';
    if (byClass) {
      const name = data.classes.names[value];
      [colour, text, spoken] = [classColour(name), classLetters(name), name];
    } else if (value !== null) {
      const share = most > least ? ((signed ? Math.abs(value) : value) - least) / (most - least) : 0;
      colour = mix(palette.cold, signed && value < 0 ? palette.below : palette.hot, share);
      [text, spoken] = [brief(value), `${info.name} ${format(value, info.digits)} ${info.unit}`];
    }
    cell.classList.toggle('none', colour === null);
    cell.style.background = colour ? css(colour) : '';
    cell.style.color = colour ? inkOn(colour) : '';
    cell.textContent = text;
    const kind = className(head);
    cell.setAttribute('aria-label', `${nameOf(head)}, KV head ${head.kv}: ${spoken}` +
                                        (kind && !byClass ? `, ${kind}` : ''));
  });
  paintLegend(byClass, info, least, most);
}

function paintLegend(byClass, info, least, most) {
  const legend = byId('legend');
  const swatch = (colour, text) => element('span', {}, element('i', {style: `background:${css(colour)}`}), ' ' + text);
  if (byClass) {
    const count = index => data.classes.of.filter(one => one === index).length;
    legend.replaceChildren(...data.classes.names.map((name, i) => [name, i, count(i)]).filter(one => one[2] > 0).map(
        ([name, i, n]) => swatch(classColour(name), `${classLetters(name)} ${name} (${n})`)));
    byId('metric-help').textContent = 'What the classifier takes each head for.';
    return;
  }
  const start = info.signed ? palette.below : palette.cold;
  const middle = info.signed ? `, ${css(palette.cold)}` : '';
  const ramp = element('i', {className: 'ramp',
                             style: `background:linear-gradient(90deg, ${css(start)}${middle}, ${css(palette.hot)})`});
  const low = info.signed ? -most : least;
  legend.replaceChildren(element('span', {className: 'paper', textContent: `${info.name}: `}),
                         element('span', {}, `${format(low, info.digits)} `, ramp,
                                 ` ${format(most, info.digits)} ${info.unit}`));
  byId('metric-help').textContent = info.help;
}

/* Weights of one head: rows of the lower triangle as the squares of bytes, heads at multiples of four letters. */

const LETTERS_PER_HEAD = Math.ceil(TRIANGLE / 3) * 4;
const decoded = new Map();

function matrixOf(head) {
  if (!decoded.has(head.index)) {
    if (decoded.size > 16) decoded.clear();
    const begin = head.index * LETTERS_PER_HEAD;
    const bytes = atob(weights.firstChild.substringData(begin, LETTERS_PER_HEAD));
    decoded.set(head.index, Uint8Array.from(bytes, c => c.charCodeAt(0)));
  }
  return decoded.get(head.index);
}

function weightAt(matrix, query, key) {
  return key > query ? 0 : (matrix[query * (query + 1) / 2 + key] / 255) ** 2;
}

/* Views: one or two heads. */

const views = [null, null];
const LABEL_MOST = 96;  // pixels beside the matrix for its tokens

class View {
  constructor(slot, head) {
    this.slot = slot;
    this.head = head;
    this.query = T - 1;
    this.key = 0;
    this.matrix = matrixOf(head);
    this.build();
  }

  build() {
    const name = capital(nameOf(this.head));
    this.canvas = element('canvas', {tabIndex: 0, role: 'img',
      'aria-label': `Attention matrix of ${nameOf(this.head)}: ${T} tokens that look, down, at ${T} tokens, across. ` +
                    'Arrow keys choose a pair.'});
    this.canvas.addEventListener('mousemove', event => this.hover(event));
    this.canvas.addEventListener('mouseleave', hideTip);
    this.canvas.addEventListener('click', event => this.hover(event, true));
    this.canvas.addEventListener('keydown', event => this.canvasKey(event));
    this.strip = element('div', {className: 'tokens', role: 'listbox', tabIndex: 0,
                                 'aria-label': 'The text: choose the token that looks'});
    this.spans = data.tokens.map((token, i) => {
      const span = element('span', {role: 'option', id: `token-${this.slot}-${i}`, textContent: token});
      span.addEventListener('click', () => this.choose(i));
      span.addEventListener('mousemove', event => tip(event,
          i > this.query ? `${quote(i)} comes after ${quote(this.query)}` : this.pairText(this.query, i)));
      span.addEventListener('mouseleave', hideTip);
      return span;
    });
    this.strip.append(...this.spans);
    this.strip.addEventListener('keydown', event => this.stripKey(event));
    this.best = element('table');
    const close = element('button', {type: 'button', textContent: 'Close', onclick: () => show(1, null)});
    this.node = element('article', {className: 'view', 'aria-label': name},
      element('header', {}, element('h3', {textContent: `${'AB'[this.slot]}: ${name}`}), ...(this.slot ? [close] : [])),
      facts(factsOf(this.head)), element('div', {className: 'scroll'}, this.canvas), this.strip,
      element('div', {className: 'scroll'}, this.best));
  }

  pairText(query, key) {
    return `${quote(query)} looks at ${quote(key)}: ${weightAt(this.matrix, query, key).toFixed(3)}`;
  }

  /** The cell under the pointer, or null. */
  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.clientWidth / box.width;
    const key = Math.floor(((event.clientX - box.left) * scale - this.margin) / this.size);
    const query = Math.floor(((event.clientY - box.top) * scale - this.margin) / this.size);
    return query >= 0 && query < T && key >= 0 && key < T ? {query, key} : null;
  }

  hover(event, choose = false) {
    const cell = this.cellAt(event);
    if (!cell) return hideTip();
    if (cell.key > cell.query) return tip(event, `${quote(cell.key)} comes after ${quote(cell.query)}`);
    tip(event, this.pairText(cell.query, cell.key));
    if (choose) this.choose(cell.query, cell.key);
  }

  canvasKey(event) {
    const moves = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
    const move = moves[event.key];
    if (!move) return;
    const query = clamp(this.query + move[0], 0, T - 1);
    this.choose(query, clamp(this.key + move[1], 0, query));
    event.preventDefault();
  }

  stripKey(event) {
    const steps = {ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -T, End: T};
    if (!(event.key in steps)) return;
    this.choose(clamp(this.query + steps[event.key], 0, T - 1));
    event.preventDefault();
  }

  choose(query, key = null) {
    this.query = query;
    this.key = Math.min(key === null ? this.strongest(1)[0] : key, query);
    this.paint();
    byId('status').textContent = this.pairText(this.query, this.key);
  }

  strongest(count) {
    const keys = Array.from({length: this.query + 1}, (_, key) => key);
    return keys.sort((a, b) => weightAt(this.matrix, this.query, b) - weightAt(this.matrix, this.query, a))
               .slice(0, count);
  }

  paint() {
    this.paintCanvas();
    this.spans.forEach((span, i) => {
      const weight = Math.sqrt(weightAt(this.matrix, this.query, i));
      const colour = mix(palette.cold, palette.hot, weight);
      span.style.background = weight > 0.05 ? css(colour) : '';
      span.style.color = weight > 0.05 ? inkOn(colour) : '';
      span.setAttribute('aria-selected', i === this.query);
    });
    this.strip.setAttribute('aria-activedescendant', `token-${this.slot}-${this.query}`);
    const rows = this.strongest(6).map(key => element('tr', {}, cellOf(key), cellOf(dotted(data.tokens[key]), 'text'),
        cellOf(this.query - key), cellOf(weightAt(this.matrix, this.query, key).toFixed(3))));
    this.best.replaceChildren(element('caption', {textContent: `Where ${quote(this.query)} looks most`}),
                              headRow('position', '.token', 'back', 'weight'), ...rows);
  }

  paintCanvas() {
    const room = (this.canvas.parentElement.clientWidth || 600) - LABEL_MOST - 4;
    this.size = clamp(Math.floor(room / T), 6, 18);
    const ratio = window.devicePixelRatio || 1;
    const ruler = this.canvas.getContext('2d');
    ruler.font = this.font();
    const longest = Math.max(...data.tokens.map(token => ruler.measureText(dotted(token)).width));
    this.margin = Math.min(LABEL_MOST, Math.ceil(longest) + 8);
    const label = this.margin, side = label + T * this.size + 1;
    this.canvas.width = this.canvas.height = side * ratio;
    this.canvas.style.width = this.canvas.style.height = `${side}px`;
    const pen = this.canvas.getContext('2d');
    pen.scale(ratio, ratio);
    pen.fillStyle = palette.paper;
    pen.fillRect(0, 0, side, side);
    for (let query = 0; query < T; query++) {
      for (let key = 0; key <= query; key++) {
        pen.fillStyle = css(mix(palette.cold, palette.hot, Math.sqrt(weightAt(this.matrix, query, key))));
        pen.fillRect(label + key * this.size, label + query * this.size, this.size, this.size);
      }
    }
    this.paintLabels(pen);
    pen.strokeStyle = palette.focus;
    pen.lineWidth = 1.5;
    pen.strokeRect(label, label + this.query * this.size, (this.query + 1) * this.size, this.size);
    pen.strokeRect(label + this.key * this.size, label + this.query * this.size, this.size, this.size);
  }

  font() { return `${clamp(this.size + 1, 8, 12)}px ui-monospace, monospace`; }

  paintLabels(pen) {
    const label = this.margin;
    pen.font = this.font();
    pen.fillStyle = palette.ink;
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    data.tokens.forEach((token, i) => {
      const middle = label + (i + 0.5) * this.size;
      pen.fillText(dotted(token), label - 4, middle, label - 8);
      pen.save();
      pen.translate(middle, label - 4);
      pen.rotate(Math.PI / 2);
      pen.fillText(dotted(token), 0, 0, label - 8);
      pen.restore();
    });
  }
}

function clamp(value, least, most) { return Math.max(least, Math.min(most, value)); }
/** Spaces that begin or end a token, made visible, but not all of a long run. */
function dotted(token) {
  return token.replace(/^ +| +$/g, spaces => spaces.length > 4 ? `·×${spaces.length}` : '·'.repeat(spaces.length));
}
function quote(i) { return `${i} “${dotted(data.tokens[i])}”`; }
function cellOf(text, kind = '') { return element('td', {className: kind, textContent: text}); }
function headRow(...names) {  // a dot marks a column of text
  return element('tr', {}, ...names.map(name => element('th', {scope: 'col', textContent: name.replace(/^\./, ''),
                                                                className: name[0] === '.' ? 'text' : ''})));
}

function facts(pairs) {
  return element('dl', {className: 'facts'}, ...pairs.map(([name, value]) => element('div', {},
      element('dt', {textContent: name}), element('dd', {textContent: value}))));
}

function factsOf(head) {
  const kind = className(head);
  return [...(kind ? [['Class', kind]] : []), ['KV head', head.kv], ...data.metrics.map((one, i) =>
      [one.name, `${format(data.heads[head.index][i], one.digits)} ${one.unit}`.trim()])];
}

/** Shows a head as view A (slot 0) or B (slot 1); null closes B. */
function show(slot, head) {
  views[slot] = head ? new View(slot, head) : null;
  byId('views').replaceChildren(...views.filter(Boolean).map(view => view.node));
  cells.forEach((cell, i) => {
    const names = views.filter(view => view && view.head.index === i).map(view => 'AB'[view.slot]).join('');
    cell.classList.toggle('shown', names !== '');
    cell.dataset.view = names;
    cell.setAttribute('aria-selected', names !== '');
  });
  views.forEach(view => view && view.paint());
  if (!head) return;
  byId('status').textContent = `${'AB'[slot]} shows ${nameOf(head)}`;
  const hash = views.filter(Boolean).map(view => `${view.head.layer}.${view.head.head}`).join(',');
  try {
    history.replaceState(null, '', `#${hash}`);
  } catch (error) {
    // A page without an address of its own has none to keep.
  }
}

/* A label at the pointer. */

function tip(event, text) {
  const box = byId('tip');
  box.textContent = text;
  box.hidden = false;
  const x = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
  const y = event.clientY + 18 + box.offsetHeight > window.innerHeight ? event.clientY - box.offsetHeight - 10
                                                                       : event.clientY + 18;
  box.style.left = `${Math.max(0, x)}px`;
  box.style.top = `${y}px`;
}
function hideTip() { byId('tip').hidden = true; }

/* Tables. */

function buildMemory() {
  const most = Math.max(...data.memory.map(row => row.bytes));
  const bar = row => element('td', {className: 'bar'},
                             element('i', {style: `width:${(100 * row.bytes / most).toFixed(1)}%`, title: row.text}));
  byId('memory').replaceChildren(
      element('caption', {textContent: data.memory_caption}),
      element('thead', {}, headRow('layer', 'KV heads', 'query heads', '.stored as', '.keeps', 'per token and head', 'held', '.')),
      element('tbody', {}, ...data.memory.map(row => element('tr', {}, cellOf(row.layer), cellOf(row.kv_heads),
          cellOf(row.heads), cellOf(row.type, 'text'), cellOf(row.policy, 'text'), cellOf(row.per_token),
          cellOf(row.text), bar(row)))));
}

function buildNumbers() {
  const place = byId('numbers').querySelector('.scroll');
  if (place.firstChild) return;
  const kinds = data.classes ? ['.class'] : [];
  const names = data.metrics.map(one => one.unit ? `${one.name}, ${one.unit}` : one.name);
  const rows = heads.map(head => element('tr', {}, cellOf(head.layer), cellOf(head.head), cellOf(head.kv),
      ...(data.classes ? [cellOf(className(head), 'text')] : []),
      ...data.metrics.map((one, i) => cellOf(format(data.heads[head.index][i], one.digits)))));
  place.append(element('table', {}, element('thead', {}, headRow('layer', 'head', 'KV head', ...kinds, ...names)),
                       element('tbody', {}, ...rows)));
}

/* Start. */

function repaint() {
  readPalette();
  paintGrid();
  views.forEach(view => view && view.paint());
}

function chosenInAddress() {
  const names = decodeURIComponent(location.hash.slice(1)).split(',').map(name => name.split('.').map(Number));
  return names.map(([layer, head]) => heads.find(one => one.layer === layer && one.head === head));
}

function start() {
  byId('title').textContent = data.title;
  byId('summary').replaceWith(Object.assign(facts(data.summary), {id: 'summary'}));
  byId('attention-help').textContent = data.attention_help;
  const select = byId('metric');
  select.append(...metricChoices().map(([key, name]) => element('option', {value: key, textContent: name})));
  metric = select.value;
  select.addEventListener('change', () => {
    metric = select.value;
    paintGrid();
  });
  buildGrid();
  buildMemory();
  byId('numbers').addEventListener('toggle', buildNumbers);
  repaint();
  const [a, b] = chosenInAddress();
  show(0, a || heads[data.first_shown]);
  if (b) show(1, b);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);
  window.addEventListener('resize', () => views.forEach(view => view && view.paintCanvas()));
  const printing = on => {
    document.documentElement.classList.toggle('printing', on);
    repaint();
  };
  window.addEventListener('beforeprint', () => printing(true));
  window.addEventListener('afterprint', () => printing(false));
  document.documentElement.dataset.ready = Math.round(performance.now());
}

start();
