"""Two hosts on one machine: network namespaces with a link between them, and mpirun over what stands for ssh. Needs root
and ip netns; reason_against() says why not. The two have host names and boot ids of their own, so ranks share no memory."""

import os
import pathlib
import shutil
import subprocess
import tempfile

AGENT = """#!/bin/sh
# What mpirun starts instead of ssh.
while [ "${1#-}" != "$1" ]; do shift; done
number="${1##*.}"; shift
exec FOLDER/enter "$number" sh -c "$*"
"""
ENTER = """#!/bin/sh
# enter NUMBER COMMAND...: as a process of that host.
number="$1"; shift
exec ip netns exec "NAME$number" unshare --uts -- sh -c '
  mount --bind "FOLDER/boot'"$number"'" /proc/sys/kernel/random/boot_id && hostname "host'"$number"'" && exec "$@"' sh "$@"
"""


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


def reason_against():
    """Why there can be no such hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip and unshare are not installed"
    try:
        with TwoHosts() as hosts:
            run(hosts.folder / "enter", "1", "true")
    except (subprocess.CalledProcessError, OSError) as problem:
        return f"no network namespaces here: {getattr(problem, 'stderr', b'') or problem}"
    return ""


class TwoHosts:
    def __init__(self):
        self.name = f"outrider{os.getpid()}h"
        self.subnet = "10.78.31"
        self.folder = pathlib.Path(tempfile.mkdtemp())

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        for number in (1, 2):
            subprocess.run(["ip", "netns", "delete", f"{self.name}{number}"], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self):
        for number in (1, 2):
            run("ip", "netns", "add", f"{self.name}{number}")
            run("ip", "-n", f"{self.name}{number}", "link", "set", "lo", "up")
            (self.folder / f"boot{number}").write_text(f"00000000-0000-0000-0000-00000000000{number}\n")
        run("ip", "link", "add", "link1", "netns", f"{self.name}1", "type", "veth", "peer", "link2", "netns",
            f"{self.name}2")
        for number in (1, 2):
            run("ip", "-n", f"{self.name}{number}", "address", "add", f"{self.subnet}.{number}/24", "dev", f"link{number}")
            run("ip", "-n", f"{self.name}{number}", "link", "set", f"link{number}", "up")
        for name, text in (("agent", AGENT), ("enter", ENTER)):
            script = self.folder / name
            script.write_text(text.replace("FOLDER", str(self.folder)).replace("NAME", self.name))
            script.chmod(0o755)

    def set_link(self, state):
        """down or up: the cable of host 2."""
        run("ip", "-n", f"{self.name}2", "link", "set", "link2", state)

    def run_on(self, number, *command):
        """What the command prints on that host."""
        return subprocess.run([str(self.folder / "enter"), str(number), *command], check=True, capture_output=True,
                              text=True).stdout

    def mpirun(self, num_first, num_second):
        """mpirun on host 1 with so many ranks there, and then on host 2."""
        return [str(self.folder / "enter"), "1", "mpirun", "--bind-to", "none", "--map-by", "slot",
                "--host", f"{self.subnet}.1:{num_first},{self.subnet}.2:{num_second}",
                "--mca", "plm_rsh_agent", str(self.folder / "agent"), "--mca", "btl", "vader,tcp,self",
                "--mca", "btl_tcp_if_include", f"{self.subnet}.0/24", "--mca", "oob_tcp_if_include", f"{self.subnet}.0/24",
                "-np", str(num_first + num_second)]
