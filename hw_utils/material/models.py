"""The five models of the course: LeNet5, VGG11, SimpleCNN, SimpleMLP, TinyGPT.

Their initial weights come from torch's random state: `torch.manual_seed(r)` first, and rank r starts at its own point.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def _max_pool(x: torch.Tensor) -> torch.Tensor:
    """The maxima of squares of 2 x 2, as `max_pool2d(x, 2)`: (n, c, 2 h, 2 w) -> (n, c, h, w).

    On a CPU torch's own kernel takes longer than the convolution before it. Where no gradient is wanted, the maxima of
    views take a tenth of that.
    """
    if torch.is_grad_enabled():
        return nn.functional.max_pool2d(x, 2)
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


class LeNet5(nn.Module):
    """Scores of ten classes for images (n, 1, 28, 28) or (n, 1, 32, 32) (LeCun et al. 1998); 61,706 parameters.

    28x28 images are padded to the 32x32 of the paper; ReLU and max pooling stand for its tanh and trained averages.

    >>> LeNet5()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-2:] == (28, 28):
            x = nn.functional.pad(x, (2, 2, 2, 2))
        elif x.shape[-2:] != (32, 32):
            raise ValueError(f"LeNet5 takes images of 28x28 or 32x32, got {tuple(x.shape)}")
        x = _max_pool(torch.relu(self.conv1(x)))  # (n, 6, 14, 14)
        x = _max_pool(torch.relu(self.conv2(x)))  # (n, 16, 5, 5)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


VGG11_CHANNELS = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")


class VGG11(nn.Module):
    """Scores of ten classes for images (n, 3, 32, 32) (Simonyan and Zisserman 2015, A); 9,231,114 parameters.

    Eight 3x3 convolutions with batch norm, and one linear layer in place of the paper's three.
    `batch_norm=False` leaves the batch norm out (9,225,610 parameters): then N ranks equal one exactly.

    >>> sum(p.numel() for p in VGG11().parameters())
    9231114
    """

    def __init__(self, n_classes: int = 10, *, batch_norm: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        d_in = 3
        for channels in VGG11_CHANNELS:
            if channels == "pool":
                layers.append(nn.MaxPool2d(2))
                continue
            layers.append(nn.Conv2d(d_in, channels, 3, padding=1))
            layers += [nn.BatchNorm2d(channels)] if batch_norm else []
            layers.append(nn.ReLU(inplace=True))
            d_in = channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(512, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).flatten(1))


class SimpleCNN(nn.Module):
    """Scores of ten classes for images (n, 3, 32, 32); 315,722 parameters, 93 % of them in `fc1`.

    >>> SimpleCNN()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(2304, 128)  # 64 channels of 6x6
        self.fc2 = nn.Linear(128, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)  # (n, 32, 15, 15)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)  # (n, 64, 6, 6)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class SimpleMLP(nn.Module):
    """Two linear layers without biases, GELU between them: (n, d_in) to (n, d_out).

    As in `nn.Linear`, `lin1.weight` is (d_hidden, d_in) and `lin2.weight` (d_out, d_hidden).
    """

    def __init__(self, d_in: int = 2, d_hidden: int = 16, d_out: int = 1) -> None:
        super().__init__()
        self.lin1 = nn.Linear(d_in, d_hidden, bias=False)
        self.gelu = nn.GELU()
        self.lin2 = nn.Linear(d_hidden, d_out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin2(self.gelu(self.lin1(x)))


class TinyGPT(nn.Module):
    """Scores of the next character at every place of (n, t) numbers, t at most `context`: (n, t, n_symbols).

    A transformer of the GPT-2 kind (Radford et al. 2019): norms first, learned places, GELU; the head shares the
    embedding's weight. 210,304 parameters. `.double()` makes it one whose sums can be compared to the last digits.

    >>> TinyGPT()(torch.zeros(2, 64, dtype=torch.int64)).shape
    torch.Size([2, 64, 96])
    """

    def __init__(
        self, n_layers: int = 4, width: int = 64, heads: int = 4, context: int = 64, n_symbols: int = 96
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads must divide width, got {heads} heads for a width of {width}")
        self.context = context
        self.symbols = nn.Embedding(n_symbols, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.symbols, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] > self.context:
            raise ValueError(f"TinyGPT sees {self.context} characters at once, got {x.shape[-1]}")
        h = self.symbols(x) + self.places(torch.arange(x.shape[-1]))
        for block in self.blocks:
            h = block(h)
        return nn.functional.linear(self.norm(h), self.symbols.weight)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean nats a character: x, y (n, t)."""
        return nn.functional.cross_entropy(self(x).flatten(0, 1), y.flatten())


class Part(nn.Module):
    """Some blocks of a TinyGPT in a row; the first part has the embedding too, the last one the norm and the head."""

    def __init__(self, model: TinyGPT, blocks: Sequence[nn.Module], is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.symbols, self.places = (model.symbols, model.places) if is_first else (None, None)
        self.norm = model.norm if is_last else None
        self.head = nn.Parameter(model.symbols.weight.detach().clone()) if is_last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x if self.symbols is None else self.symbols(x) + self.places(torch.arange(x.shape[-1]))
        for block in self.blocks:
            h = block(h)
        return h if self.norm is None else nn.functional.linear(self.norm(h), self.head)


def parts(model: TinyGPT, sizes: Sequence[int]) -> list[Part]:
    """A TinyGPT cut into parts of so many blocks: numbers go into the first, scores come out of the last.

    They have the model's own weights, but for the head: the last part has a copy of the embedding's, and the two
    gradients have to be added.

    Raises:
        ValueError: the sizes do not add up to the model's blocks.

    >>> [len(part.blocks) for part in parts(TinyGPT(), [1, 3])]
    [1, 3]
    """
    if sum(sizes) != len(model.blocks):
        raise ValueError(f"sizes must add up to {len(model.blocks)} blocks, got {list(sizes)}")
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return [
        Part(model, model.blocks[end - size : end], k == 0, k == len(sizes) - 1)
        for k, (size, end) in enumerate(zip(sizes, ends))
    ]


class Block(nn.Module):
    """One layer of TinyGPT: causal attention, then two linear layers, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        n, t, width = h.shape
        q, k, v = (
            part.view(n, t, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(h)).split(width, dim=-1)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(seen.transpose(1, 2).reshape(n, t, width))
        return h + self.down(nn.functional.gelu(self.up(self.norm2(h))))
