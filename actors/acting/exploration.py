"""Finds the user's own exploration: what samplers draw actions by, made of what the policy says."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.learner.models import named_code
from headrace.learner.models.distribution import FORBIDDEN
from headrace.learner.models.named_code import OwnCodeError

Params = NDArray[np.float32]  # [N, P], as the action's distribution reads them
Explore = Callable[[Params, int], Params]  # of parameters, and the version of the weights


def function(name: str) -> Explore:
    """Returns the function, checked at every call; OwnCodeError where there is no such one."""
    key = f'actor.explore = "{name}"'
    own = named_code.function("actor.explore", name)

    def checked(params: Params, version: int) -> Params:
        try:
            made = np.array(own(params.copy(), version), np.float32)
        except Exception as error:
            raise OwnCodeError(f"{key} failed, mend it: {named_code.one_line(error)}") from error
        if made.shape != params.shape:
            raise OwnCodeError(
                f"{key} gives {[*made.shape]} for parameters {[*params.shape]}; give as many"
            )
        if np.isfinite(params).all() and not np.isfinite(made).all():
            raise OwnCodeError(f"{key} makes of parameters what is no number")
        made[params <= FORBIDDEN] = FORBIDDEN  # by env.mask
        return made

    return checked
