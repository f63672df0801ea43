// Go compiles functions without a body only in packages with an assembly file.
