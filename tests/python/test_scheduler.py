"""Plans, answers, effects, and how long plans live."""
import gc
import random
import threading

import canary
import numpy as np
import pytest

import blockmgr


def small_layout(**fields):
    values = dict(num_layers=2, num_heads=2, num_blocks=64, head_dim=8,
                  page_size=4)
    return blockmgr.KvLayout(**{**values, **fields})


def decoding(num_requests=2, **options):
    """A scheduler whose requests have computed their prompts."""
    scheduler = blockmgr.Scheduler(small_layout(),
                                   blockmgr.SchedulerOptions(**options))
    for i in range(num_requests):
        scheduler.submit(f"r{i}", [i, 1, 2], 20)
    plan = scheduler.schedule()
    scheduler.update(blockmgr.StepResult(
        plan.step, np.full(num_requests, 3, np.int32)))
    return scheduler


@pytest.mark.parametrize("seed", range(12))
def test_requests_get_the_models_answers(seed):
    """Random requests in a small pool: shared prefixes, preemptions, evictions."""
    rng = random.Random(seed)
    options = blockmgr.SchedulerOptions(
        max_num_seqs=rng.choice([2, 6]), max_num_batched_tokens=24,
        max_steps_in_flight=1,
        compaction=rng.choice(["fresh", "in-place"]))
    layout = small_layout(num_blocks=rng.choice([20, 64]))
    scheduler = blockmgr.Scheduler(layout, options)
    engine = canary.Engine(layout)
    expected, outputs, ids = {}, {}, {}
    policies = ["external | uniform", "keydiff | adakv", "knorm | global",
                "streaming(sinks=2) | pyramid"]
    waiting = 14
    while waiting or scheduler.has_unfinished_requests:
        if waiting and rng.random() < 0.5:
            waiting -= 1
            shared = [7] * rng.choice([0, 9, 16])
            prompt = shared + [rng.randrange(50)
                               for _ in range(rng.randrange(1, 30))]
            num_tokens = rng.randrange(1, 12)
            eviction = None
            if rng.random() < 0.6:
                eviction = blockmgr.Eviction(
                    rng.choice(policies[1:]), rng.choice([0.3, 0.6, 6]),
                    *rng.choice([("after-prefill", ), ("pressure", )]))
            if rng.random() < 0.2:
                eviction = blockmgr.Eviction("knorm", 6, "decode",
                                             compress_every=8)
            request = scheduler.submit(f"{waiting}", prompt, num_tokens,
                                       eviction=eviction)
            expected[request] = canary.answer(prompt, num_tokens)
            outputs[request] = []
            ids[request] = f"{waiting}"
        plan = scheduler.schedule()
        if plan is None:
            continue
        effects = scheduler.update(engine.run(plan))
        scheduler.check_invariants()
        for request, token, index in zip(effects.token_requests.tolist(),
                                         effects.tokens.tolist(),
                                         effects.token_indices.tolist()):
            assert index == len(outputs[request])
            outputs[request].append(token)
        for end in effects.finished:
            assert end.reason == "length" and end.error is None
    assert outputs == expected
    stats = scheduler.stats()
    assert stats.num_finished == len(expected)
    # A request may have ended in the step that carried its eviction.
    assert 0 < stats.num_evictions <= engine.num_evictions
    assert stats.metadata_bytes > 0
    assert stats.as_dict()["num_output_tokens"] == sum(map(len,
                                                           outputs.values()))


def test_plan_arrays_are_views_that_cannot_be_written_to():
    scheduler = decoding()
    plan = scheduler.schedule()
    names = ("slots", "positions", "num_tokens", "samples", "block_offsets",
             "blocks", "released", "start_tokens", "copies", "destinations")
    for name in names:
        array = getattr(plan, name)
        assert isinstance(array, np.ndarray) and not array.flags.writeable
        assert not array.flags.owndata
        with pytest.raises(ValueError):
            array.setflags(write=True)
    first = plan.slots
    assert np.shares_memory(first, plan.slots)
    assert plan.slots.dtype == np.int32 and plan.slots.tolist() == [0, 1]
    assert plan.positions.tolist() == [3, 3]
    assert plan.samples.dtype == np.uint8
    assert plan.block_offsets.dtype == np.int64


def test_a_plan_is_stale_once_it_is_answered():
    scheduler = decoding()
    plan = scheduler.schedule()
    slots = plan.slots
    assert not plan.is_stale
    scheduler.update(blockmgr.StepResult(plan.step, np.array([1, 2], np.int32)))
    assert plan.is_stale
    for name in ("slots", "step", "starts", "evictions", "total_tokens",
                 "copies"):
        with pytest.raises(blockmgr.StalePlanError, match="stale"):
            getattr(plan, name)
    with pytest.raises(blockmgr.StalePlanError):
        plan.new_blocks(0)
    with pytest.raises(blockmgr.StalePlanError):
        blockmgr.EngineTables(scheduler.layout).apply(plan)
    assert "stale" in repr(plan)
    # The array is what it was, whatever the scheduler does next.
    for _ in range(12):
        plan = scheduler.schedule()
        result = blockmgr.StepResult(plan.step,
                                     np.full(len(plan.slots), 3, np.int32))
        scheduler.update(result)
    assert slots.tolist() == [0, 1]


def test_starts_and_orders_go_stale_with_their_plan():
    scheduler = blockmgr.Scheduler(small_layout())
    scheduler.submit("a", list(range(40)), 4,
                     eviction=blockmgr.Eviction("knorm", 0.5))
    plan = scheduler.schedule()
    start, order = plan.starts[0], plan.evictions[0]
    tokens, info = start.tokens, start.info
    assert tokens.tolist() == list(range(40))
    assert order.destinations.size > 0 and str(order.policy).startswith("knorm")
    assert order.scores is None and order.target == blockmgr.Target(0.5)
    scheduler.lose_engine()
    for name in ("slot", "tokens", "info", "transfers_in"):
        with pytest.raises(blockmgr.StalePlanError):
            getattr(start, name)
    for name in ("slot", "destinations", "policy"):
        with pytest.raises(blockmgr.StalePlanError):
            getattr(order, name)
    del scheduler, plan, start
    gc.collect()
    assert tokens.tolist() == list(range(40))  # outlives all of them
    assert info.id == "a" and info.num_prompt_tokens == 40


def test_steps_in_flight_do_not_disturb_each_other():
    scheduler = decoding(max_steps_in_flight=2)
    first = scheduler.schedule()
    second = scheduler.schedule()
    assert scheduler.schedule() is None
    assert first.positions.tolist() == [3, 3]
    assert second.positions.tolist() == [4, 4]
    answer = np.array([5, 6], np.int32)
    with pytest.raises(blockmgr.InvalidArgumentError):
        scheduler.update(blockmgr.StepResult(second.step, answer))
    assert not first.is_stale
    scheduler.update(blockmgr.StepResult(first.step, answer))
    assert first.is_stale and not second.is_stale
    effects = scheduler.update(blockmgr.StepResult(second.step, answer))
    assert effects.tokens.tolist() == [5, 6]
    assert not effects.tokens.flags.writeable


def test_memory_of_dropped_plans_is_used_again():
    scheduler = decoding(num_requests=1)
    addresses = set()
    for _ in range(15):
        plan = scheduler.schedule()
        addresses.add(plan.slots.ctypes.data)
        scheduler.update(blockmgr.StepResult(plan.step, np.array([1], np.int32)))
    assert len(addresses) <= 3


def test_a_wrong_answer_changes_nothing():
    scheduler = decoding()
    plan = scheduler.schedule()
    for step, sampled in ((plan.step + 1, [1, 2]), (plan.step, [1]),
                          (plan.step, [1, -1])):
        with pytest.raises(blockmgr.InvalidArgumentError):
            scheduler.update(blockmgr.StepResult(step,
                                                 np.array(sampled, np.int32)))
    scheduler.check_invariants()
    effects = scheduler.update(blockmgr.StepResult(
        plan.step, np.array([1, 2], np.int32)))
    assert effects.token_requests.size == 2


def test_requests_are_refused_in_the_librarys_words():
    scheduler = blockmgr.Scheduler(small_layout())
    scheduler.submit("a", [1, 2], 4)
    with pytest.raises(blockmgr.AlreadyExistsError, match="a"):
        scheduler.submit("a", [1, 2], 4)
    with pytest.raises(ValueError, match="prompt"):
        scheduler.submit("b", [], 4)
    with pytest.raises(blockmgr.ResourceExhaustedError):
        scheduler.submit("b", [1] * 300, 4)
    with pytest.raises(LookupError):
        scheduler.find("nobody")
    with pytest.raises(blockmgr.NotFoundError):
        scheduler.submit("b", [1, 2], 4, fork_of="nobody")
    with pytest.raises(blockmgr.FailedPreconditionError, match="temperature"):
        scheduler.submit("b", [1, 2], 4,
                         sampling=blockmgr.SamplingParams(temperature=0.5))
    with pytest.raises(blockmgr.InvalidArgumentError, match="max_tokens"):
        scheduler.submit("b", [1, 2], 0)
    with pytest.raises(blockmgr.InvalidArgumentError, match=r"prompt\[1\]"):
        scheduler.submit("b", [1, 2**40], 4)
    for prompt in ("text", [1.5], None, np.array([1.5]), [[1]]):
        with pytest.raises(TypeError, match="prompt"):
            scheduler.submit("b", prompt, 4)
    with pytest.raises(blockmgr.InvalidArgumentError, match="shape"):
        scheduler.submit("b", np.zeros((2, 2), np.int32), 4)
    assert scheduler.find("a") == 1
    request = scheduler.submit("b", np.array([1, 2], np.uint32), 4)
    (end, ) = scheduler.cancel(request).finished
    assert (end.request, end.reason) == (request, "cancelled")


def test_options_are_those_of_the_daemon():
    options = blockmgr.SchedulerOptions(
        max_num_seqs=7, scheduling_policy="priority", watermark=0.5,
        enable_prefix_caching=False, sampling_fields=("temperature", "seed"),
        tenants={"a": {"weight": 3}, "*": {"max_requests": 1}})
    scheduler = blockmgr.Scheduler(small_layout(), options)
    assert scheduler.options.max_num_seqs == 7
    assert scheduler.options.scheduling_policy == "priority"
    assert scheduler.options.watermark == 0.5
    assert scheduler.options.enable_prefix_caching is False
    scheduler.submit("x", [1], 1,
                     sampling=blockmgr.SamplingParams(temperature=0.5))
    with pytest.raises(blockmgr.ResourceExhaustedError):
        scheduler.submit("y", [1], 1)
    assert {use.name for use in scheduler.stats().tenants} == {"a", "*"}
    with pytest.raises(TypeError, match="no option 'max_seqs'"):
        blockmgr.SchedulerOptions(max_seqs=7)
    with pytest.raises(TypeError, match="max_num_seqs: expected an integer"):
        blockmgr.SchedulerOptions(max_num_seqs="many")
    with pytest.raises(ValueError, match="max_num_seqs: expected 1 to"):
        blockmgr.SchedulerOptions(max_num_seqs=0)
    with pytest.raises(ValueError, match="scheduling_policy: expected one of"):
        blockmgr.SchedulerOptions(scheduling_policy="lifo")
    with pytest.raises(ValueError, match="no limit 'height'"):
        blockmgr.SchedulerOptions(tenants={"a": {"height": 3}})


def test_evictions_can_be_ordered_by_scores():
    layout = small_layout()
    scheduler = blockmgr.Scheduler(layout)
    engine = canary.Engine(layout)
    request = scheduler.submit("a", list(range(30)), 10)
    with pytest.raises(blockmgr.FailedPreconditionError):
        scheduler.evict(request, "knorm", 0.5)
    scheduler.update(engine.run(scheduler.schedule()))
    scores = np.zeros((2, 2, 28), np.float32)
    for wrong, text in ((scores.astype(np.float64), "float32, got float64"),
                        (scores.tolist(), "expected an array")):
        with pytest.raises(TypeError, match=text):
            scheduler.evict(request, "external", 0.5, scores=wrong)
    for wrong in (scores[0], scores[:, :1], scores[:, :, ::2]):
        with pytest.raises(ValueError, match="scores"):
            scheduler.evict(request, "external", 0.5, scores=wrong)
    with pytest.raises(blockmgr.InvalidArgumentError):
        scheduler.evict(request, "external", 0.5, 28)
    command = scheduler.evict(request, "external", 0.5, 28, scores=scores)
    assert scheduler.withdraw_eviction(request, command)
    budgets = np.full((2, 2), 8, np.int32)
    command = scheduler.evict(request, "knorm | external", cut=28,
                              budgets=budgets)
    plan = scheduler.schedule()
    assert plan.evictions[0].budgets.tolist() == budgets.tolist()
    order = plan.evictions[0]
    engine.tables.apply(plan)
    engine.tables.commit(order, budgets)
    region = engine.tables.region(0)
    effects = scheduler.update(blockmgr.StepResult(
        plan.step, np.array([1], np.int32),
        [blockmgr.EvictionOutcome(budgets, region.checksum)]))
    (effect, ) = effects.evictions
    assert (effect.request, effect.command) == (request, command)
    assert effect.error is None and effect.kept_entries.tolist() == [8] * 4
    assert effect.evicted_entries == 4 * 20 and effect.freed_blocks == 5
    del effects, scheduler
    gc.collect()
    assert effect.kept_entries.tolist() == [8] * 4


def test_a_wrong_checksum_is_refused():
    layout = small_layout()
    scheduler = blockmgr.Scheduler(layout)
    scheduler.submit("a", list(range(40)), 4,
                     eviction=blockmgr.Eviction("knorm", 0.5))
    plan = scheduler.schedule()
    outcome = blockmgr.EvictionOutcome(np.full((2, 2), 4, np.int32), 1)
    with pytest.raises(blockmgr.InvalidArgumentError, match="checksum"):
        scheduler.update(blockmgr.StepResult(plan.step, np.array([1], np.int32),
                                             [outcome]))
    refused = blockmgr.EvictionOutcome(error="out of memory")
    effects = scheduler.update(blockmgr.StepResult(
        plan.step, np.array([1], np.int32), [refused]))
    assert isinstance(effects.evictions[0].error, blockmgr.InternalError)
    assert "out of memory" in str(effects.evictions[0].error)


def test_threads_take_turns():
    scheduler = blockmgr.Scheduler(small_layout(num_blocks=4096))
    problems = []

    def submit(thread):
        try:
            for i in range(200):
                scheduler.submit(f"{thread}-{i}", [thread, i], 2)
                if i % 3 == 0:
                    scheduler.cancel(scheduler.find(f"{thread}-{i}"))
        except Exception as error:  # pylint: disable=broad-except
            problems.append(error)

    threads = [threading.Thread(target=submit, args=(i, )) for i in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        plan = scheduler.schedule()
        if plan is not None:
            try:
                scheduler.update(blockmgr.StepResult(
                    plan.step, np.where(plan.samples, 1, -1).astype(np.int32)))
            except blockmgr.NotFoundError as error:
                problems.append(error)
    for thread in threads:
        thread.join()
    # A request may have ended before it is cancelled.
    assert all(isinstance(error, blockmgr.NotFoundError) for error in problems)
    scheduler.check_invariants()


def test_a_stop_string_ends_a_request():
    scheduler = blockmgr.Scheduler(
        small_layout(), blockmgr.SchedulerOptions(sampling_fields=("stop",)))
    request = scheduler.submit(
        "a", [1, 2], 9,
        sampling=blockmgr.SamplingParams(temperature=0, stop=["x", "y"]))
    plan = scheduler.schedule()
    assert plan.starts[0].info.sampling.stop == ["x", "y"]
    sampled = np.array([7], np.int32)
    with pytest.raises(blockmgr.InvalidArgumentError, match="stop_matches"):
        scheduler.update(blockmgr.StepResult(plan.step, sampled,
                                             stop_matches=[(0, 2)]))
    effects = scheduler.update(blockmgr.StepResult(plan.step, sampled,
                                                   stop_matches=[(0, 1)]))
    finish = effects.finished[0]
    assert (finish.request, finish.reason, finish.stop) == (request, "stop", 1)
    assert effects.tokens.tolist() == [7]
