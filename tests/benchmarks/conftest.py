"""The corpus that is trained on here."""

from small_run import corpus as corpus
