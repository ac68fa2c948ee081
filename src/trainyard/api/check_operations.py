"""`check_kernels`: is each operation of a training within rounding of float64?"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.api.record_tensors import is_job_file, parse_steps, run_job_command
from trainyard.numerics.kernels.check_command import check_command
from trainyard.numerics.kernels.check_result import KernelCheck, KernelCheckRequest


def check_kernels(
    command: Sequence[str], *, steps: str = "0-1", most_elements: int = 1 << 20, most_calls: int = 2
) -> KernelCheck:
    """Checks each floating-point operation of some training steps against float64, element by element, from the same
    inputs.

    `command`: a training script with its arguments, unchanged, or a job file alone; it runs once. `steps`: `A-B`, from
    0. `most_elements`: operations on larger tensors are left out. `most_calls`: of an operation in a module, in each
    phase of a step. Each checked operation is computed 9 times in float64.

    ```python
    check = api.check_kernels(["python", "train.py"])
    for operation in check.exceeding:
        print(operation.module, operation.operation, operation.ratio, operation.worst)
    ```

    Raises `BadInput` for a command that is not found or takes none of the steps, `CommandFailed` if it fails.
    """
    words = run_job_command(command[0]) if is_job_file(command) else list(command)
    request = KernelCheckRequest(most_elements=most_elements, most_calls=most_calls)
    return check_command(words, parse_steps(steps), request)
