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
