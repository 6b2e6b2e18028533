//! Extensions: names of methods and notifications that no revision of the protocol defines, and that can be forwarded
//! unread. Pure.
//!
//! A name that a receiver could take for a method of the protocol does not count as an extension, because the proxy
//! handles such methods itself. The first word of the name decides, regardless of its case and of punctuation before
//! it.

use super::bounds::MAX_METHOD_BYTES;

/// First words of the protocol's methods, past and present, and of similar names.
const RESERVED: [&str; 26] = [
    "cancelled",
    "client",
    "completion",
    "completions",
    "discover",
    "elicitation",
    "initialize",
    "initialized",
    "jsonrpc",
    "logging",
    "mcp",
    "notification",
    "notifications",
    "ping",
    "prompt",
    "prompts",
    "resource",
    "resources",
    "roots",
    "rpc",
    "sampling",
    "server",
    "subscriptions",
    "tasks",
    "tool",
    "tools",
];
/// First words of the protocol's notifications that are not in [`RESERVED`].
const NOTIFICATIONS: [&str; 3] = ["message", "messages", "progress"];
/// Prefix of the protocol's notifications.
const PREFIX: &str = "notifications/";

/// Whether `method` is the method of an extension.
pub fn is_method(method: &str) -> bool {
    first_word(method).is_some_and(|first| !RESERVED.contains(&&*first))
}

/// Whether `method` is the notification of an extension. Unlike an extension's method, it may begin with [`PREFIX`].
pub fn is_notification(method: &str) -> bool {
    let name = method.strip_prefix(PREFIX).unwrap_or(method);
    method.len() <= MAX_METHOD_BYTES
        && is_method(name)
        && first_word(name).is_some_and(|first| !NOTIFICATIONS.contains(&&*first))
}

/// The first word of a plain name, in lower case; `None` if the name is not plain.
fn first_word(name: &str) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._:-$".contains(byte);
    if name.len() > MAX_METHOD_BYTES || !name.as_bytes().iter().all(is_plain) {
        return None;
    }
    let mut words = name.split(|char: char| !char.is_ascii_alphanumeric());
    Some(words.find(|word| !word.is_empty())?.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_41_names_that_resemble_protocol_names_are_not_extensions() {
        for own in
            ["skills/list", "ui/initialize", "x", "com.example/tools/call", "$x", "a-b:c_d.e"]
        {
            assert!(is_method(own) && is_notification(own), "{own}");
        }
        for own in ["notifications/skills/changed", "notifications/x"] {
            assert!(is_notification(own) && !is_method(own), "{own}");
        }
        let long = "x".repeat(MAX_METHOD_BYTES + 1);
        for taken in [
            "",
            "/",
            "tools/call",
            "Tools/Call",
            "TOOLS",
            "/tools/call",
            "./tools/list",
            "tool.call",
            "resources/x",
            "tasks/get",
            "ping",
            "Initialize",
            "rpc.discover",
            "a b",
            "x\n",
            " tools/call",
            "t\u{f6}ols/call",
            "\u{212a}",
            "server/x",
            "notifications/tools/list_changed",
            "notifications/tasks/status",
            "notifications//cancelled",
            "notifications/notifications/x",
            "Notifications/x",
            &long,
        ] {
            assert!(!is_method(taken) && !is_notification(taken), "{taken}");
        }
        for taken in ["notifications/progress", "notifications/Message", "progress"] {
            assert!(!is_notification(taken), "{taken}");
        }
    }
}
