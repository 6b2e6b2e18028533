//! MCP clients in a browser, at another origin.

use serde_json::json;

use crate::harness::{API_KEY, Proxy, stub_stdio};

const PAGE: &str = "https://app.example.com";

fn proxy() -> Proxy {
    Proxy::with(
        json!({"require_mcp_auth": true, "allowed_origins": [PAGE], "mcpServers": {"s": stub_stdio(&[])}}),
    )
}

// NET-6
#[test]
fn page_at_an_allowed_origin_may_call_and_read_the_session_id() {
    let proxy = proxy();
    let wanted = "authorization,content-type,mcp-protocol-version";
    let preflight = [
        ("Origin", PAGE),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", wanted),
    ];
    for path in ["/mcp", "/mcp/all"] {
        let answer = proxy.request("OPTIONS", path, &preflight, b"");
        assert_eq!((answer.status, &*answer.text()), (204, ""));
        assert_eq!(answer.header("access-control-allow-origin"), Some(PAGE));
        assert_eq!(answer.header("access-control-allow-headers"), Some(wanted));
        assert!(answer.header("access-control-allow-methods").unwrap().contains("DELETE"));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
    }
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"},
    }});
    let headers = [
        ("Origin", PAGE),
        ("X-API-Key", API_KEY),
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
    ];
    let opened = proxy.request("POST", "/mcp", &headers, initialize.to_string().as_bytes());
    assert_eq!(opened.status, 200, "{}", opened.text());
    assert_eq!(opened.header("access-control-allow-origin"), Some(PAGE));
    assert!(opened.header("mcp-session-id").is_some());
    assert_eq!(opened.header("access-control-expose-headers"), Some("mcp-session-id"));
    let refused = proxy.request("POST", "/mcp", &[("Origin", PAGE)], b"{}");
    assert_eq!(refused.status, 401);
    assert_eq!(
        refused.header("access-control-allow-origin"),
        Some(PAGE),
        "the page can read the reason"
    );
}

// NET-6
#[test]
fn other_origins_are_refused_and_rest_allows_no_cross_origin_access() {
    let proxy = proxy();
    let asked =
        |origin: &'static str| [("Origin", origin), ("Access-Control-Request-Method", "GET")];
    let other = proxy.request("OPTIONS", "/mcp", &asked("https://evil.example"), b"");
    assert_eq!((other.status, other.header("access-control-allow-origin")), (403, None));
    let rest = proxy.request("OPTIONS", "/api/v1/status", &asked(PAGE), b"");
    assert!(rest.status >= 400, "{}", rest.status);
    assert_eq!(rest.header("access-control-allow-origin"), None);
}
