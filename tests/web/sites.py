"""Web servers for tests of a page: one of another origin, and a proxy that serves a server under a path."""

import http.client
import http.server
import threading


class _Site:
    def __init__(self, handler, path=""):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}{path}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class EmptySite(_Site):
    """A page without content, of another origin."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            page = b"<!doctype html><title>empty</title>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_):
            pass

    def __init__(self):
        super().__init__(self.Handler)


class PathProxy(_Site):
    """Serves what a server at the port `upstream` of this machine has, under a path, as nginx does with
    `proxy_set_header Host $host`: the server sees neither the path nor the port."""

    def __init__(self, path):
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def forward(self):
                if not self.path.startswith(f"{path}/"):
                    return self.send_error(404)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                upstream = http.client.HTTPConnection("127.0.0.1", proxy.upstream)
                upstream.request(self.command, self.path[len(path) :], body or None, {**headers, "Host": "127.0.0.1"})
                answer = upstream.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.end_headers()
                try:
                    while part := answer.read1(65536):
                        self.wfile.write(part)
                        self.wfile.flush()
                except ConnectionError:  # the page was closed
                    pass
                upstream.close()

            do_GET = do_POST = do_DELETE = forward

            def log_message(self, *_):
                pass

        self.upstream = None
        super().__init__(Handler, path)
