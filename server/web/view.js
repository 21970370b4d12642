// Where a picture is seen in a pane: its scale, and the place of its upper left corner. Points of the pane are [x, y] in
// CSS pixels, those of the picture in its own.

const MOST_ENLARGED = 8; // times what fits the pane, or times the picture's own size

export class View {
  constructor(width, height) {
    this.picture = [width, height];
    this.pane = [1, 1];
    this.scale = 1;
    this.corner = [0, 0];
  }

  get fitting() {
    return Math.min(this.pane[0] / this.picture[0], this.pane[1] / this.picture[1]);
  }

  // The pane has this size now. A picture that fitted it still does.
  resize(width, height) {
    const fits = this.scale <= this.fitting * 1.001;
    this.pane = [width, height];
    if (fits) this.fit();
    else this.move(1, [0, 0]);
  }

  fit() {
    this.scale = this.fitting;
    this.move(1, [0, 0]);
  }

  // Scales by a factor, so that the picture's point at `from` comes to `to`. The picture stays in the pane.
  move(factor, from, to = from) {
    const scale = Math.min(Math.max(this.scale * factor, this.fitting), MOST_ENLARGED * Math.max(1, this.fitting));
    this.corner = this.corner.map((corner, axis) => {
      const moved = to[axis] - ((from[axis] - corner) * scale) / this.scale;
      const room = this.pane[axis] - this.picture[axis] * scale;
      return room >= 0 ? room / 2 : Math.min(0, Math.max(room, moved));
    });
    this.scale = scale;
  }

  toPicture(point) {
    return point.map((each, axis) => (each - this.corner[axis]) / this.scale);
  }

  toPane(point) {
    return point.map((each, axis) => each * this.scale + this.corner[axis]);
  }
}
