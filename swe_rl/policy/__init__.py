"""Policies made here: a byte-level tokenizer and a tiny stock transformers model, and converters of packaged models."""
