// Reads the parameters that a picture was made with: the text "parameters" of a PNG, or the user comment of a JPEG's or WebP's EXIF
// block, in the form of server/metadata/parameters_text.h; and the fields of a request that it stands for.

const ascii = (bytes) => String.fromCharCode(...bytes);
const utf8 = (bytes) => new TextDecoder().decode(bytes);
// Decodes ISO 8859-1: TextDecoder would use Windows' character set instead.
const latin1 = (bytes) => Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");

const MOST_TEXT = 1 << 20;

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const reader = stream.getReader();
  const parts = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    size += value.length;
    if (size > MOST_TEXT) throw new Error("The picture's text is too long.");
    parts.push(value);
  }
}

// A keyword and the bytes after the NUL that ends it.
function keyword(bytes) {
  const end = bytes.indexOf(0);
  return end < 0 ? null : { name: latin1(bytes.subarray(0, end)), rest: bytes.subarray(end + 1) };
}

async function textOfChunk(type, bytes) {
  const { name, rest } = keyword(bytes) ?? {};
  if (name !== "parameters") return null;
  if (type === "tEXt") return latin1(rest);
  if (type === "zTXt") return latin1(await inflated(rest.subarray(1)));
  // iTXt: compression flag and method, language, translated keyword, text.
  let text = rest.subarray(2);
  for (let i = 0; i < 2; ++i) text = text.subarray(text.indexOf(0) + 1);
  return utf8(rest[0] === 1 ? await inflated(text) : text);
}

async function textOfPng(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 8; at + 12 <= bytes.length; ) {
    const length = view.getUint32(at);
    const type = ascii(bytes.subarray(at + 4, at + 8));
    if (at + 12 + length > bytes.length) return null;
    if (["tEXt", "zTXt", "iTXt"].includes(type)) {
      const text = await textOfChunk(type, bytes.subarray(at + 8, at + 8 + length));
      if (text !== null) return text;
    }
    at += 12 + length;
  }
  return null;
}

// The EXIF block of a JPEG: its segment APP1.
function exifOfJpeg(bytes) {
  for (let at = 2; at + 4 <= bytes.length && bytes[at] === 0xff && bytes[at + 1] !== 0xda; ) {
    const length = (bytes[at + 2] << 8) | bytes[at + 3];
    const body = bytes.subarray(at + 4, at + 2 + length);
    if (bytes[at + 1] === 0xe1 && ascii(body.subarray(0, 6)) === "Exif\0\0") return body.subarray(6);
    at += 2 + length;
  }
  return null;
}

function exifOfWebp(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 12; at + 8 <= bytes.length; ) {
    const length = view.getUint32(at + 4, true);
    if (ascii(bytes.subarray(at, at + 4)) === "EXIF") {
      const body = bytes.subarray(at + 8, at + 8 + length);
      return ascii(body.subarray(0, 6)) === "Exif\0\0" ? body.subarray(6) : body;
    }
    at += 8 + length + (length % 2);
  }
  return null;
}

// EXIF 2.32, 4.6.5: a character code of eight bytes, then the comment.
function userComment(exif) {
  const view = new DataView(exif.buffer, exif.byteOffset, exif.byteLength);
  const little = ascii(exif.subarray(0, 2)) === "II";
  const entry = (directory, tag) => {
    const count = view.getUint16(directory, little);
    for (let i = 0; i < count; ++i) {
      const at = directory + 2 + 12 * i;
      if (view.getUint16(at, little) === tag) return at;
    }
    return null;
  };
  const pointer = entry(view.getUint32(4, little), 0x8769);
  const at = pointer === null ? null : entry(view.getUint32(pointer + 8, little), 0x9286);
  if (at === null) return null;
  const length = view.getUint32(at + 4, little);
  const start = view.getUint32(at + 8, little);
  const comment = exif.subarray(start, start + length);
  const body = comment.subarray(8);
  const code = ascii(comment.subarray(0, 8));
  if (code === "UNICODE\0") return new TextDecoder(little ? "utf-16le" : "utf-16be").decode(body);
  return code === "ASCII\0\0\0" ? utf8(body) : null;
}

// Returns the picture's text of parameters; null if it has none.
export async function readText(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    if (ascii(bytes.subarray(0, 8)) === "\x89PNG\r\n\x1a\n") return await textOfPng(bytes);
    const exif = bytes[0] === 0xff && bytes[1] === 0xd8 ? exifOfJpeg(bytes)
      : ascii(bytes.subarray(0, 4)) === "RIFF" ? exifOfWebp(bytes)
      : null;
    return exif === null ? null : userComment(exif);
  } catch (error) {
    if (error instanceof RangeError) return null; // the file ends too early
    throw error;
  }
}

// The pairs of the last line, values in quotes being JSON.
function pairsOf(line) {
  const pairs = new Map();
  const pattern = /\s*([^:,]+):\s*("(?:[^"\\]|\\.)*"|[^,]*)(?:,|$)/y;
  while (pattern.lastIndex < line.length) {
    const match = pattern.exec(line);
    if (match === null) return null;
    const value = match[2].startsWith('"') ? JSON.parse(match[2]) : match[2].trim();
    pairs.set(match[1].trim(), value);
  }
  return pairs;
}

// Returns {prompt, negative, pairs}, or null if the text has another form.
export function parseText(text) {
  const lines = text.trimEnd().split("\n");
  const pairs = pairsOf(lines.pop());
  if (pairs === null || !pairs.has("Steps")) return null;
  const prompts = [[], null];
  for (const line of lines.map((each) => each.trim())) {
    if (line.startsWith("Negative prompt:")) {
      prompts[1] = [...(prompts[1] ?? []), line.slice("Negative prompt:".length).trim()];
    } else {
      (prompts[1] ?? prompts[0]).push(line);
    }
  }
  const take = (key) => {
    const value = pairs.get(key);
    pairs.delete(key);
    return value;
  };
  const exact = take("Exact prompt");
  const exactNegative = take("Exact negative prompt");
  let negative = exactNegative ?? prompts[1]?.join("\n") ?? null;
  if (take("Has negative prompt") === "false") negative = null;
  return { prompt: exact ?? prompts[0].join("\n"), negative, pairs };
}

// An adapter as NAME:SCALE:DIGEST.
function adapterOf(text) {
  const [name, scale, digest] = text.split(":");
  return { name, scale: scale ?? 1, digest };
}

// Values of a request that makes the picture again, by the names of the schema's fields. `others` are pairs that stand
// for no field, such as the layout.
export function requestOf({ prompt, negative, pairs }, schema) {
  const request = { prompt };
  if (negative !== null) request.negative_prompt = negative;
  const fieldsByKey = new Map([["Seed", ["seed"]], ["Size", ["size"]], ["Model", ["model"]]]);
  for (const [name, field] of Object.entries(schema.properties)) {
    const key = field["x-metadata-key"];
    if (key) fieldsByKey.set(key, [...(fieldsByKey.get(key) ?? []), name]);
  }
  const others = [];
  for (const [key, text] of pairs) {
    const names = fieldsByKey.get(key);
    if (!names) {
      others.push([key, text]);
      continue;
    }
    if (schema.properties[names[0]]?.items?.type === "object") {
      request[names[0]] = text.split(" ").map(adapterOf);
      continue;
    }
    // Two fields in one pair are the sides of a size ("512x768") or the corner of a cut ("0 8").
    const parts = names.length > 1 ? text.split(/[x, ]+/) : [text];
    names.forEach((name, index) => {
      request[name] = parts[index]?.trim() ?? "";
    });
  }
  return { request, others };
}
