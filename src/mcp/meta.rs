//! `_meta`: its keys, and what our own requests say there to a server without sessions. Pure.

/// The revision that a request speaks.
pub const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// Who sends a request.
pub const CLIENT_KEY: &str = "io.modelcontextprotocol/clientInfo";
/// What a request's sender can be asked.
pub const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
/// The least severity of the log messages that a request's sender wants.
pub const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
/// The task that a message belongs to.
pub const TASK_KEY: &str = "io.modelcontextprotocol/related-task";
/// The subscription that a notification belongs to.
pub const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";
/// Who answers.
pub const SERVER_KEY: &str = "io.modelcontextprotocol/serverInfo";
/// The token under which progress is told.
pub const PROGRESS_KEY: &str = "progressToken";

/// Members of `_meta`: what each request to a modern server says of us (MCP 2026-07-28 §General fields).
pub const OURS: &str = concat!(
    r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"mcpproxy","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#
);
/// A further member, with its comma: nothing can be asked of us, where no client stands behind a request or one that
/// cannot be asked.
pub const NO_CAPABILITIES: &str = r#","io.modelcontextprotocol/clientCapabilities":{}"#;
/// The `_meta` of requests of our own: all capabilities, so that a server hides nothing from its lists.
pub const EVERYTHING: &[u8] = br#"{"io.modelcontextprotocol/clientCapabilities":{"sampling":{},"elicitation":{},"roots":{}}}"#;

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::mcp::revisions::MODERN;

    #[test]
    fn what_is_said_of_us_stands_under_the_keys() {
        let said: Value = serde_json::from_str(&format!("{{{OURS}{NO_CAPABILITIES}}}")).unwrap();
        assert_eq!(said[VERSION_KEY], MODERN);
        assert_eq!(said[CLIENT_KEY]["name"], "mcpproxy");
        assert!(said[CAPABILITIES_KEY].as_object().unwrap().is_empty());
        let all: Value = serde_json::from_slice(EVERYTHING).unwrap();
        assert_eq!(all[CAPABILITIES_KEY].as_object().unwrap().len(), 3);
    }
}
