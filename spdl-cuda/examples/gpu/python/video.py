"""g5, comparison: videos decoded by torchcodec, on the device and on the CPU."""

import time
from pathlib import Path
from typing import Any

from common import Measurement, cuda_device

CASE = "videos by torchcodec"


def main() -> None:
    measurement = Measurement()
    (torch,) = measurement.import_modules(CASE, "torch")
    cuda_device(measurement, CASE, torch)
    measurement.import_modules(CASE, "torchcodec.decoders")
    import torchcodec
    from torchcodec.decoders import VideoDecoder

    measurement.note(f"torchcodec {torchcodec.__version__}")
    folder = measurement.videos
    files = sorted(folder.glob("1080p.*")) if folder else []
    if not files:
        return measurement.unsupported(CASE, "no videos in the pack")
    for at, file in enumerate(files):
        for part, device in enumerate(("cuda", "cpu")):
            case = f"{file.name}, 1 concurrent, torchcodec on {device}"
            until = (2 * at + part + 1) / (2 * len(files))
            try:
                rate = frames_per_second(measurement, torch, VideoDecoder, file, device, until)
            except Exception as error:  # Not every build decodes every codec and raw streams.
                measurement.unsupported(case, f"{type(error).__name__}: {error}")
                continue
            measurement.figure(case, "rate", rate, "frames/s")


def frames_per_second(
    measurement: Measurement, torch: Any, decoder: Any, file: Path, device: str, until: float
) -> float:
    """Decode the whole file to RGB repeatedly. The first round is a warm-up."""
    frames, rounds, start = 0, 0, time.perf_counter()
    while rounds < 2 or not measurement.is_enough(until):
        frames += sum(1 for _ in decoder(str(file), device=device))
        torch.cuda.synchronize()
        if rounds == 0:
            frames, start = 0, time.perf_counter()
        rounds += 1
    return frames / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
