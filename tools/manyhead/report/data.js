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

/* Parts of the page that all views use. */

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
