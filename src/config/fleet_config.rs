//! The config that a fleet shares: what is shared of a file and what stays each node's, how it is written into the store, and
//! what a node's own config and the shared one come to. The files of rules that it names are in it.
//!
//! Every key but those of [`NODE_KEYS`] is the fleet's: where a fleet has a config, a node's own file says nothing about them,
//! so that all nodes run the same. What is accepted is kept in `data_dir/fleet`, and read wherever the config is.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::document::ConfigDocument;
use super::problem::{Problem, Severity};
use crate::os::private;

/// The keys that are each node's own.
pub const NODE_KEYS: [&str; 7] =
    ["$schema", "listen", "tls", "data_dir", "api_key", "cluster", "logging"];
/// Most bytes of a shared config.
pub const MAX_SHARED_BYTES: usize = 12 << 20;
/// Most files of rules in it.
const MAX_FILES: usize = 64;
const FORMAT: u32 = 1;
/// The folder in the data folder, and the file in it.
const FOLDER: &str = "fleet";
const NAME: &str = "config.json";
const NAME_NEW: &str = "config.json.new";
/// The folder beside it of the files of rules.
const RULES: &str = "rules";
/// Configs whose files of rules stay there beside those of the one that is kept: the newest, of which one may be on its way.
const MAX_RULES: usize = 16;

/// A file of rules: the name that it had, and what it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedFile {
    /// Its name, for people.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A config as a fleet shares it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedConfig {
    format: u32,
    /// What the file says, but for what is each node's.
    config: Map<String, Value>,
    /// The files that `policy.files` names, in their order.
    files: Vec<SharedFile>,
}

impl SharedConfig {
    /// Of the text of a config file, whose files of rules are read by `read`; and the keys that are left out, since each node
    /// has its own.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
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
            let name = name.as_str().ok_or("policy.files: must be names of files")?;
            let text = read(name).map_err(|error| format!("policy.files: {name}: {error}"))?;
            files.push(SharedFile { name: name.to_owned(), text });
        }
        let shared = Self { format: FORMAT, config, files };
        shared.check().map(|()| (shared, left_out))
    }

    /// Reads what [`Self::write`] has written.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_SHARED_BYTES {
            return Err(format!("it is longer than {MAX_SHARED_BYTES} bytes"));
        }
        let read: Self = serde_json::from_slice(text)
            .map_err(|error| format!("it is no shared config: {:?}", error.classify()))?;
        read.check().map(|()| read)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("it has unknown format {}", self.format));
        }
        if let Some(key) = NODE_KEYS.iter().find(|key| self.config.contains_key(**key)) {
            return Err(format!("{key} is each node's own, and is not shared"));
        }
        if self.files.len() != rule_files(&self.config).len() || self.files.len() > MAX_FILES {
            return Err(format!(
                "policy.files and the files in it are not as many, or more than {MAX_FILES}"
            ));
        }
        if self.write().len() > MAX_SHARED_BYTES {
            return Err(format!("it is longer than {MAX_SHARED_BYTES} bytes"));
        }
        Ok(())
    }

    /// As it is stored: the same config gives the same bytes.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Its name: a hash of what it says.
    #[must_use]
    pub fn hash(&self) -> String {
        blake3::hash(&self.write()).to_hex().to_string()
    }

    /// The text of the config that a node has whose own file says `own`, with its data folder.
    fn over(&self, own: &str, data_dir: &Path) -> String {
        let (_, own) = ConfigDocument::parse(own, &mut Vec::new());
        let mut both = self.config.clone();
        for (key, value) in own {
            if NODE_KEYS.contains(&&*key) {
                both.insert(key, value);
            }
        }
        if let Some(names) = both.get_mut("policy").and_then(|policy| policy.get_mut("files")) {
            let paths = self.rule_paths(data_dir);
            *names = paths.iter().map(|path| json!(path.display().to_string())).collect();
        }
        Value::Object(both).to_string()
    }

    /// Where its files of rules are on a node.
    fn rule_paths(&self, data_dir: &Path) -> Vec<PathBuf> {
        let folder = data_dir.join(FOLDER).join(RULES).join(self.hash());
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let name = |(at, file): (usize, &SharedFile)| {
            let last = file.name.rsplit('/').next().unwrap_or_default();
            let last: String = last.chars().filter(|c| plain(*c)).take(64).collect();
            folder.join(format!("{at:02}-{last}"))
        };
        self.files.iter().enumerate().map(name).collect()
    }

    /// Writes its files of rules to where they are read, and removes those of configs that were checked long ago. Blocks.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn put_rules(&self, data_dir: &Path) -> io::Result<()> {
        for (path, file) in self.rule_paths(data_dir).iter().zip(&self.files) {
            if let Some(folder) = path.parent() {
                private::folder(folder)?;
            }
            let mut written = private::create(path)?;
            written.write_all(file.text.as_bytes())?;
            written.sync_all()?;
        }
        // What cannot be removed now is tried again with the next one.
        let _ = self.remove_old_rules(data_dir);
        Ok(())
    }

    /// Removes the files of rules of other configs than this one, the one that is kept, and the newest.
    fn remove_old_rules(&self, data_dir: &Path) -> io::Result<()> {
        // Where it is not known which one is kept, none is removed.
        let Ok(kept) = Self::kept(data_dir) else { return Ok(()) };
        let stay = [Some(self.hash()), kept.map(|kept| kept.hash())];
        let folder = data_dir.join(FOLDER).join(RULES);
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        let mut others = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_ours = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_ours && !stay.iter().flatten().any(|hash| *hash == name) {
                others.push((entry.metadata()?.modified()?, name));
            }
        }
        others.sort_by(|a, b| b.cmp(a));
        for (_, name) in others.iter().skip(MAX_RULES) {
            fs::remove_dir_all(folder.join(name))?;
        }
        Ok(())
    }

    /// Keeps it as what this node runs, durably. Blocks.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn keep(&self, data_dir: &Path) -> io::Result<()> {
        self.put_rules(data_dir)?;
        let folder = data_dir.join(FOLDER);
        private::folder(&folder)?;
        let aside = folder.join(NAME_NEW);
        let mut file = private::create(&aside)?;
        file.write_all(&self.write())?;
        file.sync_all()?;
        fs::rename(&aside, folder.join(NAME))?;
        fs::File::open(folder)?.sync_all()
    }

    /// What this node runs; `None` where it runs its own config. Blocks.
    ///
    /// # Errors
    ///
    /// It is there and cannot be used: the node's own would say less than what is in force elsewhere.
    pub fn kept(data_dir: &Path) -> Result<Option<Self>, Problem> {
        let path = data_dir.join(FOLDER).join(NAME);
        let wrong = |why: String| {
            let text = format!(
                "the fleet's config, which this node has taken over, cannot be used: {why}; without this file it learns it again"
            );
            Problem::of_file(Severity::Error, &path, text)
        };
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let mut text = Vec::new();
        let read = file.take(MAX_SHARED_BYTES as u64 + 1).read_to_end(&mut text);
        read.map_err(|error| wrong(error.to_string()))?;
        Self::read(&text).map(Some).map_err(wrong)
    }

    /// No more runs the fleet's config. Blocks.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn forget(data_dir: &Path) -> io::Result<()> {
        match fs::remove_file(data_dir.join(FOLDER).join(NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The text of the config of a node with this one, and the file that problems of it are told of.
    pub(super) fn text_over(&self, own: &str, data_dir: &Path) -> (String, PathBuf) {
        (self.over(own, data_dir), data_dir.join(FOLDER).join(NAME))
    }
}

/// The files of rules that a config names.
fn rule_files(config: &Map<String, Value>) -> &[Value] {
    let files = config.get("policy").and_then(|policy| policy.get("files"));
    files.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = r#"{
        // This node's.
        "listen": "127.0.0.1:9", "api_key": "k", "cluster": {"node": "a"},
        "tools_limit": 3, "mcpServers": {"own": {"command": "x"}}
    }"#;

    fn of(text: &str) -> Result<(SharedConfig, Vec<String>), String> {
        SharedConfig::of(text, |name| match name {
            "a/r.cedar" => Ok("permit (principal, action, resource);".to_owned()),
            _ => Err(io::Error::other("not there")),
        })
    }

    #[test]
    fn what_is_each_nodes_stays_and_the_rest_is_the_fleets() {
        let text = r#"{"listen": "127.0.0.1:1", "api_key": "secret", "tools_limit": 5, "policy": {"files": ["a/r.cedar"]}}"#;
        let (shared, left_out) = of(text).unwrap();
        assert_eq!(left_out, ["listen", "api_key"]);
        assert!(!String::from_utf8(shared.write()).unwrap().contains("secret"));
        let over = shared.over(OWN, Path::new("/d"));
        let over: Value = serde_json::from_str(&over).unwrap();
        assert_eq!(over["listen"], "127.0.0.1:9");
        assert_eq!(over["cluster"], json!({"node": "a"}));
        assert_eq!(over["tools_limit"], 5);
        assert_eq!(over.get("mcpServers"), None, "it would be another config than the others'");
        let rules = over["policy"]["files"][0].as_str().unwrap();
        assert_eq!(rules, format!("/d/fleet/rules/{}/00-r.cedar", shared.hash()));
    }

    #[test]
    fn what_is_kept_is_what_was_accepted_with_its_rules() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(SharedConfig::kept(dir.path()).unwrap(), None);
        let (shared, _) = of(r#"{"policy": {"files": ["a/r.cedar"]}}"#).unwrap();
        shared.keep(dir.path()).unwrap();
        assert_eq!(SharedConfig::kept(dir.path()).unwrap().as_ref(), Some(&shared));
        let rules = fs::read_to_string(&shared.rule_paths(dir.path())[0]).unwrap();
        assert!(rules.starts_with("permit"));
        fs::write(dir.path().join("fleet/config.json"), "{").unwrap();
        let problem = SharedConfig::kept(dir.path()).unwrap_err().to_string();
        assert!(problem.contains("cannot be used"), "{problem}");
        SharedConfig::forget(dir.path()).unwrap();
        SharedConfig::forget(dir.path()).unwrap();
        assert_eq!(SharedConfig::kept(dir.path()).unwrap(), None);
    }

    #[test]
    fn of_configs_that_were_only_checked_few_leave_their_rules_behind() {
        let dir = tempfile::tempdir().unwrap();
        let of = |limit: usize| {
            let text =
                format!(r#"{{"tools_limit": {limit}, "policy": {{"files": ["a/r.cedar"]}}}}"#);
            of(&text).unwrap().0
        };
        let rules = |shared: &SharedConfig| shared.rule_paths(dir.path()).remove(0);
        let kept = of(1);
        kept.keep(dir.path()).unwrap();
        let foreign = dir.path().join("fleet/rules/of somebody");
        fs::create_dir(&foreign).unwrap();
        for limit in 2..50 {
            let checked = of(limit);
            checked.put_rules(dir.path()).unwrap();
            assert!(rules(&checked).exists() && rules(&kept).exists(), "{limit}");
        }
        let left = fs::read_dir(dir.path().join("fleet/rules")).unwrap().count();
        assert_eq!(left, MAX_RULES + 3, "the kept one, the last one, and what is not ours");
        // Where the kept one cannot be read, nothing goes.
        fs::write(dir.path().join("fleet/config.json"), "{").unwrap();
        of(50).put_rules(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("fleet/rules")).unwrap().count(), left + 1);
        assert!(foreign.exists() && rules(&kept).exists());
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        for (text, why) in [
            ("[]", "must be"),
            ("{", "line 1"),
            (r#"{"policy": {"files": [1]}}"#, "names of files"),
            (r#"{"policy": {"files": ["gone"]}}"#, "gone: not there"),
        ] {
            let told = of(text).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
        for (text, why) in [
            (r#"{"format":2,"config":{},"files":[]}"#, "unknown format 2"),
            (r#"{"format":1,"config":{"listen":"x"},"files":[]}"#, "listen is each node's own"),
            (r#"{"format":1,"config":{},"files":[{"name":"a","text":""}]}"#, "not as many"),
            ("", "no shared config"),
        ] {
            let told = SharedConfig::read(text.as_bytes()).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
        assert!(SharedConfig::read(&vec![b' '; MAX_SHARED_BYTES + 1]).is_err());
    }
}
