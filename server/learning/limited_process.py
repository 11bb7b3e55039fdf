"""Runs a command with limits of CPU time and memory, at low priority, for its owner's eyes only.

python limited_process.py CPU_S MEMORY_BYTES COMMAND …
"""

import os
import resource
import sys

NICENESS = 10


def limit(cpu_s: int, memory_bytes: int) -> None:
    """Limit this process and what it becomes."""
    # At the first limit SIGXCPU ends it, by which its parent knows why; at the second SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    if sys.platform == "linux":  # elsewhere the limit is refused, or is not kept
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    os.nice(NICENESS)
    os.umask(0o077)


if __name__ == "__main__":
    limit(int(sys.argv[1]), int(sys.argv[2]))
    os.execv(sys.argv[3], sys.argv[3:])
