__import__("setuptools").setup()  # every setting is in pyproject.toml
