"""GAE (Schulman et al., 2016): ppo's value targets and advantages.

It is V-trace of the policy that acted: every ratio is 1, so nothing is left to clip or to correct,
and what remains is the sum over (gamma lambda)^k, with lambda = algorithm.trace.
"""

from dataclasses import replace

import msgspec
import torch

from headrace.learner.algorithms import advantages as units
from headrace.learner.algorithms.loss_inputs import LossInputs, Targets
from headrace.learner.algorithms.losses import value_targets


def gae_targets(given: LossInputs) -> Targets:
    """Computes the targets of a whole batch, before its first use."""
    unclipped = msgspec.structs.replace(given.config, rho_clip=1.0, c_clip=1.0, pg_rho_clip=1.0)
    on_policy = torch.zeros_like(given.batch.logp)
    values = given.output.value.detach()
    vs, raw = value_targets(replace(given, config=unclipped), on_policy, values)
    advantages, _ = units.scaled(given, raw)
    return Targets(vs, advantages, values[:-1])
