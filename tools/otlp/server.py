"""server.py ENDPOINT: a server on PyPI `mcp` over stdio, traced by the SDK of OpenTelemetry, which exports to the
collector at ENDPOINT.
"""

import sys

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider(resource=Resource.create({"service.name": "server"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(sys.argv[1] + "/v1/traces")))
trace.set_tracer_provider(provider)

server = MCPServer("traced")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    with trace.get_tracer("server").start_as_current_span("adding"):
        return a + b


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def fail() -> str:
    """Fails."""
    raise ValueError("it fails")


server.run()
