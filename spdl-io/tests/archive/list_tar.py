"""Lists the tar archives whose paths are on standard input, with Python's tarfile.

For each archive, one line per member, then a line `ok` or `error`. The line of a member has the name in
hexadecimal digits, the kind, and, except for sparse files, the size and the offset of the data.
"""

import sys
import tarfile

KINDS = [
    ("issparse", "sparse"),
    ("isreg", "file"),
    ("isdir", "folder"),
    ("islnk", "hard-link"),
    ("issym", "symbolic-link"),
    ("ischr", "character-device"),
    ("isblk", "block-device"),
    ("isfifo", "pipe"),
]

for path in sys.stdin.read().splitlines():
    lines = []
    try:
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                kind = "other"
                for test, name in KINDS:
                    if kind == "other" and getattr(member, test)():
                        kind = name
                name = member.name.encode("utf-8", "surrogateescape")
                where = "" if kind == "sparse" else f" {member.size} {member.offset_data}"
                lines.append(f"{name.hex()} {kind}{where}")
        lines.append("ok")
    except Exception as error:
        lines.append(f"error {type(error).__name__}")
    print("\n".join(lines))
