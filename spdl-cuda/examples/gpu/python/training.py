"""g4: a training loop on batches that are on the device already, and on batches of files.

The model is ViT-B/16 in bf16: timm's, else torchvision's, else one in plain PyTorch. Each source of
batches trains the same model for a while; what it loses beside batches that are there already is the
price of loading.
"""

import contextlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import Measuring, cuda_of

CASE = "training of ViT-B/16"


def model_of(measuring: Measuring, torch: Any) -> Any:
    """ViT-B/16 with 1,000 classes, and who made it."""
    if measuring.is_tiny:
        return torch.nn.Sequential(
            torch.nn.AvgPool2d(32), torch.nn.Flatten(), torch.nn.Linear(147, 1000)
        ), "a small stand-in"
    # What a broken installation raises is anybody's guess.
    with contextlib.suppress(Exception):
        import timm

        model = timm.create_model("vit_base_patch16_224", num_classes=1000)
        return model, f"timm {timm.__version__}"
    with contextlib.suppress(Exception):
        import torchvision

        model = torchvision.models.vit_b_16(num_classes=1000)
        return model, f"torchvision {torchvision.__version__}"
    from vision_transformer import VisionTransformer

    return VisionTransformer(), "plain PyTorch: neither timm nor torchvision is here"


def many_times(files: list[Path], folder: Path, times: int) -> str:
    """A folder of images in classes, in which each file is so many times: links take no room."""
    for file in files:
        of_class = folder / file.parent.name
        of_class.mkdir(exist_ok=True)
        for number in range(times):
            (of_class / f"{file.stem}-{number}.jpg").symlink_to(file.resolve())
    return str(folder)


def endless(source: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from source


def synthetic(torch: Any, batch: int) -> Iterator[Any]:
    """The same two batches again and again, on the device from the start."""
    there = [
        (
            torch.randint(0, 256, (batch, 3, 224, 224), dtype=torch.uint8, device="cuda"),
            torch.randint(0, 1000, (batch,), device="cuda"),
        )
        for _ in range(2)
    ]
    return endless(there)


def ours(torch: Any, folder: str, batch: int) -> Iterator[Any]:
    """`ImageLoader`, decoded on the CPU; PyTorch pins and copies, one batch ahead."""
    import spdl_rs

    loader = spdl_rs.ImageLoader(
        folder, batch_size=batch, size=224, train=True, layout="nchw-u8", drop_last=True
    )
    stream = torch.cuda.Stream()

    def sent() -> Iterator[Any]:
        for images, labels in endless(loader):
            with torch.cuda.stream(stream):
                pair = [
                    torch.from_numpy(array).pin_memory().to("cuda", non_blocking=True)
                    for array in (images, labels)
                ]
            yield pair, stream.record_event()

    ahead = sent()
    following = next(ahead)
    while True:
        pair, there = following
        following = next(ahead)
        torch.cuda.current_stream().wait_event(there)
        for tensor in pair:
            tensor.record_stream(torch.cuda.current_stream())
        yield pair[0], pair[1] % 1000


def on_device(torch: Any, folder: str, batch: int) -> Iterator[Any]:
    """`ImageLoader` whose batches are on the device."""
    import spdl_rs

    loader = spdl_rs.ImageLoader(
        folder,
        batch_size=batch,
        size=224,
        train=True,
        layout="nchw-u8",
        drop_last=True,
        device="cuda",
    )
    for images, labels in endless(loader):
        yield torch.from_dlpack(images), torch.from_dlpack(labels) % 1000


def torch_loader(torch: Any, folder: str, batch: int, workers: int) -> Iterator[Any]:
    """What is usual: `ImageFolder` in a `DataLoader` with worker processes that pins."""
    from torchvision import datasets
    from torchvision.transforms import v2

    transform = v2.Compose(
        [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )
    loader = torch.utils.data.DataLoader(
        datasets.ImageFolder(folder, transform),
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=True,
        drop_last=True,
        persistent_workers=True,
    )
    for images, labels in endless(loader):
        yield images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True) % 1000


def train(
    measuring: Measuring, torch: Any, batches: Iterator[Any], until: float
) -> dict[str, float]:
    """Steps until the share of the time is over. Images a second, and gaps between steps."""
    torch.manual_seed(0)
    model, _ = model_of(measuring, torch)
    model = model.to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not measuring.is_tiny)
    mean = torch.tensor([123.675, 116.28, 103.53], device="cuda").reshape(1, 3, 1, 1)
    std = torch.tensor([58.395, 57.12, 57.375], device="cuda").reshape(1, 3, 1, 1)
    warm, images, steps, ends, begins = 5, 0, 0, [], []
    start, loss = 0.0, torch.zeros(())
    while steps < warm + 3 or not measuring.is_over(until):
        pixels, labels = next(batches)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model((pixels.float() - mean) / std), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        steps += 1
        if steps == warm:
            torch.cuda.synchronize()
            start = time.perf_counter()
        elif steps > warm:
            images += len(labels)
            begins.append(begin)
            ends.append(end)
            # The host runs no further ahead than a training loop that logs its loss.
            if len(ends) > 2:
                ends[-3].synchronize()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    gaps = [end.elapsed_time(begin) for end, begin in zip(ends, begins[1:])]
    busy = sum(begin.elapsed_time(end) for begin, end in zip(begins, ends)) / 1e3
    return {
        "images/s": images / seconds,
        "idle": max(0.0, 1.0 - busy / seconds),
        "gaps": sum(gap > 2.0 for gap in gaps),
        "steps": len(ends),
        "loss": loss.item(),
    }


def main() -> None:
    measuring = Measuring()
    (torch,) = measuring.needs(CASE, "torch")
    cuda_of(measuring, CASE, torch)
    batch = 2 if measuring.is_tiny else 256
    files = measuring.files()
    if not files:
        return measuring.unsupported(CASE, "there are no images")
    with tempfile.TemporaryDirectory() as parent:
        times = 1 if measuring.is_tiny else 20_000 // len(files) + 1
        measure(measuring, torch, many_times(files, Path(parent), times), batch)


def measure(measuring: Measuring, torch: Any, folder: str, batch: int) -> None:
    """Each source of batches, one after the other."""
    workers = max(1, (os.cpu_count() or 2) - 1)
    measuring.note(f"{model_of(measuring, torch)[1]}, PyTorch {torch.__version__}, batch {batch}")
    sources = [
        ("batches that are there already", lambda: synthetic(torch, batch)),
        ("spdl_rs.ImageLoader, decoded on the CPU", lambda: ours(torch, folder, batch)),
        ("spdl_rs.ImageLoader(device='cuda')", lambda: on_device(torch, folder, batch)),
        (
            f"torch DataLoader, {workers} workers",
            lambda: torch_loader(torch, folder, batch, workers),
        ),
    ]
    ceiling = 0.0
    failed = []
    for at, (name, make) in enumerate(sources):
        until = (at + 1) / len(sources)
        try:
            found = train(measuring, torch, make(), until)
        except ImportError as error:
            measuring.unsupported(name, str(error))
            continue
        except Exception:  # The others are measured whatever becomes of this one.
            traceback.print_exc()
            failed.append(name)
            continue
        ceiling = ceiling or found["images/s"]
        share = found["images/s"] / ceiling
        measuring.figure(name, "rate", found["images/s"], "images/s")
        measuring.figure(name, "of the synthetic rate", 100 * share, "%")
        measuring.figure(name, "device idle between steps", 100 * found["idle"], "%")
        measuring.figure(
            name, "gaps of more than 2 ms", found["gaps"], f"of {found['steps']} steps"
        )
        measuring.figure(name, "last loss", found["loss"], "")
        if name.startswith("spdl_rs") and not measuring.is_tiny:
            measuring.promise(
                f"G4: {name}", share >= 0.98, f"{100 * share:.1f} % of the synthetic rate", "98 %"
            )
        with contextlib.suppress(Exception):
            torch.cuda.empty_cache()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
