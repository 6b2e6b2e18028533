//! MCP on the wire: framing of lines and server-sent events, splices, revisions, message shapes, JSON-RPC.

/// MCP: revisions, capabilities, messages and their members, headers, error codes.
///
/// Shared by both sides of the proxy. Pure. Framing is in [`wire`]; `upstream`, `proxy` and `downstream` decide which
/// messages are sent.
pub mod mcp {
    pub mod bounds;
    pub mod capabilities;
    pub mod extensions;
    pub mod headers;
    pub mod jsonrpc;
    pub mod known_extensions;
    pub mod lifecycle;
    pub mod message;
    pub mod meta;
    pub mod revisions;
    pub mod shapes;
    pub mod trace_context;
}

/// Framing of messages (server-sent events, lines) and splices, on `Bytes`. Pure: no socket, no clock.
pub mod wire {
    pub mod lines;
    pub mod splice;
    pub mod sse;
}
