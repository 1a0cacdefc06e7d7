"""What a launch does not do, and what a graph that is being captured could not take.

And what a call leaves to the calls of other threads, and to those after it.
"""
import threading
import time

import _emulator
import pytest

import blockmgr
from calls import good_calls
from model import Model


def test_a_launch_waits_for_nothing_and_allocates_nothing():
    model = Model.make()
    calls = good_calls(model)
    _emulator.take_events()
    for i, (function, arguments) in enumerate(calls.values()):
        if function.__name__ in ("lists", "entries"):
            function(**arguments)
            continue
        function(**arguments, stream=4096 + i)
        assert _emulator.take_events() == {
            "waits": 0, "copies": 0, "allocations": 0, "stream": 4096 + i,
            "stuck": 0}
    model.kernels.check(stream=3)
    events = _emulator.take_events()
    assert events["waits"] == 1 and events["stream"] == 3


def test_a_launch_that_fails_leaves_the_kernels_as_they_were():
    model = Model.make()
    calls = good_calls(model)
    gather, arguments = calls["gather"]
    _emulator.fail_gather()
    with pytest.raises(blockmgr.InternalError, match="no kernel"):
        gather(**arguments, stream=0)
    for function, arguments in calls.values():
        if function.__name__ not in ("lists", "entries"):
            function(**arguments, stream=0)
    model.kernels.check(stream=0)


def test_other_threads_run_while_check_waits_and_their_launches_follow():
    model = Model.make()
    gather, arguments = good_calls(model)["gather"]
    _emulator.take_events()
    _emulator.hold_download()
    check = threading.Thread(target=model.kernels.check, kwargs=dict(stream=3))
    launch = threading.Thread(target=gather, kwargs=dict(arguments, stream=9))
    check.start()
    _emulator.await_download()
    assert _emulator.take_events()["stream"] == 3
    launch.start()
    time.sleep(0.05)  # in which a launch out of its turn would be seen
    assert _emulator.take_events()["stream"] == 0
    _emulator.release_download()
    check.join()
    launch.join()
    events = _emulator.take_events()
    assert events["stream"] == 9 and events["stuck"] == 0
