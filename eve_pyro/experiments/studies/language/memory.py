"""What the C library does with freed memory."""

import ctypes


def keep_freed_memory() -> None:
    """Let the C library keep the memory that it frees, where it is glibc; else do nothing.

    Logits of a batch are tens of megabytes. By default each such tensor is fetched from the
    operating system and given back, which takes a third to a half of a step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
