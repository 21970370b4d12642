// What a user may type for a value, as the value that a request has.

// A decimal comma is a point. Stored as text where a number would be rounded: a seed has 64 bits.
export function numberOr(text) {
  const plain = text.trim().replace(/^([+-]?\d+),(\d+)$/, "$1.$2");
  if (/^\d{16,}$/.test(plain)) return plain;
  return plain !== "" && Number.isFinite(Number(plain)) ? Number(plain) : text.trim();
}

export const isNumber = (value) => typeof value === "number" || /^\d{16,}$/.test(value);

// "64 x 64" is "64x64".
export const sizeOr = (text) => text.trim().replace(/^(\d+)\s*[x×*]\s*(\d+)$/i, "$1x$2");
