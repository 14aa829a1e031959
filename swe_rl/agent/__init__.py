"""The bash agent: loop, prompts, action parsing, context management."""
