"""Lists the zip archives whose paths are on standard input, with Python's zipfile.

For each archive, one line per member, then a line `ok` or `error`. The line of a member has the name in
hexadecimal digits, the size, and the CRC-32 of the data, or the error of reading them.
"""

import sys
import zipfile
import zlib

for path in sys.stdin.read().splitlines():
    lines = []
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.encode("utf-8", "surrogatepass").hex()
                try:
                    crc = f"{zlib.crc32(archive.read(member)):08x}"
                except Exception as error:
                    crc = type(error).__name__
                lines.append(f"{name} {member.file_size} {crc}")
        lines.append("ok")
    except Exception as error:
        lines.append(f"error {type(error).__name__}: {error}".replace("\n", " "))
    print("\n".join(lines))
