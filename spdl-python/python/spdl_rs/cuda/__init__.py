"""CUDA devices, and arrays on them.

Nothing of CUDA is needed to install or to import this: the driver is looked for when it is asked for.

>>> import spdl_rs
>>> for part in spdl_rs.cuda.status():
...     print(part.name, "is there" if part.available else part.remedy)  # doctest: +SKIP
driver is there
device is there
nvjpeg pip install nvidia-nvjpeg (nvidia-nvjpeg-cu12 for drivers of CUDA 12), or name the file in SPDL_NVJPEG
nvrtc is there
nvcuvid is there

`ImageLoader(..., device="cuda")` gives batches as `DeviceArray`s; with `decode="device"`, JPEGs are
decoded there. `spdl_rs.io.decode_image_nvjpeg` and `decode_packets_nvdec` decode images and videos, and
`spdl_rs.io.transfer_tensor` makes such arrays of what lies on the host. PyTorch, JAX, CuPy and Numba take
them without a copy:

```python
for images, labels in spdl_rs.ImageLoader("photos", batch_size=64, device="cuda"):
    images, labels = torch.from_dlpack(images), torch.from_dlpack(labels)
```

Nobody waits on the host for a copy, and memory is used again only when its consumers are done with it.
Where there is no device, what needs one raises `CudaUnavailable` at once.
"""

from .._errors import CudaError, CudaFallbackWarning, CudaUnavailable
from ._device_array import DeviceArray
from ._devices import (
    MemoryStatistics,
    device_count,
    fallbacks,
    is_available,
    memory_statistics,
    release,
)
from ._status import PartStatus, Status, status
from ._video import VideoStatistics, video_statistics

__all__ = [
    "CudaError",
    "CudaFallbackWarning",
    "CudaUnavailable",
    "DeviceArray",
    "MemoryStatistics",
    "PartStatus",
    "Status",
    "VideoStatistics",
    "device_count",
    "fallbacks",
    "is_available",
    "memory_statistics",
    "release",
    "status",
    "video_statistics",
]
