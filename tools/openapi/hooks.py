"""Rules that schemathesis cannot read in the description, and checks that it does not make by itself."""

from datetime import datetime

import schemathesis
from hypothesis import strategies as st

# Tools of the stub, by the outcome of a call: a result, a refusal, an unknown name.
TOOLS = (
    "stub:read_item", "stub:write_item", "stub:delete_item", "stub:violate", "stub:error",
    "stub:nothing", "nobody:read_item",
)

schemathesis.openapi.format("server-tool", st.sampled_from(TOOLS))
schemathesis.openapi.format(
    "json-object", st.sampled_from(("{}", '{"n": 1.0}', ' {"text": "\\u00fc", "list": [[], {}]}'))
)


@schemathesis.hook
def filter_case(context, case):
    """Parameters that exclude each other, which the description can only express in words.

    A cursor of the log, a text and a minimum duration exclude an offset, and the latter two the total; the cursor of a
    search, or of another order than by name, must belong to it. A table is exported as a whole.
    """
    if case.path == "/api/v1/policy/replay" and isinstance(case.body, dict) and isinstance(case.body.get("rules"), str):
        return False  # text that is not Cedar is refused, and random words are not Cedar
    query = case.query if isinstance(case.query, dict) else {}
    if query.get("format") == "parquet" and "after" in query:
        return False
    apart = {
        "/api/v1/activity": (("cursor", "offset"), ("text", "offset"), ("text", "with_total"),
                             ("min_duration_ms", "offset"), ("min_duration_ms", "with_total")),
        "/api/v1/tools": (("cursor", "q"), ("cursor", "sort")),
    }
    return not any(all(name in query for name in pair) for pair in apart.get(case.path, ()))


@schemathesis.hook
def before_call(context, case, kwargs):
    """Puts the two ends of a range in order, which the description can only require in words."""
    query = case.query if isinstance(case.query, dict) else {}
    names = ("start_time", "end_time")
    try:
        start, end = (datetime.fromisoformat(query[name]) for name in names)
        if start > end:
            query.update(zip(names, [query[name] for name in reversed(names)]))
    except (KeyError, TypeError, ValueError):
        pass  # these are not two times, so they are refused anyway


@schemathesis.check
def names_its_request(ctx, response, case):
    """Every answer has X-Request-Id, and an error contains the id, too."""
    given = response.headers.get("x-request-id", [""])[0]
    assert given, "no X-Request-Id"
    if response.status_code >= 400 and case.path != "/readyz":
        body = response.json()
        assert body["success"] is False and body["error"], body
        assert body["request_id"] == given, body


@schemathesis.check
def refusals_help(ctx, response, case):
    """A 400 names a parameter or the problem of the body; a 405 names the permitted methods."""
    if response.status_code == 405:
        assert response.headers.get("allow"), "no Allow"
    if response.status_code == 400 and response.request.method == "GET":
        names = [parameter.name for parameter in case.operation.query]
        sent = list(case.query) if isinstance(case.query, dict) else []
        text = response.json()["error"]
        assert any(name in text for name in names + sent), text
