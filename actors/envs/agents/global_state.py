"""Shows each agent's value network the state of the whole environment, for env.critic."""

from typing import Any

from gymnasium.spaces import Dict


class GlobalState:
    """Wraps an environment whose agents act at the same time and which has state() and
    state_space, as PettingZoo's have: an observation is then {"own": ..., "state": ...}."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.possible_agents = env.possible_agents
        self._spaces = {
            agent: Dict(own=env.observation_space(agent), state=env.state_space)
            for agent in env.possible_agents
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def observation_space(self, agent: str) -> Dict:
        return self._spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], Any]:
        seen, infos = self.env.reset(seed=seed, options=options)
        return self._with_state(seen), infos

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        seen, *rest = self.env.step(actions)
        return (self._with_state(seen), *rest)

    def _with_state(self, seen: dict[str, Any]) -> dict[str, Any]:
        state = self.env.state()
        return {agent: {"own": own, "state": state} for agent, own in seen.items()}
