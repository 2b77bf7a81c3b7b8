"""Processes that may fail, hang or spoil what they touch, forked from one that has imported the libraries and made nothing yet."""
import multiprocessing
import os
import signal
import traceback

import torch

fork = multiprocessing.get_context("fork")
REASON_CHARACTERS = 300


class Failed(Exception):
    """`outcome`: of which kind; the message says why."""

    def __init__(self, outcome, reason):
        super().__init__(reason)
        self.outcome = outcome


def reason_of(error):
    """The first line of what was behind it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:REASON_CHARACTERS]


def answer(end, outcome, function, arguments):
    """In the child: what it returns, or how it failed, goes to `end`."""
    torch.set_num_threads(1)  # here, since PyTorch makes its thread pool anew behind a fork, and two threads at once break it
    try:
        end.send((None, function(*arguments)))
    except Failed as failure:
        end.send((failure.outcome, str(failure)))
    except BaseException as error:
        traceback.print_exc()
        end.send((outcome, reason_of(error)))


def leader(end, outcome, function, arguments, log):
    os.setsid()
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    answer(end, outcome, function, arguments)


def apart(seconds, outcome, function, *arguments, log=None):
    """What the function returns in a process of its own, whose processes are ended with it. Failed, with `outcome` for an exception."""
    here, there = fork.Pipe()
    process = fork.Process(target=leader, args=(there, outcome, function, arguments, log))
    process.start()
    there.close()
    try:
        if not here.poll(seconds):
            raise Failed("time-out", f"it took longer than {seconds} s")
        failed, value = here.recv()
    except EOFError:
        process.join()
        raise Failed(outcome, f"the process ended with exit code {process.exitcode}") from None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.join()
        here.close()
    if failed is not None:
        raise Failed(failed, value)
    return value
