"""Flips bits in an HDF5 file as checkpoint alteration tools do it: element by element with h5py.

    hdf5_flips.py FILE TENSOR COUNT

A minimal form of that way: for each flip, one element is read, a bit of it is changed and the
element is written back. Prints the flips a second, with the time to open and close the file.
"""

import random
import sys
import time

import h5py
import numpy as np


def main(path, name, count):
    draw = random.Random(1)
    start = time.perf_counter()
    with h5py.File(path, "r+") as file:
        dataset = file[name]
        for _ in range(count):
            at = tuple(draw.randrange(size) for size in dataset.shape)
            bits = np.asarray(dataset[at]).view(np.uint32) ^ np.uint32(1 << 10)
            dataset[at] = bits.view(dataset.dtype)
        file.flush()
    print(f"{count / (time.perf_counter() - start):.0f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
