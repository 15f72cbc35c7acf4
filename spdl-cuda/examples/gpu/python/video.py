"""g5, what it is compared with: torchcodec's decoder of videos, on the device and on the CPU."""

import time
from pathlib import Path
from typing import Any

from common import Measuring, cuda_of

CASE = "videos by torchcodec"


def main() -> None:
    measuring = Measuring()
    (torch,) = measuring.needs(CASE, "torch")
    cuda_of(measuring, CASE, torch)
    measuring.needs(CASE, "torchcodec.decoders")
    import torchcodec
    from torchcodec.decoders import VideoDecoder

    measuring.note(f"torchcodec {torchcodec.__version__}")
    folder = measuring.videos
    files = sorted(folder.glob("1080p.*")) if folder else []
    if not files:
        return measuring.unsupported(CASE, "there are no videos")
    for at, file in enumerate(files):
        for part, device in enumerate(("cuda", "cpu")):
            case = f"{file.name}, 1 at the same time, torchcodec on {device}"
            until = (2 * at + part + 1) / (2 * len(files))
            try:
                rate = frames_in_a_second(measuring, torch, VideoDecoder, file, device, until)
            except Exception as error:  # Not every build decodes every codec, or streams as such.
                measuring.unsupported(case, f"{type(error).__name__}: {error}")
                continue
            measuring.figure(case, "rate", rate, "frames/s")


def frames_in_a_second(
    measuring: Measuring, torch: Any, decoder: Any, file: Path, device: str, until: float
) -> float:
    """The file again and again, whole, as RGB; the first time does not count."""
    frames, rounds, start = 0, 0, time.perf_counter()
    while rounds < 2 or not measuring.is_enough(until):
        frames += sum(1 for _ in decoder(str(file), device=device))
        torch.cuda.synchronize()
        if rounds == 0:
            frames, start = 0, time.perf_counter()
        rounds += 1
    return frames / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
