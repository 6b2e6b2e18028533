//! Display of server entries before a person agrees to them.
//!
//! A preview shows commands, arguments and URLs in full, because they decide which code runs and what it can access.
//! Values of headers are masked, and so are variables that are secret by name or form, except references (`${…}`): it
//! is not known which programs read code from which variable. Shell metacharacters are marked in visible text; in
//! masked text they cause a warning.

use std::fmt::Write as _;

use mcpproxy_activity::redact::Redactor;
use mcpproxy_config::edit;
use mcpproxy_runtime::secrets::MASKED;
use mcpproxy_upstream::is_plain_header;
use serde_json::{Map, Value};
use unicode_width::UnicodeWidthStr as _;

use super::file::EntryMembers;
use crate::output::{Colors, HIGHLIGHT};
use crate::terminal_safe::clean;

/// Variables that determine where loaders, interpreters and package managers find the code they run.
const CODE: [&str; 62] = [
    "ASDF_DATA_DIR",
    "ASDF_DIR",
    "AWS_CONFIG_FILE",
    "BASHOPTS",
    "BASH_ENV",
    "BROWSER",
    "CARGO_HOME",
    "CC",
    "CHROME_PATH",
    "CLASSPATH",
    "CLOUDSDK_PYTHON",
    "CXX",
    "DENO_DIR",
    "DOCKER_CONFIG",
    "DOCKER_HOST",
    "EDITOR",
    "ENV",
    "FPATH",
    "GCONV_PATH",
    "GEM_HOME",
    "GEM_PATH",
    "GIO_EXTRA_MODULES",
    "GOFLAGS",
    "GOPATH",
    "GOPROXY",
    "GOROOT",
    "GTK_MODULES",
    "GTK_PATH",
    "HOME",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "KUBECONFIG",
    "LESSCLOSE",
    "LESSOPEN",
    "LIBGL_DRIVERS_PATH",
    "MAKEFLAGS",
    "NVM_DIR",
    "PAGER",
    "PATH",
    "PERLLIB",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "PS1",
    "PS4",
    "QT_PLUGIN_PATH",
    "QT_QPA_PLATFORM_PLUGIN_PATH",
    "RUSTC",
    "RUSTFLAGS",
    "R_HOME",
    "R_PROFILE",
    "R_PROFILE_USER",
    "SHELL",
    "SHELLOPTS",
    "TCLLIBPATH",
    "VIRTUAL_ENV",
    "VISUAL",
    "VK_LAYER_PATH",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "ZDOTDIR",
    "_JAVA_OPTIONS",
];
/// Prefixes of these variables, in upper case.
const CODE_PREFIXES: [&str; 25] = [
    "BASH_FUNC_",
    "BUNDLE_",
    "BUN_",
    "CORECLR_",
    "COREPACK_",
    "COR_",
    "DOTNET_",
    "DYLD_",
    "ELECTRON_",
    "GIT_",
    "JULIA_",
    "LD_",
    "LUA_",
    "MISE_",
    "NODE_",
    "NPM_CONFIG_",
    "OPENSSL_",
    "PERL5",
    "PIP_",
    "PNPM_",
    "PYTHON",
    "RUBY",
    "UV_",
    "VOLTA_",
    "YARN_",
];
/// Suffixes of these variables.
const CODE_SUFFIXES: [&str; 8] = [
    "_ASKPASS",
    "_COMMAND",
    "_EDITOR",
    "_EXECUTABLE_PATH",
    "_NODEJS_PATH",
    "_OPTS",
    "_PAGER",
    "_WRAPPER",
];
/// Programs that run a command given in their arguments.
const WRAPPERS: [&str; 8] = ["doas", "env", "nice", "nohup", "setsid", "stdbuf", "sudo", "timeout"];

/// Substrings of names whose values are secret.
const SECRET_PARTS: [&str; 10] = [
    "apikey",
    "cookie",
    "credential",
    "passphrase",
    "passwd",
    "password",
    "private",
    "secret",
    "token",
    "webhook",
];
/// Words in names whose values are secret. As mere substrings, they also occur in harmless names.
const SECRET_WORDS: [&str; 14] = [
    "auth",
    "authorization",
    "bearer",
    "dsn",
    "jwt",
    "key",
    "keys",
    "pass",
    "pat",
    "pin",
    "pw",
    "pwd",
    "session",
    "sig",
];
/// Last words of names that denote a location or program and not a secret.
const PLACES: [&str; 12] = [
    "cmd",
    "command",
    "dir",
    "file",
    "folder",
    "helper",
    "path",
    "program",
    "provider",
    "providers",
    "sock",
    "store",
];
/// Minimum length of a word of letters and digits that has the form of a key.
const KEY_CHARS: usize = 32;

/// Programs that run their arguments as shell code.
const SHELLS: [&str; 12] = [
    "ash",
    "bash",
    "busybox",
    "cmd",
    "cmd.exe",
    "dash",
    "fish",
    "ksh",
    "powershell",
    "pwsh",
    "sh",
    "zsh",
];
/// Shell metacharacters.
const METACHARACTERS: &str = "`$;&|<>(){}[]*?!#~'\"\\";
/// Metacharacters with which a shell runs something within a word.
const RUNNING: [&str; 7] = ["`", "$(", ";", "|", "<", ">", "$'"];
/// Members that decide which program is run. Metacharacters in them are marked.
const RUN: [&str; 3] = ["command", "args", "env"];

/// Returns members for display, in which only values of headers and variables with secrets are masked.
pub(crate) fn shown(members: &[(String, Value)]) -> EntryMembers {
    let show = |(key, value): &(String, Value)| {
        let shown = match (key.as_str(), value) {
            ("env", Value::Object(values)) => {
                of_each(values, |name, value| variable(values, name, value))
            }
            ("headers" | "http_headers", Value::Object(values)) => of_each(values, header_value),
            (_, other) => other.clone(),
        };
        (key.clone(), shown)
    };
    members.iter().map(show).collect()
}

/// Renders the entry as lines of a diff that begin with `sign`. Shell metacharacters in commands and variables are
/// highlighted, or marked by a `^` below each if colors are off.
pub(crate) fn preview(
    sign: char,
    name: &str,
    members: &[(String, Value)],
    colors: Colors,
) -> String {
    let text = edit::rendered(name, &shown(members));
    let mut preview = String::new();
    // A row that does not begin a member belongs to the previous member: it is a variable with its value.
    let mut is_run = false;
    for row in clean(&text).lines() {
        let member = row.strip_prefix("  \"").and_then(|rest| rest.split_once("\": "));
        let mut value_at = 0;
        if let Some((key, value)) = member {
            is_run = RUN.contains(&key);
            value_at = row.len() - value.len();
        }
        let (plain, value) = row.split_at(value_at);
        let pieces = if is_run { marked(value) } else { vec![(value, false)] };
        let (mut carets, mut has_marks) = (" ".repeat(plain.width()), false);
        let _ = write!(preview, "{sign} {plain}");
        for (piece, is_meta) in pieces {
            preview += &if is_meta { colors.paint(piece, HIGHLIGHT) } else { piece.to_owned() };
            carets += &if is_meta { "^" } else { " " }.repeat(piece.width());
            has_marks |= is_meta;
        }
        preview.push('\n');
        if has_marks && colors == Colors::Plain {
            let _ = writeln!(preview, "  {}", carets.trim_end());
        }
    }
    preview
}

/// Splits a row of JSON into pieces and flags metacharacters inside strings. An escape counts as one character.
fn marked(row: &str) -> Vec<(&str, bool)> {
    let mut pieces = Vec::new();
    let mut is_inside = false;
    let mut rest = row;
    while let Some(first) = rest.chars().next() {
        let len = match (is_inside, first) {
            (true, _) if rest.starts_with(MASKED) => MASKED.len(),
            (true, '\\') => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            _ => first.len_utf8(),
        };
        let (piece, after) = rest.split_at(len);
        let is_quote = piece == "\"";
        let is_meta = is_inside
            && !is_quote
            && piece != MASKED
            && (len > 1 && first == '\\' || METACHARACTERS.contains(first));
        is_inside ^= is_quote;
        pieces.push((piece, is_meta));
        rest = after;
    }
    pieces
}

/// Warnings about an entry: shells, and variables that decide which code runs.
pub(crate) fn warnings(members: &[(String, Value)]) -> Vec<String> {
    let command = members.iter().find(|(key, _)| key == "command").and_then(|(_, it)| it.as_str());
    let base = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
    let is_shell = |name: &String| SHELLS.contains(&name.to_lowercase().as_str());
    let program = base(command.unwrap_or_default());
    let args = members.iter().find(|(key, _)| key == "args").and_then(|(_, it)| it.as_array());
    let args = args.into_iter().flatten().filter_map(Value::as_str).map(base);
    let shell = match WRAPPERS.contains(&program.as_str()) {
        true => args.into_iter().find(is_shell),
        false => Some(program).filter(is_shell),
    };
    let shell =
        shell.map(|program| format!("command: '{program}' is a shell: it runs its args as code"));
    let env = members.iter().filter(|(key, _)| key == "env");
    let env = env.filter_map(|(_, value)| value.as_object());
    let mut found: Vec<String> = shell.into_iter().collect();
    for (values, (name, value)) in env.flat_map(|values| values.iter().map(move |it| (values, it)))
    {
        if is_code(name) {
            found.push(format!("env.{name}: decides which code runs: check its value"));
        }
        let value = value.as_str().unwrap_or_default();
        let shown = variable(values, name, value);
        if RUNNING.iter().any(|it| value.contains(it) && !shown.contains(it)) {
            found.push(format!(
                "env.{name}: its masked value contains shell metacharacters: check its value"
            ));
        }
    }
    found
}

fn of_each(values: &serde_json::Map<String, Value>, show: impl Fn(&str, &str) -> String) -> Value {
    let shown = values.iter().map(|(name, value)| {
        let value = value.as_str().map_or(Value::Null, |value| show(name, value).into());
        (name.clone(), value)
    });
    Value::Object(shown.collect())
}

/// Returns the value of a variable among `all`, with secrets masked.
fn variable(all: &Map<String, Value>, name: &str, value: &str) -> String {
    // Git settings are numbered pairs of name and value, and a value may be a header with a token.
    let upper = name.to_ascii_uppercase();
    if upper.starts_with("GIT_CONFIG_KEY_") {
        return value.to_owned();
    }
    if let Some(number) = upper.strip_prefix("GIT_CONFIG_VALUE_") {
        let key = all.iter().find(|(name, _)| {
            name.to_ascii_uppercase().strip_prefix("GIT_CONFIG_KEY_") == Some(number)
        });
        let key = key.and_then(|(_, key)| key.as_str()).unwrap_or_default();
        if is_git_header(key) {
            return hidden(value);
        }
    }
    if upper == "GIT_CONFIG_PARAMETERS" {
        return git_parameters(value);
    }
    if is_secret(name) || is_pem(value) {
        return hidden(value);
    }
    // The URL of a package index may contain a password.
    let words = value.split(' ').map(|word| match word.contains("://") {
        true => url(word),
        false => pieces(word, |plain| without_keys(plain, is_code(name))),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn is_git_header(key: &str) -> bool {
    key.to_ascii_lowercase().ends_with(".extraheader")
}

/// Returns Git's `'key=value'` and `'key'='value'`, with the values of headers masked.
fn git_parameters(value: &str) -> String {
    let mut is_header = false;
    let shown = value.split('\'').map(|piece| {
        if let Some((key, value)) = piece.split_once('=').filter(|(key, _)| is_git_header(key)) {
            return format!("{key}={}", hidden(value));
        }
        let masked = is_header && !matches!(piece.trim(), "" | "=");
        is_header = is_git_header(piece) || (is_header && piece == "=");
        if masked { hidden(piece) } else { piece.to_owned() }
    });
    shown.collect::<Vec<_>>().join("'")
}

/// Whether the value is a PEM block and nothing else.
fn is_pem(value: &str) -> bool {
    let value = value.trim();
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "+/=-\\ \r\n".contains(it);
    value.starts_with("-----BEGIN ") && value.ends_with("-----") && value.chars().all(is_plain)
}

/// Masks words that have the form of a credential. A long word of letters and digits may be a credential, unless the
/// variable `is_code`.
fn without_keys(text: &str, is_code: bool) -> String {
    thread_local! {
        static FORMS: Redactor = Redactor::default();
    }
    let is_inner = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-' | '.');
    let mut shown = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (word, after) =
            rest.split_at(rest.find(|it: char| !is_inner(it)).unwrap_or(rest.len()));
        let is_plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-');
        let (letter, digit) = (|it: char| it.is_ascii_alphabetic(), |it: char| it.is_ascii_digit());
        let is_key = !is_code
            && word.len() >= KEY_CHARS
            && word.chars().all(is_plain)
            && word.contains(letter)
            && word.contains(digit);
        match is_key {
            true => shown += MASKED,
            false => FORMS.with(|forms| shown += &forms.text(word, false)),
        }
        let other = after.find(is_inner).unwrap_or(after.len());
        let (between, after) = after.split_at(other);
        shown += between;
        rest = after;
    }
    shown
}

fn header_value(name: &str, value: &str) -> String {
    if is_plain_header(name) { value.to_owned() } else { hidden(value) }
}

/// Returns a URL in a variable's value with user and query values masked, unless a shell would run something in them.
fn url(text: &str) -> String {
    let hidden = |part: &str| match RUNNING.iter().any(|it| part.contains(it)) {
        true => part.to_owned(),
        false => hidden(part),
    };
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", hidden(user)),
        None => authority.to_owned(),
    };
    let (path, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let query = query.split_inclusive(['?', '&', '#']).map(|pair| {
        let (pair, end) = match pair.strip_suffix(['?', '&', '#']) {
            Some(inner) => pair.split_at(inner.len()),
            None => (pair, ""),
        };
        let shown = match pair.split_once('=') {
            Some((name, value)) => format!("{name}={}", hidden(value)),
            None => hidden(pair),
        };
        shown + end
    });
    format!("{scheme}://{authority}{path}{}", query.collect::<String>())
}

/// Masks a potential secret of any length, except references.
fn hidden(text: &str) -> String {
    pieces(text, |plain| match plain {
        "Bearer " | "bearer " => plain.to_owned(),
        _ => MASKED.to_owned(),
    })
}

/// Keeps `${…}` references and maps the text between them.
fn pieces(text: &str, show: impl Fn(&str) -> String) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (plain, named) = rest.split_at(start);
        let Some(end) = named.find('}') else { break };
        let (named, after) = named.split_at(end + 1);
        if !plain.is_empty() {
            shown += &show(plain);
        }
        shown += named;
        rest = after;
    }
    if !rest.is_empty() {
        shown += &show(rest);
    }
    shown
}

fn is_code(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    CODE.contains(&name.as_str())
        || CODE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || CODE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// Whether a name denotes a secret value.
fn is_secret(name: &str) -> bool {
    let words = words(name);
    let joined = words.concat();
    let is_secret = SECRET_PARTS.iter().any(|part| joined.contains(part))
        || words.iter().any(|word| SECRET_WORDS.contains(&word.as_str()));
    is_secret && !words.last().is_some_and(|last| PLACES.contains(&last.as_str()))
}

/// Lower-case words of a `kebab-case`, `snake_case` or `camelCase` name.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for char in name.chars() {
        if !char.is_alphanumeric() || (was_lower && char.is_uppercase()) {
            words.push(String::new());
        }
        if let (true, Some(word)) = (char.is_alphanumeric(), words.last_mut()) {
            word.extend(char.to_lowercase());
        }
        was_lower = char.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::file::members;
    use super::*;

    fn of(block: Value) -> Value {
        Value::Object(shown(&members(&block).unwrap()).into_iter().collect())
    }

    #[test]
    fn commands_arguments_and_urls_are_shown_in_full() {
        for block in [
            json!({"command": "sh", "args": ["-c", "API_KEY=\"$(touch PWNED)\" exec node s.js"]}),
            json!({"command": "npx", "args": ["--password", "abc12", "--token=$(id)", "-Dpassword=x"]}),
            json!({"command": "x", "args": ["-H", "Authorization: Bearer abc", "a1b2c3d4e5f6"], "cwd": "/s3cret"}),
            json!({"url": "https://u:p@h.example/mcp?key=abc12&x#y"}),
        ] {
            assert_eq!(of(block.clone()), block);
        }
    }

    #[test]
    fn values_of_headers_are_masked() {
        let shown = of(json!({"url": "https://h.example/mcp",
            "headers": {"X-Key": "k", "Accept": "text/plain", "Authorization": "Bearer abc-def"}}));
        let headers =
            json!({"X-Key": "[redacted]", "Accept": "text/plain", "Authorization": "[redacted]"});
        assert_eq!(shown["headers"], headers);
    }

    #[test]
    fn variables_are_masked_only_if_secret_by_name_or_form() {
        let github = format!("ghp_{}", "a1B2c3D4e5F6".repeat(3));
        let pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQ==\n-----END PRIVATE KEY-----\n";
        for (name, value, expected) in [
            ("TOKEN", "a", "[redacted]"),
            ("DB_PASSWORD", "/a b;c", "[redacted]"),
            ("MODE", "fast", "fast"),
            ("PS4", "$(touch PWNED)+", "$(touch PWNED)+"),
            ("PS4", "token=$(touch PWNED)", "token=$(touch PWNED)"),
            ("PS4", "x://$(touch,PWNED)@h", "x://$(touch,PWNED)@h"),
            ("X", "x://h?a=`id`&b=secret", "x://h?a=`id`&b=[redacted]"),
            ("CORECLR_PROFILER_PATH", "/tmp/evil.so", "/tmp/evil.so"),
            ("CREDENTIAL_HELPER", "/tmp/evil", "/tmp/evil"),
            (
                "LD_PRELOAD",
                "/tmp/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1/x.so",
                "/tmp/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1/x.so",
            ),
            ("GITHUB", &github, "[redacted]"),
            ("OTHER", "0123456789abcdef0123456789abcdef", "[redacted]"),
            ("CERT", pem, "[redacted]"),
            ("CERT", "-----BEGIN $(id)-----", "-----BEGIN $(id)-----"),
            (
                "DATABASE_URL",
                "postgres://u:p@h/db?sslmode=x",
                "postgres://[redacted]@h/db?sslmode=[redacted]",
            ),
            (
                "GIT_CONFIG_PARAMETERS",
                "'core.pager=evil' 'http.h.extraHeader'='A: b' 'http.extraheader=A: b'",
                "'core.pager=evil' 'http.h.extraHeader'='[redacted]' 'http.extraheader=[redacted]'",
            ),
        ] {
            let shown = of(json!({"command": "x", "env": {name: value}}));
            assert_eq!(shown["env"], json!({name: expected}));
        }
        let env = json!({"GIT_CONFIG_KEY_0": "core.sshCommand", "GIT_CONFIG_VALUE_0": "touch x",
            "GIT_CONFIG_KEY_1": "http.https://h/.extraHeader", "GIT_CONFIG_VALUE_1": "Authorization: basic eC1h"});
        let shown = of(json!({"command": "x", "env": env}));
        assert_eq!(
            (&shown["env"]["GIT_CONFIG_VALUE_0"], &shown["env"]["GIT_CONFIG_VALUE_1"]),
            (&json!("touch x"), &json!("[redacted]"))
        );
    }

    #[test]
    fn masked_metacharacters_and_variables_with_code_are_warned_about() {
        let found = |name: &str, value: &str| {
            warnings(&members(&json!({"command": "x", "env": {name: value}})).unwrap())
        };
        let masked = "env.TOKEN: its masked value contains shell metacharacters: check its value";
        assert_eq!(found("TOKEN", "a$(id)"), [masked]);
        assert!(found("TOKEN", "a/b c").is_empty() && found("MODE", "$(id)").is_empty());
        for name in
            ["PS4", "SHELLOPTS", "BUNDLE_GEMFILE", "PERLLIB", "ZDOTDIR", "SSH_ASKPASS", "EDITOR"]
        {
            let code = format!("env.{name}: decides which code runs: check its value");
            assert_eq!(found(name, "x"), [code]);
        }
    }

    #[test]
    fn shell_metacharacters_are_marked_with_and_without_colors() {
        let block = json!({"command": "sh", "args": ["-c", "K=\"$(x)\" a\n\u{202e}"], "env": {"A;": "b`", "KEY": "b"}});
        let members = members(&block).unwrap();
        let plain = preview('+', "n;", &members, Colors::Plain);
        let expected = [
            r#"+ "n;": {"#,
            r#"+   "command": "sh","#,
            r#"+   "args": ["-c", "K=\"$(x)\" a\n\u{202e}"],"#,
            r#"                      ^^^^ ^^^  ^^^^^    ^"#,
            r#"+   "env": {"#,
            r#"+     "A;": "b`","#,
            r#"        ^     ^"#,
            r#"+     "KEY": "[redacted]""#,
            "+   }",
            "+ }",
            "",
        ];
        assert_eq!(plain.split('\n').collect::<Vec<_>>(), expected);
        let styled = preview('+', "n", &members, Colors::Styled);
        let on = |piece: &str| format!("{HIGHLIGHT}{piece}{HIGHLIGHT:#}");
        let marked = format!("K={}{}{}x{}{} a", on("\\\""), on("$"), on("("), on(")"), on("\\\""));
        assert!(styled.contains(&marked), "{styled}");
        // Nothing has to be marked, so there is no line of carets.
        let block = json!({"command": "npx", "args": ["-y", "@scope/pkg", "--port=1"]});
        let rows = preview('-', "n", &super::super::file::members(&block).unwrap(), Colors::Plain);
        assert_eq!(rows.lines().count(), 4, "{rows}");
    }

    #[test]
    fn references_in_values_are_always_shown() {
        let entry = of(json!({"command": "x",
            "env": {"KEY": "plain", "B": "${env:B}", "C_TOKEN": "plain ${TOKEN}"}}));
        let env =
            json!({"KEY": "[redacted]", "B": "${env:B}", "C_TOKEN": "[redacted]${env:TOKEN}"});
        assert_eq!(entry["env"], env);
        assert_eq!(hidden("Bearer ${env:T}"), "Bearer ${env:T}");
        assert_eq!(hidden("${unclosed"), "[redacted]");
    }

    #[test]
    fn code_loading_variables_are_shown_with_a_warning() {
        let block = json!({"command": "npx", "args": ["-y", "pkg", "--path", "data", "--pattern", "x", "--key-file", "/k.pem"],
            "env": {"LD_PRELOAD": "/tmp/evil1234.so", "NODE_OPTIONS": "--require ./evil.js",
                "npm_config_registry": "https://u:secret@evil.example/", "TOKEN": "abc",
                "BUN_CONFIG_REGISTRY": "https://evil.example/", "GIT_CONFIG_KEY_0": "http.extraheader",
                "GIT_CONFIG_VALUE_0": "AUTHORIZATION: basic eC1h", "NODE_AUTH_TOKEN": "abc"}});
        let shown = of(block.clone());
        assert_eq!(shown["args"], block["args"]);
        let env = json!({"LD_PRELOAD": "/tmp/evil1234.so", "NODE_OPTIONS": "--require ./evil.js",
            "npm_config_registry": "https://[redacted]@evil.example/", "TOKEN": "[redacted]",
            "BUN_CONFIG_REGISTRY": "https://evil.example/", "GIT_CONFIG_KEY_0": "http.extraheader",
            "GIT_CONFIG_VALUE_0": "[redacted]", "NODE_AUTH_TOKEN": "[redacted]"});
        assert_eq!(shown["env"], env);
        let found = warnings(&members(&block).unwrap());
        assert_eq!(found.len(), 7, "{found:?}");
        assert!(found.iter().any(|it| it.starts_with("env.LD_PRELOAD: decides which code runs")));
        for shell in ["sh", "/bin/bash", r"C:\Windows\System32\cmd.exe"] {
            let found =
                warnings(&members(&json!({"command": shell, "args": ["-c", "x"]})).unwrap());
            assert!(
                found.iter().any(|it| it.ends_with("is a shell: it runs its args as code")),
                "{found:?}"
            );
        }
    }
}
