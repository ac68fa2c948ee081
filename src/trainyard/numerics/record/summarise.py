import hashlib

import torch

from trainyard.numerics.tensor_record import *

P = None


def summarise(t, masks=False):
    global P
    if P is None:
        g = torch.Generator().manual_seed(1)
        P = (torch.randint(0, 2, (1048583,), generator=g) * 2 - 1).double()
    if hasattr(t, "_local_tensor"):
        t = t.full_tensor()
    x = t.double().reshape(-1) if not t.is_complex() else torch.view_as_real(t).double().reshape(-1)
    n = x.numel()
    fin = torch.isfinite(x)
    nf = None
    if not bool(fin.all()):
        nf = NonFinite(
            nan=int(x.isnan().sum()),
            positive=int((x == float("inf")).sum()),
            negative=int((x == -float("inf")).sum()),
            masked=masks,
        )
        x = torch.where(fin, x, 0.0)
    sig = P[torch.arange(n) % len(P)] * x
    pad = (-n) % 64
    sk = torch.nn.functional.pad(sig, (0, pad)).reshape(-1, 64).sum(0)
    pos = sample_positions(n)
    return dict(
        shape=tuple(t.shape),
        dtype=str(t.dtype).removeprefix("torch."),
        hash=hashlib.blake2b(
            t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), digest_size=8
        ).hexdigest()
        if n
        else "",
        norm=float(x.norm()),
        maximum=float(x.abs().max()) if n else 0.0,
        mean=float(x.mean()) if n else 0.0,
        nonfinite=nf,
        sketch=sk.numpy().tobytes(),
        sample=x[pos].numpy().tobytes(),
    )
