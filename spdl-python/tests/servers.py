"""A web server for tests: serves the files of a folder, with range requests and faults.

The server also implements the S3 calls for reading and listing, with folders as buckets and
without authentication.
"""

import contextlib
import email.utils
import hashlib
import html
import http.server
import pathlib
import re
import threading
import time
import urllib.parse


def _etag(data):
    return f'"{hashlib.sha256(data).hexdigest()[:16]}"'


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers like a server of static files."""

    protocol_version = "HTTP/1.1"
    # With Nagle's algorithm, the body would wait for the acknowledgement of the headers.
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def do_GET(self):
        self._answer(with_body=True)

    def do_HEAD(self):
        self._answer(with_body=False)

    def _answer(self, with_body):
        server = self.server
        parts = urllib.parse.urlsplit(self.path)
        name = urllib.parse.unquote(parts.path).lstrip("/")
        server.requested.append((self.command, name, self.headers.get("Range")))
        if name in server.stuck:
            # Until the end of the test, or until the client disconnects.
            server.released.wait(60)
            self.close_connection = True
            return
        time.sleep(server.latency)
        query = urllib.parse.parse_qs(parts.query)
        if "list-type" in query:
            self._list(name, query.get("prefix", [""])[0], with_body)
            return
        path = server.folder / name
        if not path.is_file():
            self._send(404, b"", {}, with_body)
            return
        data = path.read_bytes()
        headers = {
            "ETag": _etag(data),
            "Last-Modified": email.utils.formatdate(path.stat().st_mtime, usegmt=True),
        }
        if not server.has_ranges:
            self._send(200, data, headers, with_body)
            return
        headers["Accept-Ranges"] = "bytes"
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            self._send(200, data, headers, with_body)
            return
        first, last = wanted.groups()
        start = int(first) if first else max(len(data) - int(last), 0)
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        if start >= end:
            headers["Content-Range"] = f"bytes */{len(data)}"
            self._send(416, b"", headers, with_body)
            return
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self._send(206, data[start:end], headers, with_body)

    def _list(self, bucket, prefix, with_body):
        root = self.server.folder / bucket.strip("/")
        found = []
        for path in sorted(filter(pathlib.Path.is_file, root.rglob("*")), key=str):
            key = path.relative_to(root).as_posix()
            if key.startswith(prefix):
                found.append(
                    f"<Contents><Key>{html.escape(key)}</Key><Size>{path.stat().st_size}</Size>"
                    "<LastModified>2025-01-01T00:00:00.000Z</LastModified>"
                    f"<ETag>{html.escape(_etag(path.read_bytes()))}</ETag>"
                    "<StorageClass>STANDARD</StorageClass></Contents>"
                )
        text = (
            f"<ListBucketResult><Name>{bucket}</Name><Prefix>{html.escape(prefix)}</Prefix>"
            f"<KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>{''.join(found)}"
            "</ListBucketResult>"
        )
        self._send(200, text.encode(), {"Content-Type": "application/xml"}, with_body)

    def _send(self, status, body, headers, with_body):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    """Serves `folder`. Requests for names in `stuck` get no response. Without `has_ranges`, each response is a whole file.
    Each response takes `latency` seconds.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = pathlib.Path(folder)
        self.stuck = set()
        self.has_ranges = True
        self.latency = 0.0
        self.released = threading.Event()
        self.requested = []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """Ignores errors: clients may disconnect at any moment."""


@contextlib.contextmanager
def serving(folder):
    """Runs a server of this folder on another thread."""
    server = Server(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
