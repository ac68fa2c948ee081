"""Out-of-memory messages of this machine's accelerator state the sizes that trainyard reads from them."""

import pytest

from trainyard.launch.supervisor.device_errors import describe_device_error, parse_shortage

pytestmark = [pytest.mark.device, pytest.mark.torch]


def test_sizes_are_read_from_the_allocators_own_message():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2 * total_bytes, dtype=torch.uint8, device="cuda:0")
    shortage = parse_shortage(str(caught.value))
    assert shortage is not None
    assert shortage.device == 0
    assert shortage.requested == pytest.approx(2 * total_bytes, rel=0.01)
    assert shortage.capacity == pytest.approx(total_bytes, rel=0.05)
    assert 0 <= shortage.free <= shortage.capacity
    assert min(shortage.allocated, shortage.cached) >= 0
    assert "micro_batch_size" in describe_device_error(caught.value)
