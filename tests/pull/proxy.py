"""A proxy for HTTPS that connects every CONNECT to one port of this machine and remembers what was asked for."""

import socket
import threading


class Proxy:
    def __init__(self, port):
        self.targets, self.to = [], port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            self.connect(client)

    def connect(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            part = client.recv(4096)
            if not part:
                return
            head += part
        self.targets.append(head.split()[1].decode())
        with socket.create_connection(("127.0.0.1", self.to)) as server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=self.copy, args=(client, server), daemon=True)
            back.start()
            self.copy(server, client)
            back.join()

    @staticmethod
    def copy(source, target):
        try:
            while part := source.recv(65536):
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
