"""Real SGLang as the policy engine: which interpreter has it, its flags, and how it starts on a machine without a GPU."""
