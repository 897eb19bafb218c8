"""configs/ for clusters: YAML, hostfiles and the Slurm script agree. mpirun shows its map of made-up hosts."""

import os
import re
import shutil
import stat
import tempfile
import unittest

from cluster import PROGRAM, run

CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs")
SCRIPT = os.path.join(CONFIGS, "outrider.slurm")
GPUS_PER_NODE = 8


def slots(path):
    with open(path) as file:
        return [int(count) for count in re.findall(r"^[\w-]+ slots=(\d+)$", file.read(), re.M)]


def with_variables(variables, command):
    return ["env", *(f"{name}={value}" for name, value in variables.items()), *command]


def ranks_of_nodes(displayed):
    """Where mpirun would put the ranks, by the map it has shown: a list for each node."""
    nodes = displayed.split("Data for node: ")[1:]
    assert nodes, displayed
    return [[int(rank) for rank in re.findall(r"Process rank: (\d+)", node)] for node in nodes]


def expected_ranks(target_nodes):
    num_targets = target_nodes * GPUS_PER_NODE
    return [list(range(first, first + GPUS_PER_NODE)) for first in range(0, num_targets, GPUS_PER_NODE)] + [[num_targets]]


class Files(unittest.TestCase):
    def test_the_configuration_wants_as_many_targets_as_the_hostfile_has_before_the_draft(self):
        for nodes in (1, 2):
            code, dump, errors = run([PROGRAM, "config", "dump", "--config", f"{CONFIGS}/cluster-{nodes}x8.yaml"])
            self.assertEqual(code, 0, errors)
            self.assertIn(f"\ntensor_parallel_size: {nodes * GPUS_PER_NODE}  # ", dump)
            self.assertIn("\ndevice: cuda  # ", dump)
            self.assertEqual(slots(f"{CONFIGS}/hosts-{nodes}x8.example"), [GPUS_PER_NODE] * nodes + [1])

    def test_the_commands_in_the_files_put_neighbours_on_a_node_and_the_draft_last(self):
        for nodes in (1, 2):
            with open(f"{CONFIGS}/cluster-{nodes}x8.yaml") as file:
                text = file.read().replace("\\\n#", "")
            options = re.search(r"mpirun (.*?) outrider serve", text).group(1).replace("configs/", CONFIGS + "/").split()
            _, out, _ = run(["mpirun", *options, "--display-map", "--do-not-launch", "true"])
            self.assertEqual(ranks_of_nodes(out), expected_ranks(nodes))


class Slurm(unittest.TestCase):
    """The script between stand-ins: scontrol names the nodes, mpirun writes down how it was called and shows its map."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = self.folder.name
        os.symlink(CONFIGS, os.path.join(self.root, "configs"))
        self.called = os.path.join(self.root, "called")
        self.temporary = os.path.join(self.root, "temporary")
        os.mkdir(self.temporary)
        # Eight words stand before the program's name.
        self.stand_in("mpirun", f'printf "%s\\n" "$@" > {self.called}\nexec {shutil.which("mpirun")} "$1" "$2" "$3" "$4" '
                                '"$5" "$6" "$7" "$8" --display-map --do-not-launch true')

    def tearDown(self):
        self.folder.cleanup()

    def stand_in(self, name, line):
        path = os.path.join(self.root, name)
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\n{line}\n")
        os.chmod(path, stat.S_IRWXU)

    def submit(self, num_nodes, *arguments, **changes):
        self.stand_in("scontrol", f"for node in $(seq {num_nodes}); do echo gpu-$node; done")
        # With these mpirun, too, takes itself for a part of such a job.
        variables = {"SLURM_JOBID": "7", "SLURM_JOB_ID": "7", "SLURM_NODELIST": f"gpu-[1-{num_nodes}]",
                     "SLURM_JOB_NODELIST": f"gpu-[1-{num_nodes}]", "SLURM_TASKS_PER_NODE": f"8(x{num_nodes})",
                     "SLURM_JOB_NUM_NODES": str(num_nodes), "SLURM_SUBMIT_DIR": self.root, "TMPDIR": self.temporary,
                     "MODEL": "a target", "DRAFT": "a draft", "PATH": f"{self.root}:{os.environ['PATH']}", **changes}
        return run(with_variables(variables, ["bash", SCRIPT, *arguments]))

    def test_its_syntax(self):
        code, _, errors = run(["bash", "-n", SCRIPT])
        self.assertEqual((code, errors), (0, ""))

    def test_ranks_of_a_node_are_neighbours_and_the_draft_is_last(self):
        for target_nodes in (1, 2):
            num_nodes = target_nodes + 1
            code, out, errors = self.submit(num_nodes)
            self.assertEqual(code, 0, errors)
            with open(self.called) as file:
                program = file.read().partition(f"{self.root}/build/outrider\n")[2]
            config = f"{self.root}/configs/cluster-{target_nodes}x8.yaml"
            self.assertEqual(program.splitlines(), ["serve", "--config", config, "--model", "a target",
                                                    "--speculative-config.model", "a draft"])
            self.assertEqual(ranks_of_nodes(out), expected_ranks(target_nodes))

    def test_it_leaves_no_file(self):
        before = sorted(os.listdir(self.root))
        self.submit(2)
        self.assertEqual(sorted(os.listdir(self.root)), sorted([*before, "called", "scontrol"]))
        self.assertEqual([name for name in os.listdir(self.temporary) if not name.startswith("ompi.")], [])

    def test_another_command_takes_the_place_of_serve(self):
        code, _, errors = self.submit(2, "batch", "-i", "in.jsonl", "-o", "out file.jsonl", "--resume")
        self.assertEqual(code, 0, errors)
        with open(self.called) as file:
            self.assertIn("\nbatch\n-i\nin.jsonl\n-o\nout file.jsonl\n--resume\n--config\n", file.read())

    def test_what_is_wrong_is_said_before_anything_starts(self):
        for num_nodes, changes, word in ((1, {}, "1 nodes were given"), (4, {}, "4 nodes were given"),
                                         (2, {"MODEL": ""}, "folder of the target"),
                                         (2, {"DRAFT": ""}, "folder of the draft")):
            code, _, errors = self.submit(num_nodes, **changes)
            self.assertNotEqual(code, 0)
            self.assertIn(word, errors)
            self.assertFalse(os.path.exists(self.called))


if __name__ == "__main__":
    unittest.main(verbosity=2)
