//! Secret values of a server's entry.
//!
//! The following are always secret: headers, the user and query of the URL, the credentials of the proxy, and the
//! client secret. In environment and arguments, values are secret if their name or shape suggests it.
//! [`mcpproxy_runtime::secrets`] redacts them.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use url::Url;

use crate::config::{Config, Target, fill_without_keyring};
use crate::oauth::basic;
use mcpproxy_runtime::io::egress_proxy::{Egress, EgressProxy};
use mcpproxy_runtime::secrets::MIN_BYTES;

/// Common headers without secrets.
const PLAIN_HEADERS: &[&str] = &[
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "content-type",
    "host",
    "origin",
    "user-agent",
];
/// Case-insensitive substrings of names that denote a secret.
const NAMES: &[&str] = &[
    "auth",
    "cookie",
    "credential",
    "dsn",
    "key",
    "pass",
    "pat",
    "pin",
    "private",
    "pwd",
    "secret",
    "session",
    "sig",
    "token",
    "webhook",
];
/// Minimum length of a mixed word of letters and digits that counts as a secret.
const WORD_BYTES: usize = 8;
/// Minimum length of a path segment of this kind.
const PART_BYTES: usize = 16;
/// Minimum length of a word that consists only of letters.
const LETTERS_BYTES: usize = 20;

impl Config {
    /// Values to redact from a server's output, as far as they are known without a keyring; keyring values are added
    /// when the server is connected (`secrets_of`). References of a disabled server are not resolved. Reads files.
    pub fn secrets(&self) -> Vec<String> {
        let lookup = |name: &str| std::env::var(name).ok();
        let read =
            |value: &str| self.enabled.then(|| fill_without_keyring(value, &lookup)).flatten();
        let read_all = |values: &BTreeMap<String, String>| -> Vec<(String, String)> {
            let read = |(name, value): (&String, &String)| Some((name.clone(), read(value)?));
            values.iter().filter_map(read).collect()
        };
        let url = self.url.as_deref().map(|url| read(url).unwrap_or_else(|| url.to_owned()));
        let mut found = self.found(&read_all(&self.env), &read_all(&self.headers), url);
        let secret = self.oauth.as_ref().and_then(|oauth| oauth.client_secret.as_deref());
        secret.and_then(read).iter().for_each(|secret: &String| found.keep(secret));
        let proxy = self.proxy.as_deref().map(|it| read(it).unwrap_or_else(|| it.to_owned()));
        proxy.iter().for_each(|proxy| found.proxy(proxy));
        found.0
    }

    /// Secret values of a resolved entry.
    pub(crate) fn secrets_of(&self, target: &Target) -> Vec<String> {
        let found = match target {
            Target::Stdio(child) => self.found(&child.env, &[], None),
            Target::Http { url, headers, egress, client } => {
                let mut found = self.found(&[], headers, Some(url.clone()));
                if let Egress::Proxy(proxy) = egress {
                    proxy.secrets().iter().for_each(|secret| found.keep(secret));
                }
                if let Some(client) = client {
                    found.keep(&client.secret);
                    found.keep(&basic(&client.settings.id, &client.secret));
                }
                found
            }
        };
        found.0
    }

    /// Secret values of the entry, both as written and as resolved.
    fn found(
        &self,
        env: &[(String, String)],
        headers: &[(String, String)],
        url: Option<String>,
    ) -> Found {
        let mut found = Found::default();
        // File-backed values are secret regardless of their name.
        let is_file_backed = |value: &String| {
            ["${file:", "${credential:", "${keyring:"].iter().any(|it| value.contains(it))
        };
        for (name, filled) in env {
            if self.env.get(name).is_some_and(is_file_backed) {
                found.keep(filled);
            }
        }
        let of_env = env.iter().map(|(name, value)| (name, value)).chain(&self.env);
        of_env.for_each(|(name, value)| found.named(name, value));
        let of_headers = headers.iter().map(|(name, value)| (name, value)).chain(&self.headers);
        of_headers.for_each(|(name, value)| found.header(name, value));
        let package = if self.runs_package() { package(&self.args) } else { None };
        found.arguments(&self.args, package);
        url.iter().for_each(|url| found.url(url));
        found
    }
}

#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn keep(&mut self, value: &str) {
        let value = value.trim();
        if value.len() >= MIN_BYTES {
            self.0.push(value.to_owned());
        }
        // A multi-line key may be echoed line by line.
        let mut lines = value.lines().map(str::trim);
        if lines.clone().count() > 1 {
            let secret_lines = lines.by_ref().filter(|line| !line.starts_with("-----"));
            self.0.extend(secret_lines.filter(|line| line.len() >= WORD_BYTES).map(str::to_owned));
        }
    }

    fn header(&mut self, name: &str, value: &str) {
        if is_plain_header(name) {
            return;
        }
        self.keep(value);
        if let Some((scheme, rest)) = value.trim().split_once(char::is_whitespace) {
            let token = rest.trim();
            self.keep(token);
            if scheme.eq_ignore_ascii_case("basic") {
                self.basic(token);
            }
        }
        // Splits `name=value` in cookies and in schemes with parameters.
        for part in value.split([';', ',', ' ']) {
            if let Some((_, part)) = part.split_once('=') {
                self.keep(part.trim().trim_matches('"'));
            }
        }
    }

    /// User and password of `Basic` credentials.
    fn basic(&mut self, token: &str) {
        let decoded = STANDARD.decode(token).or_else(|_| STANDARD_NO_PAD.decode(token));
        let Some(decoded) = decoded.ok().and_then(|it| String::from_utf8(it).ok()) else { return };
        self.keep(&decoded);
        decoded.split_once(':').iter().for_each(|(_, password)| self.keep(password));
    }

    fn url(&mut self, text: &str) {
        let Ok(url) = Url::parse(text) else { return };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        for part in [Some(url.username()), url.password()].into_iter().flatten() {
            self.keep(part);
            self.keep(&decoded(part));
        }
        for pair in url.query().unwrap_or_default().split('&') {
            let value = pair.split_once('=').map_or(pair, |(_, value)| value);
            self.keep(value);
            self.keep(&decoded(value));
        }
        url.query_pairs().for_each(|(_, value)| self.keep(&value));
        for part in url.path().split('/').filter(|part| looks_secret(part, PART_BYTES)) {
            self.keep(part);
            self.keep(&decoded(part));
        }
    }

    fn proxy(&mut self, text: &str) {
        let proxy = EgressProxy::parse(text, "");
        proxy.iter().flat_map(EgressProxy::secrets).for_each(|secret| self.keep(secret));
    }

    /// Adds a named value, or the secrets within it.
    fn named(&mut self, name: &str, value: &str) {
        let value = value.trim();
        if let Ok(json @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(value) {
            self.json(name, &json);
        }
        if is_secret_name(name) && !is_ordinary(value) {
            self.keep(value);
        }
        if value.contains("://") {
            value.split([' ', ',']).for_each(|url| self.url(url));
            return;
        }
        for word in value.split_whitespace() {
            match word.split_once('=') {
                Some((name, value)) if !value.is_empty() => self.word(name, value),
                Some(_) | None => self.word("", word),
            }
        }
    }

    fn word(&mut self, name: &str, word: &str) {
        if word.contains('/') {
            let parts = word.split('/').filter(|part| looks_secret(part, PART_BYTES));
            parts.for_each(|part| self.keep(part));
        } else if is_secret_name(name) || looks_secret(word, WORD_BYTES) {
            self.keep(word);
        }
    }

    fn json(&mut self, name: &str, value: &Value) {
        match value {
            Value::String(text) => self.named(name, text),
            Value::Array(all) => all.iter().for_each(|value| self.json(name, value)),
            Value::Object(all) => all.iter().for_each(|(name, value)| self.json(name, value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Adds the secrets in `--token X`, `--token=X`, and values that look secret, except the argument at index `package`.
    fn arguments(&mut self, arguments: &[String], package: Option<usize>) {
        let mut option = "";
        for (at, argument) in arguments.iter().enumerate() {
            if package == Some(at) {
                continue;
            }
            let is_option = argument.starts_with('-');
            self.named(if is_option { "" } else { option }, argument);
            option = if is_option && !argument.contains('=') { argument } else { "" };
        }
    }
}

/// Options of package runners that have no value and may precede the package.
const RUNNER_SWITCHES: &[&str] = &["-y", "--yes", "-q", "--quiet"];

/// Index of the argument that names the package to run. A word after any other option may be the option's value.
fn package(arguments: &[String]) -> Option<usize> {
    let at = arguments.iter().position(|it| !RUNNER_SWITCHES.contains(&it.as_str()))?;
    let is_of_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.@/".contains(&byte);
    let name = arguments.get(at)?;
    (!name.starts_with('-') && name.bytes().all(is_of_name)).then_some(at)
}

/// Whether a header with this name contains no secret.
pub fn is_plain_header(name: &str) -> bool {
    PLAIN_HEADERS.iter().any(|plain| name.eq_ignore_ascii_case(plain))
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|word| name.contains(word))
}

/// Whether a value is harmless regardless of its name: a number, a switch or a path.
fn is_ordinary(value: &str) -> bool {
    let is_path = value.starts_with(['/', '.', '~']) && !value.contains(char::is_whitespace);
    is_path && !value.split('/').any(|part| looks_secret(part, PART_BYTES))
        || matches!(value.to_ascii_lowercase().as_str(), "true" | "false" | "default")
}

/// Whether a word looks generated or like a password: letters and digits of a minimum length, or a long run of letters.
fn looks_secret(word: &str, min: usize) -> bool {
    let has = |kind: fn(&char) -> bool| word.chars().any(|char| kind(&char));
    let mixed = has(char::is_ascii_digit) && has(char::is_ascii_alphabetic);
    let letters = word.chars().all(|char| char.is_ascii_alphabetic());
    (mixed && word.len() >= min) || (letters && word.len() >= LETTERS_BYTES)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(entry: Value) -> Vec<String> {
        serde_json::from_value::<Config>(entry).unwrap().secrets()
    }

    #[track_caller]
    fn check(entry: Value, secret: &[&str], plain: &[&str]) {
        let found = found(entry);
        for secret in secret {
            assert!(found.iter().any(|it| it == secret), "{secret} is not in {found:?}");
        }
        for plain in plain {
            assert!(!found.iter().any(|it| it == plain), "{plain} is in {found:?}");
        }
    }

    #[test]
    fn headers_and_their_parts_are_secret() {
        check(
            json!({"url": "http://h/", "headers": {
                "Authorization": "Bearer tok-en-1", "Proxy-Authorization": "Basic dXNlcjpzM2NyM3Q=",
                "X-Org": "acme corp", "Cookie": "a=b; sid=\"sess-ion\"",
                "User-Agent": "agent/1.0", "accept": "application/json",
            }}),
            &["Bearer tok-en-1", "tok-en-1", "dXNlcjpzM2NyM3Q=", "user:s3cr3t", "s3cr3t"],
            &["agent/1.0", "application/json"],
        );
        check(
            json!({"url": "http://h/", "headers": {"X-Org": "acme corp", "Cookie": "sid=\"sess-ion\""}}),
            &["acme corp", "sess-ion"],
            &[],
        );
    }

    #[test]
    fn url_user_and_query_are_secret_encoded_and_decoded() {
        check(
            json!({"url": "https://us%20er1:pa%2Fss99@h.example/api/v1/s/0123456789abcdef/mcp?key=a%20b%20c%20d&plain+word"}),
            &[
                "us%20er1",
                "us er1",
                "pa%2Fss99",
                "pa/ss99",
                "a%20b%20c%20d",
                "a b c d",
                "0123456789abcdef",
                "plain+word",
            ],
            &["h.example", "mcp", "https"],
        );
    }

    #[test]
    fn net_9_proxy_credentials_are_secret() {
        for proxy in ["http://user1:pass%20w0rd@p.example:3128", "user1:pass%20w0rd@p.example:3128"]
        {
            check(
                json!({"url": "https://h/", "proxy": proxy}),
                &["pass w0rd", "pass%20w0rd", "dXNlcjE6cGFzcyB3MHJk"],
                &["p.example", "3128"],
            );
        }
    }

    #[test]
    fn environment_values_are_secret_by_name_or_shape() {
        check(
            json!({"command": "x", "env": {
                "API_TOKEN": "only letters", "DB": "postgres://u:hunter2@db/x?sslpassword=whatever",
                "OPTS": "--max-size=4096 -Dpassword=letmein", "X": "a1b2c3d4",
                "GOOGLE": r#"{"type":"service_account","private_key":"-----BEGIN X-----\nMIIEvQIBAD\n-----END X-----"}"#,
                "HOOK": "https://hooks.example/services/T0123456789ABCDEF",
                "PATH": "/usr/bin:/bin", "HOME": "/home/me", "NODE_ENV": "production",
                "KEY_FILE": "/home/me/key.pem", "LEVEL": "debug", "BASE": "https://api.example/v1",
            }}),
            &[
                "only letters",
                "hunter2",
                "whatever",
                "letmein",
                "a1b2c3d4",
                "MIIEvQIBAD",
                "T0123456789ABCDEF",
            ],
            &[
                "/usr/bin:/bin",
                "/home/me",
                "production",
                "/home/me/key.pem",
                "debug",
                "https://api.example/v1",
                "postgres",
                "service_account",
                "4096",
            ],
        );
    }

    #[test]
    fn file_backed_values_are_always_secret() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "only letters\n").unwrap();
        let named = format!("${{file:{}}}", file.path().display());
        check(
            json!({"command": "x", "env": {"A": named, "B": "plain words"}}),
            &["only letters"],
            &["plain words"],
        );
        // An unreadable reference does not affect the others.
        check(
            json!({"command": "x", "env": {"A": named, "B": "${file:/nowhere/at/all}"}}),
            &["only letters"],
            &[],
        );
        check(
            json!({"command": "x", "enabled": false, "env": {"A": named, "API_KEY": "written"}}),
            &["written"],
            &["only letters"],
        );
    }

    #[test]
    fn arguments_after_a_secret_option_are_secret() {
        check(
            json!({"command": "npx", "args": ["-y", "@scope/server-files", "--token", "letmein",
                "--api-key=swordfish", "/home/me/data", "--mode", "readonly"],
                "oauth": {"client_secret": "hush-hush"}}),
            &["letmein", "swordfish", "hush-hush"],
            &["@scope/server-files", "/home/me/data", "readonly"],
        );
    }

    #[test]
    fn name_of_the_package_to_run_is_not_secret() {
        let name = "mcp-server-s3";
        for (command, arguments) in [
            ("npx", json!(["-y", name, "a1b2c3d4e5"])),
            ("/usr/bin/uvx", json!([name, "a1b2c3d4e5"])),
            ("npx.cmd", json!(["--yes", name, "a1b2c3d4e5"])),
        ] {
            check(json!({"command": command, "args": arguments}), &["a1b2c3d4e5"], &[name]);
        }
        // Not a package, or possibly the value of an option.
        for (command, arguments) in [
            ("server", json!([name])),
            ("npx", json!(["--token", name])),
            ("uvx", json!(["A1b2-c3d4e5"])),
        ] {
            let word = arguments[arguments.as_array().unwrap().len() - 1].clone();
            check(json!({"command": command, "args": arguments}), &[word.as_str().unwrap()], &[]);
        }
    }
}
