//! The config shared by a fleet: its storage format, and its combination with a node's own config.
//!
//! All keys except [`NODE_KEYS`] are shared: they replace those of the node's own file, so that all nodes run with
//! the same settings. The accepted config is stored in `data_dir/fleet` as a state file with a checksum
//! ([`state_file`]). It contains its rule files.

use crate::document::ConfigDocument;
use crate::problem::{Problem, Severity};
use mcpproxy_runtime::os::{private, state_file};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Keys that each node sets itself.
pub const NODE_KEYS: [&str; 7] =
    ["$schema", "listen", "tls", "data_dir", "api_key", "cluster", "logging"];
/// Maximum size of a shared config in bytes.
pub const MAX_SHARED_BYTES: usize = 12 << 20;
/// Maximum size of the state file in bytes: the config and a checksum.
const MAX_FILE_BYTES: u64 = MAX_SHARED_BYTES as u64 + 1024;
/// Maximum number of rule files.
const MAX_FILES: usize = 64;
const FORMAT: u32 = 1;
/// Directory in the data directory, and the file in it.
const FOLDER: &str = "fleet";
const NAME: &str = "config.json";
/// Directory in which earlier versions stored the rule files.
const OLD_RULES: &str = "rules";

/// A rule file contained in the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedFile {
    /// Original name, for display.
    pub name: String,
    pub text: String,
}

/// Shared config of a fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedConfig {
    format: u32,
    /// The config file without per-node keys.
    config: Map<String, Value>,
    /// Files named by `policy.files`, in order.
    files: Vec<SharedFile>,
}

impl SharedConfig {
    /// Builds the shared config from a config file's text; `read` reads its rule files. Also returns the omitted
    /// per-node keys.
    pub fn of(
        text: &str,
        read: impl Fn(&str) -> io::Result<String>,
    ) -> Result<(Self, Vec<String>), String> {
        let mut problems = Vec::new();
        let (_, mut config) = ConfigDocument::parse(text, &mut problems);
        if let Some(problem) = problems.iter().find(|it| it.severity == Severity::Error) {
            return Err(problem.to_string());
        }
        let left_out: Vec<_> = NODE_KEYS
            .iter()
            .filter(|key| config.remove(**key).is_some())
            .map(|key| (*key).to_owned())
            .collect();
        let mut files = Vec::new();
        for name in rule_files(&config) {
            let name = name.as_str().ok_or("policy.files: must be file names")?;
            let text = read(name).map_err(|error| format!("policy.files: {name}: {error}"))?;
            files.push(SharedFile { name: name.to_owned(), text });
        }
        let shared = Self { format: FORMAT, config, files };
        shared.check().map(|()| (shared, left_out))
    }

    /// Parses the output of [`Self::write`].
    pub fn read(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_SHARED_BYTES {
            return Err(format!("exceeds {MAX_SHARED_BYTES} bytes"));
        }
        let read: Self = serde_json::from_slice(text)
            .map_err(|error| format!("not a shared config: {:?}", error.classify()))?;
        read.check().map(|()| read)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("unknown format {}", self.format));
        }
        if let Some(key) = NODE_KEYS.iter().find(|key| self.config.contains_key(**key)) {
            return Err(format!("{key} is a per-node key and cannot be shared"));
        }
        if self.files.len() != rule_files(&self.config).len() || self.files.len() > MAX_FILES {
            return Err(format!(
                "the number of files differs from policy.files, or exceeds {MAX_FILES}"
            ));
        }
        if self.write().len() > MAX_SHARED_BYTES {
            return Err(format!("exceeds {MAX_SHARED_BYTES} bytes"));
        }
        Ok(())
    }

    /// Serializes the config deterministically.
    pub fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Content hash, which identifies the config.
    pub fn hash(&self) -> String {
        blake3::hash(&self.write()).to_hex().to_string()
    }

    /// Text of the effective config of a node whose own text is `own`, without rule files.
    fn over(&self, own: &str) -> String {
        let (_, own) = ConfigDocument::parse(own, &mut Vec::new());
        let mut both = self.config.clone();
        for (key, value) in own {
            if NODE_KEYS.contains(&&*key) {
                both.insert(key, value);
            }
        }
        // The texts of the rule files are part of the shared config.
        if let Some(policy) = both.get_mut("policy").and_then(Value::as_object_mut) {
            policy.remove("files");
        }
        Value::Object(both).to_string()
    }

    /// Files named by `policy.files`, in order.
    pub fn files(&self) -> &[SharedFile] {
        &self.files
    }

    /// Stores the config durably as the one this node runs. Blocks.
    pub fn keep(&self, data_dir: &Path) -> io::Result<()> {
        let folder = data_dir.join(FOLDER);
        private::folder(&folder)?;
        state_file::write(&folder.join(NAME), &self.write())?;
        // Obsolete files of earlier versions.
        let _ = fs::remove_dir_all(folder.join(OLD_RULES));
        Ok(())
    }

    /// Stored fleet config that this node runs; `None` if the node runs its own config. An unusable stored config is
    /// an error, since the node's own config lacks the shared settings. Blocks.
    pub fn kept(data_dir: &Path) -> Result<Option<Self>, Problem> {
        let path = data_dir.join(FOLDER).join(NAME);
        let read = match state_file::read(&path, MAX_FILE_BYTES) {
            Ok(None) => return Ok(None),
            Ok(Some(text)) => Self::read(&text),
            Err(error) => Err(error.to_string()),
        };
        read.map(Some).map_err(|why| {
            let is_sound = |text: &[u8]| Self::read(text).is_ok();
            let otherwise =
                "no intact copy exists: remove the file and its copy, and this node fetches the config again";
            let recovery = state_file::recovery(&path, is_sound, MAX_FILE_BYTES, otherwise);
            let text = format!("the stored fleet config of this node is unusable: {why}; {recovery}");
            Problem::of_file(Severity::Error, &path, text)
        })
    }

    /// Removes the stored config. Blocks.
    pub fn forget(data_dir: &Path) -> io::Result<()> {
        match state_file::remove(&data_dir.join(FOLDER).join(NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Text of the effective config, and the file that its problems refer to.
    pub(super) fn text_over(&self, own: &str, data_dir: &Path) -> (String, PathBuf) {
        (self.over(own), data_dir.join(FOLDER).join(NAME))
    }
}

/// Rule files named by a config.
fn rule_files(config: &Map<String, Value>) -> &[Value] {
    let files = config.get("policy").and_then(|policy| policy.get("files"));
    files.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RULE: &str = "permit (principal, action, resource);";
    const OWN: &str = r#"{
        // Per-node keys.
        "listen": "127.0.0.1:9", "api_key": "k", "cluster": {"node": "a"},
        "tools_limit": 3, "mcpServers": {"own": {"command": "x"}}
    }"#;

    fn of(text: &str) -> Result<(SharedConfig, Vec<String>), String> {
        SharedConfig::of(text, |name| match name {
            "a/r.cedar" => Ok(RULE.to_owned()),
            _ => Err(io::Error::other("not there")),
        })
    }

    #[test]
    fn shared_config_keeps_per_node_keys() {
        let text = r#"{"listen": "127.0.0.1:1", "api_key": "secret", "tools_limit": 5, "policy": {"files": ["a/r.cedar"]}}"#;
        let (shared, left_out) = of(text).unwrap();
        assert_eq!(left_out, ["listen", "api_key"]);
        assert!(!String::from_utf8(shared.write()).unwrap().contains("secret"));
        let over = shared.over(OWN);
        let over: Value = serde_json::from_str(&over).unwrap();
        assert_eq!(over["listen"], "127.0.0.1:9");
        assert_eq!(over["cluster"], json!({"node": "a"}));
        assert_eq!(over["tools_limit"], 5);
        assert_eq!(over.get("mcpServers"), None, "all nodes have the same servers");
        assert_eq!(over["policy"], json!({}), "the rules are part of the shared config");
        let [rules] = shared.files() else { panic!("{shared:?}") };
        assert_eq!((&*rules.name, &*rules.text), ("a/r.cedar", RULE));
    }

    #[test]
    fn stored_config_round_trips_with_its_rules() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(SharedConfig::kept(dir.path()).unwrap(), None);
        let (shared, _) = of(r#"{"policy": {"files": ["a/r.cedar"]}}"#).unwrap();
        shared.keep(dir.path()).unwrap();
        assert_eq!(SharedConfig::kept(dir.path()).unwrap().as_ref(), Some(&shared));
        fs::write(dir.path().join("fleet/config.json"), "{").unwrap();
        let problem = SharedConfig::kept(dir.path()).unwrap_err().to_string();
        assert!(problem.contains("is unusable") && problem.contains("cp -p"), "{problem}");
        shared.keep(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join("fleet/config.json")).unwrap();
        let altered = text.replace("permit (", "forbid (");
        fs::write(dir.path().join("fleet/config.json"), altered).unwrap();
        let problem = SharedConfig::kept(dir.path()).unwrap_err().to_string();
        assert!(problem.contains("checksum"), "{problem}");
        SharedConfig::forget(dir.path()).unwrap();
        SharedConfig::forget(dir.path()).unwrap();
        assert_eq!(SharedConfig::kept(dir.path()).unwrap(), None);
    }

    #[test]
    fn obsolete_rule_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("fleet/rules/abc");
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join("00-r.cedar"), "").unwrap();
        let (shared, _) = of(r#"{"policy": {"files": ["a/r.cedar"]}}"#).unwrap();
        shared.keep(dir.path()).unwrap();
        assert!(!dir.path().join("fleet/rules").exists());
        assert_eq!(SharedConfig::kept(dir.path()).unwrap().unwrap().files()[0].text, RULE);
    }

    #[test]
    fn invalid_shared_configs_are_refused() {
        for (text, why) in [
            ("[]", "must be"),
            ("{", "line 1"),
            (r#"{"policy": {"files": [1]}}"#, "must be file names"),
            (r#"{"policy": {"files": ["gone"]}}"#, "gone: not there"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        for (text, why) in [
            (r#"{"format":2,"config":{},"files":[]}"#, "unknown format 2"),
            (r#"{"format":1,"config":{"listen":"x"},"files":[]}"#, "listen is a per-node key"),
            (r#"{"format":1,"config":{},"files":[{"name":"a","text":""}]}"#, "number of files"),
            ("", "not a shared config"),
        ] {
            let error = SharedConfig::read(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(SharedConfig::read(&vec![b' '; MAX_SHARED_BYTES + 1]).is_err());
    }
}
