"""The picture that the files of this folder show."""

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 37, 29


def scene():
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    red = 255 * x / (WIDTH - 1)
    green = 255 * y / (HEIGHT - 1)
    blue = 127 + 120 * np.sin(x * 0.7 + y * 0.3)
    pixels = np.stack([red, green, blue], -1)
    pixels[3:9, 2:9] = (250, 20, 30)
    pixels[14::4, 18:] = (10, 200, 240)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8), "RGB")
