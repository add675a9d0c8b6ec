"""The rule tables, the compiler that writes rules/compiled.bin, and the loader that reads it."""
