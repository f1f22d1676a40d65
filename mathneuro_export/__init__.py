"""Find the math-specific weights of a causal language model, scale or prune them, and prove what changed."""

__version__ = "0.1.0"
