"""The launches of generated code: which there are, what each reads and writes, and who stands between."""
