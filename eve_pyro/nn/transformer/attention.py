"""Causal self-attention with rotary positions, and the cache of its keys and values."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eve_pyro._checks import check_int
from eve_pyro.nn._reset import reset_children

ROTARY_BASE = 10_000.0


class LayerCache:
    """Keys and values of one attention layer for the tokens seen so far.

    Arguments:
        capacity: most positions it will hold.

    Raises:
        ValueError: when more are appended.

    Example:
        >>> cache = LayerCache(capacity=8)
        >>> keys, values = cache.append(torch.randn(2, 4, 3, 16), torch.randn(2, 4, 3, 16))
        >>> keys.shape, cache.length
        (torch.Size([2, 4, 3, 16]), 3)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = check_int("capacity", capacity)
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep those of new positions, (*, heads, new, head_dim); return those of all."""
        end = self.length + keys.shape[-2]
        if end > self.capacity:
            raise ValueError(f"the cache must hold at most {self.capacity} positions, got {end}")
        if self._keys is None or self._values is None:
            # All of it up front: to grow by a position would copy what is there each time.
            shape = (*keys.shape[:-2], self.capacity, keys.shape[-1])
            self._keys, self._values = keys.new_empty(shape), values.new_empty(shape)
        self._keys[..., self.length : end, :] = keys
        self._values[..., self.length : end, :] = values
        self.length = end
        return self._keys[..., :end, :], self._values[..., :end, :]


class KVCache:
    """Caches of all layers of a Transformer, for one text (or batch of texts) as it grows.

    Used without gradients: keys and values are written in place.

    Arguments:
        num_layers: number of attention layers.
        capacity: most positions it will hold.

    Example:
        >>> cache = KVCache(2, capacity=8)
        >>> len(cache.layers), cache.length
        (2, 0)
    """

    def __init__(self, num_layers: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(check_int("num_layers", num_layers))]

    @property
    def length(self) -> int:
        """Number of positions seen so far."""
        return self.layers[-1].length


class CausalSelfAttention(nn.Module):
    """Multi-head attention of every position to itself and those before it.

    Vaswani et al. 2017, "Attention Is All You Need", with rotary positions: queries and keys are
    turned by angles proportional to their position, so that scores depend on distances (Su et
    al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding"). Attention weights
    have no dropout.

    Arguments:
        d_model: size of the input's and output's last dim.
        num_heads: number of heads; d_model is their multiple, by an even number.
        context: most positions.
        device, dtype: of the parameters.

    Shapes:
        (*, positions, d_model) -> (*, positions, d_model).

    Raises:
        ValueError: for sizes below 1 or a d_model that heads do not divide by an even number;
            when called, for more positions than the context.

    Example:
        >>> attention = CausalSelfAttention(8, 2, context=16)
        >>> attention(torch.randn(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        context: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = check_int("d_model", d_model)
        self.num_heads = check_int("num_heads", num_heads)
        self.context = check_int("context", context)
        check_heads(d_model, num_heads)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.qkv = nn.Linear(d_model, 3 * d_model, **options)
        self.out = nn.Linear(d_model, d_model, **options)
        half = d_model // num_heads // 2
        rates = ROTARY_BASE ** -(torch.arange(half, dtype=torch.float64, device=device) / half)
        angles = torch.arange(context, dtype=torch.float64, device=device).outer(rates)
        dtype = self.qkv.weight.dtype
        # Computed, not learned: a checkpoint need not hold them.
        self.register_buffer("cos", angles.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angles.sin().to(dtype), persistent=False)

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        reset_children(self)

    def forward(self, h: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Attend.

        Arguments:
            h: the positions' features; with a cache, those of the new positions alone.
            cache: keys and values of the positions before, to which the new ones are added.
        """
        past, new = (cache.length if cache else 0), h.shape[-2]
        if past + new > self.context:
            raise ValueError(f"h must have at most {self.context} positions, got {past + new}")
        # (*, positions, 3 d_model) -> three of (*, heads, positions, head_dim)
        q, k, v = self.qkv(h).unflatten(-1, (3, self.num_heads, -1)).transpose(-4, -2).unbind(-3)
        q, k = self._rotate(q, past), self._rotate(k, past)
        if cache is not None:
            k, v = cache.append(k, v)
        a = _attend(q, k, v, past)
        return self.out(a.transpose(-3, -2).flatten(-2))

    def _rotate(self, x: Tensor, past: int) -> Tensor:
        cos, sin = (t[past : past + x.shape[-2]] for t in (self.cos, self.sin))
        a, b = x.chunk(2, -1)
        # Under autocast x is of low precision, and must be again: queries go with values.
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.d_model}, num_heads={self.num_heads}, context={self.context}"


def check_heads(d_model: int, num_heads: int) -> None:
    """Raise an error unless heads divide d_model by an even number.

    >>> check_heads(10, 4)
    Traceback (most recent call last):
    ...
    ValueError: d_model must be num_heads times an even number, got d_model=10, num_heads=4
    """
    if d_model % (2 * num_heads):
        raise ValueError(
            "d_model must be num_heads times an even number, "
            f"got d_model={d_model}, num_heads={num_heads}"
        )


def _attend(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    batch, new = q.shape[:-3], q.shape[-2]
    # One batch dim: torch has its fast kernels for four dims alone.
    q, k, v = (t.reshape(-1, *t.shape[-3:]) for t in (q, k, v))
    mask = None
    if past and new > 1:
        mask = torch.ones(new, past + new, dtype=torch.bool, device=q.device).tril(past)
    # One new position sees all; is_causal would align it with the first of them.
    a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not past)
    return a.reshape(*batch, *a.shape[-3:])
