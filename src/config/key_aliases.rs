//! The root's keys by other names: those of earlier versions, those of other programs, and those
//! that are nearly right.
//!
//! Servers under a misspelt key would be ignored silently: a key that plainly means `mcpServers` is
//! an error, where other unknown keys are warnings.

use serde_json::{Map, Value};

use super::findings::Findings;
use super::problem::KeyPath;
use super::servers;

/// The name that VS Code's `mcp.json` has for [`servers::KEY`].
pub(super) const VS_CODE: &str = "servers";

/// What tells an editor which schema the file has: for it alone.
pub(super) const SCHEMA: &str = "$schema";

/// What VS Code asks its user for, to be used as `${input:ID}`.
pub(super) const INPUTS: &str = "inputs";

/// Names of the flat keys of earlier versions, and where they belong now.
pub(super) const FLAT_ACTIVITY_KEYS: [(&str, &str); 4] = [
    ("activity_retention_days", "retention_days"),
    ("activity_max_records", "max_records"),
    ("activity_max_size_mb", "max_size_mb"),
    ("activity_max_response_size", "max_response_bytes"),
];

/// Edit distance up to which a key is taken for a misspelt `mcpServers`.
const TYPING_ERRORS: usize = 2;

/// Moves what stands under another name to where it is read.
pub(super) fn adopt_other_names(root: &mut Map<String, Value>, findings: &mut Findings<'_>) {
    root.remove(SCHEMA);
    adopt_servers(root, findings);
    adopt_flat_activity_keys(root, findings);
    if root.remove(INPUTS).is_some_and(|inputs| inputs != Value::Array(Vec::new())) {
        let problem = "nobody is asked for these here: write ${env:NAME} where ${input:…} stands";
        findings.warn(&KeyPath::root(INPUTS), problem);
    }
}

fn adopt_servers(root: &mut Map<String, Value>, findings: &mut Findings<'_>) {
    let key = servers::KEY;
    let meant: Vec<String> = root
        .iter()
        .filter(|(name, value)| *name != key && *name != VS_CODE && means_servers(name, value))
        .map(|(name, _)| name.clone())
        .collect();
    for name in meant {
        root.remove(&name);
        findings.wrong_key(
            &KeyPath::root(&name),
            format_args!(
                "is not read: the servers belong in '{key}', like \"{key}\": {{\"name\": {{…}}}}"
            ),
        );
    }
    let Some(value) = root.remove(VS_CODE) else { return };
    if root.contains_key(key) {
        let problem = format!("means the same as '{key}': keep one of them");
        findings.wrong_key(&KeyPath::root(VS_CODE), problem);
    } else {
        root.insert(key.to_owned(), value);
        findings.rename(KeyPath::root(key), KeyPath::root(VS_CODE));
    }
}

/// Whether a key that is not read plainly holds servers.
fn means_servers(name: &str, value: &Value) -> bool {
    let letters: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    let right = servers::KEY.to_lowercase();
    // VS Code's settings have the servers a level deeper.
    let nested = letters == "mcp" && value.get(VS_CODE).or(value.get(servers::KEY)).is_some();
    nested
        || matches!(letters.as_str(), "server" | "servers" | "contextservers")
        || strsim::osa_distance(&letters, &right) <= TYPING_ERRORS
}

/// Moves the flat keys of earlier versions into the section, where that does not say otherwise.
fn adopt_flat_activity_keys(root: &mut Map<String, Value>, findings: &mut Findings<'_>) {
    for (flat, key) in FLAT_ACTIVITY_KEYS {
        let Some(value) = root.remove(flat) else { continue };
        let section = root.entry("activity").or_insert_with(|| Value::Object(Map::new()));
        // A section of another type is reported when the section is read.
        let Some(section) = section.as_object_mut() else { continue };
        if section.contains_key(key) {
            findings.warn(&KeyPath::root(flat), format_args!("activity.{key} counts"));
        } else {
            section.insert(key.to_owned(), value);
            findings.rename(KeyPath::root("activity").key(key), KeyPath::root(flat));
        }
    }
}
