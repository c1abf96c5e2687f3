"""What other papers measured on 20 random 90/10 splits: mean of RMSE and NLL, in units, nats.

Networks of one hidden layer of 50 units; the splits are not ours. As given in table 1 of
Lakshminarayanan, Pritzel and Blundell 2017, "Simple and Scalable Predictive Uncertainty
Estimation using Deep Ensembles", from Hernandez-Lobato and Adams 2015, "Probabilistic
Backpropagation for Scalable Learning of Bayesian Neural Networks", and Gal and Ghahramani 2016,
"Dropout as a Bayesian Approximation".
"""

SOURCES = {
    "probabilistic backpropagation": "Hernandez-Lobato and Adams 2015",
    "MC-dropout": "Gal and Ghahramani 2016",
    "deep ensembles": "Lakshminarayanan et al. 2017",
}
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "boston": {
        "probabilistic backpropagation": (3.01, 2.57),
        "MC-dropout": (2.97, 2.46),
        "deep ensembles": (3.28, 2.41),
    },
    "concrete": {
        "probabilistic backpropagation": (5.67, 3.16),
        "MC-dropout": (5.23, 3.04),
        "deep ensembles": (6.03, 3.06),
    },
}
