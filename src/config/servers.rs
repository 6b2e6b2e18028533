//! Section `mcpServers`, in object or array form.
//!
//! Each entry is read twice, by the part that connects to the server and by the part that holds its tool settings;
//! keys of other programs are translated, ignored or explained.

use crate::document::Findings;
use crate::problem::{KeyPath, PathStep};
use crate::section_reader::{read_with_unknown_keys, unknown_key};
pub(super) use crate::sections::SERVERS_KEY as KEY;
use mcpproxy_catalog::ServerSettings;
use mcpproxy_policy::tool::Approval;
use mcpproxy_protocol::mcp::revisions::Revision;
use mcpproxy_upstream as upstream;
use serde_json::{Map, Value};
use std::sync::Arc;

/// One entry of `mcpServers`.
#[derive(Clone, Debug)]
pub struct ServerEntry {
    /// Name, which contains no colon.
    pub name: Arc<str>,
    /// Connection settings.
    pub upstream: upstream::Config,
    /// Settings of its tools.
    pub tools: ServerSettings,
    /// Position in the file.
    pub(super) at: KeyPath,
}

impl ServerEntry {
    /// Whether both entries have the same settings, regardless of their position.
    pub(super) fn has_same_settings(&self, other: &Self) -> bool {
        (&self.name, &self.upstream, &self.tools) == (&other.name, &other.upstream, &other.tools)
    }
}

/// Keys of other programs without effect: presentation, or values that are read from other keys.
pub const IGNORED: [&str; 12] = [
    "name",
    "disabled",
    "quarantined",
    "description",
    "displayName",
    "icon",
    "created",
    "updated",
    "gallery",
    "version",
    "dev",
    "$schema",
];

/// Keys that have an effect in other programs but not here, with the alternative to use.
const ELSEWHERE: [(&str, &str); 9] = [
    ("timeout", "has no effect here: write call_timeout, like \"30s\" or \"2m\""),
    ("autoApprove", CLIENTS),
    ("alwaysAllow", CLIENTS),
    ("trust", CLIENTS),
    ("auth", "has no effect here: write oauth with client_id, client_secret, scopes"),
    ("envFile", "is not read here: write its variables in env, or use ${env:NAME}"),
    ("sandbox", "has no effect here: the server runs with your rights"),
    ("sandboxEnabled", "has no effect here: the server runs with your rights"),
    ("watchPaths", "has no effect here: the server is restarted when it exits"),
];
const CLIENTS: &str = "has no effect here: set it in the client, for \
                       call_tool_read, call_tool_write and call_tool_destructive";

/// Names that other programs use for keys of mcpproxy.
pub(super) const OTHER_NAMES: [(&str, &str); 10] = [
    ("working_dir", "cwd"),
    ("workingDirectory", "cwd"),
    ("serverUrl", "url"),
    ("httpUrl", "url"),
    ("type", "protocol"),
    ("transportType", "protocol"),
    ("transport", "protocol"),
    ("disabledTools", "disabled_tools"),
    ("excludeTools", "disabled_tools"),
    ("includeTools", "enabled_tools"),
];

/// Reads either form; the result is ordered by name.
pub(super) fn read(value: Value, findings: &mut Findings<'_>) -> Vec<ServerEntry> {
    let at = KeyPath::root(KEY);
    let blocks: Vec<(KeyPath, String, Value)> = match value {
        Value::Object(map) => {
            map.into_iter().map(|(name, block)| (at.key(&name), name, block)).collect()
        }
        Value::Array(list) => {
            let list = list.into_iter().enumerate();
            list.filter_map(|(index, block)| named(at.element(index), block, findings)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            findings.error(&at, "must be an object, {\"name\": {…}}, or an array of objects");
            return Vec::new();
        }
    };
    let mut servers: Vec<ServerEntry> = Vec::with_capacity(blocks.len());
    for (path, name, block) in blocks {
        if servers.iter().any(|server| *server.name == *name) {
            findings.error(&path, format_args!("duplicate server name '{name}'"));
        } else {
            servers.extend(server(path, &name, block, findings));
        }
    }
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    servers
}

/// Name of an element of the array form.
fn named(
    path: KeyPath,
    block: Value,
    findings: &mut Findings<'_>,
) -> Option<(KeyPath, String, Value)> {
    match block.get("name") {
        Some(Value::String(name)) => return Some((path, name.clone(), block)),
        Some(_) => findings.error(&path.key("name"), "must be a string"),
        None => findings.error(&path, "must be an object with a name"),
    }
    None
}

fn server(
    path: KeyPath,
    name: &str,
    block: Value,
    findings: &mut Findings<'_>,
) -> Option<ServerEntry> {
    if name.is_empty() || name.contains(':') {
        let problem = format!("a server's name must not be empty or contain ':' ('{name}')");
        findings.wrong_key(&path, problem);
    }
    let Value::Object(mut block) = block else {
        let form = "must be an object, {\"command\": …, \"args\": […]} or {\"url\": …}";
        findings.error(&path, form);
        return None;
    };
    adopt_other_names(&mut block, &path, findings);
    for key in ["disabled", "quarantined"] {
        match block.get(key) {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => {
                block.insert("enabled".into(), Value::Bool(false));
            }
            Some(_) => findings.error(&path.key(key), "must be true or false"),
        }
    }
    for (key, instead) in ELSEWHERE {
        if block.remove(key).is_some() {
            findings.warn(&path.key(key), instead);
        }
    }
    if block.get("protocol").and_then(Value::as_str) == Some("sse") {
        let problem = format!(
            "the HTTP+SSE transport of {} is not spoken: the url is taken for streamable HTTP, \
             write \"http\" or \"streamable-http\"",
            Revision::November2024.name()
        );
        findings.warn(&path.key("protocol"), problem);
    }
    let block = Value::Object(block);
    let (upstream, not_upstream) =
        read_with_unknown_keys::<upstream::Config>(&block, &path, findings);
    let (tools, not_tools) = read_with_unknown_keys::<ServerSettings>(&block, &path, findings);
    // A root key is unknown if neither part recognizes it; deeper keys belong to one part.
    let deep = |steps: &&Vec<PathStep>| steps.len() > 1;
    let unknown = not_tools.iter().filter(|it| deep(it) || not_upstream.contains(it));
    for steps in unknown.chain(not_upstream.iter().filter(deep)) {
        if !matches!(&steps[..], [PathStep::Key(key)] if IGNORED.contains(&key.as_str())) {
            unknown_key(&path.join(steps.iter().cloned()), findings);
        }
    }
    if upstream.max_concurrent.is_some() && upstream.limits.concurrent.is_some() {
        findings.warn(&path.key("max_concurrent"), "ignored: limits.concurrent is set, too");
    }
    warn_of_suggested_approval(&path, &tools, findings);
    Some(ServerEntry { name: name.into(), upstream, tools, at: path })
}

fn adopt_other_names(block: &mut Map<String, Value>, path: &KeyPath, findings: &mut Findings<'_>) {
    for (other, ours) in OTHER_NAMES {
        let Some(value) = block.remove(other) else { continue };
        if block.contains_key(ours) {
            findings.warn(&path.key(other), format_args!("{ours} takes precedence"));
        } else {
            block.insert(ours.to_owned(), value);
            findings.rename(path.key(ours), path.key(other));
        }
    }
}

/// CAP-8: warns that `suggest` does not request approval.
fn warn_of_suggested_approval(path: &KeyPath, tools: &ServerSettings, findings: &mut Findings<'_>) {
    for (pattern, rule) in tools.capabilities.iter() {
        if rule.approval == Some(Approval::Suggest) {
            let path = path.key("capabilities").key(pattern.as_str());
            let problem = "no approval is requested: calls are made with a warning";
            findings.warn(&path.key("approval"), problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::ConfigDocument;
    use serde_json::json;

    fn servers(value: Value) -> Result<(Vec<ServerEntry>, Vec<String>), String> {
        let text = value.to_string();
        let mut findings =
            Findings::new(ConfigDocument::parse(&text, &mut Vec::new()).0, Vec::new());
        let servers = read(value, &mut findings);
        let refused = findings.any_error();
        // The text is only the value of `mcpServers`, so positions in it are meaningless.
        let messages: Vec<String> = findings.finish(None).into_iter().map(|it| it.text).collect();
        if refused { Err(messages.join("\n")) } else { Ok((servers, messages)) }
    }

    #[test]
    fn object_and_array_forms_are_equivalent() {
        let a = json!({"command": "a", "args": ["x"], "env": {"K": "${env:V}"}, "cwd": "/"});
        let b = json!({"url": "http://localhost/mcp", "headers": {"H": "v"}, "enabled": false});
        let (object, warnings) = servers(json!({"b": b, "a": a})).unwrap();
        assert_eq!(warnings, [""; 0]);
        let with_name = |mut block: Value, name: &str| {
            block["name"] = name.into();
            block
        };
        let (array, warnings) = servers(json!([with_name(b, "b"), with_name(a, "a")])).unwrap();
        assert_eq!(warnings, [""; 0]);
        for servers in [&object, &array] {
            let names: Vec<_> = servers.iter().map(|server| &*server.name).collect();
            assert_eq!(names, ["a", "b"]);
            assert_eq!(servers[0].upstream.command.as_deref(), Some("a"));
            assert_eq!(servers[0].upstream.env["K"], "${env:V}");
            assert_eq!(servers[1].upstream.url.as_deref(), Some("http://localhost/mcp"));
            assert!(servers[0].upstream.enabled && !servers[1].upstream.enabled);
        }
    }

    #[test]
    fn entries_of_other_programs_are_understood() {
        let (servers, warnings) = servers(json!({
            "claude": {"type": "stdio", "command": "x", "args": [], "env": {}},
            "cline": {"transportType": "stdio", "command": "x", "disabled": true},
            "cursor": {"type": "http", "url": "http://localhost/mcp", "headers": {}},
            "gemini": {"httpUrl": "http://localhost/mcp", "includeTools": ["a"], "excludeTools": ["b"]},
            "go": {"command": "x", "working_dir": "/w", "quarantined": true, "created": "2026-01-01"},
            "vscode": {"type": "http", "url": "http://localhost/mcp", "gallery": true, "version": "1"},
            "windsurf": {"serverUrl": "http://localhost/mcp", "disabledTools": ["d"]},
        }))
        .unwrap();
        assert_eq!(warnings, [""; 0]);
        let [claude, cline, cursor, gemini, go, vscode, windsurf] = servers.as_slice() else {
            panic!()
        };
        let protocol = |server: &ServerEntry| server.upstream.protocol;
        assert_eq!(protocol(claude), upstream::Protocol::Stdio);
        assert_eq!(protocol(cline), upstream::Protocol::Stdio);
        assert_eq!(protocol(cursor), upstream::Protocol::StreamableHttp);
        assert_eq!(protocol(vscode), upstream::Protocol::StreamableHttp);
        assert!(!cline.upstream.enabled && !go.upstream.enabled);
        assert_eq!(go.upstream.cwd.as_deref(), Some(std::path::Path::new("/w")));
        for remote in [gemini, windsurf] {
            assert_eq!(remote.upstream.url.as_deref(), Some("http://localhost/mcp"));
        }
        assert!(gemini.tools.offers("a") && !gemini.tools.offers("b"));
        assert!(!gemini.tools.offers("c") && !windsurf.tools.offers("d"));
    }

    #[test]
    fn keys_without_effect_cause_a_warning() {
        let (_, warnings) = servers(json!({"s": {
            "type": "sse", "url": "http://h", "timeout": 60, "alwaysAllow": ["a"],
            "autoApprove": ["a"], "envFile": ".env",
        }}))
        .unwrap();
        for (key, words) in [
            ("type", "streamable-http"),
            ("timeout", "call_timeout"),
            ("alwaysAllow", "client"),
            ("autoApprove", "client"),
            ("envFile", "${env:NAME}"),
        ] {
            let path = format!("mcpServers.s.{key}: ");
            let warning = warnings.iter().find(|warning| warning.starts_with(&path));
            assert!(warning.is_some_and(|it| it.contains(words)), "{key}: {warnings:?}");
        }
        assert_eq!(warnings.len(), 5, "{warnings:?}");
    }

    #[test]
    fn errors_name_the_key_path() {
        for (value, text) in [
            (json!(7), "mcpServers: must be an object, {\"name\": {…}}, or an array of objects"),
            (
                json!({"s": 7}),
                "mcpServers.s: must be an object, {\"command\": …, \"args\": […]} or {\"url\": …}",
            ),
            (
                json!({"a:b": {}}),
                "mcpServers.a:b: a server's name must not be empty or contain ':' ('a:b')",
            ),
            (json!([{"command": "x"}]), "mcpServers[0]: must be an object with a name"),
            (json!([{"name": 7}]), "mcpServers[0].name: must be a string"),
            (json!([{"name": "s"}, {"name": "s"}]), "mcpServers[1]: duplicate server name 's'"),
            (
                json!({"s": {"args": "x"}}),
                "mcpServers.s.args: invalid type: a string, expected an array",
            ),
            (
                json!({"s": {"env": {"K": 7}}}),
                "mcpServers.s.env.K: invalid type: a number, expected a string",
            ),
            (
                json!({"s": {"capabilities": {"t": {"approval": "never"}}}}),
                "mcpServers.s.capabilities.t.approval: unknown variant `never`, expected one of `auto`, `suggest`, `required`",
            ),
            (
                json!({"s": {"output_validation": {"max_depth": 121}}}),
                "mcpServers.s.output_validation.max_depth: must be 1 to 120",
            ),
        ] {
            assert_eq!(servers(value).unwrap_err(), text);
        }
    }

    #[test]
    fn unknown_keys_are_reported_at_any_depth() {
        let (_, warnings) = servers(json!({"s": {
            "command": "x",
            "comand": "y",
            "zzz": 1,
            "capabilities": {"t": {"side_efect": "read"}},
            "output_validation": {"tools": {"t": {"mod": "off"}}},
            "oauth": {"client_di": "c"},
        }}))
        .unwrap();
        let unknown =
            |key: &str, meant: &str| format!("unknown key 'mcpServers.s.{key}' is ignored{meant}");
        assert_eq!(
            warnings,
            [
                unknown("comand", " (did you mean 'command'?)"),
                unknown("zzz", ""),
                unknown("capabilities.t.side_efect", " (did you mean 'side_effect'?)"),
                unknown("output_validation.tools.t.mod", " (did you mean 'mode'?)"),
                unknown("oauth.client_di", " (did you mean 'client_id'?)"),
            ]
        );
    }

    #[test]
    fn cap_8_suggested_approval_is_a_warning() {
        let (_, warnings) = servers(json!({"s": {"command": "x", "capabilities": {
            "a": {"parallel_safe": false},
            "b": {"approval": "suggest"},
            "c": {"approval": "auto", "parallel_safe": true},
        }}}))
        .unwrap();
        let [b] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(b.starts_with("mcpServers.s.capabilities.b.approval: "), "{b}");
    }
}
