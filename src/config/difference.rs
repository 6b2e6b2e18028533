//! Effects of applying a new config: servers that are added, removed, replaced or retuned, other keys that apply
//! immediately, and keys that need a restart. Pure.
//!
//! The effective configs are compared, including environment and flags. Every field of [`Config`] is destructured
//! here, so that a new field cannot be forgotten.

use crate::servers;
use crate::servers::ServerEntry;
use crate::values::Config;
use mcpproxy_activity as activity;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Difference between the config in force and a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigDifference {
    /// Keys that apply immediately.
    pub applied: Vec<String>,
    /// Keys that apply after a restart.
    pub needs_restart: Vec<String>,
    /// Effect on each server of the new config, in the order of that config.
    pub servers: Vec<(Arc<str>, ServerEffect)>,
    /// Servers that are not in the new config.
    pub removed: Vec<Arc<str>>,
}

/// Effect of a new config on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEffect {
    /// The server does not change.
    Unchanged,
    /// The settings changed; the connection is kept.
    Retuned,
    /// The server is restarted with the new settings.
    Replaced,
    Added,
}

impl ConfigDifference {
    /// Compares two configs.
    pub fn between(now: &Config, next: &Config) -> Self {
        let mut difference = Self::default();
        difference.compare_servers(&now.servers, &next.servers);
        difference.compare_keys(now, next);
        difference
    }

    /// Marks servers that reconnected because their TLS files changed.
    pub fn reconnected(&mut self, renewed: &[Arc<str>]) {
        for name in renewed {
            let server = format!("{}.{name}", servers::KEY);
            if !self.applied.contains(&server) {
                self.applied.push(format!("{server}.tls"));
            }
        }
    }

    /// Whether nothing changes, now or after a restart.
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.needs_restart.is_empty()
    }

    fn compare_servers(&mut self, now: &[ServerEntry], next: &[ServerEntry]) {
        let known: BTreeMap<&str, &ServerEntry> =
            now.iter().map(|server| (&*server.name, server)).collect();
        for server in next {
            let effect = match known.get(&*server.name) {
                None => ServerEffect::Added,
                Some(known) if !known.upstream.runs_as(&server.upstream) => ServerEffect::Replaced,
                Some(known) if known.has_same_settings(server) => ServerEffect::Unchanged,
                Some(_) => ServerEffect::Retuned,
            };
            if effect != ServerEffect::Unchanged {
                self.applied.push(format!("{}.{}", servers::KEY, server.name));
            }
            self.servers.push((Arc::clone(&server.name), effect));
        }
        let stays = |name: &str| next.iter().any(|server| *server.name == *name);
        let removed = now.iter().filter(|server| !stays(&server.name));
        self.removed = removed.map(|server| Arc::clone(&server.name)).collect();
        self.applied.extend(self.removed.iter().map(|name| format!("{}.{name}", servers::KEY)));
    }

    fn compare_keys(&mut self, now: &Config, next: &Config) {
        let Config {
            listen,
            tls,
            data_dir,
            api_key,
            require_mcp_auth,
            allowed_hosts,
            allowed_origins,
            servers: _,
            tools_limit,
            streams,
            offered_era,
            intent,
            limits,
            output,
            input,
            result_limit,
            search,
            approval,
            catalog_review,
            activity,
            cluster,
            jwt,
            rules,
            logging,
            telemetry,
            // Set by the program itself.
            reaper: _,
            // The contents of these files are compared where they are used.
            named_files: _,
            own_variables: _,
            named_variables: _,
            // This is only the origin of the other values.
            fleet_config: _,
            // This is only the text form of the other values.
            written: _,
        } = next;
        for (key, differs) in [
            ("api_key", *api_key != now.api_key),
            ("require_mcp_auth", *require_mcp_auth != now.require_mcp_auth),
            ("allowed_hosts", *allowed_hosts != now.allowed_hosts),
            ("allowed_origins", *allowed_origins != now.allowed_origins),
            ("tools_limit", *tools_limit != now.tools_limit),
            ("stream_after", streams.stream_after != now.streams.stream_after),
            ("keepalive", streams.keepalive != now.streams.keepalive),
            ("offered_era", *offered_era != now.offered_era),
            ("intent_declaration", *intent != now.intent),
            ("limits", *limits != now.limits),
            ("output_validation", *output != now.output),
            ("input_validation", *input != now.input),
            ("result_limit", *result_limit != now.result_limit),
            ("search", *search != now.search),
            ("approval", *approval != now.approval),
            ("catalog", *catalog_review != now.catalog_review),
            ("auth.jwt", *jwt != now.jwt),
            ("policy", *rules != now.rules),
            ("telemetry", *telemetry != now.telemetry),
            ("logging.level", logging.level != now.logging.level),
        ] {
            if differs {
                self.applied.push(key.to_owned());
            }
        }
        for (key, differs) in [
            ("listen", *listen != now.listen),
            ("tls", *tls != now.tls),
            ("data_dir", *data_dir != now.data_dir),
            ("cluster", *cluster != now.cluster),
            ("logging.format", logging.format != now.logging.format),
        ] {
            if differs {
                self.needs_restart.push(key.to_owned());
            }
        }
        self.compare_activity(&now.activity, activity);
    }

    fn compare_activity(&mut self, now: &activity::Config, next: &activity::Config) {
        let activity::Config {
            retention_days,
            max_records,
            max_size_mb,
            min_retention,
            max_payload_bytes,
            max_response_bytes,
            receipts,
            durability,
            mark_reads,
            on_failure,
            redact_keys,
            queue_records,
            queue_bytes,
            scrubs: _,
        } = next;
        let payloads = if fits(now, next) { &mut self.applied } else { &mut self.needs_restart };
        for (key, differs) in [
            ("activity.max_payload_bytes", *max_payload_bytes != now.max_payload_bytes),
            ("activity.max_response_bytes", *max_response_bytes != now.max_response_bytes),
        ] {
            payloads.extend(differs.then(|| key.to_owned()));
        }
        for (key, differs) in [
            ("activity.retention_days", *retention_days != now.retention_days),
            ("activity.max_records", *max_records != now.max_records),
            ("activity.max_size_mb", *max_size_mb != now.max_size_mb),
            ("activity.min_retention", *min_retention != now.min_retention),
            ("activity.receipts", *receipts != now.receipts),
        ] {
            self.applied.extend(differs.then(|| key.to_owned()));
        }
        for (key, differs) in [
            ("activity.durability", *durability != now.durability),
            ("activity.mark_reads", *mark_reads != now.mark_reads),
            ("activity.on_failure", *on_failure != now.on_failure),
            ("activity.redact_keys", *redact_keys != now.redact_keys),
            ("activity.queue_records", *queue_records != now.queue_records),
            ("activity.queue_bytes", *queue_bytes != now.queue_bytes),
        ] {
            self.needs_restart.extend(differs.then(|| key.to_owned()));
        }
    }
}

/// Whether entries of `next` fit the buffers allocated for `now`.
fn fits(now: &activity::Config, next: &activity::Config) -> bool {
    let entries = now.queue_records.min(now.queue_bytes / now.entry_bytes().max(1)).max(1);
    next.entry_bytes() <= now.entry_bytes()
        || entries.saturating_mul(next.entry_bytes()) <= now.queue_bytes
}

impl Config {
    /// Returns the config in force after `before`: this config, except that keys that need a restart keep their
    /// values from `before`.
    pub fn in_force_after(self, before: &Self) -> Self {
        let mut activity = activity::Config {
            retention_days: self.activity.retention_days,
            max_records: self.activity.max_records,
            max_size_mb: self.activity.max_size_mb,
            min_retention: self.activity.min_retention,
            receipts: self.activity.receipts,
            ..before.activity.clone()
        };
        if fits(&before.activity, &self.activity) {
            activity.max_payload_bytes = self.activity.max_payload_bytes;
            activity.max_response_bytes = self.activity.max_response_bytes;
        }
        let mut logging = self.logging;
        logging.format = before.logging.format;
        let (listen, tls) = (before.listen.clone(), before.tls.clone());
        let (data_dir, cluster) = (before.data_dir.clone(), before.cluster.clone());
        Self { listen, tls, data_dir, activity, cluster, logging, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flags, parse};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn config(text: &str) -> Config {
        let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
        parse(text, &|_| None, &flags).unwrap().0
    }

    fn between(a: &str, b: &str) -> ConfigDifference {
        ConfigDifference::between(&config(a), &config(b))
    }

    #[test]
    fn each_key_applies_at_once_or_needs_a_restart() {
        let key = "0123456789abcdef0123456789abcdef";
        for (text, applied, restart) in [
            (r#"{"tools_limit": 7}"#, "tools_limit", ""),
            (r#"{"stream_after": "7s"}"#, "stream_after", ""),
            (r#"{"keepalive": "7s"}"#, "keepalive", ""),
            (&*format!(r#"{{"api_key": "{key}"}}"#), "api_key", ""),
            (r#"{"require_mcp_auth": true}"#, "require_mcp_auth", ""),
            (r#"{"allowed_hosts": ["a"]}"#, "allowed_hosts", ""),
            (r#"{"allowed_origins": ["http://a"]}"#, "allowed_origins", ""),
            (r#"{"offered_era": "legacy"}"#, "offered_era", ""),
            (r#"{"intent_declaration": {"operation_type": "inferred"}}"#, "intent_declaration", ""),
            (r#"{"limits": {"concurrent": 3}}"#, "limits", ""),
            (r#"{"output_validation": {"mode": "strict"}}"#, "output_validation", ""),
            (r#"{"input_validation": {"mode": "warn"}}"#, "input_validation", ""),
            (r#"{"result_limit": {"bytes": 5000}}"#, "result_limit", ""),
            (r#"{"result_limit": {"max_kept": 7}}"#, "result_limit", ""),
            (r#"{"approval": {"timeout": "1m"}}"#, "approval", ""),
            (r#"{"catalog": {"scan": "off"}}"#, "catalog", ""),
            (r#"{"policy": {"mode": "shadow"}}"#, "policy", ""),
            (
                r#"{"auth": {"jwt": {"issuer": "i", "audience": "a", "jwks_file": "f"}}}"#,
                "auth.jwt",
                "",
            ),
            (r#"{"logging": {"level": "debug"}}"#, "logging.level", ""),
            (r#"{"logging": {"format": "json"}}"#, "", "logging.format"),
            (r#"{"listen": "127.0.0.1:9"}"#, "", "listen"),
            (r#"{"tls": {"cert": "c", "key": "k"}}"#, "", "tls"),
            (r#"{"activity": {"retention_days": 1}}"#, "activity.retention_days", ""),
            (r#"{"activity": {"max_records": 1}}"#, "activity.max_records", ""),
            (r#"{"activity": {"max_size_mb": 1}}"#, "activity.max_size_mb", ""),
            (r#"{"activity": {"min_retention": "1h"}}"#, "activity.min_retention", ""),
            (r#"{"activity": {"max_payload_bytes": 1}}"#, "activity.max_payload_bytes", ""),
            (r#"{"activity": {"max_payload_bytes": 1000000}}"#, "", "activity.max_payload_bytes"),
            (r#"{"activity": {"durability": "before_reply"}}"#, "", "activity.durability"),
            (r#"{"cluster": {"store": "file:///a", "node": "a"}}"#, "", "cluster"),
            (
                r#"{"cluster": {"store": "file:///a", "node": "a", "key": "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"}}"#,
                "",
                "cluster",
            ),
            (r#"{"activity": {"on_failure": "continue"}}"#, "", "activity.on_failure"),
            (r#"{"mcpServers": {"s": {"command": "x"}}}"#, "mcpServers.s", ""),
        ] {
            for (a, b) in [("{}", text), (text, "{}")] {
                let difference = between(a, b);
                if a == "{}" || restart.is_empty() {
                    assert_eq!(difference.applied.join(","), applied, "{a} {b}");
                    assert_eq!(difference.needs_restart.join(","), restart, "{a} {b}");
                }
                let (before, after) = (config(a), config(b));
                let needs = difference.needs_restart.clone();
                let in_force = after.clone().in_force_after(&before);
                let rest = ConfigDifference::between(&in_force, &after);
                assert_eq!((rest.applied, rest.needs_restart), (Vec::new(), needs), "{a} {b}");
            }
            assert!(between(text, text).is_empty(), "{text}");
        }
    }

    #[test]
    fn server_is_replaced_only_for_process_settings() {
        let server = |more: &str| {
            format!(
                r#"{{"mcpServers": {{"s": {{"command": "x"{more}}}, "t": {{"command": "y"}}}}}}"#
            )
        };
        for (more, effect) in [
            ("", ServerEffect::Unchanged),
            (r#", "description": "words""#, ServerEffect::Unchanged),
            (r#", "args": ["a"]"#, ServerEffect::Replaced),
            (r#", "env": {"A": "b"}"#, ServerEffect::Replaced),
            (r#", "cwd": "/""#, ServerEffect::Replaced),
            (r#", "enabled": false"#, ServerEffect::Replaced),
            (r#", "init_timeout": "7s""#, ServerEffect::Replaced),
            (r#", "protocol_era": "legacy""#, ServerEffect::Replaced),
            (r#", "second_idle_timeout": "7s""#, ServerEffect::Replaced),
            (r#", "call_timeout": "7s""#, ServerEffect::Retuned),
            (r#", "affinity": "session""#, ServerEffect::Retuned),
            (r#", "max_concurrent": 7"#, ServerEffect::Retuned),
            (r#", "limits": {"concurrent": 7}"#, ServerEffect::Retuned),
            (r#", "disabled_tools": ["a"]"#, ServerEffect::Retuned),
            (r#", "result_limit": {"bytes": 5000}"#, ServerEffect::Retuned),
            (r#", "capabilities": {"a": {"idempotent": true}}"#, ServerEffect::Retuned),
        ] {
            let difference = between(&server(""), &server(more));
            let expected = [("s".into(), effect), ("t".into(), ServerEffect::Unchanged)];
            assert_eq!(difference.servers, expected, "{more}");
            let applied = if effect == ServerEffect::Unchanged { "" } else { "mcpServers.s" };
            assert_eq!(difference.applied.join(","), applied, "{more}");
            assert!(difference.removed.is_empty());
        }
        let difference = between(&server(""), r#"{"mcpServers": {"t": {"command": "y"}}}"#);
        assert_eq!(difference.removed, ["s".into()]);
        assert_eq!(difference.applied, ["mcpServers.s"]);
    }

    /// Servers by name with their commands.
    fn servers() -> impl Strategy<Value = BTreeMap<String, String>> {
        prop::collection::btree_map("[a-e]", "[xyz]", 0..5)
    }

    fn with(servers: &BTreeMap<String, String>) -> Config {
        let blocks =
            servers.iter().map(|(name, command)| (name.clone(), json!({"command": command})));
        let blocks: Value = Value::Object(blocks.collect());
        config(&json!({"mcpServers": blocks}).to_string())
    }

    proptest! {
        #[test]
        fn server_changes_transform_one_list_into_the_other(a in servers(), b in servers()) {
            let (now, next) = (with(&a), with(&b));
            let difference = ConfigDifference::between(&now, &next);
            let mut made = a.clone();
            made.retain(|name, _| !difference.removed.iter().any(|gone| **gone == **name));
            for (name, effect) in &difference.servers {
                match effect {
                    ServerEffect::Unchanged | ServerEffect::Retuned => {}
                    ServerEffect::Replaced | ServerEffect::Added => {
                        made.insert(name.to_string(), b[&**name].clone());
                    }
                }
            }
            prop_assert_eq!(&made, &b);
            prop_assert_eq!(difference.is_empty(), a == b);
        }
    }
}
