//! Tests that the published JSON Schema has the same keys, words and defaults as the parser.

use crate::CONFIG_SCHEMA;
use crate::parse::{FLAT_ACTIVITY_KEYS, INPUTS, SCHEMA, VS_CODE};
use crate::patch::{PATCHABLE, PatchRefused, patched};
use crate::problem::{Problem, Severity};
use crate::section_reader::keys_of;
use crate::sections::TopLevel;
use crate::written::Written;
use crate::{Config, Flags, parse, servers};
use bytes::Bytes;
use mcpproxy_catalog::ServerSettings;
use mcpproxy_schema::compile::{Settings, compile};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};
use mcpproxy_upstream as upstream;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

fn schema() -> Value {
    serde_json::from_str(CONFIG_SCHEMA).unwrap()
}

/// Follows `$ref`.
fn resolved<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(to) => resolved(root, root.pointer(to.strip_prefix('#').unwrap()).unwrap()),
        None => schema,
    }
}

/// Collects the paths of all properties below `schema`; maps and arrays do not add a step.
fn walk<'s>(
    root: &'s Value,
    schema: &'s Value,
    path: &[&'s str],
    found: &mut BTreeMap<Vec<&'s str>, &'s Value>,
) {
    let schema = resolved(root, schema);
    for (name, property) in
        schema.get("properties").and_then(Value::as_object).into_iter().flatten()
    {
        let path = [path, &[name.as_str()]].concat();
        walk(root, property, &path, found);
        found.insert(path, property);
    }
    if let Some(of_map) = schema.get("additionalProperties").filter(|it| it.is_object()) {
        walk(root, of_map, path, found);
    }
}

fn owned(path: &[&str]) -> Vec<String> {
    path.iter().map(|key| (*key).to_owned()).collect()
}

/// A config with a value at a path; freely named keys are `x`.
fn config_with(path: &[&str], value: Value) -> Value {
    const MAPS: [&[&str]; 8] = [
        &["mcpServers"],
        &["limits", "tools"],
        &["limits", "principals"],
        &["mcpServers", "capabilities"],
        &["mcpServers", "output_validation", "tools"],
        &["mcpServers", "input_validation", "tools"],
        &["mcpServers", "result_limit", "tools"],
        &["servers"],
    ];
    let mut value = value;
    for (at, key) in path.iter().enumerate().rev() {
        // Entries of a map have a name.
        if at + 1 < path.len() && MAPS.contains(&&path[..=at]) {
            value = json!({"x": value});
        }
        value = json!({*key: value});
    }
    value
}

fn read(config: &Value) -> Vec<Problem> {
    let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
    match parse(&config.to_string(), &|_| None, &flags) {
        Ok((_, warnings)) => warnings,
        Err(problems) => problems,
    }
}

fn fits(config: &Value) -> Result<(), String> {
    let compiled = compile(CONFIG_SCHEMA.as_bytes(), &Settings::default()).unwrap();
    let text = Bytes::from(config.to_string());
    match compiled.judge(&[text], &mut JudgeScratch::new()).verdict {
        Verdict::Conforms => Ok(()),
        Verdict::Violates(violation) => Err(violation.describe().to_owned()),
    }
}

#[test]
fn schema_describes_exactly_the_keys_that_are_read() {
    let mut read: BTreeSet<Vec<String>> = BTreeSet::new();
    read.extend(keys_of::<TopLevel>().iter().map(|path| owned(path)));
    let flat = FLAT_ACTIVITY_KEYS.map(|(flat, _)| flat);
    read.extend([SCHEMA, INPUTS].iter().chain(&flat).map(|key| owned(&[key])));
    for of_servers in [servers::KEY, VS_CODE] {
        let mut below: Vec<Vec<&str>> = vec![Vec::new()];
        below.extend(keys_of::<upstream::Config>());
        below.extend(keys_of::<ServerSettings>());
        below.extend(servers::OTHER_NAMES.iter().map(|(name, _)| vec![*name]));
        below.extend(servers::IGNORED.iter().map(|name| vec![*name]));
        read.extend(below.iter().map(|path| owned(&[&[of_servers], &path[..]].concat())));
    }
    let root = schema();
    let mut found = BTreeMap::new();
    walk(&root, &root, &[], &mut found);
    let described: BTreeSet<Vec<String>> = found.keys().map(|path| owned(path)).collect();
    let missing: Vec<_> = read.difference(&described).collect();
    let unread: Vec<_> = described.difference(&read).collect();
    assert!(
        missing.is_empty() && unread.is_empty(),
        "not described: {missing:?}; not read: {unread:?}"
    );
}

#[test]
fn every_schema_key_has_a_description_and_every_object_is_closed() {
    let root = schema();
    let mut found = BTreeMap::new();
    walk(&root, &root, &[], &mut found);
    for (path, property) in found {
        let schema = resolved(&root, property);
        let description = property.get("description").or(schema.get("description"));
        let description = description.and_then(Value::as_str).unwrap_or_default();
        assert!(
            description.ends_with('.') || description.contains("like \""),
            "{path:?}: {description}"
        );
        let is_closed = schema.get("properties").is_none()
            || schema.get("additionalProperties") == Some(&Value::Bool(false));
        assert!(is_closed, "{path:?}");
    }
}

#[test]
fn schema_defaults_equal_effective_defaults() {
    let root = schema();
    let mut found = BTreeMap::new();
    walk(&root, &root, &[], &mut found);
    let with_defaults = |of: &str| {
        let mut config = json!({});
        for (path, property) in &found {
            let default = property.get("default").filter(|_| path.len() > 1 || of.is_empty());
            let Some(default) = default.filter(|_| of.is_empty() || path[0] == of) else {
                continue;
            };
            // Defaults below a map or an absent section would create an entry.
            let skip: [&[&str]; 3] = [&["limits"], &["mcpServers", "limits"], &["search"]];
            if skip.iter().any(|skip| path.starts_with(skip))
                || path[0] == VS_CODE
                || (of.is_empty() && (path[0] == servers::KEY && path.len() > 1))
            {
                continue;
            }
            merge(&mut config, config_with(path, default.clone()));
        }
        config
    };
    let parsed = |config: &Value| {
        let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
        let (config, warnings) = parse(&config.to_string(), &|_| None, &flags)
            .unwrap_or_else(|problems| panic!("{config}: {problems:?}"));
        assert!(warnings.is_empty(), "{warnings:?}");
        format!("{:#?}", Config { written: Written::default(), ..config })
    };
    let all = with_defaults("");
    assert!(all.as_object().unwrap().len() > 10, "{all}");
    assert_eq!(parsed(&all), parsed(&json!({})));
    let mut server = with_defaults(servers::KEY);
    merge(&mut server, json!({"mcpServers": {"x": {"command": "c"}}}));
    assert!(server["mcpServers"]["x"].as_object().unwrap().len() > 5, "{server}");
    assert_eq!(parsed(&server), parsed(&json!({"mcpServers": {"x": {"command": "c"}}})));
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert_with(|| Value::Object(Map::new())), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[test]
fn schema_enum_values_equal_the_accepted_values() {
    let root = schema();
    let mut found = BTreeMap::new();
    walk(&root, &root, &[], &mut found);
    let mut seen = 0;
    for (path, property) in found {
        let schema = resolved(&root, property);
        let of_list = schema.pointer("/items/enum");
        let Some(words) = schema.get("enum").or(of_list).and_then(Value::as_array) else {
            continue;
        };
        if path[0] == VS_CODE {
            continue;
        }
        seen += 1;
        let value = |word: Value| if of_list.is_some() { json!([word]) } else { word };
        let key = path.last().unwrap();
        let about = |problems: Vec<Problem>| {
            problems
                .into_iter()
                .find(|it| it.key.contains(key) && it.text.contains("unknown variant"))
        };
        for word in words {
            let problem = about(read(&config_with(&path, value(word.clone()))));
            assert!(problem.is_none(), "{path:?} {word}: {problem:?}");
        }
        let refused = about(read(&config_with(&path, value(json!("no-such-word")))));
        let refused = refused.unwrap_or_else(|| panic!("{path:?} takes any word")).text;
        let (_, expected) = refused.split_once("expected").unwrap();
        let read: BTreeSet<&str> = expected.split('`').skip(1).step_by(2).collect();
        let words: BTreeSet<&str> = words.iter().filter_map(Value::as_str).collect();
        assert!(read.is_subset(&words), "{path:?}: {read:?} are read, {words:?} are described");
    }
    assert!(seen > 25, "{seen}");
}

/// A path in the notation of the allow-list: names in a map are `*`.
fn pattern(path: &[&str]) -> String {
    let mut at = &config_with(path, Value::Null);
    let mut words = Vec::new();
    while let Some((key, inner)) = at.as_object().and_then(|map| map.iter().next()) {
        let is_name = key == "x" && !path.contains(&"x");
        words.push(if is_name { "*" } else { key });
        at = inner;
    }
    words.join(".")
}

// Requirement CFG-5.
#[test]
fn unlisted_keys_cannot_be_patched() {
    let root = schema();
    let mut found = BTreeMap::new();
    walk(&root, &root, &[], &mut found);
    let text = json!({"mcpServers": {"x": {"command": "c"}}}).to_string();
    let mut patchable = BTreeSet::new();
    for (path, property) in found {
        let schema = resolved(&root, property);
        let is_section = schema.get("properties").is_some()
            || schema.get("additionalProperties").is_some_and(Value::is_object);
        let key = pattern(&path);
        for value in [json!(1), json!("word"), json!(["word"]), Value::Null] {
            let Value::Object(patch) = config_with(&path, value) else { panic!() };
            match patched(&text, &patch) {
                Ok(_) if !is_section => drop(patchable.insert(key.clone())),
                Ok(_) => assert!(!is_set(&patch), "{key}: a section as one value"),
                Err(PatchRefused::NotPatchable(_)) => {
                    assert!(!PATCHABLE.contains(&key.as_str()), "{key}");
                }
                Err(other) => panic!("{key}: {other}"),
            }
        }
    }
    let listed: BTreeSet<String> = PATCHABLE.iter().map(|key| (*key).to_owned()).collect();
    assert_eq!(patchable, listed, "each listed key is in the schema, and no other can be patched");
    let closed = [
        "listen",
        "tls",
        "data_dir",
        "api_key",
        "require_mcp_auth",
        "allowed_hosts",
        "allowed_origins",
        "auth",
        "cluster",
        "policy",
        "approval.elicitation",
        "approval.webhook",
        "search.embeddings.url",
        "search.embeddings.api_key",
        "telemetry.otlp",
        "activity.redact_keys",
        "mcpServers.*.command",
        "mcpServers.*.args",
        "mcpServers.*.env",
        "mcpServers.*.cwd",
        "mcpServers.*.url",
        "mcpServers.*.headers",
        "mcpServers.*.tls",
        "mcpServers.*.oauth",
        "mcpServers.*.proxy",
        "servers",
    ];
    for key in PATCHABLE {
        assert!(!closed.iter().any(|closed| key.starts_with(closed)), "{key} controls access");
    }
}

/// Whether a patch sets a value rather than removing one.
fn is_set(patch: &Map<String, Value>) -> bool {
    patch.values().any(|value| match value {
        Value::Object(inner) => is_set(inner),
        value => !value.is_null(),
    })
}

#[test]
fn schema_accepts_valid_and_rejects_invalid_configs() {
    for good in [
        json!({}),
        json!({"$schema": "./schema.json", "listen": "127.0.0.1:8080", "mcpServers": {}}),
        json!({"mcpServers": {"files": {"command": "npx", "args": ["-y"], "env": {"A": "${env:B}"}}}}),
        json!({"mcpServers": [{"name": "a", "url": "https://x/mcp"}], "limits": {"tools": {"a:*": {"queue": 0}}}}),
        json!({"servers": {"a": {"type": "http", "url": "http://x"}}, "activity_max_records": 7}),
        json!({"mcpServers": {"a": {"capabilities": {"*": {"side_effect": "read"}}, "disabled": true}}}),
    ] {
        assert_eq!(fits(&good), Ok(()), "{good}");
        let errors = read(&good).into_iter().filter(|it| it.severity == Severity::Error);
        assert_eq!(errors.count(), 0, "{good}");
    }
    for bad in [
        json!({"lisen": "127.0.0.1:8080"}),
        json!({"listen": 8080}),
        json!({"mcpServers": {"a": {"comand": "x"}}}),
        json!({"mcpServers": {"a:b": {"command": "x"}}}),
        json!({"mcpServers": {"a": {"command": "x", "affinity": "node"}}}),
        json!({"mcpServers": {"a": {"command": "x", "protocol_era": "old"}}}),
        json!({"mcpServers": [{"command": "x"}]}),
        json!({"mcpServers": {"a": {"output_validation": {"tools": {"t": {"mod": "off"}}}}}}),
        json!({"servers": {"a": {"comand": "x"}}}),
        json!({"output_validation": {"max_depth": 121}}),
        json!({"result_limit": {"bytes": 100}}),
        json!({"result_limit": {"max_kept": 10001}}),
        json!({"search": {"embeddings": {"url": "http://m/v1"}}}),
        json!({"search": {"embeddings": {"url": "http://m/v1", "model": ""}}}),
        json!({"search": {"embeddings": {"url": "http://m/v1", "model": "m", "min_similarity": 2}}}),
        json!({"cluster": {"store": "s3://b", "node": "A"}}),
        json!({"cluster": {"segment_bytes": 1}}),
        json!({"cluster": {"index": "1"}}),
        json!({"cluster": {"advertise": "10.0.0.1:8080"}}),
        json!({"cluster": {"key": {"first": "x"}}}),
        json!({"catalog": {"scan": "on"}}),
        json!({"api_key": "short"}),
        json!({"tls": {"cert": "c.pem"}}),
    ] {
        assert!(fits(&bad).is_err(), "{bad}");
        assert!(!read(&bad).is_empty(), "{bad}: rejected by the schema but not by the parser");
    }
}

// Requirement CFG-6.
#[test]
fn documentation_examples_conform_to_the_schema() {
    let pages = [
        include_str!("../../README.md"),
        include_str!("../guide/calls.md"),
        include_str!("../guide/tls.md"),
        include_str!("../guide/identities.md"),
        include_str!("../guide/policy.md"),
        include_str!("../guide/configuration.md"),
        include_str!("../guide/fleet.md"),
    ];
    let mut seen = 0;
    for page in pages {
        for block in page.split("```json\n").skip(1) {
            let text = block.split("```").next().unwrap();
            let text = if text.trim_start().starts_with('"') {
                format!("{{{text}}}")
            } else {
                text.to_owned()
            };
            let (_, root) = crate::document::ConfigDocument::parse(&text, &mut Vec::new());
            let known = schema();
            let keys = known["properties"].as_object().unwrap();
            // Other programs' files and messages are not configs.
            if root.is_empty() || !root.keys().all(|key| keys.contains_key(key)) {
                continue;
            }
            seen += 1;
            assert_eq!(fits(&Value::Object(root)), Ok(()), "{text}");
        }
    }
    assert!(seen > 1, "{seen} examples");
}

#[test]
fn sc_001_the_guide_shows_permissions_for_each_client_and_the_move_from_call_tool() {
    let clients = include_str!("../guide/clients.md");
    for client in [
        "Claude Code",
        "Claude Desktop",
        "Codex",
        "Cursor",
        "Gemini CLI",
        "VS Code",
        "Windsurf",
        "Zed",
    ] {
        let page = clients.split(&format!("## {client}\n")).nth(1).unwrap_or_default();
        let section = page.split("\n## ").next().unwrap_or_default();
        assert!(section.contains("call_tool_read"), "{client}: reads are approved");
        assert!(section.contains("Permissions"), "{client}: permissions");
    }
    assert!(include_str!("../guide/calls.md").contains("Moving from `call_tool`"));
}
