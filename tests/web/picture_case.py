"""Pages whose models take pictures: the base of these tests, with files of pictures and fingers on a screen.

The server's own answers are changed in the page: its models take pictures, uploads are kept in the page, and the fields of
pictures are taken out of the jobs that are sent on.
"""

import base64
import math
import pathlib
import struct
import zlib

from browser import wait_until
from page_case import PageCase

NAMES = "return [...document.querySelectorAll('.inputs .name')].map((each) => each.textContent)"
SIGNATURE = b"\x89PNG\r\n\x1a\n"

FAKE = """
const plain = window.fetch;
const json = (value, status = 200) => new Response(JSON.stringify(value), { status });
window.fake = { files: [], jobs: [], refusal: null, lifetime: 3600 };
window.addresses = new Set();
for (const [name, change] of [['createObjectURL', 'add'], ['revokeObjectURL', 'delete']]) {
  const call = URL[name].bind(URL);
  URL[name] = (value) => {
    const result = call(value);
    window.addresses[change](result ?? value);
    return result;
  };
}
async function models(response) {
  const list = await response.json();
  const model = list.data.find(({ id }) => id === 'fake');
  const others = [
    ['fake', 'start', 1, true, 0.6], ['filler', 'fill', 1, true, 1], ['editor', 'reference', 16, false, 1],
    ['masked', 'reference', 10, true, 0.8], ['plain', 'none', 0, false, 1],
  ];
  const data = others.map(([id, picture_input, max_pictures, takes_mask, default_strength]) => (
    { ...model, id, picture_input, max_pictures, takes_mask, default_strength }));
  return json({ ...list, data });
}
async function schema(response) {
  const fields = await response.json();
  const source = { type: 'object', properties: { image_url: { type: 'string' }, file_id: { type: 'string' } } };
  fields.properties.images = { type: ['array', 'null'], items: source, description: 'Pictures.', 'x-metadata-key': 'Pictures' };
  fields.properties.mask = { type: ['array', 'null'], items: source, description: 'A mask.' };
  fields.properties.strength = { type: ['number', 'null'], minimum: 0, maximum: 1, description: 'How much changes.' };
  return json(fields);
}
async function upload(form) {
  if (window.fake.refusal) return json({ error: window.fake.refusal }, 400);
  const file = form.get('file');
  const bytes = new Uint8Array(await file.arrayBuffer());
  const id = 'file-' + crypto.randomUUID().replaceAll('-', '');
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  window.fake.files.push({ id, purpose: form.get('purpose'), name: file.name, base64: btoa(text) });
  const created_at = Math.floor(Date.now() / 1000);
  const about = { bytes: bytes.length, created_at, expires_at: created_at + window.fake.lifetime, filename: file.name };
  return json({ id, object: 'file', purpose: form.get('purpose'), ...about });
}
window.fetch = async (path, options = {}) => {
  if (path === 'v1/models') return models(await plain(path, options));
  if (path === 'v1/schema') return schema(await plain(path, options));
  if (path === 'v1/files') return upload(options.body);
  if (path !== 'v1/jobs' || options.method !== 'POST') return plain(path, options);
  const job = JSON.parse(options.body);
  window.fake.jobs.push(job);
  const { images, mask, strength, ...others } = job;
  return plain(path, { ...options, body: JSON.stringify({ ...others, model: 'fake' }) });
};
"""


def write_png(path, width, height, pixel, text=None):
    """Writes an RGB file, `pixel` being a function of x and y, which may have a text of parameters."""
    rows = b"".join(b"\0" + bytes(part for x in range(width) for part in pixel(x, y)) for y in range(height))

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parameters = chunk(b"tEXt", b"parameters\0" + text.encode()) if text else b""
    path.write_bytes(SIGNATURE + chunk(b"IHDR", header) + parameters + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return path


def read_mask(data):
    """The width, the height and the alpha values, row by row, of an RGBA file without filters."""
    assert data[:8] == SIGNATURE
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(name + body), name
        chunks[name] = chunks.get(name, b"") + body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *form = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert form == [8, 6, 0, 0, 0]
    rows = zlib.decompress(chunks[b"IDAT"])
    stride = 1 + 4 * width
    assert len(rows) == stride * height
    assert all(rows[y * stride] == 0 for y in range(height))
    return width, height, [rows[y * stride + 4 : (y + 1) * stride : 4] for y in range(height)]


class Expected:
    """What strokes paint, from their definition: a pixel whose centre is within the radius of the line."""

    UNSURE = 1e-3  # of a pixel: the browser's own places of elements are rounded

    def __init__(self, width, height):
        self.size = width, height
        self.painted = {}  # whether, by pixel; None where it cannot be known

    @staticmethod
    def distance(x, y, a, b):
        dx, dy = b[0] - a[0], b[1] - a[1]
        square = dx * dx + dy * dy
        part = 0 if square == 0 else min(1, max(0, ((x - a[0]) * dx + (y - a[1]) * dy) / square))
        return math.hypot(x - a[0] - part * dx, y - a[1] - part * dy)

    def paint(self, points, radius, erase=False):
        width, height = self.size
        lines = list(zip(points, points[1:])) or [(points[0], points[0])]
        for y in range(height):
            for x in range(width):
                near = min(self.distance(x + 0.5, y + 0.5, a, b) for a, b in lines)
                if abs(near - radius) < self.UNSURE:
                    self.painted[x, y] = None
                elif near < radius:
                    self.painted[x, y] = not erase

    def differences(self, mask):
        """Checks a file of a mask; returns the pixels that are wrong, and the number of painted ones."""
        width, height, alpha = read_mask(mask)
        assert (width, height) == self.size, (width, height)
        wrong, count = [], 0
        for y, row in enumerate(alpha):
            for x, value in enumerate(row):
                painted = self.painted.get((x, y), False)
                count += value == 0
                if value not in (0, 255) or (painted is not None and painted != (value == 0)):
                    wrong.append((x, y, value))
        return wrong, count


class Fingers:
    """Fingers on the screen. `seconds` is how long a person takes for what was done, at an easy pace."""

    SPEED = 300  # CSS pixels a second
    REACH = 0.7  # seconds to the next place

    def __init__(self, browser):
        self.browser = browser
        self.seconds = 0

    def touch(self, kind, *places):
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(places)]
        self.browser.devtools("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    def draw(self, places):
        self.touch("touchStart", places[0])
        for place in places[1:]:
            self.touch("touchMove", place)
        self.touch("touchEnd")
        self.seconds += self.REACH + sum(map(math.dist, places, places[1:])) / self.SPEED

    def pinch(self, middle, before, after, steps=4):
        """Two fingers that are `before` CSS pixels apart, and then `after`."""
        x, y = middle
        apart = lambda spread: ((x - spread / 2, y), (x + spread / 2, y))  # noqa: E731
        self.touch("touchStart", apart(before)[0])
        self.touch("touchStart", *apart(before))
        for step in range(1, steps + 1):
            self.touch("touchMove", *apart(before + (after - before) * step / steps))
        self.touch("touchEnd")
        self.seconds += self.REACH + abs(after - before) / 2 / self.SPEED

    def tap(self, selector):
        self.browser.click(selector)
        self.seconds += self.REACH


class PictureInputCase(PageCase):
    SIZE = 96, 64
    changes_answers = True

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = pathlib.Path(cls.folder.name)
        cls.picture = write_png(folder / "shore.png", *cls.SIZE, lambda x, y: (2 * x, 3 * y, 200 if y < 24 else 90))
        cls.other = write_png(folder / "other.png", 40, 50, lambda x, y: (180, 5 * x, 5 * y))
        if cls.changes_answers:
            cls.browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=FAKE)

    def add(self, path=None, before=0):
        """Chooses a file, and waits until the form has it."""
        path = path or self.picture
        self.browser.type("#input-file", str(path), clear=False)
        wait_until(f"{path.name} is there", lambda: self.browser.run(NAMES)[before:] == [path.name])

    def wait_for_inputs(self, count):
        wait_until(f"{count} pictures", lambda: self.browser.run("return document.querySelectorAll('.inputs li').length") == count)

    def files(self):
        """The content of the uploads, oldest first."""
        return [base64.b64decode(each["base64"]) for each in self.browser.run("return window.fake.files")]

    def ids(self):
        return [each["id"] for each in self.browser.run("return window.fake.files")]

    def sent(self):
        """The body of the newest job."""
        return self.browser.run("return window.fake.jobs.at(-1)")

    def open_mask(self):
        self.browser.click("#mask-button")
        wait_until("the picture is shown", lambda: self.browser.run("return document.getElementById('mask-picture').naturalWidth > 0"))
        # The browser sends touches where the last frame that it has drawn has a listener for them.
        self.browser.run_async("for (let i = 0; i < 2; ++i) await new Promise(requestAnimationFrame);")

    def close_mask(self):
        self.browser.click("#mask-done")
        self.wait_for_form_again()

    def wait_for_form_again(self):
        wait_until("the dialog is closed", lambda: self.browser.run("return !document.getElementById('mask-picture').hasAttribute('src')"))

    def place(self):
        """How the mask's picture lies on the screen: its left, top, and CSS pixels for one pixel; and the brush's radius."""
        left, top, width, brush = self.browser.run(
            "const box = document.getElementById('mask-picture').getBoundingClientRect();"
            "return [box.left, box.top, box.width, Number(document.getElementById('mask-size').value)];"
        )
        natural = self.browser.run("return document.getElementById('mask-picture').naturalWidth")
        return left, top, width / natural, brush / 2

    def on_picture(self, points):
        """Points of the screen in pixels of the picture, and the brush's radius there."""
        left, top, scale, radius = self.place()
        return [((x - left) / scale, (y - top) / scale) for x, y in points], radius / scale

    def on_screen(self, points):
        """Whole points of the screen that are nearest to points of the picture."""
        left, top, scale, _ = self.place()
        return [(round(left + x * scale), round(top + y * scale)) for x, y in points]
