"""Without a GPU the kernels run in Triton's interpreter. That has to be said before anything imports triton: here."""

from __future__ import annotations

import os
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

    from triton.runtime import interpreter

    patch_language, patched = interpreter._patch_lang, set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """A function that a kernel calls, without preparing triton.language for its module every time: half of the time."""
        if self.fn.__module__ not in patched:
            patched.add(self.fn.__module__)
            patch_language(self.fn)
        function = self.rewrite() if hasattr(self, "rewrite") else self.fn
        return function(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
