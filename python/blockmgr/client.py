"""An asyncio client of blockmgrd: submit, stream, evict, administrate.

    async with Client() as client:
        request = await client.submit([1, 2, 3], max_tokens=16)
        async for chunk in request:
            print(chunk.tokens)

Messages are those of blockmgr.v1 (proto/blockmgr/v1 says what each field means);
needs grpcio and protobuf. Errors of the daemon are those of blockmgr.errors.
"""
import asyncio
import contextlib
import dataclasses
import re
import typing
import uuid

try:
    import grpc
    from blockmgr.v1 import (admin_pb2, admin_pb2_grpc, common_pb2,
                             eviction_pb2, eviction_pb2_grpc, request_pb2,
                             request_pb2_grpc)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"blockmgr.client needs grpcio, protobuf and the messages blockmgr.v1; "
        f"there is no '{error.name}' (pip install grpcio protobuf)",
        name=error.name) from error

from blockmgr import errors
from blockmgr.address import default_daemon_address

_ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExistsError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ResourceExhaustedError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.FailedPreconditionError,
    grpc.StatusCode.ABORTED: errors.AbortedError,
    grpc.StatusCode.INTERNAL: errors.InternalError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
}

# The fields of the policy's message that have another name than the stage.
_OTHER_NAMES = {"external": {"scorer": "external_scores",
                             "budget": "external_budgets"}}

# Bytes of a float, and of the scores in a message.
_FLOAT_BYTES = 4
_MAX_SCORES = (1 << 20) // _FLOAT_BYTES


@contextlib.contextmanager
def _own_errors():
    try:
        yield
    except grpc.RpcError as error:
        kind = _ERRORS.get(error.code(), errors.Error)
        raise kind(f"{error.details()}") from error


def _set_field(message, key, text):
    """Sets a field from the text that a policy has for it."""
    field = message.DESCRIPTOR.fields_by_name.get(key)
    if field is None:
        known = ", ".join(message.DESCRIPTOR.fields_by_name) or "none"
        raise errors.InvalidArgumentError(
            f"policy: there is no field '{key}', only: {known}")
    try:
        if field.enum_type is not None:
            value = next(value.number for value in field.enum_type.values
                         if value.name.endswith("_" + text.upper()))
        elif field.cpp_type == field.CPPTYPE_BOOL:
            value = {"true": True, "false": False}[text]
        elif field.cpp_type == field.CPPTYPE_DOUBLE:
            value = float(text)
        elif field.cpp_type == field.CPPTYPE_STRING:
            value = text
        else:
            value = int(text)
        setattr(message, key, value)
    except (KeyError, StopIteration, ValueError):
        raise errors.InvalidArgumentError(
            f"policy: {key} cannot be '{text}'") from None


def policy_message(policy: typing.Any) -> common_pb2.EvictionPolicy:
    """The message of a policy: of text, or of a Policy or stages."""
    message = common_pb2.EvictionPolicy()
    for part in str(policy).split("|"):
        match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", part)
        if match is None:
            raise errors.InvalidArgumentError(
                f"policy: expected a stage such as snapkv(window=32), got "
                f"'{part.strip()}'")
        name, fields = match[1], match[2] or ""
        if name == "round":
            _set_field(message, "rounding", fields.strip())
            continue
        target = getattr(message, _field_of(message, name))
        target.SetInParent()
        for pair in filter(None, (pair.strip() for pair in fields.split(","))):
            key, _, text = (part.strip() for part in pair.partition("="))
            if (name, key) == ("protect", "recent") and text.endswith("%"):
                key, text = "recent_percent", text[:-1]
            _set_field(target, key, text)
    return message


def _field_of(message, name):
    """The name of the field of a stage: the first kind that it can be."""
    if name == "protect":
        return name
    for kind in ("scorer", "budget", "selector"):
        if message.WhichOneof(kind) is not None:
            continue
        names = [field.name for field in
                 message.DESCRIPTOR.oneofs_by_name[kind].fields]
        field = _OTHER_NAMES.get(name, {}).get(kind, name)
        if field in names:
            return field
    raise errors.InvalidArgumentError(
        f"policy: there is no stage '{name}', or it is said twice or too late")


def target_message(target: typing.Any) -> common_pb2.EvictionTarget:
    """The message of a target: a ratio (float or text), or tokens (int)."""
    if isinstance(target, common_pb2.EvictionTarget):
        return target
    if isinstance(target, int):
        return common_pb2.EvictionTarget(tokens_per_head=target)
    text = target if isinstance(target, str) else f"{target:.9f}".rstrip("0")
    return common_pb2.EvictionTarget(keep_ratio=text.rstrip("."))


def eviction_message(policy: typing.Any, target: typing.Any,
                     mode: str = "after-prefill",
                     **fields: typing.Any) -> request_pb2.RequestEviction:
    """How a request is evicted from: for Client.submit.

    mode: none, after-prefill, every-chunk, decode or pressure. Fields are those of
    the message: compress_every, share_prefix, share_multiple.
    """
    name = "EVICTION_MODE_" + mode.upper().replace("-", "_")
    if name not in request_pb2.EvictionMode.keys():
        raise errors.InvalidArgumentError(
            f"mode: expected none, after-prefill, every-chunk, decode or "
            f"pressure, got '{mode}'")
    return request_pb2.RequestEviction(
        mode=request_pb2.EvictionMode.Value(name),
        policy=policy_message(policy), target=target_message(target), **fields)


@dataclasses.dataclass
class Result:
    """All that a request brought."""
    tokens: typing.List[int]
    finish_reason: str  # length, stop or cancelled
    num_cached_tokens: int
    num_preemptions: int
    # The index in SamplingParams.stop of the string that ended it.
    stop: typing.Optional[int] = None


class Request:
    """A submitted request: an asynchronous iterator of its TokenChunks."""

    def __init__(self, client: "Client", request_id: str) -> None:
        self.id = request_id
        self._client = client
        self._chunks: asyncio.Queue = asyncio.Queue()
        self._has_ended = False

    def __aiter__(self) -> "Request":
        return self

    async def __anext__(self) -> request_pb2.TokenChunk:
        if self._has_ended:
            raise StopAsyncIteration
        chunk = await self._chunks.get()
        if isinstance(chunk, Exception):
            self._has_ended = True
            raise chunk
        if chunk.finish_reason:
            self._has_ended = True
            if chunk.finish_reason == request_pb2.FINISH_REASON_FAILED:
                raise errors.InternalError(chunk.error)
        return chunk

    async def result(self) -> Result:
        """Waits for the end. InternalError: the request failed."""
        tokens: typing.List[int] = []
        last = request_pb2.TokenChunk()
        async for chunk in self:
            tokens.extend(chunk.tokens)
            last = chunk
        name = request_pb2.FinishReason.Name(last.finish_reason)
        return Result(tokens, name.replace("FINISH_REASON_", "").lower(),
                      last.num_cached_tokens, last.num_preemptions,
                      last.stop if last.HasField("stop") else None)

    async def cancel(self) -> None:
        """Ends it: its last chunk says so."""
        await self._client.cancel(self.id)

    async def evict(self, policy: typing.Any, target: typing.Any = None,
                    **fields: typing.Any) -> eviction_pb2.EvictResponse:
        """See Client.evict."""
        return await self._client.evict(self.id, policy, target, **fields)


class Client:
    """A connection to a daemon, and one stream of tokens for all its requests.

    address: unix:PATH or HOST:PORT; without one, this user's daemon or the
    service's (default_daemon_address). Unfinished requests are cancelled when the
    client is closed. Of one event loop.
    """

    def __init__(self, address: typing.Optional[str] = None) -> None:
        self.address = address or default_daemon_address()
        self.session = uuid.uuid4().hex
        self._requests: typing.Dict[str, Request] = {}
        self._num_requests = 0
        self._cancels: typing.Set[asyncio.Task] = set()
        self._channel: typing.Any = None
        self._reader: typing.Any = None

    async def __aenter__(self) -> "Client":
        await self.open()
        return self

    async def __aexit__(self, *exception: typing.Any) -> None:
        await self.close()

    async def open(self, timeout: float = 60) -> None:
        """Connects, and opens the stream of tokens. UnavailableError."""
        self._channel = grpc.aio.insecure_channel(
            self.address, options=[("grpc.max_receive_message_length", -1)])
        self._submit = request_pb2_grpc.RequestServiceStub(self._channel)
        self._evict = eviction_pb2_grpc.EvictionServiceStub(self._channel)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        batches = self._submit.StreamTokens(
            request_pb2.StreamTokensRequest(
                client_session=self.session)).__aiter__()
        try:
            with _own_errors():
                # The daemon sends an empty batch first.
                await asyncio.wait_for(batches.__anext__(), timeout)
        except BaseException as error:
            await self._channel.close()
            if isinstance(error, (asyncio.TimeoutError, StopAsyncIteration)):
                raise errors.UnavailableError(
                    f"{self.address}: expected the daemon's first answer within "
                    f"{timeout} s, got none") from error
            raise
        self._reader = asyncio.ensure_future(self._read(batches))

    async def close(self) -> None:
        """Ends the stream, and with it all unfinished requests."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        if self._channel is not None:
            await self._channel.close()

    async def _read(self, batches):
        """Gives each request its chunks."""
        reason: Exception = errors.AbortedError("the client was closed")
        try:
            with _own_errors():
                async for batch in batches:
                    for chunk in batch.chunks:
                        self._give(chunk)
            reason = errors.UnavailableError("the daemon ended the stream")
        except errors.Error as error:
            reason = error
        finally:
            for request in self._requests.values():
                request._chunks.put_nowait(reason)
            self._requests.clear()

    def _give(self, chunk):
        request = self._requests.get(chunk.request_id)
        if request is None:
            return
        if chunk.finish_reason:
            del self._requests[chunk.request_id]
        request._chunks.put_nowait(chunk)

    async def submit(self, prompt: typing.Iterable[int], max_tokens: int = 16,
                     *, request_id: typing.Optional[str] = None,
                     **fields: typing.Any) -> Request:
        """Queues a request.

        Fields are those of SubmitRequest: eviction (eviction_message), sampling
        (common_pb2.SamplingParams), stop_token_ids, tenant, lora, cache_salt, media,
        retention, priority, fork_of, engine_data.
        """
        if self._reader is None or self._reader.done():
            raise errors.UnavailableError("the client is not open")
        self._num_requests += 1
        name = request_id or f"{self.session}-{self._num_requests}"
        message = request_pb2.SubmitRequest(
            client_session=self.session, request_id=name,
            prompt_token_ids=list(prompt), max_tokens=max_tokens, **fields)
        if name in self._requests:
            raise errors.AlreadyExistsError(
                f"request_id: '{name}' is a live request")
        request = Request(self, name)
        self._requests[name] = request  # before its first chunk comes
        try:
            with _own_errors():
                await self._submit.Submit(message)
        except BaseException as error:
            self._requests.pop(name, None)
            if isinstance(error, (asyncio.CancelledError,
                                  errors.UnavailableError)):
                # The daemon may have taken it all the same.
                self._cancel_later(name)
            raise
        return request

    def _cancel_later(self, request_id: str) -> None:
        async def cancel():
            with contextlib.suppress(errors.Error):  # it may be unknown
                await self.cancel(request_id)
        task = asyncio.ensure_future(cancel())
        self._cancels.add(task)  # asyncio itself keeps no reference
        task.add_done_callback(self._cancels.discard)

    async def cancel(self, request_id: str) -> None:
        """Ends a request. NotFoundError: it is unknown or has ended."""
        with _own_errors():
            await self._submit.Cancel(
                request_pb2.CancelRequest(request_id=request_id))

    async def evict(self, request_id: str, policy: typing.Any,
                    target: typing.Any = None, *, cut: int = 0,
                    budgets: typing.Iterable[int] = (),
                    scores: typing.Any = None) -> eviction_pb2.EvictResponse:
        """Evicts from a live request now; the answer says what was freed.

        It covers positions [0, cut); 0 means as many as possible. scores: float32
        [num_layers, num_heads, cut] for the policy "external | ..". budgets: entries
        of each (layer, head), for ".. | external", which needs no target.
        """
        message = policy_message(policy)
        if target is None and message.WhichOneof("budget") != "external_budgets":
            raise errors.InvalidArgumentError(
                f"target: expected a ratio or a number of tokens with '{policy}', "
                "got None")
        header = eviction_pb2.EvictRequest(
            request_id=request_id, policy=message,
            target=target_message("1" if target is None else target), cut=cut,
            budgets=[int(budget) for budget in budgets])
        with _own_errors():
            if scores is None:
                return await self._evict.Evict(header)
            return await self._evict.EvictByScores(
                self._pieces(header, scores))

    @staticmethod
    async def _pieces(header, scores):
        yield eviction_pb2.EvictByScoresRequest(header=header)
        flat = scores.reshape(-1)
        for begin in range(0, len(flat), _MAX_SCORES):
            yield eviction_pb2.EvictByScoresRequest(
                scores=flat[begin:begin + _MAX_SCORES].tolist())

    async def stats(self, reset_peaks: bool = False
                    ) -> admin_pb2.GetStatsResponse:
        """Counters and gauges of the daemon."""
        with _own_errors():
            return await self._admin.GetStats(
                admin_pb2.GetStatsRequest(reset_peaks=reset_peaks))

    async def reset_prefix_cache(self) -> admin_pb2.ResetPrefixCacheResponse:
        """Drops all cached prefixes that no request uses."""
        with _own_errors():
            return await self._admin.ResetPrefixCache(
                admin_pb2.ResetPrefixCacheRequest())

    async def watch_prefix_cache(
            self, position: typing.Any = None
    ) -> typing.AsyncIterator[admin_pb2.PrefixCacheUpdate]:
        """What the prefix cache has, and every change (PrefixCacheUpdate)."""
        with _own_errors():
            async for update in self._admin.WatchPrefixCache(
                    admin_pb2.WatchPrefixCacheRequest(position=position)):
                yield update
