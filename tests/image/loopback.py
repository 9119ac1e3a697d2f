"""The network that the containers of a pod share: nothing but a loopback. A program, not a test:
started in a new network namespace, it holds that open until its standard input closes.
"""

import fcntl
import socket
import struct
import sys

_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h


def main() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        name, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, asked))
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", name, flags | _UP))
    print("up", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
