"""Makes the pictures of tests/pictures/uploads and writes what Pillow reads from them to expected.txt.

    python3 tests/pictures/make_uploads.py        needs Pillow and NumPy

A line of expected.txt holds a file's name, the frame's width, height and channels, the largest difference that is allowed,
and the pixels in hexadecimal. For lossless files without a profile the difference is 0. JPEG and lossy WebP allow 1 for
another release of the library, and a colour profile allows 2: Pillow's Little CMS is another release.
"""
import pathlib
import struct
import sys
import zlib

import numpy
from PIL import Image, ImageCms, ImageOps

FOLDER = pathlib.Path(__file__).resolve().parent / "uploads"
WIDTH, HEIGHT = 19, 13


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, color, rows, before=(), interlace=0):
    """A PNG with the given unfiltered rows and chunks before its pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace))
    return (b"\x89PNG\r\n\x1a\n" + header + b"".join(before) +
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) + chunk(b"IEND", b""))


def exif(orientation):
    return b"MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", 1, 0x0112, 3, 1, orientation, 0, 0)


def gradient():
    y, x = numpy.mgrid[0:HEIGHT, 0:WIDTH]
    return numpy.stack([x * 13 % 256, y * 19 % 256, (x * 7 + y * 11) % 256], axis=2).astype(numpy.uint8)


def smooth():
    y, x = numpy.mgrid[0:HEIGHT, 0:WIDTH]
    return numpy.stack([60 + x * 8, 40 + y * 12, 200 - x * 4 - y * 3], axis=2).astype(numpy.uint8)


def wide_profile():
    """An RGB profile with the primaries of Adobe RGB and gamma 2.2, built by hand."""
    def fixed(value):
        return struct.pack(">i", round(value * 65536))

    def xyz(*values):
        return b"XYZ \0\0\0\0" + b"".join(fixed(value) for value in values)

    text = b"desc\0\0\0\0" + struct.pack(">I", 5) + b"wide\0" + b"\0" * 78
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(2.2 * 256)) + b"\0\0"
    tags = {b"desc": text, b"cprt": b"text\0\0\0\0none\0\0\0\0", b"wtpt": xyz(0.9642, 1.0, 0.8249),
            b"rXYZ": xyz(0.60974, 0.31111, 0.01947), b"gXYZ": xyz(0.20528, 0.62567, 0.06087),
            b"bXYZ": xyz(0.14919, 0.06322, 0.74457), b"rTRC": curve, b"gTRC": curve, b"bTRC": curve}
    return profile(b"RGB ", tags)


def grey_profile():
    tags = {b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"grey\0" + b"\0" * 78, b"cprt": b"text\0\0\0\0none\0\0\0\0",
            b"wtpt": b"XYZ \0\0\0\0" + struct.pack(">iii", 63190, 65536, 54061),
            b"kTRC": b"curv\0\0\0\0" + struct.pack(">IH", 1, 256) + b"\0\0"}
    return profile(b"GRAY", tags)


def profile(space, tags):
    table, data = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, value in tags.items():
        value += b"\0" * (-len(value) % 4)
        table += name + struct.pack(">II", start + len(data), len(value))
        data += value
    header = (struct.pack(">I4sI4s4s4s", 128 + len(table) + len(data), b"none", 0x02100000, b"mntr", space, b"XYZ ") +
              struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + b"\0" * 28 + struct.pack(">iii", 63190, 65536, 54061))
    return header.ljust(128, b"\0") + table + data


def write(name, data):
    (FOLDER / name).write_bytes(data)


def make_png():
    rgb, y_x = gradient(), numpy.mgrid[0:HEIGHT, 0:WIDTH]
    alpha = ((y_x[1] * 29 + y_x[0] * 5) % 256).astype(numpy.uint8)
    image = Image.fromarray(rgb)
    image.save(FOLDER / "rgb.png")
    rgba = Image.fromarray(numpy.dstack([rgb, alpha]))
    rgba.save(FOLDER / "rgba.png")
    grey = Image.fromarray(rgb[:, :, 0])
    grey.save(FOLDER / "grey.png")
    Image.merge("LA", [grey, Image.fromarray(alpha)]).save(FOLDER / "grey_alpha.png")
    Image.fromarray((rgb[:, :, 2] > 100).astype(numpy.uint8) * 255).convert("1").save(FOLDER / "bits.png")
    for colors, name in ((2, "palette_1"), (4, "palette_2"), (16, "palette_4"), (200, "palette_8")):
        image.quantize(colors, dither=0).save(FOLDER / f"{name}.png")
    image.quantize(32, dither=0).save(FOLDER / "palette_transparent.png", transparency=bytes(range(0, 256, 8)))
    image.save(FOLDER / "color_key.png", transparency=tuple(int(v) for v in rgb[3, 4]))
    two_bits = [bytes((row * 37 + i * 91) % 256 for i in range(5)) for row in range(HEIGHT)]
    write("grey_2.png", png(WIDTH, HEIGHT, 2, 0, two_bits))
    four_bits = [bytes((row * 53 + i * 29) % 256 for i in range(10)) for row in range(HEIGHT)]
    write("grey_4.png", png(WIDTH, HEIGHT, 4, 0, four_bits))
    # 16 bits whose two bytes are equal, so that truncation and rounding agree.
    write("rgb_16.png", png(WIDTH, HEIGHT, 16, 2, [row.repeat(2).tobytes() for row in rgb.reshape(HEIGHT, -1)]))
    rgba_rows = numpy.dstack([rgb, alpha]).reshape(HEIGHT, -1)
    write("rgba_16.png", png(WIDTH, HEIGHT, 16, 6, [row.repeat(2).tobytes() for row in rgba_rows]))
    rows = [row.tobytes() for row in rgb]
    for orientation in range(1, 9):
        write(f"orientation_{orientation}.png", png(WIDTH, HEIGHT, 8, 2, rows, [chunk(b"eXIf", exif(orientation))]))
    write("bad_exif.png", png(WIDTH, HEIGHT, 8, 2, rows, [chunk(b"eXIf", b"MM\0*\xff\xff\xff\xff")]))
    for name, icc in (("wide", wide_profile()), ("srgb", ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())):
        Image.fromarray(smooth()).save(FOLDER / f"{name}_profile.png", icc_profile=icc)
    Image.fromarray(numpy.dstack([smooth(), alpha])).save(FOLDER / "wide_profile_alpha.png", icc_profile=wide_profile())
    grey.save(FOLDER / "grey_profile.png", icc_profile=grey_profile())
    frames = [Image.fromarray(numpy.roll(rgb, shift, axis=1)) for shift in (0, 5, 9)]
    frames[0].save(FOLDER / "animated.png", save_all=True, append_images=frames[1:])
    # Adam7 by hand: each pass with its rows unfiltered.
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    interlaced = [row.tobytes() for x, y, dx, dy in passes for row in rgb[y::dy, x::dx] if row.size]
    write("interlaced.png", png(WIDTH, HEIGHT, 8, 2, interlaced, interlace=1))


def make_jpeg():
    image = Image.fromarray(smooth())
    image.save(FOLDER / "baseline.jpg", quality=90)
    image.save(FOLDER / "progressive.jpg", quality=90, progressive=True)
    image.convert("L").save(FOLDER / "grey.jpg", quality=90)
    image.save(FOLDER / "subsampled.jpg", quality=90, subsampling=2)
    image.save(FOLDER / "full.jpg", quality=90, subsampling=0)
    image.convert("CMYK").save(FOLDER / "cmyk.jpg", quality=95)
    image.save(FOLDER / "wide_profile.jpg", quality=95, icc_profile=wide_profile())
    for orientation in (3, 6, 8):
        image.save(FOLDER / f"orientation_{orientation}.jpg", quality=90, exif=b"Exif\0\0" + exif(orientation))


def make_webp():
    rgb = Image.fromarray(gradient())
    alpha = Image.fromarray((numpy.mgrid[0:HEIGHT, 0:WIDTH][1] * 13 % 256).astype(numpy.uint8))
    rgb.save(FOLDER / "lossless.webp", lossless=True)
    both = rgb.copy()
    both.putalpha(alpha)
    both.save(FOLDER / "lossless_alpha.webp", lossless=True, exact=True)
    Image.fromarray(smooth()).save(FOLDER / "lossy.webp", quality=90)
    soft = Image.fromarray(smooth())
    soft.putalpha(alpha)
    soft.save(FOLDER / "lossy_alpha.webp", quality=90)
    rgb.save(FOLDER / "orientation_6.webp", lossless=True, exif=b"Exif\0\0" + exif(6))
    Image.fromarray(smooth()).save(FOLDER / "wide_profile.webp", lossless=True, icc_profile=wide_profile())
    frames = [Image.fromarray(numpy.roll(gradient(), shift, axis=0)) for shift in (0, 4)]
    frames[0].save(FOLDER / "animated.webp", save_all=True, append_images=frames[1:], lossless=True)


def expected(path):
    image = ImageOps.exif_transpose(Image.open(path))
    icc = image.info.get("icc_profile")
    alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    allowed = 1 if path.suffix == ".jpg" or path.name.startswith("lossy") else 0
    if icc:
        allowed = 2
        bands = image.split()
        base = image.convert("RGB") if image.mode in ("RGBA", "P") else image
        image = ImageCms.profileToProfile(base, ImageCms.ImageCmsProfile(__import__("io").BytesIO(icc)),
                                          ImageCms.createProfile("sRGB"), outputMode="RGB")
        if alpha:
            image.putalpha(bands[-1])
    image = image.convert("RGBA" if alpha else "RGB")
    return f"{path.name} {image.width} {image.height} {len(image.getbands())} {allowed} {image.tobytes().hex()}"


def main():
    FOLDER.mkdir(exist_ok=True)
    make_png()
    make_jpeg()
    make_webp()
    files = sorted(path for path in FOLDER.iterdir() if path.suffix != ".txt")
    (FOLDER / "expected.txt").write_text("\n".join(map(expected, files)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
