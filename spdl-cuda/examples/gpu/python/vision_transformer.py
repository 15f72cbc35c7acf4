"""ViT-B/16 in plain PyTorch, for machines without timm and torchvision."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A pre-norm transformer block: attention, then an MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `[batch, tokens, width]` to the same shape."""
        batch, length, width = tokens.shape
        # Queries, keys and values: [batch, heads, tokens, head width] each, after the permutation.
        parts = self.queries_keys_values(self.norm_1(tokens))
        parts = parts.reshape(batch, length, 3, self.heads, width // self.heads)
        attended = nn.functional.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4))
        tokens = tokens + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return tokens + self.mlp(self.norm_2(tokens))


class VisionTransformer(nn.Module):
    """ViT-B/16: 224 x 224 pixels, patches of 16 x 16, 12 blocks of width 768 with 12 heads."""

    def __init__(self, classes: int = 1000, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=16, stride=16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + 14 * 14, width))
        self.blocks = nn.Sequential(*(Block(width, width // 64) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map `[batch, 3, 224, 224]` to `[batch, classes]`."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], dim=1)
        return self.head(self.norm(self.blocks(tokens + self.positions)[:, 0]))
