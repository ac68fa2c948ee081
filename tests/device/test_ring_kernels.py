"""The accelerator's fused kernel returns the log-sum-exp that ring attention needs."""

import pytest

pytestmark = [pytest.mark.device, pytest.mark.torch]


@pytest.mark.parametrize(("queries", "keys", "causal"), [(256, 256, True), (256, 128, False), (128, 256, False)])
def test_fused_kernel_matches_plain_products(queries, keys, causal):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    from trainyard.train.parallel import fused_attention

    random = torch.Generator(device="cuda").manual_seed(0)
    given = {"device": "cuda", "dtype": torch.bfloat16, "generator": random}
    q, d_out = torch.randn(2, 2, 8, queries, 64, **given)
    k, v = torch.randn(2, 2, 4, keys, 64, **given)
    assert fused_attention.fastest_kernel(q) == "flash"
    exact = [x.float() for x in (q, k, v)]
    out, lse = fused_attention.attend(*exact, causal, "plain")
    fused_output, fused_lse = fused_attention.attend(q, k, v, causal)
    assert torch.allclose(fused_output.float(), out, atol=2e-2)
    assert torch.allclose(fused_lse, lse, atol=2e-2)
    grads = fused_attention.attend_backward(d_out.float(), *exact, out, lse, causal, "plain")
    for grad, expected in zip(fused_attention.attend_backward(d_out, q, k, v, fused_output, fused_lse, causal), grads):
        assert (grad.float() - expected).norm() < 2e-2 * expected.norm()
