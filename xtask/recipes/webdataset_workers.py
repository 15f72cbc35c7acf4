"""WebDataset with torchvision's transforms in worker processes of PyTorch's DataLoader: images and captions."""

import torch
import webdataset
from torch.utils.data import DataLoader, default_collate
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import InterpolationMode, v2

import common

# The constants of OpenAI's CLIP.
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def image_of(encoded):
    return decode_jpeg(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), ImageReadMode.RGB)


def batches(options):
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(
                common.CLASSIFICATION,
                (0.9, 1.0),
                interpolation=InterpolationMode.BICUBIC,
                antialias=True,
            ),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    for _ in range(options.epochs):
        data = (
            webdataset.WebDataset(common.shards(options.data), shardshuffle=100, nodesplitter=None)
            .shuffle(1000)
            .to_tuple("jpg", "txt")
            .map_tuple(
                lambda encoded: transform(image_of(encoded)),
                lambda text: torch.tensor(common.tokenize(text.decode())),
            )
            .batched(common.BATCH, collation_fn=default_collate, partial=True)
        )
        yield from DataLoader(data, batch_size=None, num_workers=options.workers)


if __name__ == "__main__":
    options = common.arguments()
    torch.set_num_threads(1)
    common.measure(options.task, lambda: batches(options))
