//! The published schema of the config beside what is read: the same keys, the same words, the same defaults.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::key_aliases::{FLAT_ACTIVITY_KEYS, INPUTS, SCHEMA, VS_CODE};
use super::keys_read::keys_of;
use super::parse::TopLevel;
use super::problem::{Problem, Severity};
use super::written::Written;
use super::{Config, Flags, parse, servers};
use crate::catalog::ServerSettings;
use crate::reference::CONFIG_SCHEMA;
use crate::schema::compile::{Settings, compile};
use crate::schema::judge::{JudgeScratch, Verdict};
use crate::upstream;

fn schema() -> Value {
    serde_json::from_str(CONFIG_SCHEMA).unwrap()
}

/// What a `$ref` stands for.
fn meant<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(to) => meant(root, root.pointer(to.strip_prefix('#').unwrap()).unwrap()),
        None => schema,
    }
}

/// The paths of all properties below `schema`, with their schemas; maps and arrays are no step.
fn walk<'s>(
    root: &'s Value,
    schema: &'s Value,
    path: &[&'s str],
    found: &mut BTreeMap<Vec<&'s str>, &'s Value>,
) {
    let schema = meant(root, schema);
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

/// A config with a value at a path; where anybody names the keys, they are `x`.
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
        // What is in a map stands under a name.
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
fn every_key_that_is_read_is_described_and_no_other() {
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
fn every_key_has_a_description_and_takes_no_unknown_one() {
    let root = schema();
    let mut found = BTreeMap::new();
    walk(&root, &root, &[], &mut found);
    for (path, property) in found {
        let schema = meant(&root, property);
        let told = property.get("description").or(schema.get("description"));
        let told = told.and_then(Value::as_str).unwrap_or_default();
        assert!(told.ends_with('.') || told.contains("like \""), "{path:?}: {told}");
        let is_closed = schema.get("properties").is_none()
            || schema.get("additionalProperties") == Some(&Value::Bool(false));
        assert!(is_closed, "{path:?}");
    }
}

#[test]
fn the_defaults_are_those_that_count() {
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
            // Below a map or an absent section a default would make a rule of nothing.
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
fn the_words_of_a_key_are_those_that_are_read() {
    let root = schema();
    let mut found = BTreeMap::new();
    walk(&root, &root, &[], &mut found);
    let mut seen = 0;
    for (path, property) in found {
        let schema = meant(&root, property);
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

#[test]
fn a_good_config_fits_and_a_misspelt_or_mistyped_key_does_not() {
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
        assert!(!read(&bad).is_empty(), "{bad}: the schema refuses what is read without a word");
    }
}

#[test]
fn the_examples_of_the_documentation_fit() {
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
            let (_, root) = super::document::ConfigDocument::parse(&text, &mut Vec::new());
            let known = schema();
            let keys = known["properties"].as_object().unwrap();
            // Other programs' files and messages are no configs.
            if root.is_empty() || !root.keys().all(|key| keys.contains_key(key)) {
                continue;
            }
            seen += 1;
            assert_eq!(fits(&Value::Object(root)), Ok(()), "{text}");
        }
    }
    assert!(seen > 1, "{seen} examples");
}
