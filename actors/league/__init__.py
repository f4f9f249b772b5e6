"""Who else plays while the policy learns: what it was before, and others."""
