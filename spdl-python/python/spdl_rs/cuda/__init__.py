"""CUDA devices, and arrays in their memory.

| task | use |
|---|---|
| find out what is missing for CUDA | `status` |
| batches on a device | `ImageLoader(..., device="cuda")` |
| statistics of device memory; freeing unused memory | `memory_statistics`, `release` |
| how often `device="auto"` and `fallback=True` used the host | `fallbacks` |
| statistics of video decoding | `video_statistics` |

Neither installation nor import needs CUDA: the driver is loaded on first use.

>>> import spdl_rs
>>> for part in spdl_rs.cuda.status():
...     print(part.name, "ok" if part.available else part.remedy)  # doctest: +SKIP
driver ok
device ok
nvjpeg pip install nvidia-nvjpeg (nvidia-nvjpeg-cu12 for drivers of CUDA 12), or name the file in SPDL_NVJPEG
nvrtc ok
nvcuvid ok

`ImageLoader(..., device="cuda")` delivers batches as `DeviceArray`s; with `decode="device"` the device
decodes JPEG. `spdl_rs.io.decode_image_nvjpeg` and `decode_packets_nvdec` decode images and videos, and
`spdl_rs.io.transfer_tensor` uploads host arrays. PyTorch, JAX, CuPy and Numba import such arrays without a
copy:

```python
for images, labels in spdl_rs.ImageLoader("photos", batch_size=64, device="cuda"):
    images, labels = torch.from_dlpack(images), torch.from_dlpack(labels)
```

Transfers do not block the host. Memory is recycled only after the streams that use it have finished. Without
a usable device, functions that need one raise `CudaUnavailable` immediately.
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
