"""A small simulator of torch's caching allocator that writes snapshots in torch's format.

It needs no accelerator and uses none of trainyard's code: its `history` is the oracle of the replay. It simulates
pools, rounding, best fit, splitting, merging, pending frees, the ring buffer and running out of memory; if
`expandable`, it maps pages of one range instead of allocating segments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(eq=False)
class Piece:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: list = field(default_factory=list)


@dataclass(eq=False)
class Segment:
    small: bool
    stream: int
    pieces: list[Piece]

    @property
    def address(self) -> int:
        return self.pieces[0].address

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


class CachingAllocator:
    def __init__(self, capacity: int = 1 << 40, max_entries: int = 10**9, expandable: bool = False) -> None:
        self.capacity = capacity
        self.max_entries = max_entries
        self.expandable = expandable
        self.segments: list[Segment] = []
        self.trace: list[dict] = []
        self.history = [(0, 0, 0, 0)]
        """(requested, allocated, active, reserved) bytes after each event, summed over all blocks."""
        self.clock = 1_700_000_000_000_000
        self.next = 0x7F00_0000_0000
        self.home: dict[tuple[bool, int], int] = {}

    def malloc(self, size: int, frames: list | None = None, stream: int = 0, metadata: str = "") -> int:
        """Allocates `size` bytes; returns the address. If out of memory, records the event and raises `MemoryError`."""
        rounded = max(512, -(-size // 512) * 512)
        small = rounded <= MIB
        frames = frames or []
        slot = self._fit(rounded, small, stream) or self._grow(rounded, small, stream, frames)
        if slot is None and self.empty_cache():
            slot = self._grow(rounded, small, stream, frames)
        if slot is None:
            free = self.capacity - sum(segment.size for segment in self.segments)
            self._event("oom", None, rounded, stream, frames, device_free=free)
            raise MemoryError
        segment, piece = slot
        left = piece.size - rounded
        if left >= 512 if small or self.expandable else left > MIB:
            index = segment.pieces.index(piece)
            segment.pieces.insert(index + 1, Piece(piece.address + rounded, left))
            piece.size = rounded
        piece.requested, piece.state, piece.frames = size, "active_allocated", frames
        self._event("alloc", piece.address, size, stream, frames, user_metadata=metadata)
        return piece.address

    def free(self, address: int, pending: bool = False) -> None:
        """Frees a block. `pending`: another stream still uses it until `complete`."""
        segment, piece = self._at(address)
        piece.state = "active_pending_free"
        self._event("free_requested", address, piece.requested, segment.stream, piece.frames)
        if not pending:
            self.complete(address)

    def complete(self, address: int) -> None:
        segment, piece = self._at(address)
        requested, frames = piece.requested, piece.frames
        piece.state, piece.requested, piece.frames = "inactive", 0, []
        index = segment.pieces.index(piece)
        for left_index in (index, index - 1):
            if left_index >= 0 and left_index + 1 < len(segment.pieces):
                left, right = segment.pieces[left_index], segment.pieces[left_index + 1]
                if left.state == right.state == "inactive":
                    left.size += right.size
                    del segment.pieces[left_index + 1]
        self._event("free_completed", address, requested, segment.stream, frames)

    def empty_cache(self) -> bool:
        """Releases completely free segments or, if expandable, the free pages at a range's end."""
        before = len(self.trace)
        for segment in list(self.segments):
            tail = segment.pieces[-1]
            if tail.state != "inactive":
                continue
            page = (2 if segment.small else 20) * MIB
            start = -(-tail.address // page) * page if self.expandable else tail.address
            size = tail.address + tail.size - start
            if len(segment.pieces) == 1 and not self.expandable:
                self.segments.remove(segment)
                self._event("segment_free", segment.address, segment.size, segment.stream, [])
            elif self.expandable and size > 0:
                tail.size -= size
                if not tail.size:
                    segment.pieces.pop()
                if not segment.pieces:
                    self.segments.remove(segment)
                self._event("segment_unmap", start, size, segment.stream, [])
        return len(self.trace) > before

    def snapshot(self) -> dict:
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": self.expandable, "max_split_size": -1}
        return {
            "segments": [
                self._record(segment) for segment in sorted(self.segments, key=lambda segment: segment.address)
            ],
            "device_traces": [self.trace[max(0, len(self.trace) - self.max_entries) :]],
            "allocator_settings": settings,
            "external_annotations": [],
        }

    def _record(self, segment: Segment) -> dict:
        pieces = segment.pieces
        return {
            "device": 0,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": sum(piece.size for piece in pieces if piece.state == "active_allocated"),
            "active_size": sum(piece.size for piece in pieces if piece.state != "inactive"),
            "requested_size": sum(piece.requested for piece in pieces),
            "stream": segment.stream,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": self.expandable,
            "frames": [],
            "blocks": [
                {
                    "address": piece.address,
                    "size": piece.size,
                    "requested_size": piece.requested,
                    "state": piece.state,
                    "frames": piece.frames,
                }
                for piece in pieces
            ],
        }

    def _at(self, address: int) -> tuple[Segment, Piece]:
        for segment in self.segments:
            for piece in segment.pieces:
                if piece.address == address and piece.state != "inactive":
                    return segment, piece
        raise KeyError(address)

    def _fit(self, rounded: int, small: bool, stream: int) -> tuple[Segment, Piece] | None:
        fits = [
            (piece.size, piece.address, segment, piece)
            for segment in self.segments
            for piece in segment.pieces
            if segment.small == small and segment.stream == stream
            if piece.state == "inactive" and piece.size >= rounded
        ]
        return min(fits, key=lambda fit: fit[:2])[2:] if fits else None

    def _grow(self, rounded: int, small: bool, stream: int, frames: list) -> tuple[Segment, Piece] | None:
        if self.expandable:
            return self._map(rounded, small, stream, frames)
        size = 2 * MIB if small else 20 * MIB if rounded < 10 * MIB else -(-rounded // (2 * MIB)) * 2 * MIB
        if sum(segment.size for segment in self.segments) + size > self.capacity:
            return None
        segment = Segment(small, stream, [Piece(self.next, size)])
        self.next += size
        self.segments.append(segment)
        self._event("segment_alloc", segment.address, size, stream, frames)
        return segment, segment.pieces[0]

    def _map(self, rounded: int, small: bool, stream: int, frames: list) -> tuple[Segment, Piece] | None:
        page = (2 if small else 20) * MIB
        pool = (segment for segment in self.segments if (segment.small, segment.stream) == (small, stream))
        segment = next(pool, None)
        if segment is None:
            home = self.home.setdefault(
                (small, stream), 0x7F00_0000_0000 // page * page + (len(self.home) + 1) * 2**40 // page * page
            )
            segment = Segment(small, stream, [Piece(home, 0)])
        tail = segment.pieces[-1]
        if tail.state != "inactive":
            tail = Piece(tail.address + tail.size, 0)
        size = -(-(rounded - tail.size) // page) * page
        if sum(other.size for other in self.segments) + size > self.capacity:
            return None
        start = tail.address + tail.size
        if tail not in segment.pieces:
            segment.pieces.append(tail)
        tail.size += size
        if segment not in self.segments:
            self.segments.append(segment)
        self._event("segment_map", start, size, stream, frames)
        return segment, tail

    def _event(self, action: str, address: int | None, size: int, stream: int, frames: list, **more) -> None:
        self.clock += 10
        addr = {} if address is None else {"addr": address}
        self.trace.append(
            {"action": action, **addr, "size": size, "stream": stream, "time_us": self.clock, "frames": frames, **more}
        )
        pieces = [piece for segment in self.segments for piece in segment.pieces]
        allocated = [piece for piece in pieces if piece.state == "active_allocated"]
        # The state is already that after the event: an alloc event is recorded once its block is allocated.
        self.history.append(
            (
                sum(piece.requested for piece in allocated),
                sum(piece.size for piece in allocated),
                sum(piece.size for piece in pieces if piece.state != "inactive"),
                sum(piece.size for piece in pieces),
            )
        )
