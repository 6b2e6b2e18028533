"""The pipes of the Python clients of tools/interop/matrix: see matrix_peer.py."""

import asyncio
import json
import sys

LINE_BYTES = 1 << 20


def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer_question(method: str, params: dict) -> dict:
    say(event="asked", params={"method": method, "params": params})
    if method == "roots/list":
        return {"roots": [{"uri": "file:///matrix", "name": "matrix"}]}
    if method == "elicitation/create":
        if params["message"].startswith("decline"):
            return {"action": "decline"}
        return {"action": "accept"} | ({} if params.get("mode") == "url" else {"content": {"name": "Ada"}})
    sampled = {"role": "assistant", "model": "matrix", "content": {"type": "text", "text": "sampled"}}
    if tools := params.get("tools"):
        use = {"type": "tool_use", "id": "1", "name": tools[0]["name"], "input": {}}
        sampled |= {"content": [use], "stopReason": "toolUse"}
    return sampled


def dump(value) -> dict:
    return value if isinstance(value, dict) else value.model_dump(by_alias=True, mode="json", exclude_none=True)


def answers(types):
    """The answers to a server's questions, as callbacks of the PyPI SDK whose messages are in `types`: elicitation,
    sampling and roots."""

    async def elicit(_, params):
        return types.ElicitResult.model_validate(answer_question("elicitation/create", dump(params)))

    async def sample(_, params):
        answer = answer_question("sampling/createMessage", dump(params))
        kind = types.CreateMessageResultWithTools if params.tools else types.CreateMessageResult
        return kind.model_validate(answer)

    async def list_roots(_):
        return types.ListRootsResult.model_validate(answer_question("roots/list", {}))

    return elicit, sample, list_roots


async def drive(operations, about: dict, error_type: type, dump):
    """Runs operations until the driver closes the pipe; then ends the process at once."""
    say(event="ready", params=about)
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running = set()
    while line := await reader.readline():
        asked = asyncio.ensure_future(run(operations, json.loads(line), error_type, dump))
        running.add(asked)
        asked.add_done_callback(running.discard)


async def run(operations, asked: dict, error_type: type, dump):
    number, operation = asked.pop("id"), asked.pop("op")
    try:
        say(id=number, result=dump(await getattr(operations, operation)(**asked)))
    except error_type as error:
        failure = error.error
        say(id=number, error={"code": failure.code, "message": failure.message, "data": failure.data})
    except (Exception, asyncio.CancelledError) as error:  # the client's own refusals have many types
        say(id=number, refused=f"{type(error).__name__} {error}"[:500])
