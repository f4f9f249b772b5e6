"""Chooses actions: networks cast for acting, frame stacks, memory, the policy."""
