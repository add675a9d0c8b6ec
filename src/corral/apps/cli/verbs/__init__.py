"""apps.cli.verbs"""
