"""The only room that touches llama.cpp: validation of GGUF files, model, context, chat template, numerics probe.

Both the provider's engine and the auditor's re-execution use it. It needs the extra `llama`; importing this package
does not load llama.cpp yet, so that pure modules (`settings`, `gguf`, `identity`) work without it.
"""
