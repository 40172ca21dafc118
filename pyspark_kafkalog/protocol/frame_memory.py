"""Memory that frames are received into, and when it may be used again.

For both ends of a connection: each keeps some buffers, and takes them by rules of its own. Called
by: the thread that receives.
"""


def is_viewed(buffer: bytearray) -> bool:
    """Whether anybody holds a view of the buffer, or of a part of it."""
    try:
        buffer.append(buffer.pop())
    except BufferError:  # "Existing exports of data: object cannot be re-sized"
        return True
    return False
