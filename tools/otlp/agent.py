"""agent.py ENDPOINT URL MODE: an agent on PyPI `mcp`, traced by the SDK of OpenTelemetry, which exports to the
collector at ENDPOINT.

It calls two tools through the proxy at URL in a span of its own, and prints the id of that trace.
"""

import asyncio
import sys
import time

from mcp import Client
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

CALL_SECONDS = 30
READY_SECONDS = 60


async def main():
    endpoint, url, mode = sys.argv[1:]
    async with Client(url, mode=mode, read_timeout_seconds=CALL_SECONDS) as client:
        deadline = time.monotonic() + READY_SECONDS
        while (await call(client, "add", {"a": 1, "b": 1})).is_error and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint + "/v1/traces")))
        trace.set_tracer_provider(provider)
        with trace.get_tracer("agent").start_as_current_span("thinking") as span:
            assert not (await call(client, "add", {"a": 2, "b": 3})).is_error
            assert (await call(client, "fail", {})).is_error
        print(f"{span.get_span_context().trace_id:032x}", flush=True)


async def call(client: Client, tool: str, args: dict):
    arguments = {"name": f"traced:{tool}", "args": args, "intent": {"operation_type": "read"}}
    return await client.call_tool("call_tool_read", arguments)


asyncio.run(main())
