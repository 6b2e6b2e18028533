//! Tests of the whole config: defaults, errors, and the precedence of file, environment and flags.

use crate::Environment;
use crate::document::MAX_PROBLEMS;
use crate::section_reader::KNOWN_KEYS;
use crate::*;
use mcpproxy_activity as activity;
use mcpproxy_policy::intent;
use mcpproxy_policy::intent::Requirement;
use mcpproxy_protocol::mcp::revisions::Offered;
use mcpproxy_schema as schema;
use mcpproxy_schema::output::{Mode, Policy};
use std::path::Path;

fn home(name: &str) -> Option<String> {
    (name == "HOME").then(|| "/home/me".to_owned())
}

fn parsed(text: &str) -> (Config, Vec<String>) {
    let (config, warnings) = parse(text, &home, &Flags::default()).unwrap();
    (config, warnings.iter().map(ToString::to_string).collect())
}

fn refused(text: &str) -> String {
    let problems = parse(text, &home, &Flags::default()).unwrap_err();
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn empty_config_is_valid() {
    for text in ["", "{}"] {
        let (config, warnings) = parsed(text);
        assert!(warnings.is_empty());
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.data_dir, Path::new("/home/me/.mcpproxy"));
        assert_eq!((config.api_key, config.require_mcp_auth), (None, false));
        assert_eq!((config.tools_limit, config.offered_era), (15, Offered::Auto));
        assert!(config.servers.is_empty());
        assert!(config.intent.strict_server_validation);
        assert_eq!(config.intent.operation_type, Requirement::Required);
        assert_eq!(config.logging, Logging { level: LogLevel::Info, format: LogFormat::Text });
    }
}

#[test]
fn defaults_match_the_reference() {
    let stated = r#"{"mode":"warn","max_bytes":5242880,"max_depth":64,
        "missing_structured_content":"allow","assert_formats":false,"max_held_bytes":67108864,
        "max_held_total_bytes":536870912,"engine":"tape"}"#;
    assert_eq!(OutputValidation::default(), serde_json::from_str(stated).unwrap());
    let stated = r#"{"bytes":0,"keep":"15m","max_kept_bytes":268435456,"max_kept":1000}"#;
    assert_eq!(ResultLimitSection::default(), serde_json::from_str(stated).unwrap());
    let stated = r#"{"store":null,"node":null,"flush":"5s","segment_bytes":4194304,
        "backlog_bytes":4294967296}"#;
    assert_eq!(mcpproxy_fleet::ClusterConfig::default(), serde_json::from_str(stated).unwrap());
    let stated = r#"{"retention_days":90,"max_records":1000000,"max_size_mb":1024,
        "min_retention":"24h","max_payload_bytes":4096,"max_response_bytes":1024,"durability":"grouped",
        "on_failure":"refuse"}"#;
    assert_eq!(activity::Config::default(), serde_json::from_str(stated).unwrap());
    let stated =
        r#"{"strict_server_validation":true,"operation_type":"required","unannotated":"warn"}"#;
    assert_eq!(intent::Settings::default(), serde_json::from_str(stated).unwrap());
}

#[test]
fn sections_keep_defaults_of_unset_keys() {
    let (config, warnings) = parsed(
        r#"{"output_validation": {"mode": "strict", "engine": "boon", "max_depth": 120},
            "intent_declaration": {"operation_type": "inferred"},
            "logging": {"format": "json"}, "tools_limit": 100, "offered_era": "modern"}"#,
    );
    assert_eq!(warnings, [""; 0]);
    assert_eq!(config.offered_era, Offered::Modern);
    assert_eq!(
        config.output.policy(),
        Policy { mode: Mode::Strict, max_depth: 120, ..Policy::default() }
    );
    assert_eq!(config.output.schemas().engine, schema::compile::Engine::Boon);
    assert!(config.intent.strict_server_validation);
    assert_eq!(config.logging, Logging { level: LogLevel::Info, format: LogFormat::Json });
}

#[test]
fn errors_name_the_position_and_the_valid_values() {
    for (text, expected) in [
        (r#"{"listen": 8080}"#, "column 12: listen: invalid type: a number, expected a string"),
        (
            r#"{"listen": "8080"}"#,
            "column 12: listen: '8080' is not an address with port: write it like \"127.0.0.1:8080\"",
        ),
        (
            r#"{"output_validation": {"mode": "loud"}}"#,
            "column 32: output_validation.mode: unknown variant `loud`, expected one of `off`, `warn`, `strict`",
        ),
        (
            r#"{"output_validation": {"max_depth": 0}}"#,
            "column 37: output_validation.max_depth: must be 1 to 120, is 0",
        ),
        (
            r#"{"output_validation": {"max_held_total_bytes": 1}}"#,
            "column 48: output_validation.max_held_total_bytes: must not be less than max_held_bytes",
        ),
        (
            r#"{"output_validation": {"held_share_bytes": 300000000}, "mcpServers": {"a": {"url": "http://a/"}, "b": {"url": "http://b/"}}}"#,
            "column 44: output_validation.held_share_bytes: this share for each of 2 servers exceeds max_held_total_bytes",
        ),
        (
            r#"{"activity": {"max_payload_bytes": 4194305}}"#,
            "column 36: activity.max_payload_bytes: must be 0 to 4194304, is 4194305",
        ),
        (
            r#"{"activity": {"max_response_bytes": 33554432}}"#,
            "column 37: activity.max_response_bytes: must be 0 to 4194304, is 33554432",
        ),
        (
            r#"{"result_limit": {"bytes": 100}}"#,
            "column 28: result_limit.bytes: must be 0, for no limit, or at least 4096, is 100",
        ),
        (
            r#"{"search": {"embeddings": {"url": "http://m", "model": "m", "timeout": "1m"}}}"#,
            "column 72: search.embeddings.timeout: must be 10ms to 10s",
        ),
        (
            r#"{"result_limit": {"keep": "25h"}}"#,
            "column 27: result_limit.keep: must be 24h at most",
        ),
        (
            r#"{"cluster": {"store": "s3://b"}}"#,
            "column 23: cluster.store: requires a name for this node, cluster.node",
        ),
        (
            r#"{"cluster": {"node": "a"}}"#,
            "column 22: cluster.node: has no effect without cluster.store",
        ),
        (
            r#"{"cluster": {"node": "A/b"}}"#,
            "column 22: cluster.node: must be 1 to 63 lower-case letters, digits, '-', '_' or '.', with a letter or digit at each end",
        ),
        (
            r#"{"cluster": {"index": true}}"#,
            "column 23: cluster.index: has no effect without cluster.store",
        ),
        (
            r#"{"cluster": {"store": "s3://b", "node": "a", "advertise": "https://a:8443"}}"#,
            "column 59: cluster.advertise: requires cluster.key, which authenticates nodes",
        ),
        (
            r#"{"cluster": {"advertise": "https://a:8443/mcp"}}"#,
            "column 27: cluster.advertise: must name scheme, host and port and nothing else",
        ),
        (
            r#"{"cluster": {"index": "4/3"}}"#,
            "column 23: cluster.index: invalid value: a string, expected true, false or a shard like \"1/3\", of at most 256",
        ),
        (
            r#"{"cluster": {"key": "0123456789abcdef"}}"#,
            "column 21: cluster.key: must be 32 to 1024 bytes, is 8: 'openssl rand -hex 32' makes one",
        ),
        (
            r#"{"cluster": {"key": ["${env:NOT_THERE}"]}}"#,
            "column 22: cluster.key[0]: environment variable NOT_THERE, referenced by cluster.key[0], is not set",
        ),
        (r#"{"cluster": {"flush": "2h"}}"#, "column 23: cluster.flush: must be 100ms to 1h"),
        (
            r#"{"cluster": {"segment_bytes": 1}}"#,
            "column 31: cluster.segment_bytes: must be 65536 to 4194304, is 1",
        ),
        (
            r#"{"cluster": {"backlog_bytes": 1}}"#,
            "column 31: cluster.backlog_bytes: must be at least 16777216, is 1",
        ),
        (
            r#"{"activity": {"durability": "fleet"}}"#,
            "column 29: activity.durability: \"fleet\" requires cluster.store",
        ),
        (
            r#"{"result_limit": {"max_kept": 0}}"#,
            "column 31: result_limit.max_kept: must be 1 to 10000, is 0",
        ),
        (
            r#"{"stream_after": "1ms"}"#,
            "column 18: stream_after: '1ms' must be a duration of 100ms to 1h, like \"5s\"",
        ),
        (r#"{"tools_limit": 101}"#, "column 17: tools_limit: must be 1 to 100, is 101"),
        (
            r#"{"offered_era": "newest"}"#,
            "column 17: offered_era: unknown variant `newest`, expected one of `auto`, `modern`, `legacy`",
        ),
        (
            r#"{"activity": {"max_records": "many"}}"#,
            "column 30: activity.max_records: invalid type: a string, expected a whole number of at least 0",
        ),
        (
            r#"{"activity_max_records": "many"}"#,
            "column 26: activity_max_records: invalid type: a string, expected a whole number of at least 0",
        ),
        (
            r#"{"mcpServers": {"s": {"protocol_era": "old"}}}"#,
            "column 39: mcpServers.s.protocol_era: unknown variant `old`, expected one of `auto`, `legacy`, `modern`",
        ),
        (
            r#"{"mcpServers": {"s": {"affinity": "principal"}}}"#,
            "column 35: mcpServers.s.affinity: unknown variant `principal`, expected `none` or `session`",
        ),
        (
            r#"{"mcpServers": {"s": {"call_timeout": "soon"}}}"#,
            "column 39: mcpServers.s.call_timeout: 'soon' is not a duration: write it like \"30s\" or \"2m\"",
        ),
        (
            r#"{"mcpServers": {"s": {}, "s": {}}}"#,
            "column 26: mcpServers: duplicate server name 's'",
        ),
        (
            r#"{"allowed_hosts": ["a", "b c"]}"#,
            "column 25: allowed_hosts[1]: 'b c' is not a host name, or a host name with a port",
        ),
        (r#"{"api_key": "short"}"#, "column 13: api_key: must have at least 32 characters"),
        (
            r#"{"api_key": "0123456789 0123456789 0123456789"}"#,
            "column 13: api_key: must be printable ASCII without spaces: it is sent as a header",
        ),
    ] {
        assert_eq!(refused(text), format!("line 1 {expected}"));
    }
}

#[test]
fn all_errors_are_reported_in_file_order() {
    let text = r#"{
        "tools_limit": 0, // too few
        "listne": 1,
        "output_validation": {"mode": "loud", "max_depth": 0, "max_bytes": "all"},
        "mcpServers": {
            "a:b": {"command": "x"},
            "s": {"args": "x", "enabled": 1, "capabilities": {"t": {"approval": "never"}}},
            "s": {},
            "t": 7,
        },
        "logging": 7,
        "telemetry": {"max_series": 1000001, "max_serie": 1},
        "listen": "here"
    }"#;
    let refused = refused(text);
    let keys: Vec<_> = refused.lines().map(|line| line.split(": ").take(2).collect()).collect();
    let keys: Vec<String> = keys.into_iter().map(|parts: Vec<&str>| parts.join(" ")).collect();
    assert_eq!(
        keys,
        [
            "line 2 column 24 tools_limit",
            "line 3 column 9 unknown key 'listne' is ignored (did you mean 'listen'?)",
            "line 4 column 39 output_validation.mode",
            "line 4 column 60 output_validation.max_depth",
            "line 4 column 76 output_validation.max_bytes",
            "line 6 column 13 mcpServers.a:b",
            "line 7 column 27 mcpServers.s.args",
            "line 7 column 43 mcpServers.s.enabled",
            "line 7 column 81 mcpServers.s.capabilities.t.approval",
            "line 8 column 13 mcpServers",
            "line 9 column 18 mcpServers.t",
            "line 11 column 20 logging",
            "line 12 column 37 telemetry.max_series",
            "line 12 column 46 unknown key 'telemetry.max_serie' is ignored (did you mean 'max_series'?)",
            "line 13 column 19 listen",
        ]
    );
}

#[test]
fn number_of_reported_problems_is_bounded() {
    let many: Vec<String> = (0..5000).map(|at| format!("\"s{at}\": 1")).collect();
    let text = format!("{{\"mcpServers\": {{{}}}}}", many.join(","));
    let refused = parse(&text, &home, &Flags::default()).unwrap_err();
    assert_eq!(refused.len(), MAX_PROBLEMS);
}

#[test]
fn vs_code_servers_key_is_accepted() {
    let text = r#"{"inputs": [{"id": "k"}], "servers": {"s": {"type": "http", "url": "http://h", "env": 7}}}"#;
    let refused = refused(text);
    let messages: Vec<&str> = refused.lines().collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(
        messages[0].starts_with("line 1 column 12: inputs: input prompts are not supported"),
        "{messages:?}"
    );
    assert!(
        messages[1].starts_with("line 1 column 87: servers.s.env: invalid type"),
        "{messages:?}"
    );
    let (config, warnings) =
        parsed(r#"{"inputs": [], "servers": {"s": {"type": "stdio", "command": "c"}}}"#);
    assert_eq!((warnings, config.servers.len()), (vec![], 1));
}

#[test]
fn misspelled_mcp_servers_is_an_error() {
    for key in [
        "mcpServer",
        "mcp_servers",
        "McpServers",
        "mcpservers",
        "MCPServers",
        "mcp-servers",
        "mcpSevers",
        "server",
        "Servers",
        "context_servers",
    ] {
        let refused = refused(&format!(r#"{{"{key}": {{"s": {{"command": "c"}}}}}}"#));
        assert!(refused.starts_with(&format!("line 1 column 2: {key}: is not read")), "{refused}");
        assert!(refused.contains("'mcpServers'"), "{refused}");
    }
    let nested = refused(r#"{"mcp": {"servers": {}}}"#);
    assert!(nested.contains("'mcpServers'"), "{nested}");
    let both = refused(r#"{"mcpServers": {}, "servers": {}}"#);
    assert!(both.contains("keep one"), "{both}");
    assert_eq!(parsed(r#"{"mcp": 1}"#).1.len(), 1);
}

#[test]
fn cfg_2_misspelled_key_that_restricts_calls_is_an_error() {
    for (text, meant) in [
        (r#"{"require_mcp_aut": true}"#, "require_mcp_auth"),
        (r#"{"polcy": {"files": ["a.cedar"]}}"#, "policy"),
        (r#"{"mcpServers": {"s": {"command": "c", "capabilites": {}}}}"#, "capabilities"),
        (
            r#"{"mcpServers": {"s": {"command": "c", "capabilities": {"t": {"aproval": "required"}}}}}"#,
            "approval",
        ),
    ] {
        let refused = refused(text);
        assert!(refused.contains(&format!("did you mean '{meant}'?")), "{refused}");
        assert!(refused.contains("restricts calls"), "{refused}");
    }
    // Other misspelled keys are warnings.
    let warned = &parsed(r#"{"lissten": ":0"}"#).1;
    assert!(warned[0].to_string().contains("is ignored (did you mean 'listen'?)"), "{warned:?}");
}

#[test]
fn listening_beyond_loopback_requires_auth() {
    for (listen, open) in [
        ("127.0.0.1:1", false),
        ("localhost:1", false),
        ("[::1]:1", false),
        ("127.9.9.9:1", false),
        ("0.0.0.0:1", true),
        ("[::]:1", true),
        (":1", true),
        ("192.168.0.1:1", true),
    ] {
        let config = |auth| format!(r#"{{"listen": "{listen}", "require_mcp_auth": {auth}}}"#);
        assert!(parse(&config(true), &home, &Flags::default()).is_ok(), "{listen}");
        let without = parse(&config(false), &home, &Flags::default());
        assert_eq!(without.is_err(), open, "{listen}");
    }
    let error = refused(r#"{"listen": "0.0.0.0:80"}"#);
    assert!(error.contains("column 12: listen: 0.0.0.0:80 can be reached"), "{error}");
}

#[test]
fn environment_overrides_node_name_and_address() {
    let key = "4f1c9a7be2035d68a1f7c04e9b3d5826b7e81fa0c36d924e58017fcb2ad3e964";
    let fleet = format!(
        r#"{{"cluster": {{"store": "file:///f", "node": "of-the-file", "key": "{key}"}}}}"#
    );
    let with = |text: &str, node: &str, advertise: &str| {
        let env = |name: &str| match name {
            "MCPPROXY_NODE" => Some(node.to_owned()),
            "MCPPROXY_ADVERTISE" => Some(advertise.to_owned()),
            name => home(name),
        };
        let parsed = parse(text, &env, &Flags::default());
        let parsed = parsed.map_err(|problems| format!("{problems:?}"))?;
        let cluster = parsed.0.cluster;
        let node = cluster.node.map(|node| node.as_str().to_owned());
        Ok::<_, String>((node, cluster.advertise.map(|url| url.as_str().to_owned())))
    };
    let named = |node: &str, url: &str| Ok((Some(node.to_owned()), Some(url.to_owned())));
    assert_eq!(with(&fleet, "p-0", "http://p-0.n:8080"), named("p-0", "http://p-0.n:8080"));
    assert_eq!(with(&fleet, "", ""), Ok((Some("of-the-file".to_owned()), None)));
    assert!(with(&fleet, "A", "").unwrap_err().contains("MCPPROXY_NODE"));
    assert!(with(&fleet, "a", "p-0:8080").unwrap_err().contains("MCPPROXY_ADVERTISE"));
    assert_eq!(with("{}", "p-0", "http://p-0:8080"), Ok((None, None)), "without a fleet");
}

#[test]
fn flag_overrides_environment_overrides_file() {
    let text = r#"{"listen": "127.0.0.1:1", "data_dir": "/file",
        "api_key": "ffffffffffffffffffffffffffffffff", "logging": {"level": "warn"}}"#;
    let env = |name: &str| match name {
        "MCPPROXY_LISTEN" => Some("127.0.0.1:2".to_owned()),
        "MCPPROXY_DATA_DIR" => Some("~/env".to_owned()),
        "MCPPROXY_API_KEY" => Some("e".repeat(32)),
        name => home(name),
    };
    let shown = |env: Environment<'_>, flags: &Flags| {
        let (config, _) = parse(text, &env, flags).unwrap();
        let key = config.api_key.unwrap().expose().get(..1).unwrap().to_owned();
        (config.listen.tcp().unwrap().port(), config.data_dir, key, config.logging.level)
    };
    let none = Flags::default();
    assert_eq!(shown(&home, &none), (1, "/file".into(), "f".into(), LogLevel::Warn));
    assert_eq!(shown(&env, &none), (2, "/home/me/env".into(), "e".into(), LogLevel::Warn));
    let flags = Flags {
        listen: Some("127.0.0.1:3".into()),
        data_dir: Some("/flag".into()),
        log_level: Some("debug".into()),
        reaper: None,
    };
    assert_eq!(shown(&env, &flags), (3, "/flag".into(), "e".into(), LogLevel::Debug));
    let bad = Flags { listen: Some("x".into()), ..Flags::default() };
    let error = parse("", &home, &bad).unwrap_err()[0].to_string();
    assert!(error.starts_with("--listen: "), "{error}");
    let outside = |name: &str| (name == "MCPPROXY_LISTEN").then(|| "0.0.0.0:1".to_owned());
    assert!(parse("", &outside, &none).is_err());
}

#[test]
fn unknown_keys_suggest_the_nearest_known_one() {
    let (_, warnings) =
        parsed(r#"{"lissten": "x", "xyzzy": 1, "output_validation": {"max_byte": 1}}"#);
    assert_eq!(
        warnings,
        [
            "line 1 column 2: unknown key 'lissten' is ignored (did you mean 'listen'?)",
            "line 1 column 18: unknown key 'xyzzy' is ignored",
            "line 1 column 52: unknown key 'output_validation.max_byte' is ignored (did you \
             mean 'max_bytes'?)",
        ]
    );
}

#[test]
fn misplaced_key_is_answered_with_the_section_that_reads_it() {
    for (text, home) in [
        (
            r#"{"capabilities": {}}"#,
            "'capabilities' is ignored (a key of a server, mcpServers.NAME)",
        ),
        (
            r#"{"mcpServers": {"s": {"command": "x", "listen": "y"}}}"#,
            "'mcpServers.s.listen' is ignored (a key of the top level)",
        ),
        (r#"{"max_bytes": 1}"#, "'max_bytes' is ignored (a key of 'output_validation')"),
    ] {
        let (_, warnings) = parsed(text);
        let [warning] = &warnings[..] else { panic!("{text}: {warnings:?}") };
        assert!(warning.ends_with(home), "{warning}");
    }
}

#[test]
fn every_known_key_is_accepted() {
    // The keys are spelled out, so that this test detects a renamed key.
    let server = r#"{"command": "", "args": [], "env": {}, "cwd": "", "url": "", "headers": {},
        "enabled": true, "protocol": "auto", "init_timeout": "1s", "call_timeout": "1s", "affinity": "session",
        "protocol_era": "modern", "second_idle_timeout": "1s", "enabled_tools": [], "disabled_tools": [], "max_concurrent": 1,
        "capabilities": {"*": {"side_effect": "read", "parallel_safe": true,
            "approval": "auto", "idempotent": true, "sensitivity": "private",
            "open_world": false}},
        "limits": {"queue": 1, "rate_per_minute": 1,
            "breaker": {"failures": 5, "open": "30s"}},
        "output_validation": {"mode": "off", "max_bytes": 1, "max_depth": 1,
            "missing_structured_content": "block", "max_held_bytes": 1, "tools": {}},
        "input_validation": {"mode": "warn", "tools": {"t": {"mode": "off"}}},
        "result_limit": {"bytes": 0, "keep": "1m", "tools": {"t": {"bytes": 4096, "keep": "1s"}}},
        "tls": {"ca": "ca.pem", "cert": "c.pem", "key": "k.pem"}, "proxy": "none",
        "oauth": {"grant": "authorization_code", "client_id": "", "client_secret": "", "issuer": "",
            "client_metadata_url": "https://c.example/id", "scopes": []}}"#;
    let text = format!(
        r#"{{"listen": "127.0.0.1:1", "tls": {{"cert": "c.pem", "key": "k.pem", "client_ca": "a.pem"}}, "data_dir": "/d", "api_key": "", "require_mcp_auth": false,
            "allowed_hosts": [], "allowed_origins": [], "mcpServers": {{"s": {server}}},
            "limits": {{"concurrent": 1, "refusals_per_second": 1, "refusals_burst": 1, "held_timeout": "1s",
            "principals": {{"token:*": {{"rate_per_minute": 1}}}}, "tools": {{}}}},
            "tools_limit": 1, "stream_after": "1s", "keepalive": "1s", "offered_era": "legacy", "intent_declaration": {{"strict_server_validation": true,
            "operation_type": "required", "unannotated": "write"}}, "output_validation": {{"assert_formats": true,
            "max_held_total_bytes": 99999999999, "held_share_bytes": 1, "engine": "boon"}},
            "input_validation": {{"mode": "strict"}},
            "cluster": {{"store": "file:///f", "node": "a", "advertise": "https://a:8443", "index": "1/3",
            "key": ["000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"], "flush": "1s", "segment_bytes": 65536,
            "backlog_bytes": 99999999}},
            "result_limit": {{"bytes": 65536, "keep": "15m", "max_kept_bytes": 1, "max_kept": 1}},
            "search": {{"embeddings": {{"url": "https://m.example/v1", "model": "m", "api_key": "${{env:K}}",
            "timeout": "300ms", "min_similarity": 0.25}}}}, "activity": {{
            "retention_days": 1, "max_records": 1, "max_size_mb": 1, "min_retention": "1h", "max_payload_bytes": 1,
            "max_response_bytes": 1, "receipts": true, "durability": "grouped", "mark_reads": true, "on_failure": "refuse",
            "redact_keys": [], "queue_records": 1, "queue_bytes": 1}},
            "auth": {{"jwt": {{"issuer": "i", "audience": "a", "jwks_url": "https://i.example/jwks", "jwks_file": null,
            "algorithms": ["ES256"], "groups_claim": "groups"}}}},
            "approval": {{"timeout": "1s", "elicitation": false,
                "webhook": {{"url": "https://h.example", "secret": "0123456789abcdef"}}}},
            "policy": {{"files": ["r"], "default": "deny", "mode": "shadow", "presets": ["no-exfiltration"]}},
            "catalog": {{"on_change": {{"text": "accept", "narrowed": "accept", "widened": "warn",
            "loosened": "warn"}}, "on_new_server": "quarantine", "scan": "off"}},
            "telemetry": {{"max_series": 1, "otlp_endpoint": "http://127.0.0.1:4318",
                "otlp_headers": {{"x-token": "${{env:T}}"}}, "logs": true, "service_name": "s", "traces_ratio": 0.5}},
            "logging": {{"level": "info", "format": "text"}}}}"#
    );
    let (_, warnings) = parsed(&text);
    assert_eq!(warnings, [""; 0]);
    for key in KNOWN_KEYS.iter() {
        assert!(text.contains(&format!("\"{key}\":")), "{key}");
    }
}

#[test]
fn cluster_key_references_are_resolved_and_redacted() {
    let hex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("old");
    std::fs::write(&file, format!("{}\n", hex.replace("00", "ff"))).unwrap();
    let text = format!(
        r#"{{"cluster": {{"store": "file:///f", "node": "a", "advertise": "http://10.0.0.1:8080",
            "key": ["${{env:NEW}}", "${{file:{}}}"]}}}}"#,
        file.display()
    );
    let env = |name: &str| (name == "NEW").then(|| hex.to_owned());
    let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
    let (config, warnings) = parse(&text, &env, &flags).unwrap();
    assert!(warnings.len() == 1 && warnings[0].to_string().contains("plain http"), "{warnings:?}");
    let keys: Vec<_> = config.cluster.key.iter().flat_map(|keys| keys.texts()).collect();
    assert_eq!(keys, [hex.to_owned(), hex.replace("00", "ff")]);
    assert_eq!(config.named_files, [file]);
    assert!(config.own_variables.iter().eq(["NEW"]), "{:?}", config.own_variables);
    assert!(keys.iter().all(|key| config.secrets().any(|it| it == *key)));
    let plain = format!(r#"{{"cluster": {{"store": "file:///f", "node": "a", "key": "{hex}"}}}}"#);
    let plain = parse(&plain, &env, &flags).unwrap().0;
    let shown =
        format!("{config:?} {plain:?} {} {}", config.written.shown(), plain.written.shown());
    assert!(!shown.contains("0405060708") && shown.contains("ClusterKeys(2)"), "{shown}");
}

#[test]
fn flat_activity_keys_are_accepted() {
    let (config, warnings) = parsed(
        r#"{"activity_retention_days": 7, "activity_max_records": 8, "activity_max_size_mb": 9,
            "activity_max_response_size": 10}"#,
    );
    assert_eq!(warnings, [""; 0]);
    let a = config.activity;
    assert_eq!(
        (a.retention_days, a.max_records, a.max_size_mb, a.max_response_bytes),
        (7, 8, 9, 10)
    );
    let (config, warnings) =
        parsed(r#"{"activity_max_records": 8, "activity": {"max_records": 5}}"#);
    assert_eq!(config.activity.max_records, 5);
    let messages = "line 1 column 26: activity_max_records: activity.max_records takes precedence";
    assert_eq!(warnings, [messages]);
}

#[test]
fn catalog_has_the_enabled_servers() {
    let (config, _) = parsed(
        r#"{"mcpServers": {"a": {"command": "x", "enabled": false},
            "b": {"command": "x", "disabled_tools": ["t"]}}}"#,
    );
    let catalog = config.catalog();
    assert_eq!(catalog.servers.keys().map(|name| &**name).collect::<Vec<_>>(), ["b"]);
    assert!(!catalog.servers["b"].offers("t"));
    assert_eq!(catalog.folder.as_deref(), Some(Path::new("/home/me/.mcpproxy/catalog")));
}

#[test]
fn api_key_is_redacted_in_debug() {
    let (config, _) = parsed(r#"{"api_key": "0123456789abcdef0123456789abcdef"}"#);
    assert!(!format!("{config:?}").contains("0123456789"));
}

#[test]
fn request_settings_reflect_the_config() {
    let (config, warnings) = parsed(
        r#"{"api_key": "0123456789abcdef0123456789abcdef", "require_mcp_auth": true, "tools_limit": 7,
            "offered_era": "legacy", "intent_declaration": {"operation_type": "inferred"},
            "activity": {"max_payload_bytes": 2048, "max_response_bytes": 3072},
            "output_validation": {"max_held_bytes": 1000000, "max_held_total_bytes": 2000000},
            "cluster": {"store": "file:///f", "node": "a", "advertise": "https://a.nodes.example:8443",
                        "key": "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"},
            "allowed_hosts": ["proxy.example"]}"#,
    );
    assert_eq!(warnings, [""; 0]);
    let settings = config.settings().unwrap();
    let auth = &settings.http_auth;
    assert_eq!((&*auth.api_key, auth.require_mcp_auth), (config.key(), true));
    let host = |name: &'static str| {
        let headers = [(http::header::HOST, http::HeaderValue::from_static(name))];
        auth.host_check.check(&headers.into_iter().collect(), None).is_ok()
    };
    assert!(host("proxy.example") && !host("localhost"));
    assert!(
        host("a.nodes.example:8443")
            && !host("a.nodes.example:80")
            && !host("b.nodes.example:8443")
    );
    assert_eq!((settings.tools_limit, settings.offered_era), (7, Offered::Legacy));
    assert_eq!(settings.policy.intent.operation_type, Requirement::Inferred);
    assert_eq!((settings.max_payload_bytes, settings.max_response_bytes), (2048, 3072));
    assert_eq!((settings.held.limit(), settings.judging_budget.limit()), (2_000_000, 2_000_000));
}

#[test]
fn session_servers_are_the_enabled_ones_with_affinity() {
    let (config, warnings) = parsed(
        r#"{"mcpServers": {"a": {"command": "x", "affinity": "session"}, "b": {"command": "x", "affinity": "none"},
            "c": {"command": "x"}, "d": {"command": "x", "affinity": "session", "enabled": false}}}"#,
    );
    assert_eq!(warnings, [""; 0]);
    let names: Vec<String> =
        config.settings().unwrap().session_servers.iter().map(|name| name.to_string()).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn results_are_stored_if_an_enabled_server_has_a_limit() {
    let server = |more: &str| format!(r#""mcpServers": {{"s": {{"command": "x"{more}}}}}"#);
    let limited = server(r#", "result_limit": {"tools": {"t": {"bytes": 5000}}}"#);
    for (text, keeps) in [
        ("{}".to_owned(), false),
        (r#"{"result_limit": {"bytes": 5000}}"#.to_owned(), false),
        (format!("{{{}}}", server("")), false),
        (format!(r#"{{"result_limit": {{"bytes": 5000}}, {}}}"#, server("")), true),
        (format!("{{{limited}}}"), true),
        (format!("{{{}}}", limited.replace(r#""x""#, r#""x", "enabled": false"#)), false),
    ] {
        let (config, warnings) = parsed(&text);
        assert_eq!(warnings, [""; 0]);
        assert_eq!(config.settings().unwrap().kept_results.is_some(), keeps, "{text}");
    }
}

#[test]
fn rule_files_are_relative_to_the_config() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, r#"{"policy": {"files": ["a.cedar", "/b.cedar"], "mode": "shadow"}}"#)
        .unwrap();
    let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
    let loaded = Config::load(Some(&path), &|_| None, &flags).unwrap();
    let files = &loaded.config.rules.files;
    assert_eq!(files, &[folder.path().join("a.cedar"), "/b.cedar".into()]);
    let text = r#"{"policy": {"files": [""], "default": "maybe", "presets": ["no-fun"]}}"#;
    let problems = parse(text, &|_| None, &flags).unwrap_err();
    let messages: Vec<_> = problems.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(messages, ["policy.files[0]", "policy.default", "policy.presets[0]"]);
}

#[test]
fn listen_accepts_sockets_and_warns_without_tls() {
    let (config, warnings) = parsed(r#"{"listen": "unix:~/a.sock"}"#);
    assert_eq!((config.listen.to_string(), warnings.len()), ("unix:/home/me/a.sock".into(), 0));
    let wide = r#""listen": "0.0.0.0:1", "require_mcp_auth": true"#;
    let (_, warnings) = parsed(&format!("{{{wide}}}"));
    assert!(
        warnings[0].contains("listen: 0.0.0.0:1 can be reached from other machines"),
        "{warnings:?}"
    );
    let tls = r#""tls": {"cert": "~/c.pem", "key": "k.pem", "client_ca": "ca.pem"}"#;
    let (config, warnings) = parsed(&format!("{{{wide}, {tls}}}"));
    assert_eq!(warnings, [""; 0]);
    let tls_files = config.tls.unwrap();
    assert_eq!(tls_files.cert, Path::new("/home/me/c.pem"));
    assert_eq!(tls_files.client_ca.as_deref(), Some(Path::new("ca.pem")));
    for (text, expected) in [
        (r#"{"listen": "unix:a.sock"}"#, "listen: the socket path must be absolute"),
        (r#"{"tls": {}}"#, "tls.cert: is not a file path"),
        (r#"{"tls": {"cert": "c", "key": ""}}"#, "tls.key: is not a file path"),
        (r#"{"tls": {"cert": "c", "key": "k", "client_ca": 1}}"#, "tls.client_ca: invalid type"),
        (
            r#"{"listen": "unix:/a", "tls": {"cert": "c", "key": "k"}}"#,
            "tls: a Unix socket has no TLS",
        ),
    ] {
        let messages = refused(text);
        assert!(messages.contains(expected), "{text}: {messages}");
    }
    let long = format!(r#"{{"listen": "unix:/{}"}}"#, "a".repeat(200));
    assert!(refused(&long).contains("longer than 103 bytes"));
}

#[test]
fn servers_receive_neither_our_credentials_nor_those_of_the_store() {
    let hex = "00010203".repeat(8);
    let env = |name: &str| (name == "OURS").then(|| hex.clone());
    let withheld = |text: &str| {
        let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
        parse(text, &env, &flags).unwrap().0.withheld_variables()
    };
    let laptop = withheld(
        r#"{"api_key": "x${env:OURS}", "approval": {"webhook": {"url": "https://h/${env:OURS}", "secret": "0123456789abcdef"}}}"#,
    );
    assert!(laptop.names.iter().eq(["OURS"]) && laptop.prefixes.is_empty(), "{laptop:?}");
    let others = withheld(
        r#"{"approval": {"webhook": {"url": "https://h/${env:OURS}", "secret": "0123456789abcdef${env:OURS}"}},
            "telemetry": {"otlp_endpoint": "https://c.example", "otlp_headers": {"x-a": "${env:OTLP}"}},
            "search": {"embeddings": {"url": "https://m.example", "model": "m", "api_key": "${env:EMBEDDINGS}"}},
            "mcpServers": {"a": {"command": "x", "env": {"T": "${env:A}-${env:A2}"}},
                "b": {"url": "https://h/?k=${env:B}", "headers": {"X": "${env:B2}"}, "oauth": {"client_id": "i", "client_secret": "${env:B3}"}}}}"#,
    );
    assert!(
        others.named.iter().eq(["A", "A2", "B", "B2", "B3", "EMBEDDINGS", "OTLP", "OURS"]),
        "{others:?}"
    );
    for (store, first) in
        [("s3://b", Some("AWS_")), ("file:///f", None), ("az://c/f", Some("AZURE_STORAGE_"))]
    {
        let of = |more: &str| withheld(&format!(r#"{{"cluster": {{"store": "{store}"{more}}}}}"#));
        assert_eq!(of(r#", "node": "a""#).prefixes.first().copied(), first, "{store}");
    }
}
