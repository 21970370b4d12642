// Writes a mask as a PNG file (W3C, Portable Network Graphics, third edition): RGBA of 8 bits, transparent where it is
// painted and opaque elsewhere. No canvas is read: browsers that guard against fingerprinting change what a page reads.

const SIGNATURE = new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
const CHANNELS = 4;
const BYTES_AT_ONCE = 1 << 20; // given to the compressor

const CRCS = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; ++bit) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value;
});

function crcOf(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRCS[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return ~crc >>> 0;
}

// Length, type and data, and a CRC of the type and the data.
function chunk(type, data) {
  const bytes = new Uint8Array(12 + data.length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, data.length);
  bytes.set(new TextEncoder().encode(type), 4);
  bytes.set(data, 8);
  view.setUint32(8 + data.length, crcOf(bytes.subarray(4, 8 + data.length)));
  return bytes;
}

function header(width, height) {
  const data = new Uint8Array(13);
  const view = new DataView(data.buffer);
  view.setUint32(0, width);
  view.setUint32(4, height);
  data.set([8, 6, 0, 0, 0], 8); // bits, RGBA, deflate, filters by row, not interlaced
  return chunk("IHDR", data);
}

// The rows from `first` up to `last`, each after the byte of its filter, 0.
function rows(painted, width, first, last) {
  const stride = 1 + CHANNELS * width;
  const bytes = new Uint8Array(stride * (last - first));
  for (let y = first; y < last; ++y) {
    const start = (y - first) * stride + CHANNELS; // the first pixel's alpha
    for (let x = 0; x < width; ++x) bytes[start + CHANNELS * x] = painted[y * width + x] ? 0 : 255;
  }
  return bytes;
}

// Resolves to the file. `painted` has a byte for each pixel, row by row: 1 where it is painted, else 0.
export async function maskPng(painted, width, height) {
  const { readable, writable } = new CompressionStream("deflate");
  const compressed = new Response(readable).arrayBuffer();
  const writer = writable.getWriter();
  const some = Math.max(1, Math.floor(BYTES_AT_ONCE / (1 + CHANNELS * width)));
  for (let y = 0; y < height; y += some) await writer.write(rows(painted, width, y, Math.min(height, y + some)));
  await writer.close();
  const data = chunk("IDAT", new Uint8Array(await compressed));
  return new Blob([SIGNATURE, header(width, height), data, chunk("IEND", new Uint8Array())], { type: "image/png" });
}
