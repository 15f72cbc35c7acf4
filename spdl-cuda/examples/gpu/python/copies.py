"""g1, comparison: copies between host and device by PyTorch."""

from common import Measurement, cuda_device, median_time

CASE = "copies by PyTorch"


def main() -> None:
    measurement = Measurement()
    (torch,) = measurement.import_modules(CASE, "torch")
    device = cuda_device(measurement, CASE, torch)
    measurement.note(f"PyTorch {torch.__version__}")
    sizes = [64 << 10] if measurement.is_tiny else [(64 << 10) * 4**power for power in range(8)]
    for size in sizes:
        count = 2 if measurement.is_tiny else min(max((512 << 20) // size, 4), 1024)
        name = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        for pinned in (True, False):
            host = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
            on_device = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]

            def copy(to: list, source: list, count: int = count) -> None:
                for at in range(count):
                    to[at % 2].copy_(source[at % 2], non_blocking=True)

            kind = "pinned" if pinned else "pageable"
            for way, to, source in (("to device", on_device, host), ("to host", host, on_device)):
                seconds = median_time(torch, lambda to=to, source=source: copy(to, source), 5)
                case = f"{way}, {name}, {kind}, torch copy_"
                measurement.figure(case, "rate", count * size / seconds / 1e9, "GB/s")
        if measurement.is_over(0.9):
            measurement.note("some sizes were not measured: out of time")
            return


if __name__ == "__main__":
    main()
