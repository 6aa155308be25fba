"""The endpoint of the drill: takes readings, unless it is told to be down, and refuses those of a status that it does not know.

It is down (503) as long as a file `down` lies beside it. It refuses (422) a request that holds "status":"odd", as long as no
file `tolerant` lies beside it. What it took is in `taken.ndjson`, each request once by its Idempotency-Key.
"""

import http.server
import pathlib

HERE = pathlib.Path(__file__).parent
KEYS = set()


class Endpoint(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self):
        self.answer(503 if (HERE / "down").exists() else 200)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if (HERE / "down").exists():
            return self.answer(503)
        if b'"status":"odd"' in body and not (HERE / "tolerant").exists():
            return self.answer(422)
        key = self.headers["Idempotency-Key"]
        if key not in KEYS:
            KEYS.add(key)
            with open(HERE / "taken.ndjson", "ab") as taken:
                taken.write(body)
        self.answer(200)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", 8099), Endpoint).serve_forever()
