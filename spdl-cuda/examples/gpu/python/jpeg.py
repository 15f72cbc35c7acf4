"""g3, comparison: JPEGs decoded on the device by torchvision."""

import time

from common import Measurement, cuda_device

CASE = "JPEGs by torchvision"


def main() -> None:
    measurement = Measurement()
    torch, torchvision = measurement.import_modules(CASE, "torch", "torchvision")
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import functional

    device = cuda_device(measurement, CASE, torch)
    measurement.note(f"torchvision {torchvision.__version__}")
    files = measurement.files()
    if not files:
        return measurement.unsupported(CASE, "no images in the pack")
    encoded = [torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files]
    mean = torch.tensor([123.675, 116.28, 103.53], device=device).reshape(1, 3, 1, 1)
    std = torch.tensor([58.395, 57.12, 57.375], device=device).reshape(1, 3, 1, 1)

    def decode(images: list) -> list:
        return decode_jpeg(images, mode=ImageReadMode.RGB, device="cuda")

    def samples(images: list) -> object:
        small = [functional.resize(image, [224, 224], antialias=True) for image in decode(images)]
        return ((torch.stack(small).float() - mean) / std).half()

    try:
        decode(encoded[:2])
        torch.cuda.synchronize()
    except RuntimeError as error:  # For example, torchvision was built without nvJPEG.
        return measurement.unsupported(CASE, f"torchvision cannot decode on the device: {error}")
    batches = (2,) if measurement.is_tiny else (1, 8, 32, 128, 512, 1024)
    workloads = (("decode only", decode), ("decode, resize to 224 and normalise", samples))
    for at, size in enumerate(batches):
        for part, (name, work) in enumerate(workloads):
            until = (2 * at + part + 1) / (2 * len(batches))
            batch = [encoded[number % len(encoded)] for number in range(size)]
            work(batch)
            torch.cuda.synchronize()
            times: list[float] = []
            start, cpu = time.perf_counter(), time.process_time()
            while len(times) < 3 or (not measurement.is_enough(until) and len(times) < 2000):
                before = time.perf_counter()
                work(batch)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - before)
            seconds = time.perf_counter() - start
            case = f"{name}, batches of {size}, torchvision"
            measurement.figure(case, "rate", size * len(times) / seconds, "images/s")
            measurement.figure(case, "busy CPU cores", (time.process_time() - cpu) / seconds, "")
            times.sort()
            measurement.figure(case, "batch time, p50", 1e3 * times[len(times) // 2], "ms")
            measurement.figure(case, "batch time, p99", 1e3 * times[len(times) * 99 // 100], "ms")


if __name__ == "__main__":
    main()
