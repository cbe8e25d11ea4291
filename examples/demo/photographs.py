"""Photographs that scikit-image ships, as frames of a camera that pans over them."""

import numpy as np
import skimage.data

HEIGHT, WIDTH = 400, 600
SHAPE = (HEIGHT, WIDTH, 3)  # uint8, red green blue
ATTRIBUTE = "camera/rgb"
PRIM = "/"
FRAMES_PER_PHOTOGRAPH = 15


def load():
    """The photographs, each cropped to SHAPE."""
    pictures = [skimage.data.coffee(), skimage.data.rocket(), skimage.data.hubble_deep_field()]
    return [np.ascontiguousarray(picture[:HEIGHT, :WIDTH]) for picture in pictures]


def _frame(photographs, number):
    photograph = photographs[number // FRAMES_PER_PHOTOGRAPH % len(photographs)]
    return photograph, number * 7 % (WIDTH - 1) + 1  # each frame differs from the one before


def expose(photographs, number, into):
    """Writes frame `number` into an array of SHAPE: the photograph, moved to the right and wrapped around."""
    photograph, shift = _frame(photographs, number)
    into[:, shift:] = photograph[:, :-shift]
    into[:, :shift] = photograph[:, -shift:]


def matches(photographs, number, frame):
    """Whether every byte is that of frame `number`."""
    photograph, shift = _frame(photographs, number)
    moved = np.array_equal(frame[:, shift:], photograph[:, :-shift])
    return moved and np.array_equal(frame[:, :shift], photograph[:, -shift:])
