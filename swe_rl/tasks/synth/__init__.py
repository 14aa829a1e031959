"""Tasks made by injecting bugs into repositories that carry tests (procedurally, as SWE-smith does)."""
