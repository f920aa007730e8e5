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
