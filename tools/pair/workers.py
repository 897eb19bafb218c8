"""Data-parallel training over single-threaded processes: one exchange of gradients per step.

Used by train_pair.py only. On a busy machine two processes that meet once per step lose far less
than two threads that meet in every operation.
"""

import os

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing

from free_port import free_port


class Workers:
    def __init__(self, rank, count, port):
        self.rank, self.count = rank, count
        if count > 1:
            distributed.init_process_group(
                "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)

    def average_gradients(self, parameters, progress):
        """Averages gradients in place; returns the mean progress, so that all stop at once."""
        if self.count == 1:
            return progress
        flat = torch.cat([p.grad.flatten() for p in parameters] + [torch.tensor([progress])])
        distributed.all_reduce(flat)
        flat /= self.count
        start = 0
        for parameter in parameters:
            parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
        return flat[-1].item()


def run_worker(rank, function, args, port):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    function(args, Workers(rank, args.workers, port))


def launch(function, args):
    """Runs function(args, workers) in args.workers processes and waits for them."""
    if args.workers == 1:
        function(args, Workers(0, 1, 0))
        return
    multiprocessing.spawn(run_worker, (function, args, free_port()), nprocs=args.workers)
