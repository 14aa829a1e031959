"""The embedded CPU engine: SGLang's /generate on top of any transformers causal LM, for machines without a GPU."""
