"""`headrace train --debug` in a terminal: a real debugger stops in the user's own code."""

from pathlib import Path

from tests.system.harness.terminal import Terminal

OURS = """
import gymnasium
import torch

from headrace.learner.algorithms.losses import LOSSES

class Env(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        Env.steps += 1
        if Env.steps == 70:
            breakpoint()
        return self.env.step(action)

def env():
    return Env(gymnasium.make("CartPole-v1"))

class Eyes(torch.nn.Module):
    units = 8
    stopped = False

    def __init__(self, leaves, rng):
        super().__init__()
        self.full = torch.nn.Linear(4, 8)

    def forward(self, obs):
        if torch.is_grad_enabled() and Env.steps > 70 and not Eyes.stopped:
            Eyes.stopped = True
            breakpoint()
        return self.full(obs["obs"]).relu()

def loss(given):
    breakpoint()
    return LOSSES["appo"](given)
"""


def test_breakpoints_in_an_environment_an_encoder_and_a_loss(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(OURS)
    ours = ("env.id=ours:env", "model.kind=ours:Eyes", "algorithm.loss=ours:loss")
    sets = (*ours, "model.obs_scale=[]", "unroll.length=10")
    given = [word for one in sets for word in ("--set", one)]
    terminal = Terminal("train", "cartpole", "--debug", *given, folder=tmp_path)
    try:
        terminal.says(r"self\.env\.step\(action\)[\s\S]*\(Pdb\) $")
        terminal.forget()
        terminal.types(b"p Env.steps + 1000\n")
        terminal.says(r"1070[\s\S]*\(Pdb\) $")
        terminal.forget()
        terminal.types(b"c\n")
        terminal.says(r"self\.full\(obs[\s\S]*\(Pdb\) $")  # the learner's turn, the same process
        terminal.forget()
        terminal.types(b"p Env.steps > 70\n")
        terminal.says(r"True[\s\S]*\(Pdb\) $")
        terminal.forget()
        terminal.types(b"c\n")
        terminal.says(r'LOSSES\["appo"\]\(given\)[\s\S]*\(Pdb\) $')
        terminal.forget()
        terminal.types(b"p given.config.name * 2\n")
        terminal.says(r"appoappo[\s\S]*\(Pdb\) $")
        terminal.types(b"q\n")
        assert terminal.ends() == 3
        assert "left before the end" in terminal.said
        assert "Traceback" not in terminal.said
    finally:
        terminal.close()
