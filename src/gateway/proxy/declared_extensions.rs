//! Extensions that a server and a client declare to each other at the endpoint of one server. Pure.

use mcpproxy_json::members::{member, members};
use mcpproxy_protocol::mcp::meta::CAPABILITIES_KEY;
use mcpproxy_upstream::Upstream;
use serde_json::{Map, Value};

/// Member of capabilities.
pub(super) const EXTENSIONS: &str = "extensions";
/// The extension for tasks, of 2026-07-28, whose results nobody could fetch (PRO-33).
pub(super) const TASKS: &str = "io.modelcontextprotocol/tasks";
/// Maximum size in bytes of the extensions that a request declares to its server; larger ones are not declared.
pub(crate) const MAX_EXTENSIONS_BYTES: usize = 4096;

/// Extensions that a modern client declares in `_meta` and the server declares, too: raw JSON, an object.
pub(super) fn common(meta: Option<&[u8]>, upstream: &Upstream) -> Option<String> {
    let meta = std::str::from_utf8(meta?).ok()?;
    // Read only if the client declares any.
    let declared = member(member(meta, CAPABILITIES_KEY)?, EXTENSIONS)?;
    of_both(declared, &upstream.introduced().capabilities)
}

fn of_both(declared: &str, server: &Map<String, Value>) -> Option<String> {
    let known = server.get(EXTENSIONS)?.as_object()?;
    let mut common = String::from("{");
    for (name, value) in members(declared).ok()?.map_while(Result::ok) {
        if known.contains_key(&*name) && name != TASKS && value.starts_with('{') {
            let comma = if common.len() > 1 { "," } else { "" };
            common.extend([comma, &Value::from(&*name).to_string(), ":", value]);
        }
    }
    common.push('}');
    (common.len() > 2 && common.len() <= MAX_EXTENSIONS_BYTES).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_41_only_extensions_of_both_sides_are_declared() {
        let server = r#"{"extensions":{"x/a":{},"x/b":{},"io.modelcontextprotocol/tasks":{}}}"#;
        let server: Map<String, Value> = serde_json::from_str(server).unwrap();
        let long = format!(r#"{{"x/a":{{"y":"{}"}}}}"#, "y".repeat(MAX_EXTENSIONS_BYTES));
        for (declared, expected) in [
            (r#"{"x/a":{"n" : 1.0e5},"x/c":{}}"#, Some(r#"{"x/a":{"n" : 1.0e5}}"#)),
            (r#"{"x/b":{},"x\u002fa":{}}"#, Some(r#"{"x/b":{},"x/a":{}}"#)),
            (r#"{"io.modelcontextprotocol/tasks":{},"x/a":7}"#, None),
            ("{}", None),
            ("7", None),
            (long.as_str(), None),
        ] {
            assert_eq!(of_both(declared, &server).as_deref(), expected, "{declared}");
        }
        assert_eq!(of_both(r#"{"x/a":{}}"#, &Map::new()), None);
    }
}
