"""Policy engines: the embedded CPU engine, SGLang, one client, weight updates."""
