//! `mcpServers`: the object and the array form, and the blocks in them.
//!
//! Owns how one block is shared out between the part that reaches a server and the part that knows
//! its tools, and what is done with the keys that users bring along from other programs.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::reading::{read_quietly, unknown_key};
use super::{ConfigError, Warning};
use crate::catalog::ServerSettings;
use crate::tool::Approval;
use crate::upstream;

/// One entry of `mcpServers`.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name; without a colon.
    pub name: Arc<str>,
    /// How it is reached.
    pub upstream: upstream::Config,
    /// What the operator says of its tools.
    pub tools: ServerSettings,
}

/// Keys that other programs put into a block and that mean nothing here. They say who is asked
/// before a call, which is the client's business, or how the block is shown.
const IGNORED: [&str; 12] = [
    "name",
    "autoApprove",
    "alwaysAllow",
    "timeout",
    "description",
    "icon",
    "created",
    "updated",
    "disabled",
    "quarantined",
    "transportType",
    "$schema",
];

/// Names that other programs have for our keys.
const OTHER_NAMES: [(&str, &str); 3] =
    [("working_dir", "cwd"), ("serverUrl", "url"), ("httpUrl", "url")];

/// Reads either form, in the order of names.
pub(super) fn read(value: Value, warnings: &mut Vec<Warning>) -> Result<Vec<Server>, ConfigError> {
    let blocks: Vec<(String, String, Value)> = match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(name, block)| (format!("mcpServers.{name}"), name, block))
            .collect(),
        Value::Array(list) => {
            list.into_iter().enumerate().map(named).collect::<Result<_, ConfigError>>()?
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return Err(ConfigError::at("mcpServers", "must be an object or an array"));
        }
    };
    let mut servers = Vec::with_capacity(blocks.len());
    for (path, name, block) in blocks {
        servers.push(server(&path, &name, block, warnings)?);
    }
    servers.sort_by(|a: &Server, b| a.name.cmp(&b.name));
    for pair in servers.windows(2) {
        if let [a, b] = pair
            && a.name == b.name
        {
            let problem = format!("duplicate server name '{}'", a.name);
            return Err(ConfigError::at("mcpServers", problem));
        }
    }
    Ok(servers)
}

/// An element of the array form.
fn named((at, block): (usize, Value)) -> Result<(String, String, Value), ConfigError> {
    let path = format!("mcpServers[{at}]");
    match block.get("name") {
        Some(Value::String(name)) => Ok((path, name.clone(), block)),
        Some(_) => Err(ConfigError::at(&format!("{path}.name"), "must be a string")),
        None => Err(ConfigError::at(&path, "must be an object with a name")),
    }
}

fn server(
    path: &str,
    name: &str,
    block: Value,
    warnings: &mut Vec<Warning>,
) -> Result<Server, ConfigError> {
    if name.is_empty() || name.contains(':') {
        let problem = format!("a server's name must not be empty or contain ':', '{name}' does");
        return Err(ConfigError::at("mcpServers", problem));
    }
    let Value::Object(mut block) = block else {
        return Err(ConfigError::at(path, "must be an object"));
    };
    adopt_other_names(&mut block);
    if ["disabled", "quarantined"].iter().any(|key| block.get(*key) == Some(&Value::Bool(true))) {
        block.insert("enabled".into(), Value::Bool(false));
    }
    let block = Value::Object(block);
    let (upstream, not_upstream) = read_quietly::<upstream::Config>(&block, path)?;
    let (tools, not_tools) = read_quietly::<ServerSettings>(&block, path)?;
    // A key of the block is unknown if neither part knows it; the deeper ones are of one part.
    let unknown = not_tools.iter().filter(|key| key.contains('.') || not_upstream.contains(key));
    let unknown = unknown.chain(not_upstream.iter().filter(|key| key.contains('.')));
    let unknown = unknown.filter(|key| !IGNORED.contains(&key.as_str()));
    // What is optional is marked in paths.
    let unknown = unknown.map(|key| unknown_key(format!("{path}.{}", key.replace(".?", ""))));
    warnings.extend(unknown);
    warn_of_what_comes_later(path, &tools, warnings);
    Ok(Server { name: name.into(), upstream, tools })
}

fn adopt_other_names(block: &mut Map<String, Value>) {
    for (other, ours) in OTHER_NAMES {
        if let Some(value) = block.remove(other) {
            block.entry(ours).or_insert(value);
        }
    }
}

/// CAP-6, CAP-8: what this version does not do, it says.
fn warn_of_what_comes_later(path: &str, tools: &ServerSettings, warnings: &mut Vec<Warning>) {
    for (pattern, rule) in tools.capabilities.iter() {
        let path = format!("{path}.capabilities.{}", pattern.as_str());
        if rule.parallel_safe == Some(false) {
            let problem = "false is not kept yet: calls to the tool may still run side by side";
            warnings.push(Warning::at(&format!("{path}.parallel_safe"), problem));
        }
        let problem = match rule.approval {
            Some(Approval::Suggest) => "nobody is asked yet: calls go out with a warning",
            Some(Approval::Required) => "nobody can be asked yet: calls are refused",
            Some(Approval::Auto) | None => continue,
        };
        warnings.push(Warning::at(&format!("{path}.approval"), problem));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn servers(value: Value) -> Result<(Vec<Server>, Vec<String>), String> {
        let mut warnings = Vec::new();
        let servers = read(value, &mut warnings).map_err(|error| error.to_string())?;
        Ok((servers, warnings.iter().map(ToString::to_string).collect()))
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
            "cline": {"type": "stdio", "command": "x", "disabled": true, "autoApprove": ["a"], "timeout": 60},
            "windsurf": {"serverUrl": "http://localhost/mcp"},
            "go": {"command": "x", "working_dir": "/w", "quarantined": true, "created": "2026-01-01"},
        }))
        .unwrap();
        assert_eq!(warnings, [""; 0]);
        let [cline, go, windsurf] = servers.as_slice() else { panic!() };
        assert!(!cline.upstream.enabled && !go.upstream.enabled);
        assert_eq!(go.upstream.cwd.as_deref(), Some(std::path::Path::new("/w")));
        assert_eq!(windsurf.upstream.url.as_deref(), Some("http://localhost/mcp"));
    }

    #[test]
    fn what_is_wrong_names_the_path() {
        for (value, text) in [
            (json!(7), "mcpServers: must be an object or an array"),
            (json!({"s": 7}), "mcpServers.s: must be an object"),
            (
                json!({"a:b": {}}),
                "mcpServers: a server's name must not be empty or contain ':', 'a:b' does",
            ),
            (json!([{"command": "x"}]), "mcpServers[0]: must be an object with a name"),
            (json!([{"name": 7}]), "mcpServers[0].name: must be a string"),
            (json!([{"name": "s"}, {"name": "s"}]), "mcpServers: duplicate server name 's'"),
            (
                json!({"s": {"args": "x"}}),
                "mcpServers.s.args: invalid type: string \"x\", expected a sequence",
            ),
            (
                json!({"s": {"env": {"K": 7}}}),
                "mcpServers.s.env.K: invalid type: integer `7`, expected a string",
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
                unknown("capabilities.t.side_efect", " (did you mean 'side_effect'?)"),
                unknown("comand", " (did you mean 'command'?)"),
                unknown("output_validation.tools.t.mod", " (did you mean 'mode'?)"),
                unknown("zzz", ""),
                unknown("oauth.client_di", " (did you mean 'client_id'?)"),
            ]
        );
    }

    #[test]
    fn cap_6_and_8_what_is_not_kept_yet_is_told() {
        let (_, warnings) = servers(json!({"s": {"command": "x", "capabilities": {
            "a": {"parallel_safe": false},
            "b": {"approval": "suggest"},
            "c": {"approval": "auto", "parallel_safe": true},
        }}}))
        .unwrap();
        let [a, b] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(a.starts_with("mcpServers.s.capabilities.a.parallel_safe: "), "{a}");
        assert!(b.starts_with("mcpServers.s.capabilities.b.approval: "), "{b}");
    }
}
