"""g4: a training loop with synthetic batches, and with batches from files.

The model is ViT-B/16 in bf16 from timm, torchvision or `vision_transformer.py`, whichever is found
first. Each source of batches trains the same model. The cost of loading is the decrease in rate
relative to synthetic batches, which are always in device memory.
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

from common import Measurement, cuda_device

CASE = "training of ViT-B/16"


def model_of(measurement: Measurement, torch: Any) -> Any:
    """Return ViT-B/16 (in a tiny run, a small model) with 1,000 classes, and its origin."""
    if measurement.is_tiny:
        return torch.nn.Sequential(
            torch.nn.AvgPool2d(32), torch.nn.Flatten(), torch.nn.Linear(147, 1000)
        ), "a small model for tests"
    # A broken installation may raise anything.
    with contextlib.suppress(Exception):
        import timm

        model = timm.create_model("vit_base_patch16_224", num_classes=1000)
        return model, f"timm {timm.__version__}"
    with contextlib.suppress(Exception):
        import torchvision

        model = torchvision.models.vit_b_16(num_classes=1000)
        return model, f"torchvision {torchvision.__version__}"
    from vision_transformer import VisionTransformer

    return VisionTransformer(), "plain PyTorch: neither timm nor torchvision is installed"


def link_repeatedly(files: list[Path], folder: Path, times: int) -> str:
    """Create a folder per class with `times` symbolic links to each file. Return `folder`."""
    for file in files:
        of_class = folder / file.parent.name
        of_class.mkdir(exist_ok=True)
        for number in range(times):
            (of_class / f"{file.stem}-{number}.jpg").symlink_to(file.resolve())
    return str(folder)


def endless(source: Any) -> Iterator[Any]:
    """Iterate over the source repeatedly."""
    while True:
        yield from source


def synthetic(torch: Any, batch: int) -> Iterator[Any]:
    """Yield two random batches in device memory alternately."""
    batches = [
        (
            torch.randint(0, 256, (batch, 3, 224, 224), dtype=torch.uint8, device="cuda"),
            torch.randint(0, 1000, (batch,), device="cuda"),
        )
        for _ in range(2)
    ]
    return endless(batches)


def decoded_on_cpu(torch: Any, folder: str, batch: int) -> Iterator[Any]:
    """Yield batches of `ImageLoader` that PyTorch pins and copies, with one batch of prefetch."""
    import spdl_rs

    loader = spdl_rs.ImageLoader(
        folder, batch_size=batch, size=224, train=True, layout="nchw-u8", drop_last=True
    )
    stream = torch.cuda.Stream()

    def uploads() -> Iterator[Any]:
        for images, labels in endless(loader):
            with torch.cuda.stream(stream):
                pair = [
                    torch.from_numpy(array).pin_memory().to("cuda", non_blocking=True)
                    for array in (images, labels)
                ]
            yield pair, stream.record_event()

    prefetched = uploads()
    following = next(prefetched)
    while True:
        pair, uploaded = following
        following = next(prefetched)
        torch.cuda.current_stream().wait_event(uploaded)
        for tensor in pair:
            tensor.record_stream(torch.cuda.current_stream())
        yield pair[0], pair[1] % 1000


def uploaded_by_loader(torch: Any, folder: str, batch: int) -> Iterator[Any]:
    """Yield batches of `ImageLoader(device="cuda")`."""
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
    """Yield batches of a `DataLoader` with worker processes and pinned memory."""
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
    measurement: Measurement, torch: Any, batches: Iterator[Any], until: float
) -> dict[str, float]:
    """Train for 8 steps or more, until a share of the time has passed.

    Return the rate, the idle fraction, the number of gaps over 2 ms, the number of steps and the
    last loss.
    """
    torch.manual_seed(0)
    model, _ = model_of(measurement, torch)
    model = model.to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not measurement.is_tiny)
    mean = torch.tensor([123.675, 116.28, 103.53], device="cuda").reshape(1, 3, 1, 1)
    std = torch.tensor([58.395, 57.12, 57.375], device="cuda").reshape(1, 3, 1, 1)
    warm, images, steps, ends, begins = 5, 0, 0, [], []
    start, loss = 0.0, torch.zeros(())
    while steps < warm + 3 or not measurement.is_over(until):
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
            # The host is at most three steps ahead, as in a training loop that logs its loss.
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
    measurement = Measurement()
    (torch,) = measurement.import_modules(CASE, "torch")
    cuda_device(measurement, CASE, torch)
    batch = 2 if measurement.is_tiny else 256
    files = measurement.files()
    if not files:
        return measurement.unsupported(CASE, "no images in the pack")
    with tempfile.TemporaryDirectory() as parent:
        times = 1 if measurement.is_tiny else 20_000 // len(files) + 1
        measure(measurement, torch, link_repeatedly(files, Path(parent), times), batch)


def measure(measurement: Measurement, torch: Any, folder: str, batch: int) -> None:
    """Measure each source of batches in turn."""
    workers = max(1, (os.cpu_count() or 2) - 1)
    measurement.note(f"{model_of(measurement, torch)[1]}, PyTorch {torch.__version__}, batch {batch}")
    sources = [
        ("synthetic batches", lambda: synthetic(torch, batch)),
        ("spdl_rs.ImageLoader, decoded on the CPU", lambda: decoded_on_cpu(torch, folder, batch)),
        ("spdl_rs.ImageLoader(device='cuda')", lambda: uploaded_by_loader(torch, folder, batch)),
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
            found = train(measurement, torch, make(), until)
        except ImportError as error:
            measurement.unsupported(name, str(error))
            continue
        except Exception:  # A failure does not stop the other sources.
            traceback.print_exc()
            failed.append(name)
            continue
        ceiling = ceiling or found["images/s"]
        share = found["images/s"] / ceiling
        measurement.figure(name, "rate", found["images/s"], "images/s")
        measurement.figure(name, "share of the synthetic rate", 100 * share, "%")
        measurement.figure(name, "device idle between steps", 100 * found["idle"], "%")
        measurement.figure(
            name, "gaps of more than 2 ms", found["gaps"], f"of {found['steps']} steps"
        )
        measurement.figure(name, "last loss", found["loss"], "")
        if name.startswith("spdl_rs") and not measurement.is_tiny:
            measurement.promise(
                f"G4: {name}", share >= 0.98, f"{100 * share:.1f} % of the synthetic rate", "98 %"
            )
        with contextlib.suppress(Exception):
            torch.cuda.empty_cache()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
