"""Certificates for tests, made by the openssl command: self-signed, for loopback, good for two days."""

import os
import subprocess


def make(folder, name="server"):
    """Paths of a certificate and its key in the folder."""
    paths = [os.path.join(folder, f"{name}-{part}.pem") for part in ("certificate", "key")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                    "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", paths[0],
                    "-keyout", paths[1]], check=True, capture_output=True)
    return paths
