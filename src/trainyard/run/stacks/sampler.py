"""Samples the Python stack of the training thread from a thread of its own, during the profiled window.

A sample is the chain of frames at one instant, read from `sys._current_frames()` while the sampling thread holds the
interpreter's lock. To read pure Python code too, which keeps the lock for the switch interval, that interval is
shortened during the window. If the training thread waits in the autograd engine, the Python frames of the engine's own
thread (a recomputed forward pass, a custom backward function) are appended to its stack.
"""

from __future__ import annotations

import sys
import threading
from time import perf_counter_ns, sleep, thread_time_ns
from types import CodeType, FrameType

from trainyard.recorded_stacks import MAX_FRAMES, MAX_SAMPLES, RecordedStacks
from trainyard.run.stacks.stack_document import build_document

MIN_PERIOD_S, MAX_PERIOD_S = 0.001, 0.010
"""Bounds of the time between two samples."""
CPU_SHARE = 0.02
"""CPU time of the sampling thread as a share of the window's length: the period follows from the CPU time of a sample
so far, which is 15 us on an idle machine and several times as much on a loaded one."""
_FIRST_PERIOD_S = 0.002
_SAMPLES_PER_ADJUSTMENT = 8
_SWITCH_INTERVAL_S = 0.0005
_MAX_DEPTH = 400
"""Frames of a sample, counted from the innermost one."""
_ENGINE_CALL = ("graph.py", "_engine_run_backward")
"""End of the file and the function in which a thread waits for the autograd engine."""


class StackSampler:
    """Samples one thread between `start` and `finish`. Errors end the sampling and never reach the sampled program."""

    def __init__(self, thread_id: int) -> None:
        """`thread_id`: identifier of the sampled thread (`threading.get_ident`)."""
        self.thread_id, self.period_s = thread_id, _FIRST_PERIOD_S
        self._min_period_s = MIN_PERIOD_S
        self.frames: dict[tuple[int, int, int], int] = {}
        """The tree of frames: (index of the parent frame or -1, id of the code, offset in the byte code) -> index."""
        self.code_of: dict[int, CodeType] = {}
        """id of the code -> the code: to hash it would take longer than all else."""
        self.times_ns: list[int] = []
        self.samples: list[int] = []
        """Index of the innermost frame of each sample."""
        self.clock_ns: list[int] = []
        self.problem = ""
        self.cpu_ns = 0
        self._began_ns = self._ended_ns = 0
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="trainyard stack sampler", daemon=True)
        self._switch_interval_s = sys.getswitchinterval()

    def start(self) -> None:
        """Begin to sample. If the process may not start another thread, the document has no samples but the reason."""
        self._began_ns = self._ended_ns = perf_counter_ns()
        try:
            self._thread.start()
        except RuntimeError as error:
            self.problem, self._is_stopped = str(error), True
            return
        sys.setswitchinterval(min(self._switch_interval_s, _SWITCH_INTERVAL_S))

    def read_clock(self) -> int:
        """Read the samples' clock for an annotation of the trace; return the index of the reading."""
        self.clock_ns.append(perf_counter_ns())
        return len(self.clock_ns) - 1

    def stop(self) -> None:
        """End the sampling, if it has not ended."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._thread.join()
        sys.setswitchinterval(self._switch_interval_s)
        self._ended_ns = perf_counter_ns()

    def finish(self) -> RecordedStacks:
        """End the sampling and return all samples since the first reading of the clock."""
        self.stop()
        return build_document(self, self._ended_ns - self._began_ns)

    def _run(self) -> None:
        """Sample until stopped. Runs in the sampling thread."""
        own_id = threading.get_ident()
        try:
            while not self._is_stopped:
                sleep(self.period_s)
                self._take_sample(sys._current_frames(), own_id)
                if len(self.samples) % _SAMPLES_PER_ADJUSTMENT == 0:
                    cpu_s = thread_time_ns() / 1e9 / max(1, len(self.samples))
                    self.period_s = max(self._min_period_s, min(MAX_PERIOD_S, cpu_s / CPU_SHARE))
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"[:200]
        self.cpu_ns = thread_time_ns()

    def _take_sample(self, frame_of_thread: dict[int, FrameType], own_id: int) -> None:
        """Store the stack of the sampled thread. `frame_of_thread`: innermost frame by thread identifier; `own_id`:
        that of the sampling thread."""
        now_ns = perf_counter_ns()
        innermost = frame_of_thread.get(self.thread_id)
        if innermost is None:
            return
        if len(self.samples) >= MAX_SAMPLES:  # a long window: keep half of the samples, and take fewer
            del self.times_ns[::2], self.samples[::2]
            self._min_period_s *= 2
        chain: list[FrameType] = []
        if _waits_for_engine(innermost):
            others = (frame for ident, frame in frame_of_thread.items() if ident not in (self.thread_id, own_id))
            for frame in others:
                engine_chain = _chain_of(frame)
                if _is_native_thread(engine_chain[-1]):
                    chain += engine_chain
                    break
        chain += _chain_of(innermost)
        self.times_ns.append(now_ns)
        self.samples.append(self._add_frames(chain))

    def _add_frames(self, chain: list[FrameType]) -> int:
        """Add the frames (innermost first) to the tree; return the index of the innermost one. In a full tree, it is
        that of the innermost frame that the tree has."""
        index = -1
        for frame in reversed(chain):
            code = frame.f_code
            key = (index, id(code), frame.f_lasti)
            known = self.frames.get(key)
            if known is None:
                if len(self.frames) >= MAX_FRAMES:
                    break
                self.code_of[id(code)] = code
                known = self.frames[key] = len(self.frames)
            index = known
        return max(index, 0)


def _chain_of(frame: FrameType) -> list[FrameType]:
    """The frame and those that called it, innermost first, at most `_MAX_DEPTH`."""
    chain: list[FrameType] = []
    current: FrameType | None = frame
    while current is not None and len(chain) < _MAX_DEPTH:
        chain.append(current)
        current = current.f_back
    return chain


def _waits_for_engine(frame: FrameType) -> bool:
    """Whether a thread with this innermost frame runs the autograd engine or waits for it."""
    file, function = _ENGINE_CALL
    return frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file)


def _is_native_thread(outermost: FrameType) -> bool:
    """Whether a thread with this outermost frame was not started by the module `threading`."""
    return not outermost.f_code.co_filename.endswith("threading.py")
