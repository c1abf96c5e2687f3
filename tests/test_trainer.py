"""Trainer: what it trains, how its options act, and that nothing else changes."""

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from small_training import Regressor, config, data, numbers, same, trainer
from torch import nn

from eve_pyro.diagnostics import Monitor
from eve_pyro.infer import (
    MCNLL_ELBO,
    EVEGuide,
    LinearGaussianELBO,
    Trainer,
    linear_warmup,
)
from eve_pyro.nn import EVEModule

# Training


def test_the_loss_falls_and_is_per_datum():
    fitted = trainer(epochs=30)
    history = fitted.fit(*data(), validation=data(seed=1))
    assert history.frame.train_loss.iloc[-1] < history.frame.train_loss.iloc[0] - 0.3
    assert history.frame.validation.iloc[-1] < history.frame.validation.iloc[0] - 0.3
    assert history.frame.epoch.tolist() == list(range(1, 31))
    assert 0.9 < history.frame.train_loss.iloc[0] < 3.0  # near log sqrt(2 pi) + 1/2 + the KL
    assert not history.interrupted
    assert not history.stopped_early


def test_the_scale_of_the_likelihood_does_not_change_a_step():
    plain, scaled = trainer(), trainer()
    first = plain.fit(*data(), validation=data(20, seed=1))
    second = scaled.fit(*data(), validation=data(20, seed=1), model_kwargs={"num_data": 40})
    torch.testing.assert_close(first.frame.train_loss.tolist(), second.frame.train_loss.tolist())
    torch.testing.assert_close(first.best_score, second.best_score)
    torch.testing.assert_close(plain.model.head.weight, scaled.model.head.weight)


@pytest.mark.parametrize(
    "elbo",
    [
        Trace_ELBO,
        TraceMeanField_ELBO,
        lambda: Trace_ELBO(2, vectorize_particles=True),
        lambda: MCNLL_ELBO(4),
    ],
)
def test_every_objective_trains(elbo):
    history = trainer(elbo=elbo(), epochs=10).fit(*data(), validation=data(seed=1))
    assert history.best_score < history.rows[0][2]


def test_the_closed_form_trains():
    model = Regressor()
    model.hidden = EVEModule(3, 8, emission="identity")
    history = trainer(model, LinearGaussianELBO(), epochs=10).fit(*data(), validation=data(seed=1))
    assert history.best_score < history.rows[0][2]


def test_a_guide_for_other_latents_is_trained_too():
    model = Regressor(slope=True)
    guide = EVEGuide(model, guide=AutoNormal)
    Trainer(model, guide, config=config(lr_multipliers={"guide.*": 3.0})).fit(*data())
    (loc,) = [p for name, p in guide.named_parameters() if "locs" in name]
    assert abs(loc.item()) > 0.1


def test_one_seed_one_result():
    a, b, c = trainer(), trainer(), trainer(seed=1)
    first, second, third = (t.fit(*data(), validation=data(seed=1)) for t in (a, b, c))
    assert numbers(first) == numbers(second) != numbers(third)
    assert same(a.model, b.model)
    assert not same(a.model, c.model)


def test_models_of_one_class_do_not_meet():
    alone = trainer(Regressor(seed=2))
    alone.fit(*data())
    pyro.clear_param_store()
    trainer(Regressor(seed=1)).fit(*data())
    second = trainer(Regressor(seed=2))
    second.fit(*data())
    assert same(alone.model, second.model)
    assert len(pyro.get_param_store()) == 0


def test_nothing_else_changes():
    model = Regressor()
    model.hidden.eval()
    state = torch.get_rng_state()
    trainer(model, beta_schedule=linear_warmup(100)).fit(*data())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not model.hidden.training
    assert model.hidden.beta == 0.1
    assert all(p.grad is None for p in model.parameters())


def test_modes():
    seen = []

    class Watched(Regressor):
        def forward(self, x, y=None):
            seen.append((self.training, torch.is_grad_enabled()))
            return super().forward(x, y)

    trainer(Watched().eval(), epochs=1, batch_size=20).fit(*data(), validation=data(seed=1))
    assert seen == [(False, False)] + [(True, True)] * 2 + [(False, False)] * 2


# Options


def test_lr_multipliers_apply():
    def moved(**multipliers):
        model = Regressor()
        before = {k: p.detach().clone() for k, p in model.named_parameters()}
        options = {"epochs": 1, "batch_size": 40, "lr_schedule": "constant"}
        trainer(model, lr_multipliers=multipliers, **options).fit(*data())
        return {k: (p - before[k]).abs().max().item() for k, p in model.named_parameters()}

    # Adam's first step is the learning rate, whatever the gradient.
    assert moved()["log_scale"] == pytest.approx(1e-2, rel=1e-3)
    steps = moved(**{"log_scale": 5.0, "head.*": 0.0, "*.weight": 2.0})
    assert steps["log_scale"] == pytest.approx(5e-2, rel=1e-3)
    assert steps["head.weight"] == steps["head.bias"] == 0
    assert steps["hidden.encoder.loc.weight"] == pytest.approx(2e-2, rel=1e-3)
    assert steps["hidden.encoder.loc.bias"] == pytest.approx(1e-2, rel=1e-3)


def test_cosine_falls_and_constant_stays():
    for schedule, rates in (("constant", [1e-2] * 3), ("cosine", [1e-2, 7.5e-3, 2.5e-3])):
        history = trainer(lr_schedule=schedule).fit(*data())
        assert history.frame.learning_rate.tolist() == pytest.approx(rates)


def test_beta_schedule_moves_beta_in_steps_alone():
    seen = []

    class Watched(Regressor):
        def forward(self, x, y=None):
            seen.append((self.training, round(self.hidden.beta.item(), 6)))
            return super().forward(x, y)

    fitted = trainer(Watched(), beta_schedule=linear_warmup(4), batch_size=20)
    history = fitted.fit(*data(), validation=data(20, seed=1))
    steps = [beta for training, beta in seen if training]
    assert steps == pytest.approx([0.0, 0.025, 0.05, 0.075, 0.1, 0.1])
    assert all(beta == 0.1 for training, beta in seen if not training)
    assert history.frame.beta_factor.tolist() == [0.0, 0.5, 1.0]


def test_gradients_are_clipped():
    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            pyro.factor("loss", -1e3 * (self.w @ torch.tensor([3.0, 4.0])).expand(len(x)).sum())

    norms = []
    model = Steep()
    fitted = Trainer(model, lambda x: None, config=config(epochs=1, clip_norm=0.5))
    with pytest.MonkeyPatch.context() as patch:
        step = torch.optim.AdamW.step
        patch.setattr(
            torch.optim.AdamW, "step", lambda o: (norms.append(model.w.grad.norm()), step(o))
        )
        fitted.fit(torch.zeros(16, 1))
    assert norms == [pytest.approx(0.5)]


def test_weight_decay_spares_vectors():
    kept, decayed = Regressor(), Regressor()
    trainer(kept, learning_rate=1e-2, epochs=1).fit(*data())
    trainer(decayed, learning_rate=1e-2, epochs=1, weight_decay=1.0).fit(*data())
    assert decayed.head.weight.norm() < kept.head.weight.norm()
    first = trainer(Regressor(), epochs=1, batch_size=40, weight_decay=1.0)
    second = trainer(Regressor(), epochs=1, batch_size=40)
    first.fit(*data())
    second.fit(*data())
    assert torch.equal(first.model.head.bias, second.model.head.bias)


def test_fused_adam_takes_the_steps_of_the_plain_one():
    from eve_pyro.infer.optimizer import make_optimizer

    torch.manual_seed(0)
    fused, plain = nn.Linear(8, 8), nn.Linear(8, 8)
    plain.load_state_dict(fused.state_dict())
    ours = make_optimizer(dict(fused.named_parameters()), 1e-2, {}, 0.0)
    assert ours.defaults["fused"]
    adam = torch.optim.Adam(plain.parameters(), lr=1e-2)
    for _ in range(50):
        x = torch.randn(16, 8)
        for net, optimizer in ((fused, ours), (plain, adam)):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(fused.weight, plain.weight)


# Validation


def test_the_best_epoch_is_restored():
    scores, states = iter([3.0, 1.0, 2.0, 2.0, 5.0]), []

    def score(model, guide):
        assert isinstance(guide, EVEGuide)
        states.append({k: v.clone() for k, v in model.state_dict().items()})
        return next(scores)

    fitted = trainer(epochs=10, patience=3)
    history = fitted.fit(*data(), validation=score)
    assert history.stopped_early
    assert (history.best_epoch, history.best_score, len(history.rows)) == (2, 1.0, 5)
    assert all(torch.equal(v, states[1][k]) for k, v in fitted.model.state_dict().items())


def test_the_last_epoch_can_be_kept():
    scores = iter([1.0, 2.0, 3.0])
    kept, plain = trainer(restore_best=False), trainer()
    history = kept.fit(*data(), validation=lambda model, guide: next(scores))
    plain.fit(*data())
    assert history.best_epoch == 1
    assert same(kept.model, plain.model)


def test_validation_noise_is_the_same_every_epoch():
    history = trainer(learning_rate=1e-30).fit(*data(), validation=data(seed=1))
    assert len(set(history.frame.validation)) == 1
    assert len(set(history.frame.train_loss)) == 3


def test_without_validation_there_is_no_best():
    history = trainer().fit(*data())
    assert history.best_epoch is None
    assert history.best_score is None
    assert history.frame.validation.isna().all()


def test_interruption_keeps_the_best(tmp_path):
    scores = iter([2.0, 1.0, 3.0, KeyboardInterrupt])

    def score(model, guide):
        value = next(scores)
        if value is KeyboardInterrupt:
            raise value
        return value

    fitted, short = trainer(epochs=9), trainer(epochs=9)
    history = fitted.fit(*data(), validation=score, checkpoint=tmp_path / "run.pt")
    assert history.interrupted
    assert not history.stopped_early
    assert (history.best_epoch, len(history.rows)) == (2, 3)
    assert (tmp_path / "run.pt").exists()
    scores = iter([2.0, 1.0, KeyboardInterrupt])
    short.fit(*data(), validation=score)
    assert same(fitted.model, short.model)


def test_interruption_within_an_epoch_goes_back_to_its_start():
    class Interrupted(Regressor):
        steps = 0

        def forward(self, x, y=None):
            self.steps += self.training
            if self.steps == 8:  # the second of the third epoch
                raise KeyboardInterrupt
            return super().forward(x, y)

    fitted = trainer(Interrupted(), lr_schedule="constant", beta_schedule=linear_warmup(20))
    whole = trainer(epochs=2, lr_schedule="constant", beta_schedule=linear_warmup(20))
    history = fitted.fit(*data())
    assert history.interrupted
    assert numbers(history)[1][0] == numbers(whole.fit(*data()))[1][0] == 2
    assert same(fitted.model, whole.model)
    assert fitted.model.hidden.beta == whole.model.hidden.beta == 0.1


def test_history_to_csv(tmp_path):
    history = trainer().fit(*data())
    history.to_csv(tmp_path / "history.csv")
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert lines[0] == "epoch,train_loss,validation,learning_rate,beta_factor,seconds"
    assert len(lines) == 4


def test_a_callback_sees_every_step_and_a_monitor_changes_nothing():
    steps, fitted = [], []
    for watched in (False, True):
        run = trainer()
        monitor = Monitor(run.model, run.guide, data(8, seed=1)[0], every=2)

        def watch(step, monitor=monitor):
            steps.append(step)
            monitor(step)

        run.fit(*data(), callback=watch if watched else None)
        fitted.append(run.model)
    assert steps == list(range(1, 10))
    assert set(monitor.frame.step) == {2, 4, 6, 8}
    assert same(*fitted)
