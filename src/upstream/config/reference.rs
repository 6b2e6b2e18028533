//! References in config values: `${env:NAME}`, `${file:/path}`, `${credential:NAME}`, `${keyring:service/user}`.
//!
//! References are resolved by the server's own task at each connection attempt, so that an unreadable reference delays
//! only that server. Resolved values are secret ([`mcpproxy_runtime::secrets`]) and never quoted in errors.

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use mcpproxy_runtime::os::bounded_file::{self, NamedPipes};
use mcpproxy_runtime::os::{keyring, private};

/// Maximum size of a referenced file, in bytes.
const MAX_BYTES: u64 = 64 * 1024;
/// Variable with the directory of systemd credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Prefix of each kind of reference; the reference ends at the next brace.
pub(super) const KINDS: [(&str, Kind); 4] = [
    ("${env:", Kind::Env),
    ("${file:", Kind::File),
    ("${credential:", Kind::Credential),
    ("${keyring:", Kind::Keyring),
];

/// Source of a referenced value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Env,
    File,
    Credential,
    Keyring,
}

/// Digest of resolved references. `Debug` hides it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NamedValues([u8; 32]);

impl fmt::Debug for NamedValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamedValues(…)")
    }
}

pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Resolves the references in `value`, found under `key`. Blocks, possibly for a long time if a keyring is involved.
pub(super) fn fill(value: &str, key: &str, lookup: Lookup<'_>) -> Result<String, Invalid> {
    if let Some((_, after)) = value.split_once("${input:") {
        let name = after.split('}').next().unwrap_or(after).to_owned();
        return Err(Invalid::Input { name, key: key.to_owned() });
    }
    let mut filled = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, kind, after)) = first(rest) {
        let Some((name, after)) = after.split_once('}') else {
            return Err(Invalid::Unclosed { key: key.to_owned() });
        };
        filled.push_str(before);
        filled.push_str(&kind.read(name, key, lookup)?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Resolves `value` unless that requires a keyring, which may prompt its user.
pub(crate) fn fill_without_keyring(value: &str, lookup: Lookup<'_>) -> Option<String> {
    if refers_to_keyring(value) { None } else { fill(value, "", lookup).ok() }
}

pub(crate) fn refers_to_keyring(value: &str) -> bool {
    value.contains("${keyring:")
}

/// Digest of the values that these references currently resolve to; `None` without references.
pub(super) fn digest<'v>(
    values: impl IntoIterator<Item = &'v str>,
    lookup: Lookup<'_>,
) -> Option<NamedValues> {
    let mut referring = values.into_iter().filter(|value| first(value).is_some()).peekable();
    referring.peek()?;
    let mut hasher = blake3::Hasher::new();
    for value in referring {
        // A keyring is read only when a server is started, so a reference to one is hashed as written. The reason for a
        // failure is not part of the digest.
        let of_keyring = refers_to_keyring(value).then(|| value.to_owned());
        let filled = of_keyring.or_else(|| fill_without_keyring(value, lookup));
        let length = filled.as_ref().map_or(u64::MAX, |filled| filled.len() as u64);
        hasher.update(&length.to_le_bytes()).update(filled.unwrap_or_default().as_bytes());
    }
    Some(NamedValues(*hasher.finalize().as_bytes()))
}

/// Part of a value as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePart<'v> {
    Plain(&'v str),
    /// `${env:NAME}`, including the braces.
    Variable(&'v str),
    /// Reference that only this program resolves (file, credential or keyring), including the braces.
    Kept(&'v str),
}

/// Splits a value into text and references.
pub fn value_parts(value: &str) -> Vec<ValuePart<'_>> {
    let (mut parts, mut rest) = (Vec::new(), value);
    while let Some((before, kind, after)) = first(rest) {
        let after = after.split_once('}').map_or("", |(_, after)| after);
        let (upto, after) = rest.split_at(rest.len() - after.len());
        let whole = upto.get(before.len()..).unwrap_or_default();
        parts.push(ValuePart::Plain(before));
        parts.push(match kind {
            Kind::Env => ValuePart::Variable(whole),
            Kind::File | Kind::Credential | Kind::Keyring => ValuePart::Kept(whole),
        });
        rest = after;
    }
    parts.push(ValuePart::Plain(rest));
    parts.retain(|part| *part != ValuePart::Plain(""));
    parts
}

pub(super) fn files(value: &str, lookup: Lookup<'_>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut rest = value;
    while let Some((_, kind, after)) = first(rest) {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        if kind == Kind::File {
            found.extend(path(name, lookup));
        }
        rest = after;
    }
    found
}

/// Splits at the first reference: the text before it, its kind, and the text after its colon.
fn first(value: &str) -> Option<(&str, Kind, &str)> {
    let found = KINDS.iter().filter_map(|(opens, kind)| {
        value.split_once(opens).map(|(before, after)| (before, *kind, after))
    });
    found.min_by_key(|(before, ..)| before.len())
}

impl Kind {
    fn read(self, name: &str, key: &str, lookup: Lookup<'_>) -> Result<String, Invalid> {
        let unread = |what: String, why: String| Invalid::Unread { what, key: key.to_owned(), why };
        match self {
            Self::Env => lookup(name)
                .ok_or_else(|| Invalid::Missing { name: name.to_owned(), key: key.to_owned() }),
            Self::File => {
                let what = format!("the file {name}");
                match path(name, lookup) {
                    Some(path) => text(&path).map_err(|why| unread(what, why)),
                    None => {
                        Err(unread(what, "write its full path, beginning with / or ~".to_owned()))
                    }
                }
            }
            Self::Credential => {
                let what = format!("the credential {name}");
                let is_name = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
                match lookup(CREDENTIALS).filter(|folder| !folder.is_empty()) {
                    _ if !is_name => Err(unread(what, "that is not a valid name".to_owned())),
                    None => {
                        let why = format!(
                            "{CREDENTIALS} is not set: systemd sets it for a service with \
                             LoadCredential= or SetCredential="
                        );
                        Err(unread(what, why))
                    }
                    Some(folder) => {
                        text(&Path::new(&folder).join(name)).map_err(|why| unread(what, why))
                    }
                }
            }
            Self::Keyring => {
                let what = format!("the keyring's entry {name}");
                match name.split_once('/') {
                    Some((service, user)) if !service.is_empty() && !user.is_empty() => {
                        keyring::password(service, user).map_err(|why| unread(what, why))
                    }
                    _ => Err(unread(what, "write it as service/user".to_owned())),
                }
            }
        }
    }
}

/// Absolute path; `~` is the home directory.
fn path(name: &str, lookup: Lookup<'_>) -> Option<PathBuf> {
    match name.strip_prefix("~/") {
        Some(rest) => Some(Path::new(&lookup("HOME").filter(|it| !it.is_empty())?).join(rest)),
        None => Path::new(name).is_absolute().then(|| PathBuf::from(name)),
    }
}

/// Content of a file without its last line break.
fn text(path: &Path) -> Result<String, String> {
    let read = bounded_file::read(path, MAX_BYTES, NamedPipes::Refused);
    let text = read.and_then(|(bytes, _)| bounded_file::text(bytes));
    let mut text = text.map_err(|error| error.to_string())?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// Describes the access that other users have to a file with a secret, if any.
pub(super) fn exposure(path: &Path) -> Option<String> {
    let mode = private::wider(path)?;
    let path = path.display();
    Some(format!(
        "{path} contains a secret and is accessible to others (mode {mode:03o}): chmod 600 it"
    ))
}

/// Reason why an entry does not name a usable server. Affects only that server.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Invalid {
    #[error("neither command nor url is given")]
    Neither,
    #[error("both command and url are given and protocol does not say which one to use")]
    Both,
    #[error("protocol stdio needs a command")]
    NoCommand,
    #[error("protocol streamable-http needs a url")]
    NoUrl,
    #[error("environment variable {name}, referenced by {key}, is not set")]
    Missing { name: String, key: String },
    #[error("{what}, referenced by {key}, cannot be read: {why}")]
    Unread { what: String, key: String, why: String },
    #[error("{key} contains a reference '${{…' without a closing brace")]
    Unclosed { key: String },
    #[error("{key} holds ${{input:{name}}}, and input prompts are not supported")]
    Input { name: String, key: String },
    #[error("{why}")]
    Proxy { why: String },
    #[error("oauth.grant is client_credentials, which needs oauth.{key}")]
    NoCredential { key: &'static str },
}

/// Name of the environment variable whose absence makes a server unusable, if `text` ends with this reason.
pub fn unset_variable(text: &str) -> Option<&str> {
    let (_, reason) = text.split_once("environment variable ")?;
    let (name, rest) = reason.split_once(", ")?;
    (rest.starts_with("referenced by ") && rest.ends_with(", is not set")).then_some(name)
}

impl Invalid {
    /// Whether the problem lasts until the entry or the proxy's environment changes. An unreadable reference may become
    /// readable later.
    pub(crate) const fn is_lasting(&self) -> bool {
        match self {
            Self::Neither
            | Self::Both
            | Self::NoCommand
            | Self::NoUrl
            | Self::Missing { .. }
            | Self::Unclosed { .. }
            | Self::Input { .. }
            | Self::Proxy { .. }
            | Self::NoCredential { .. } => true,
            Self::Unread { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn filled(value: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        fill(value, "env.K", &lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn unset_variable_is_found_in_its_reason() {
        let reason = filled("${env:NOT_SET}", &[]).unwrap_err();
        for text in [&reason, &format!("not restarted: {reason}")] {
            assert_eq!(unset_variable(text), Some("NOT_SET"), "{text}");
        }
        let unread = filled("${file:/nonexistent}", &[]).unwrap_err();
        for other in ["", "no such program", &unread] {
            assert_eq!(unset_variable(other), None, "{other}");
        }
    }

    #[test]
    fn value_parts_concatenate_to_the_value() {
        use ValuePart::{Kept, Plain, Variable};
        for (value, expected) in [
            ("", &[][..]),
            ("a", &[Plain("a")]),
            ("${A:-b}", &[Plain("${A:-b}")]),
            ("Bearer ${env:T}", &[Plain("Bearer "), Variable("${env:T}")]),
            ("${file:/a}${env:B}c", &[Kept("${file:/a}"), Variable("${env:B}"), Plain("c")]),
            (
                "é${credential:x}é${keyring:s/",
                &[Plain("é"), Kept("${credential:x}"), Plain("é"), Kept("${keyring:s/")],
            ),
            ("${env:${file:/x}}", &[Variable("${env:${file:/x}"), Plain("}")]),
        ] {
            assert_eq!(value_parts(value), expected, "{value}");
        }
    }

    #[test]
    fn files_and_credentials_are_read_without_the_last_line_break() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().to_str().unwrap();
        for (written, read) in [
            ("s3cret", "s3cret"),
            ("s3cret\n", "s3cret"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
            ("", ""),
        ] {
            fs::write(home.path().join("f"), written).unwrap();
            let file = format!("Bearer ${{file:{folder}/f}}!");
            assert_eq!(filled(&file, &[]), Ok(format!("Bearer {read}!")), "{written:?}");
            assert_eq!(filled("${file:~/f}", &[("HOME", folder)]), Ok(read.to_owned()));
            assert_eq!(filled("${credential:f}", &[(CREDENTIALS, folder)]), Ok(read.to_owned()));
        }
        fs::write(home.path().join("f"), "${env:NOT}").unwrap();
        let both = format!("${{env:A}}-${{file:{folder}/f}}-$${{other}}");
        assert_eq!(filled(&both, &[("A", "a")]), Ok("a-${env:NOT}-$${other}".into()), "once only");
        let named = files(&both, &|_| None);
        assert_eq!(named, [home.path().join("f")]);
    }

    #[test]
    fn unreadable_references_are_named_with_the_reason_and_never_quoted() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().to_str().unwrap();
        fs::write(home.path().join("long"), "x".repeat(70_000)).unwrap();
        fs::write(home.path().join("bytes"), b"\xff").unwrap();
        nix::unistd::mkfifo(&home.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for (name, why) in [
            (format!("{folder}/none"), "No such file"),
            (format!("{folder}/long"), "larger than 65536 bytes"),
            (format!("{folder}/bytes"), "not UTF-8"),
            (format!("{folder}/pipe"), "not a regular file"),
            (folder.to_owned(), "it is a folder"),
            ("relative".to_owned(), "full path"),
            (String::new(), "full path"),
        ] {
            let error = filled(&format!("${{file:{name}}}"), &[]).unwrap_err();
            assert!(error.contains(why) && error.contains("env.K"), "{name}: {error}");
        }
        for (value, why) in [
            ("${credential:x}", "CREDENTIALS_DIRECTORY is not set"),
            ("${credential:../x}", "not a valid name"),
            ("${keyring:service}", "write it as service/user"),
            ("${keyring:/user}", "write it as service/user"),
            ("${file:/x", "without a closing brace"),
        ] {
            let error = filled(value, &[]).unwrap_err();
            assert!(error.contains(why), "{value}: {error}");
        }
    }

    #[test]
    fn changed_referenced_value_changes_the_digest() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("f");
        let value = format!("a ${{file:{}}}", file.display());
        let now = || digest(["plain", &value, "${env:A}"], &|name| (name == "A").then(String::new));
        let missing = now();
        fs::write(&file, "").unwrap();
        let empty = now();
        fs::write(&file, "s3cret").unwrap();
        let some = now();
        assert!(missing != empty && empty != some && missing.is_some());
        assert_eq!(some, now());
        assert_eq!(digest(["plain", "$x", "${other:y}"], &|_| None), None);
    }

    #[test]
    fn file_readable_by_others_is_reported() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("f");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(exposure(&file).unwrap().contains("mode 644"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(exposure(&file), None);
    }
}
