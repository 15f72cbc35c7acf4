"""g1, what it is compared with: PyTorch's copies between host and device."""

from common import Measuring, cuda_of, median_time

CASE = "copies by PyTorch"


def main() -> None:
    measuring = Measuring()
    (torch,) = measuring.needs(CASE, "torch")
    device = cuda_of(measuring, CASE, torch)
    measuring.note(f"PyTorch {torch.__version__}")
    sizes = [64 << 10] if measuring.is_tiny else [(64 << 10) * 4**power for power in range(8)]
    for size in sizes:
        count = 2 if measuring.is_tiny else min(max((512 << 20) // size, 4), 1024)
        name = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        for pinned in (True, False):
            host = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
            there = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]

            def copy(to: list, source: list, count: int = count) -> None:
                for at in range(count):
                    to[at % 2].copy_(source[at % 2], non_blocking=True)

            kind = "pinned" if pinned else "pageable"
            for way, to, source in (("to device", there, host), ("to host", host, there)):
                seconds = median_time(torch, lambda to=to, source=source: copy(to, source), 5)
                case = f"{way}, {name}, {kind}, torch copy_"
                measuring.figure(case, "rate", count * size / seconds / 1e9, "GB/s")
        if measuring.is_over(0.9):
            measuring.note("the time was over before all sizes were measured")
            return


if __name__ == "__main__":
    main()
