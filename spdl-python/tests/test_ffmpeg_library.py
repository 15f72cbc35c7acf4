"""The native module beside PyAV, OpenCV and the system's FFmpeg in one process.

PyAV and OpenCV contain other versions of FFmpeg. Each test imports the libraries in one order, in a new process, and
decodes the same video with each library.
"""

import ctypes.util
import importlib.metadata
import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.frameworks

# `system` is the FFmpeg that the operating system has installed.
ORDERS = [*itertools.permutations(("spdl_rs", "av", "cv2", "system"))]

VIDEO = Path(__file__).parents[2] / "spdl-media/tests/video/h264.mp4"

# Prints the FFmpeg libraries that `import spdl_rs` loads.
LOADED = """
import re, spdl_rs
names = re.findall(r"/(lib(?:spdl_av|avcodec)\\.so[^/\\n]*)", open("/proc/self/maps").read())
print(*sorted(set(names)))
"""

# The mean of the first frames by each library. An argument that begins with `lib` is the name of a shared library.
PROGRAM = """
import ctypes, importlib, sys

FRAMES = 4
video, names = sys.argv[1], sys.argv[2:]


def by_spdl_rs(spdl_rs):
    field = spdl_rs.fields.Video(crop=spdl_rs.io.Resize(128), frames=FRAMES, every=1)
    (batch,) = spdl_rs.Loader([video], batch_size=1, video=field)
    return batch["video"][0].mean()


def by_av(av):
    with av.open(video) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return sum(frame.mean() for frame in frames[:FRAMES]) / FRAMES


def by_cv2(cv2):
    capture = cv2.VideoCapture(video, cv2.CAP_FFMPEG)
    return sum(capture.read()[1].mean() for _ in range(FRAMES)) / FRAMES


modules = []
for name in names:
    if name.startswith("lib"):
        # Libraries that are loaded later bind to these symbols, unless the versions of symbols differ.
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    else:
        importlib.import_module(name)
        modules.append(name)

decode = lambda: {name: globals()["by_" + name](sys.modules[name]) for name in modules}
means = decode()
assert decode() == means, (decode(), means)
# Libraries differ in rounding and in the interpolation of colours.
assert 1 < min(means.values()) and max(means.values()) - min(means.values()) < 3, means
"""


def run(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def loaded():
    """The FFmpeg libraries that the native module links to."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the list of loaded libraries needs /proc")
    names = run(LOADED).split()
    if not names:
        pytest.skip("spdl_rs was built without FFmpeg")
    return names


def decode_with(names):
    if not VIDEO.is_file():
        pytest.skip(f"there is no {VIDEO.name}")
    for name in ("av", "cv2"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    run(PROGRAM, VIDEO, *names)


@pytest.mark.parametrize("names", [*itertools.permutations(("spdl_rs", "av", "cv2"))], ids="-".join)
def test_decodes_beside_pyav_and_opencv(loaded, names):
    decode_with(names)


@pytest.mark.parametrize("names", ORDERS, ids="-".join)
def test_decodes_beside_global_symbols_of_the_system(loaded, names):
    library = ctypes.util.find_library("avcodec")
    if library is None:
        pytest.skip("the system has no libavcodec")
    decode_with([library if name == "system" else name for name in names])


def test_a_wheel_with_the_library_has_its_notices(loaded):
    if "libspdl_av.so.1" not in loaded:
        pytest.skip(f"spdl_rs links to {', '.join(loaded)}")
    assert loaded == ["libspdl_av.so.1"]
    package = importlib.metadata.distribution("spdl_rs")
    assert "LGPL-2.1-or-later" in package.metadata["License-Expression"]
    texts = {path.name: path.read_text() for path in package.files if path.name.startswith("FFMPEG-")}
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in texts["FFMPEG-LICENSE.txt"]
    for part in ("SHA-256", "tag n9.0.2", "./configure --prefix"):
        assert part in texts["FFMPEG-SOURCE.txt"], part
