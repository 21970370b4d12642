"""Makes the pictures of this folder with Pillow, with which control/pictures/picture_test.cc and control/pictures/resample_test.cc compare
the project's reading and resampling: python3 make_pictures.py. Needs Pillow 10 or later and numpy."""

import pathlib

import numpy
from PIL import Image, ImageOps

HERE = pathlib.Path(__file__).parent


def main():
    rng = numpy.random.default_rng(0)
    y, x = numpy.mgrid[0:30, 0:40]
    waves = numpy.stack([128 + 90 * numpy.sin(x / 3 + y / 5), 255 * ((x // 4 + y // 4) % 2), 6 * x + y], axis=-1)
    source = Image.fromarray(numpy.clip(waves + rng.normal(0, 8, waves.shape), 0, 255).astype(numpy.uint8))
    source.save(HERE / "source.png")
    source.resize((16, 16), Image.LANCZOS, box=(5, 0, 35, 30)).save(HERE / "centre_16x16.png")
    source.resize((16, 24), Image.LANCZOS, box=(0, 0, 20, 30)).save(HERE / "left_16x24.png")
    source.resize((64, 48), Image.LANCZOS).save(HERE / "larger_64x48.png")

    quadrants = numpy.zeros((16, 24, 3), numpy.uint8)
    quadrants[:8, :12], quadrants[:8, 12:], quadrants[8:, :12] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        name = f"orientation_{orientation}"
        Image.fromarray(quadrants).save(HERE / f"{name}.jpg", quality=95, subsampling=0, exif=exif,
                                        progressive=orientation % 2 == 0)
        ImageOps.exif_transpose(Image.open(HERE / f"{name}.jpg")).save(HERE / f"{name}.png")

    for name, size in (("wide_96x64", (96, 64)), ("tall_64x80", (64, 80))):  # for models that look at pictures
        Image.fromarray(quadrants).resize(size, Image.NEAREST).save(HERE / f"{name}.png")

    clear = Image.fromarray(numpy.array([[[10, 20, 30, 255], [200, 100, 0, 0], [0, 0, 0, 51]]], numpy.uint8), "RGBA")
    clear.save(HERE / "transparent.png")
    Image.fromarray(numpy.array([[0, 0x1234, 0xFFFF]], numpy.uint16)).save(HERE / "deep_grey.png")


if __name__ == "__main__":
    main()
