"""swe-rl: reinforcement learning of software-engineering agents, graded by the repositories' own tests."""

__version__ = "0.1.0"
