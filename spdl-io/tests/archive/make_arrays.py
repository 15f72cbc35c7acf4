"""Writes NumPy files of all versions, types and orders that the tests read into a folder.

The elements are 0, 1, 2, …
"""

import sys

import numpy

folder = sys.argv[1]
for descr in ["|b1", "|i1", "|u1", "<i2", "<u4", "<i8", "<f2", "<f4", "<f8", "<c8", ">i2", ">f4", ">i8", ">c8"]:
    array = numpy.arange(24).reshape(2, 3, 4).astype(descr)
    name = descr.replace("|", "").replace("<", "little-").replace(">", "big-")
    numpy.save(f"{folder}/{name}.npy", array)
numpy.save(f"{folder}/fortran.npy", numpy.asfortranarray(numpy.arange(24, dtype="<f4").reshape(2, 3, 4)))
numpy.save(f"{folder}/number.npy", numpy.float32(7))
numpy.save(f"{folder}/empty.npy", numpy.zeros((0, 5), "<f4"))
numpy.save(f"{folder}/object.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
numpy.save(f"{folder}/records.npy", numpy.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")]))
numpy.save(f"{folder}/text.npy", numpy.array(["a", "bc"]))
numpy.save(f"{folder}/time.npy", numpy.array(["2020-01-01"], dtype="datetime64[D]"))
for version in [(2, 0), (3, 0)]:
    with open(f"{folder}/version-{version[0]}.npy", "wb") as file:
        numpy.lib.format.write_array(file, numpy.arange(24, dtype="<f4"), version=version)
numpy.savez(f"{folder}/stored.npz", first=numpy.arange(24, dtype="<f4"), second=numpy.zeros(3, "|u1"))
numpy.savez_compressed(f"{folder}/deflated.npz", first=numpy.arange(24, dtype="<f4"), second=numpy.zeros(3, "|u1"))
