//! Validation of a server's entry without starting the server.
//!
//! Reads the file system and the given variables. Does not start processes or contact servers.

use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::config::reference::{Invalid, KINDS, Lookup, fill};
use crate::config::{Config, Kind, OauthSettings, PROXY_SETTING};
use crate::endpoint::{UrlForm, parse_url};
use mcpproxy_runtime::io::address::UNIX;
use mcpproxy_runtime::io::egress_proxy::Egress;

/// A problem with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Path of keys from the entry to the value; empty for the entry as a whole.
    pub keys: Vec<String>,
    /// The problem and the accepted form.
    pub problem: String,
    /// Whether the problem concerns which keys are present, rather than a value.
    pub is_form: bool,
}

impl Config {
    /// All problems of the entry. `lookup` resolves environment variables.
    pub fn mistakes(&self, lookup: Lookup<'_>) -> Vec<Mistake> {
        let mut found = Vec::new();
        let kind = match self.kind() {
            Ok(kind) => Some(kind),
            Err(invalid) => {
                let problem = format!("{invalid}: {}", form(&invalid));
                found.push(Mistake { keys: Vec::new(), problem, is_form: true });
                None
            }
        };
        let http = kind.is_none_or(|kind| kind == Kind::Http);
        let stdio = kind.is_none_or(|kind| kind == Kind::Stdio);
        if http {
            let url = self.url.as_deref();
            let url = url.and_then(|url| filled(url, &["url"], lookup, &mut found));
            if let Some(Err(problem)) = url.as_deref().map(parse_url) {
                let form = "write it like \"https://host/mcp\" or \"unix:/path/of.sock:/mcp\"";
                found.push(mistake(&["url"], format!("{problem}: {form}")));
            }
            let proxy = self.proxy.as_deref();
            let proxy = proxy.and_then(|proxy| filled(proxy, &["proxy"], lookup, &mut found));
            if let Err(problem) = Egress::parse(proxy.as_deref(), PROXY_SETTING) {
                found.push(mistake(&["proxy"], format!("{problem}, or \"none\"")));
            }
            if let Some(tls) = &self.tls {
                if let Some(missing) = tls.missing_half() {
                    let problem = "is missing: cert and key belong together".to_owned();
                    found.push(mistake(&["tls", missing.as_str()], problem));
                } else if let Err(problem) = tls.load(SystemTime::now()) {
                    found.push(mistake(&["tls", problem.key.as_str()], problem.to_string()));
                }
            }
            for (name, value) in &self.headers {
                let value = filled(value, &["headers", name], lookup, &mut found);
                if ::http::HeaderName::try_from(name.as_str()).is_err()
                    || value.is_some_and(|value| ::http::HeaderValue::try_from(value).is_err())
                {
                    let problem = "cannot be sent as a header: letters, digits and '-' make a \
                                   name, one line of text makes a value";
                    found.push(mistake(&["headers", name], problem.into()));
                }
            }
        }
        if stdio {
            for (name, value) in &self.env {
                filled(value, &["env", name], lookup, &mut found);
            }
            self.look_for_program(lookup, &mut found);
        }
        if let Some(secret) = self.oauth.as_ref().and_then(|it| it.client_secret.as_deref()) {
            filled(secret, &["oauth", "client_secret"], lookup, &mut found);
        }
        if let Some(key) = self.oauth.as_ref().and_then(OauthSettings::missing_credential) {
            let invalid = Invalid::NoCredential { key };
            found.push(mistake(&["oauth", key], format!("{invalid}: {}", form(&invalid))));
        }
        found
    }

    /// Settings that have a different meaning here than in the programs from which such entries are copied.
    pub fn oddities(&self) -> Vec<(Vec<String>, String)> {
        let mut found = Vec::new();
        let as_it_is = |value: &str| value.contains("${");
        let mut odd = |keys: &[&str], problem: &str| {
            found.push((keys.iter().map(|key| (*key).to_owned()).collect(), problem.to_owned()));
        };
        let only = "${…} is not expanded here: only ${env:NAME}, ${file:/path}, ${credential:NAME} and \
                    ${keyring:service/user} are, in env, headers and url";
        if self.command.as_deref().is_some_and(as_it_is) {
            odd(&["command"], only);
        }
        if self.args.iter().any(|arg| as_it_is(arg)) {
            odd(&["args"], only);
        }
        if self.cwd.as_deref().and_then(Path::to_str).is_some_and(as_it_is) {
            odd(&["cwd"], only);
        }
        let not_ours = |value: &str| {
            let mut rest = value.split("${").skip(1);
            rest.any(|after| {
                let known = KINDS.iter().filter_map(|(opens, _)| opens.strip_prefix("${"));
                !known.chain(["input:"]).any(|known| after.starts_with(known))
            })
        };
        for (section, values) in [("env", &self.env), ("headers", &self.headers)] {
            for (name, _) in values.iter().filter(|(_, value)| not_ours(value)) {
                odd(&[section, name], only);
            }
        }
        for (key, value) in [("url", &self.url), ("proxy", &self.proxy)] {
            if value.as_deref().is_some_and(not_ours) {
                odd(&[key], only);
            }
        }
        let path = self.url.as_deref().and_then(|url| url.split(['?', '#']).next());
        if path.is_some_and(|path| path.trim_end_matches('/').ends_with("/sse")) {
            odd(
                &["url"],
                "ends in /sse, which is usually the HTTP+SSE transport that is not supported: look \
                 for a streamable HTTP URL, often ending in /mcp",
            );
        }
        let unused: &[(&str, bool)] = match self.kind() {
            Ok(Kind::Stdio) => &[
                ("url", self.url.is_some()),
                ("headers", !self.headers.is_empty()),
                ("tls", self.tls.is_some()),
                ("proxy", self.proxy.is_some()),
            ],
            Ok(Kind::Http) => &[
                ("command", self.command.is_some()),
                ("args", !self.args.is_empty()),
                ("env", !self.env.is_empty()),
                ("cwd", self.cwd.is_some()),
            ],
            Err(_) => &[],
        };
        for (key, _) in unused.iter().filter(|(_, given)| *given) {
            odd(
                &[key],
                match self.kind() {
                    Ok(Kind::Stdio) => "is not used: the server is a command",
                    Ok(Kind::Http) | Err(_) => "is not used: the server is reached by its url",
                },
            );
        }
        let plain = || match self.url.as_deref().map(parse_url) {
            Some(Ok(UrlForm::Web(url))) => url.scheme() == "http",
            Some(Ok(UrlForm::Unix { .. })) => true,
            Some(Err(_)) | None => false,
        };
        let is_socket = self.url.as_deref().is_some_and(|url| url.starts_with(UNIX));
        if self.proxy.is_some() && is_socket {
            odd(&["proxy"], "is not used: the url is a Unix socket");
        }
        let has_own = self.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        if self.is_unattended() && (has_own || is_socket) {
            let why = if is_socket {
                "the url is a Unix socket"
            } else {
                "headers contain Authorization"
            };
            odd(&["oauth", "grant"], &format!("is not used: {why}"));
        }
        if self.tls.is_some() && self.kind() == Ok(Kind::Http) && plain() {
            let problem = "is not used: the url is not https";
            found.push((vec!["tls".to_owned()], problem.to_owned()));
        }
        found
    }

    /// Checks the working directory, and the program, which is looked up as at its start.
    fn look_for_program(&self, lookup: Lookup<'_>, found: &mut Vec<Mistake>) {
        if let Some(cwd) = &self.cwd {
            let shown = cwd.display();
            let problem = match cwd.metadata() {
                Ok(it) if it.is_dir() => None,
                Ok(_) => Some(format!("{shown} is not a folder")),
                Err(error) => Some(format!("{shown}: {}", plain(&error))),
            };
            if let Some(problem) = problem {
                found.push(mistake(&["cwd"], format!("{problem}: name an existing folder")));
                return;
            }
        }
        let Some(command) = self.command.as_deref().filter(|it| !it.contains("${")) else { return };
        // The child's own PATH takes precedence.
        let path = match self.env.get("PATH") {
            Some(path) => fill(path, "env.PATH", lookup).unwrap_or_default(),
            None => lookup("PATH").unwrap_or_default(),
        };
        if let Some(problem) = not_startable(command, &path, self.cwd.as_deref()) {
            found.push(mistake(&["command"], problem));
        }
    }
}

/// Whether a path begins like a URL without its scheme: `example.com/mcp`, `localhost:3000/mcp`.
fn is_host(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    let (host, port) = first.split_once(':').unwrap_or((first, ""));
    let is_named = !host.starts_with('.') && (host.contains('.') || host == "localhost");
    is_named && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Advice for a URL without its scheme.
fn as_url(text: &str) -> String {
    let is_loopback = ["localhost", "127."].iter().any(|host| text.starts_with(host));
    format!("for a URL write {}://{text}", if is_loopback { "http" } else { "https" })
}

/// Reason why `command` cannot be started; `None` if it can be started.
fn not_startable(command: &str, path: &str, cwd: Option<&Path>) -> Option<String> {
    if command.trim().is_empty() {
        return Some("is empty: name a program, like \"npx\" or \"/usr/bin/server\"".into());
    }
    let here = cwd.unwrap_or(Path::new(""));
    if command.contains('/') {
        return match here.join(command).metadata() {
            Ok(it) if it.is_dir() => Some(format!("{command} is a folder: name a program")),
            Ok(it) if !is_executable(&it) => {
                Some(format!("{command} is not executable: chmod +x it, or name its interpreter"))
            }
            Ok(_) => None,
            Err(_) if is_host(command) => {
                Some(format!("{command} does not exist: {}", as_url(command)))
            }
            Err(error) => Some(format!("{command}: {}: name an existing program", plain(&error))),
        };
    }
    let files = std::env::split_paths(path).map(|folder| here.join(folder).join(command));
    let mut files = files.filter_map(|file| file.metadata().ok()).filter(|it| !it.is_dir());
    let mut any = false;
    if files.any(|file| {
        any = true;
        is_executable(&file)
    }) {
        return None;
    }
    Some(match (any, command.split_once(char::is_whitespace)) {
        (true, _) => format!("{command} is on PATH and not executable: chmod +x it"),
        (false, Some((program, _))) => format!(
            "'{command}' is not found on PATH: write \"{program}\" here, and the rest in args"
        ),
        (false, None) if command.contains(':') && is_host(command) => {
            format!("{command} is not found on PATH: {}", as_url(command))
        }
        (false, None) => {
            format!("{command} is not found on PATH: install it, or write its full path")
        }
    })
}

fn is_executable(file: &Metadata) -> bool {
    std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o111 != 0
}

fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "does not exist".to_owned(),
        _ => error.to_string(),
    }
}

/// Resolves the references in `value`; reports each missing variable.
fn filled(
    value: &str,
    keys: &[&str],
    lookup: Lookup<'_>,
    found: &mut Vec<Mistake>,
) -> Option<String> {
    let mut missing = std::collections::BTreeSet::new();
    let filled = loop {
        let known = |name: &str| lookup(name).or_else(|| missing.contains(name).then(String::new));
        let result = fill(value, &keys.join("."), &known);
        match result {
            Err(Invalid::Missing { name, .. }) => {
                let problem = format!(
                    "environment variable {name} is not set: set it, or write the value itself"
                );
                found.push(mistake(keys, problem));
                missing.insert(name);
            }
            Err(other) => {
                let text = other.to_string();
                // The key is removed from the text, because it is shown before each mistake anyway.
                let problem = text.strip_prefix(&format!("{} ", keys.join("."))).unwrap_or(&text);
                found.push(mistake(keys, format!("{problem}: {}", form(&other))));
                return None;
            }
            Ok(filled) => break filled,
        }
    };
    missing.is_empty().then_some(filled)
}

fn mistake(keys: &[&str], problem: String) -> Mistake {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    Mistake { keys, problem, is_form: false }
}

/// Instruction to fix the entry.
const fn form(invalid: &Invalid) -> &'static str {
    match invalid {
        Invalid::Neither => {
            "write \"command\" and \"args\" for a program, or \"url\" for a server over HTTP"
        }
        Invalid::Both => "keep one, or write \"protocol\": \"stdio\" or \"streamable-http\"",
        Invalid::NoCommand => "write \"command\" and \"args\"",
        Invalid::NoUrl => "write \"url\", like \"https://host/mcp\"",
        Invalid::Missing { .. } => "set it, or write the value itself",
        Invalid::Unread { .. } => "fix that, or write the value itself",
        Invalid::Unclosed { .. } | Invalid::Input { .. } => "write ${env:NAME}",
        Invalid::NoCredential { .. } => {
            "write the id and the secret of a client that is registered at the authorization \
             server, or remove oauth.grant to log in with a browser"
        }
        Invalid::Proxy { .. } => "write \"proxy\" like \"http://host:3128\", or \"none\"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(name: &str) -> Option<String> {
        match name {
            "PATH" => Some("/usr/bin:/bin".into()),
            "TOKEN" => Some("s3cret".into()),
            _ => None,
        }
    }

    fn problems(json: serde_json::Value) -> Vec<String> {
        let config: Config = serde_json::from_value(json).unwrap();
        let problems = |it: Mistake| format!("{}: {}", it.keys.join("."), it.problem);
        config.mistakes(&environment).into_iter().map(problems).collect()
    }

    #[test]
    fn startable_entry_has_no_mistakes() {
        for entry in [
            serde_json::json!({"command": "sh", "args": ["-c", "true"], "cwd": "/"}),
            serde_json::json!({"command": "/bin/sh", "env": {"A": "${env:TOKEN}"}}),
            serde_json::json!({"command": "sh", "env": {"PATH": "/bin"}}),
            serde_json::json!({"command": "./sh", "cwd": "/bin"}),
            serde_json::json!({"url": "https://h/mcp", "headers": {"A": "Bearer ${env:TOKEN}"}}),
            serde_json::json!({"url": "http://h", "command": "x", "protocol": "http"}),
            serde_json::json!({"url": "https://h", "proxy": "http://u:${env:TOKEN}@p:3128"}),
            serde_json::json!({"url": "https://h", "proxy": "none"}),
            serde_json::json!({"url": "https://h", "oauth": {"grant": "authorization_code"}}),
            serde_json::json!({"url": "https://h", "oauth": {"grant": "client_credentials",
                "client_id": "c", "client_secret": "${env:TOKEN}"}}),
        ] {
            assert_eq!(problems(entry.clone()), [""; 0], "{entry}");
        }
    }

    #[test]
    fn every_mistake_is_reported_with_the_accepted_form() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plain");
        std::fs::write(&file, "").unwrap();
        let (file, folder) = (file.to_str().unwrap(), folder.path().to_str().unwrap());
        for (entry, expected) in [
            (serde_json::json!({}), vec![": neither command nor url is given: write \"command\""]),
            (
                serde_json::json!({"command": "sh", "url": "http://h"}),
                vec![": both command and url are given"],
            ),
            (serde_json::json!({"protocol": "stdio"}), vec![": protocol stdio needs a command"]),
            (
                serde_json::json!({"command": "no-such-program"}),
                vec!["command: no-such-program is not found on PATH"],
            ),
            (
                serde_json::json!({"command": "npx -y x"}),
                vec!["command: 'npx -y x' is not found on PATH: write \"npx\" here"],
            ),
            (serde_json::json!({"command": ""}), vec!["command: is empty"]),
            (serde_json::json!({"command": file}), vec!["command: "]),
            (
                serde_json::json!({"command": "plain", "env": {"PATH": folder}}),
                vec!["command: plain is on PATH and not executable"],
            ),
            (
                serde_json::json!({"command": "sh", "env": {"PATH": "/none"}}),
                vec!["command: sh is not found on PATH"],
            ),
            (serde_json::json!({"command": folder}), vec!["command: "]),
            (
                serde_json::json!({"command": "sh", "cwd": "/none"}),
                vec!["cwd: /none: does not exist"],
            ),
            (serde_json::json!({"command": "sh", "cwd": file}), vec!["cwd: "]),
            (serde_json::json!({"url": "localhost:80"}), vec!["url: url has scheme localhost"]),
            (serde_json::json!({"url": "not a url"}), vec!["url: url cannot be read"]),
            (serde_json::json!({"url": "http://u:p@h/"}), vec!["url: url holds a user name"]),
            (
                serde_json::json!({"url": "http://h/${env:A}", "headers": {"B": "${env:B}${env:C}", "b d": "x"}}),
                vec![
                    "url: environment variable A is not set",
                    "headers.B: environment variable B is not set",
                    "headers.B: environment variable C is not set",
                    "headers.b d: cannot be sent as a header",
                ],
            ),
            (
                serde_json::json!({"command": "sh", "env": {"K": "${input:key}", "L": "${env:"}}),
                vec!["env.K: holds ${input:key}", "env.L: contains a reference '${…' without"],
            ),
            (
                serde_json::json!({"url": "https://h", "proxy": "socks5://u:p@h"}),
                vec!["proxy: proxy of the server has scheme socks5, and only http is supported"],
            ),
            (
                serde_json::json!({"url": "https://h", "proxy": "${env:P}"}),
                vec!["proxy: environment variable P is not set"],
            ),
            (
                serde_json::json!({"url": "http://h", "oauth": {"client_secret": "${env:S}"}}),
                vec!["oauth.client_secret: environment variable S is not set"],
            ),
            (
                serde_json::json!({"url": "http://h", "oauth": {"grant": "client_credentials", "client_secret": "s"}}),
                vec![
                    "oauth.client_id: oauth.grant is client_credentials, which needs \
                     oauth.client_id: write the id and the secret of a client",
                ],
            ),
            (
                serde_json::json!({"url": "http://h", "oauth": {"grant": "client_credentials", "client_id": "c", "client_secret": ""}}),
                vec!["oauth.client_secret: oauth.grant is client_credentials"],
            ),
        ] {
            let found = problems(entry.clone());
            assert_eq!(found.len(), expected.len(), "{entry}: {found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{entry}: {found}");
            }
        }
    }

    #[test]
    fn references_of_other_programs_are_reported() {
        let odd = |json: serde_json::Value| {
            let config: Config = serde_json::from_value(json).unwrap();
            let keys = config.oddities().into_iter().map(|(keys, _)| keys.join("."));
            keys.collect::<Vec<_>>()
        };
        let entry = serde_json::json!({"command": "x", "args": ["${workspaceFolder}"], "url": "u",
            "env": {"A": "${userHome}", "B": "${env:B}"}, "protocol": "stdio"});
        assert_eq!(odd(entry), ["args", "env.A", "url"]);
        assert_eq!(
            odd(serde_json::json!({"url": "http://h/${X}", "args": ["a"]})),
            ["url", "args"]
        );
        assert_eq!(odd(serde_json::json!({"url": "https://h/sse/?a=b"})), ["url"]);
        assert!(odd(serde_json::json!({"url": "https://h/mcp?of=/sse"})).is_empty());
        let oauth = serde_json::json!({"grant": "client_credentials", "client_id": "c", "client_secret": "s"});
        for (url, name, expected) in [
            ("https://h", "X-Key", &[][..]),
            ("https://h", "authorization", &["oauth.grant"]),
            ("unix:/s.sock:/mcp", "X-Key", &["oauth.grant"]),
        ] {
            let entry = serde_json::json!({"url": url, "headers": {name: "x"}, "oauth": oauth});
            assert_eq!(odd(entry), expected, "{url} {name}");
        }
    }
}
