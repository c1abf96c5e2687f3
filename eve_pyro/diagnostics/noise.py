"""Noise tracking: whether a network's internal spread follows a noise scale that is known."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from eve_pyro._checks import check_int, check_real
from eve_pyro.diagnostics.signals import as_signal, internal_signals, output_signals

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from eve_pyro.infer import Mixture


def noise_correlation(
    signals: "xr.Dataset | Mapping[str, Any]",
    true_scale: Any,
    *,
    predictive: "Mixture | None" = None,
    level: float = 0.95,
    permutations: int = 200,
    seed: int = 0,
) -> "pd.DataFrame":
    r"""Correlate each signal with the true standard deviation of the noise.

    Pearson's r over data, one row per signal, with Fisher's interval (Fisher, "On the 'probable
    error' of a coefficient of correlation deduced from a small sample", 1921):

    .. math:: z = \mathrm{artanh}\, r, \qquad \mathrm{se}(z) = 1 / \sqrt{n - 3}

    It supposes independent data that are close to jointly normal. KL falls as sigma rises, so
    its r is often negative: compare ``abs_r``.

    Columns:

    - ``r``, ``abs_r``; ``lower``, ``upper``: interval of r; ``se_z``: standard error of z.
    - ``control``: mean abs_r after permuting the signal over inputs, which is what a sigma that
      knows nothing of its input reaches by chance, about sqrt(2 / (pi n)).

    A signal that is constant over inputs (one sigma per unit, or a deterministic network) has no
    correlation: its r is NaN.

    Arguments:
        signals: a result of :func:`posterior_statistics` (gives ``kl`` and ``sigma``, and
            those of every layer if there are several), or arrays by name.
        true_scale: standard deviation of the noise, (N,) or (N, P).
        predictive: adds the signals of :func:`output_signals`. Default none.
        level: probability of the interval, in (0, 1). Default 0.95.
        permutations: number behind ``control``. Default 200.
        seed: of the permutations. Default 0.

    Raises:
        ValueError: for shapes that differ, values that are not finite, fewer than 4 data, a
            constant true_scale, and arguments out of range.

    Example:
        >>> scale = torch.linspace(0.1, 1.0, 50)
        >>> table = noise_correlation({"sigma": 2 * scale, "fixed": torch.ones(50)}, scale)
        >>> table[["r", "control"]].round(3)
                  r  control
        signal
        sigma   1.0    0.108
        fixed   NaN      NaN
    """
    import pandas as pd
    import xarray as xr
    from scipy.special import ndtri

    check_real("level", level, 0.0, 1.0, exclusive=True)
    check_int("permutations", permutations)
    shape = np.shape(true_scale)
    truth = as_signal("true_scale", true_scale, shape)
    if len(truth) < 4:
        raise ValueError(f"true_scale must hold at least 4 data, got {len(truth)}")
    target = _standardised(truth)
    if target is None:
        raise ValueError("true_scale must vary over data, got a constant")
    named: dict[str, Any]
    if isinstance(signals, xr.Dataset):
        named = dict(internal_signals(signals, shape, per_layer=signals.sizes["layer"] > 1))
    else:
        named = dict(signals)
    if predictive is not None:
        named |= output_signals(predictive)

    half = ndtri(0.5 + level / 2) / np.sqrt(len(truth) - 3)
    rows = []
    for name, values in named.items():
        signal = _standardised(as_signal(name, values, shape))
        if signal is None:
            r = control = np.nan
        else:
            r = float(np.clip(signal @ target, -1.0, 1.0))
            shuffle = np.random.default_rng(seed).permutation
            control = float(np.mean([abs(shuffle(signal) @ target) for _ in range(permutations)]))
        z = np.arctanh(np.clip(r, -1 + 1e-15, 1 - 1e-15))
        lower, upper = np.tanh(z - half), np.tanh(z + half)
        rows.append((name, r, abs(r), lower, upper, 1 / np.sqrt(len(truth) - 3), control))
    columns = ["signal", "r", "abs_r", "lower", "upper", "se_z", "control"]
    return pd.DataFrame(rows, columns=columns).set_index("signal")


def _standardised(values: np.ndarray) -> np.ndarray | None:
    """Values about their mean, of length 1; None if they vary by no more than rounding."""
    centred = values - values.mean()
    length = np.linalg.norm(centred)
    # Averages over units are taken in single precision.
    if length <= 1e-6 * np.linalg.norm(values):
        return None
    return centred / length
