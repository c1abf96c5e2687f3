"""Feed-forward blocks of models that were built elsewhere, replaced in place."""

from collections.abc import Callable

from torch import nn

TORCH_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def replace_feed_forward(
    model: nn.Module,
    factory: Callable[[nn.Module], nn.Module],
    kind: type[nn.Module] | tuple[type[nn.Module], ...] = TORCH_LAYERS,
) -> int:
    """Put a block of your own in place of every feed-forward block of a model.

    Layers of ``torch.nn.Transformer`` keep their block in their own attributes; the new one
    becomes their ``linear1``, and what stood around it passes values on. Their fast path, which
    would reach past the block for its weights in ``eval()``, is switched off. In other models
    name the class of the blocks, which are replaced as they are. From Hugging Face, say::

        gpt2 = GPT2LMHeadModel(config)
        replace_feed_forward(
            gpt2, lambda mlp: EVEFeedForward(config.n_embd, 4 * config.n_embd), GPT2MLP
        )

    The new blocks go to the device, dtype and training mode of the old. Then build the guide, in
    a Pyro model with the plates ``"data"`` and ``"positions"`` around the call
    (:class:`~eve_pyro.nn.LanguageModel`, around a module that returns the logits). Attention that
    takes (batch, positions, features) and nothing else, as in torch and Hugging Face, has no
    place for a dim of particles: use ``vectorize_particles=False`` and
    ``StreamingPredictive(..., vectorize=False)``.

    Arguments:
        model: the model, changed in place.
        factory: function of the old block that builds the new one. For torch's layers it is
            given the layer, whose sizes are ``layer.linear1.in_features`` and
            ``layer.linear1.out_features``.
        kind: class (or classes) to replace. Default: torch's encoder and decoder layers.

    Returns the number of blocks replaced.

    Raises:
        ValueError: if the model has no such block, or is itself one that must be replaced
            whole.
        TypeError: if the factory returns no module.

    Example:
        >>> from eve_pyro.nn import EVEFeedForward
        >>> layer = nn.TransformerEncoderLayer(8, 2, 32, batch_first=True)
        >>> encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> def factory(layer):
        ...     return EVEFeedForward(layer.linear1.in_features, layer.linear1.out_features)
        >>> replace_feed_forward(encoder, factory)
        2
        >>> encoder(torch.randn(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """
    found = [(path, module) for path, module in model.named_modules() if isinstance(module, kind)]
    if not found:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(k.__name__ for k in kinds)
        raise ValueError(f"model must have a {names} to replace, got none in {type(model)}")
    for path, old in found:
        new = factory(old)
        if not isinstance(new, nn.Module):
            raise TypeError(f"factory must return a module, got {new!r}")
        like = next((p for p in old.parameters() if p.is_floating_point()), None)
        if like is not None:
            new.to(device=like.device, dtype=like.dtype)
        new.train(old.training)
        if isinstance(old, TORCH_LAYERS):
            _refit(old, new)
        elif not path:
            raise ValueError(f"model must hold the block to replace, got the {type(old)} itself")
        else:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            # It would nest padded inputs for the fast path, and reads its first layer's weights.
            module.enable_nested_tensor = module.use_nested_tensor = False
    return len(found)


def _refit(layer: nn.Module, block: nn.Module) -> None:
    """Make ``dropout2(linear2(dropout(activation(linear1(h)))))`` read ``dropout2(block(h))``."""
    layer.linear1 = block
    layer.activation = layer.dropout = layer.linear2 = nn.Identity().train(layer.training)
    layer.activation_relu_or_gelu = 0  # type: ignore[assignment]  # what the fast path asks for
