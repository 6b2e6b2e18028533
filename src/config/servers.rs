//! `mcpServers`: the object and the array form, and the blocks in them.
//!
//! Owns how one block is shared out between the part that reaches a server and the part that knows
//! its tools, and what is done with the keys that users bring along from other programs.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::findings::Findings;
use super::misspelt_keys::unknown_key;
use super::problem::{KeyPath, PathStep};
use super::reading::read_quietly;
use crate::catalog::ServerSettings;
use crate::mcp::revisions::Revision;
use crate::tool::Approval;
use crate::upstream;

/// One entry of `mcpServers`.
#[derive(Clone, Debug)]
pub struct ServerEntry {
    /// Its name; without a colon.
    pub name: Arc<str>,
    /// How it is reached.
    pub upstream: upstream::Config,
    /// What the operator says of its tools.
    pub tools: ServerSettings,
    /// Where the entry stands in the file.
    pub(super) at: KeyPath,
}

impl ServerEntry {
    /// Whether both mean the same, wherever they are written.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        (&self.name, &self.upstream, &self.tools) == (&other.name, &other.upstream, &other.tools)
    }
}

/// The key of the root that servers stand under.
pub(super) const KEY: &str = "mcpServers";

/// Keys that other programs put into a block and that change nothing: how it is shown, or what is
/// read here from other keys.
pub(super) const IGNORED: [&str; 12] = [
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

/// Keys of other programs that do something there and nothing here, and what to do instead.
const ELSEWHERE: [(&str, &str); 9] = [
    ("timeout", "has no effect here: write call_timeout, like \"30s\" or \"2m\""),
    ("autoApprove", CLIENTS),
    ("alwaysAllow", CLIENTS),
    ("trust", CLIENTS),
    ("auth", "has no effect here: write oauth with client_id, client_secret, scopes"),
    ("envFile", "is not read here: write its variables in env, or use ${env:NAME}"),
    ("sandbox", "has no effect here: the server runs with your rights"),
    ("sandboxEnabled", "has no effect here: the server runs with your rights"),
    ("watchPaths", "has no effect here: the server is started again when it ends"),
];
const CLIENTS: &str = "has no effect here: which calls are made without asking is set in the \
                       client, by call_tool_read, call_tool_write and call_tool_destructive";

/// Names that other programs have for our keys.
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

/// Reads either form, in the order of names.
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

/// An element of the array form.
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
        let problem = format!("a server's name must not be empty or contain ':', '{name}' does");
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
    let (upstream, not_upstream) = read_quietly::<upstream::Config>(&block, &path, findings);
    let (tools, not_tools) = read_quietly::<ServerSettings>(&block, &path, findings);
    // A key of the block is unknown if neither part knows it; the deeper ones are of one part.
    let deep = |steps: &&Vec<PathStep>| steps.len() > 1;
    let unknown = not_tools.iter().filter(|it| deep(it) || not_upstream.contains(it));
    for steps in unknown.chain(not_upstream.iter().filter(deep)) {
        if !matches!(&steps[..], [PathStep::Key(key)] if IGNORED.contains(&key.as_str())) {
            unknown_key(&path.join(steps.iter().cloned()), findings);
        }
    }
    if upstream.max_concurrent.is_some() && upstream.limits.concurrent.is_some() {
        findings.warn(&path.key("max_concurrent"), "limits.concurrent counts, which is the same");
    }
    warn_of_what_comes_later(&path, &tools, findings);
    Some(ServerEntry { name: name.into(), upstream, tools, at: path })
}

fn adopt_other_names(block: &mut Map<String, Value>, path: &KeyPath, findings: &mut Findings<'_>) {
    for (other, ours) in OTHER_NAMES {
        let Some(value) = block.remove(other) else { continue };
        if block.contains_key(ours) {
            findings.warn(&path.key(other), format_args!("{ours} counts"));
        } else {
            block.insert(ours.to_owned(), value);
            findings.rename(path.key(ours), path.key(other));
        }
    }
}

/// CAP-8: that a suggestion asks nobody.
fn warn_of_what_comes_later(path: &KeyPath, tools: &ServerSettings, findings: &mut Findings<'_>) {
    for (pattern, rule) in tools.capabilities.iter() {
        if rule.approval == Some(Approval::Suggest) {
            let path = path.key("capabilities").key(pattern.as_str());
            let problem = "nobody is asked: calls go out with a warning";
            findings.warn(&path.key("approval"), problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::document::ConfigDocument;
    use serde_json::json;

    fn servers(value: Value) -> Result<(Vec<ServerEntry>, Vec<String>), String> {
        let text = value.to_string();
        let mut findings =
            Findings::new(ConfigDocument::parse(&text, &mut Vec::new()).0, Vec::new());
        let servers = read(value, &mut findings);
        let refused = findings.any_error();
        // The text here is no config, so its places mean nothing.
        let told: Vec<String> = findings.finish(None).into_iter().map(|it| it.text).collect();
        if refused { Err(told.join("\n")) } else { Ok((servers, told)) }
    }

    #[test]
    fn both_forms_say_the_same() {
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
    fn a_block_copied_from_another_program_is_understood() {
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
    fn what_does_something_elsewhere_and_nothing_here_is_told_by_name() {
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
            let told = warnings.iter().find(|warning| warning.starts_with(&path));
            assert!(told.is_some_and(|told| told.contains(words)), "{key}: {warnings:?}");
        }
        assert_eq!(warnings.len(), 5, "{warnings:?}");
    }

    #[test]
    fn what_is_wrong_names_the_path() {
        for (value, text) in [
            (json!(7), "mcpServers: must be an object, {\"name\": {…}}, or an array of objects"),
            (
                json!({"s": 7}),
                "mcpServers.s: must be an object, {\"command\": …, \"args\": […]} or {\"url\": …}",
            ),
            (
                json!({"a:b": {}}),
                "mcpServers.a:b: a server's name must not be empty or contain ':', 'a:b' does",
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
    fn unknown_keys_are_named_wherever_they_stand() {
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
    fn cap_8_what_is_not_kept_yet_is_told() {
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
