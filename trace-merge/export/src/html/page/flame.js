// Samples by stack, as an icicle: a process is as wide as its samples, and below it the functions that were called.

const FLAME_ROW = 19;
/** Frames that are narrower are not drawn, in pixels. */
const NARROWEST = 0.6;
/** Of processes, of functions of the guest's kernel, and of those of programs; in light and in dark. */
const FLAME_COLOURS = [['#c9d1d9', '#3a444d'], ['#f0b35c', '#b97a1c'], ['#8cc7a1', '#3d8a5b']];
const FLAME_FOUND = ['#d2222d', '#f0525c'];

let stackTrees = [];
/** Draws the flames on the page again when their size changes. */
const flameSizes = new ResizeObserver((changes) => changes.forEach(({ target }) => target.redraw()));

async function loadStacks() {
  stackTrees = await unpackValue('stacks');
  for (const tree of stackTrees) {
    const root = { name: tree.vm, module: '', layer: 0, own: 0, total: 0, children: [], parent: null, depth: 0 };
    const nodes = tree.nodes.map(([parent, name, layer, own, total]) => ({ parent, name: tree.names[name][0], module: tree.names[name][1], layer, own, total, children: [] }));
    for (const node of nodes) {
      node.parent = node.parent < 0 ? root : nodes[node.parent];
      node.depth = node.parent.depth + 1;
      node.parent.children.push(node);
      if (node.parent === root) root.total += node.total;
    }
    for (const node of [root, ...nodes]) node.children.sort((left, right) => right.total - left.total);
    Object.assign(tree, { root, deepest: nodes.reduce((most, node) => Math.max(most, node.depth), 0) });
  }
}

/** The samples of a VM, drawn: a click or Enter shows a frame over the whole width. */
class Flame {
  constructor(tree) {
    Object.assign(this, { tree, top: tree.root, selected: tree.root, wanted: '' });
    this.canvas = element('canvas', { tabIndex: 0, role: 'application', 'aria-label': `Samples of ${visible(tree.vm)} by stack`, className: 'flame' });
    this.told = element('p', { className: 'told', 'aria-live': 'polite' });
    this.search = element('input', { type: 'search', placeholder: 'Search functions', 'aria-label': 'Search functions' });
    this.search.addEventListener('input', () => { this.wanted = this.search.value.trim().toLowerCase(); this.draw(); this.tell(); });
    this.canvas.addEventListener('click', (event) => this.choose(this.frameAt(event.offsetX, event.offsetY), true));
    this.canvas.addEventListener('pointermove', (event) => this.tell(this.frameAt(event.offsetX, event.offsetY) ?? this.selected));
    this.canvas.addEventListener('pointerleave', () => this.tell());
    this.canvas.addEventListener('keydown', (event) => this.press(event));
    this.canvas.redraw = () => this.draw();
  }

  get isFound() {
    return (node) => this.wanted !== '' && node.name.toLowerCase().includes(this.wanted);
  }

  /** The frames in sight, each with its place: what is shown over the whole width, all above it, and what lies below. */
  frames(width) {
    const placed = [];
    for (let node = this.top.parent; node; node = node.parent) placed.push({ node, x: 0, width });
    const place = (node, x, all) => {
      if (all < NARROWEST) return;
      placed.push({ node, x, width: all });
      let left = x;
      for (const child of node.children) {
        const share = (all * child.total) / node.total;
        place(child, left, share);
        left += share;
      }
    };
    place(this.top, 0, width);
    return placed;
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const ratio = scale();
    const height = (this.tree.deepest + 1) * FLAME_ROW;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const drawing = this.canvas.getContext('2d');
    drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawing.font = '11px system-ui, "DejaVu Sans", sans-serif';
    drawing.textBaseline = 'middle';
    this.placed = this.frames(width);
    const shade = theme.isDark ? 1 : 0;
    for (const { node, x, width: room } of this.placed) {
      const y = node.depth * FLAME_ROW;
      const colour = (this.isFound(node) ? FLAME_FOUND : FLAME_COLOURS[node.layer])[shade];
      drawing.fillStyle = colour;
      drawing.fillRect(x, y, Math.max(NARROWEST, room - 1), FLAME_ROW - 1);
      if (node === this.selected) {
        drawing.strokeStyle = theme.front;
        drawing.lineWidth = 2;
        drawing.strokeRect(x + 1, y + 1, Math.max(1, room - 3), FLAME_ROW - 3);
      }
      if (room < 30) continue;
      drawing.fillStyle = textOn(colour);
      const letters = Math.floor((room - 8) / 6.2);
      const text = visible(node.name);
      drawing.fillText(text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text, x + 4, y + FLAME_ROW / 2);
    }
  }

  frameAt(x, y) {
    const depth = Math.floor(y / FLAME_ROW);
    return this.placed?.find((frame) => frame.node.depth === depth && frame.x <= x && x < frame.x + frame.width)?.node ?? null;
  }

  /** Selects a frame, and shows it over the whole width if that is wanted. */
  choose(node, isTop = false) {
    if (!node) return;
    this.selected = node;
    if (isTop) this.top = node;
    this.draw();
    this.tell();
  }

  /** Says what a frame is. */
  tell(node = this.selected) {
    const share = ((100 * node.total) / Math.max(1, this.tree.root.total)).toFixed(1);
    const parts = [visible(node.name), node.module ? `in ${visible(node.module)}` : '', `${formatCount(node.total)} samples (${share} %)`, `${formatCount(node.own)} of them in itself`];
    if (this.wanted) parts.push(`found: ${formatCount(this.countFound(this.tree.root))} samples`);
    this.told.textContent = parts.filter(Boolean).join(' · ');
  }

  /** Samples below frames that are searched, each once. */
  countFound(node) {
    return this.isFound(node) ? node.total : node.children.reduce((sum, child) => sum + this.countFound(child), 0);
  }

  press(event) {
    const { selected } = this;
    const beside = (step) => {
      const all = selected.parent?.children ?? [selected];
      return all[all.indexOf(selected) + step];
    };
    const moves = { ArrowUp: () => selected.parent, ArrowDown: () => selected.children[0], ArrowLeft: () => beside(-1), ArrowRight: () => beside(1) };
    if (moves[event.key]) this.choose(moves[event.key]());
    else if (event.key === 'Enter') this.choose(selected, true);
    else if (event.key === 'Escape') this.choose(this.tree.root, true);
    else return;
    event.preventDefault();
  }

  get parts() {
    const { tree } = this;
    const cut = tree.cut ? ` ${formatCount(tree.cut)} samples count for a caller: there were too many stacks.` : '';
    const flat = tree.deepest <= 2 ? ' These samples hold no stacks: what called whom is not known.' : '';
    return [
      element('h2', {}, visible(tree.vm)),
      element('p', { className: 'faint' }, `${formatCount(tree.root.total)} samples, ${formatCount(tree.idle)} of an idle CPU left out. Grey: processes; orange: functions of the guest's kernel; green: those of programs.${cut}${flat} A click or Enter shows a frame over the whole width, Escape all of it; arrow keys go from frame to frame.`),
      this.search, this.told, this.canvas,
    ];
  }
}

const FLAME_TAB = 'flame graph';

/** Shows the samples of all VMs by stack; where there are none, how to record them. */
function renderFlames() {
  const flames = stackTrees.map((tree) => new Flame(tree));
  const reason = reports.functions?.nothing ?? 'no samples were recorded';
  const parts = flames.length ? flames.flatMap((flame) => flame.parts) : [element('p', {}, `no flame graph: ${reason}`)];
  fillReports('Flame graph', parts);
  for (const flame of flames) {
    flame.draw();
    flame.tell();
    flameSizes.observe(flame.canvas);
  }
}
