//! What a node remembers of its fleet's facts, in a file of its data folder for its owner alone: so that it starts without the
//! store, and that nothing that was put back in the store undoes what it has seen. Its functions block.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fact_object::WrittenFact;
use super::fact_set::FactSet;
use crate::fleet::config::NodeName;
use crate::fleet::sealed_mark::FleetId;
use crate::os::private;

const NAME: &str = "facts.json";
const NAME_NEW: &str = "facts.json.new";
/// Most bytes of the file.
const MAX_BYTES: u64 = 1 << 30;
const FORMAT: u32 = 1;

/// Why nothing is remembered.
#[derive(Debug, Error)]
#[error("{}: {why}", file.display())]
pub struct MemoryError {
    file: PathBuf,
    why: String,
}

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactMemory {
    /// All facts, of all nodes. Shared with whoever goes on changing them, as writing them takes a while.
    pub facts: Arc<FactSet>,
    /// The highest numbers of objects that were read.
    pub numbers: BTreeMap<NodeName, u64>,
    /// The nodes whose facts this one has had to say again.
    pub said_again: BTreeSet<NodeName>,
    /// What the parts that take facts over remember, by their names.
    pub notes: BTreeMap<String, String>,
    /// Whether all that the fleet says was read once: before, what is not here may be said all the same.
    pub heard: bool,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    format: u32,
    fleet: String,
    /// Not written by those that did not start before they had heard.
    #[serde(default = "has_heard")]
    heard: bool,
    numbers: BTreeMap<String, u64>,
    /// Not written by those that knew it from their own object in the store alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    said_again: Vec<String>,
    notes: BTreeMap<String, String>,
    facts: BTreeMap<String, Vec<WrittenFact>>,
}

fn has_heard() -> bool {
    true
}

impl FactMemory {
    /// What is remembered of that fleet in `folder`; `None` where nothing is.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]: what is there cannot be read.
    pub fn load(folder: &Path, fleet: FleetId) -> Result<Option<Self>, MemoryError> {
        let path = folder.join(NAME);
        let failed = |why: String| MemoryError { file: path.clone(), why };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        };
        let mut text = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut text).map_err(|error| failed(error.to_string()))?;
        let read: Contents =
            serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
        if read.format != FORMAT {
            return Err(failed(format!("it has unknown format {}", read.format)));
        }
        if FleetId::parse(&read.fleet) != Some(fleet) {
            return Err(failed(format!("it is about fleet {}", read.fleet)));
        }
        let name = |name: &str| {
            NodeName::parse(name).ok_or_else(|| failed(format!("'{name}' is no node's name")))
        };
        let mut memory = Self { notes: read.notes, heard: read.heard, ..Self::default() };
        for (node, number) in read.numbers {
            memory.numbers.insert(name(&node)?, number);
        }
        for node in read.said_again {
            memory.said_again.insert(name(&node)?);
        }
        let mut set = FactSet::default();
        for (node, facts) in read.facts {
            let node = name(&node)?;
            for fact in facts {
                fact.add(&node, &mut set).map_err(|error| failed(error.to_string()))?;
            }
        }
        memory.facts = Arc::new(set);
        Ok(Some(memory))
    }

    /// Remembers this instead, durably.
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    pub fn save(&self, folder: &Path, fleet: FleetId) -> Result<(), MemoryError> {
        let failed = |why: String| MemoryError { file: folder.join(NAME), why };
        let mut facts: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (kind, name, fact) in self.facts.iter() {
            let node = fact.stamp.node.as_str().to_owned();
            facts.entry(node).or_default().push(WrittenFact::of(kind, name, fact));
        }
        let numbers = self.numbers.iter().map(|(node, number)| (node.as_str().to_owned(), *number));
        let contents = Contents {
            format: FORMAT,
            fleet: fleet.to_string(),
            heard: self.heard,
            numbers: numbers.collect(),
            said_again: self.said_again.iter().map(|node| node.as_str().to_owned()).collect(),
            notes: self.notes.clone(),
            facts,
        };
        let text = serde_json::to_vec(&contents).map_err(|error| failed(error.to_string()))?;
        replace_private(folder, (NAME, NAME_NEW), &text).map_err(|error| failed(error.to_string()))
    }
}

/// Replaces a file of `folder` whole, durably; `name` is its own and the one under which it is made.
pub(super) fn replace_private(
    folder: &Path,
    (name, new): (&str, &str),
    text: &[u8],
) -> io::Result<()> {
    private::folder(folder)?;
    let aside = folder.join(new);
    let mut file = private::create(&aside)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&aside, folder.join(name))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::fact_set::FactKind;
    use super::super::fact_set::tests::node;
    use super::*;

    #[test]
    fn what_is_remembered_is_whole_private_and_of_one_fleet() {
        let (dir, fleet) = (tempfile::tempdir().unwrap(), FleetId([1; 16]));
        assert_eq!(FactMemory::load(dir.path(), fleet).unwrap(), None);
        let (mut memory, mut facts) = (FactMemory::default(), FactSet::default());
        for name in ["a", "b"] {
            facts.say(&node(name), FactKind::Token, name, "{}").unwrap();
            memory.numbers.insert(node(name), 7);
        }
        facts.end(&node("b"), FactKind::Token, "a");
        memory.facts = Arc::new(facts);
        memory.said_again.insert(node("gone"));
        memory.notes.insert("tokens".into(), "x".into());
        memory.heard = true;
        memory.save(dir.path(), fleet).unwrap();
        assert_eq!(FactMemory::load(dir.path(), fleet).unwrap(), Some(memory.clone()));
        let file = dir.path().join(NAME);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("gone", "../gone")).unwrap();
        let wrong = FactMemory::load(dir.path(), fleet).unwrap_err();
        assert!(wrong.to_string().contains("'../gone' is no node's name"), "{wrong}");
        // As it was written before it was remembered who is said again.
        fs::write(&file, text.replace(r#""said_again":["gone"],"#, "")).unwrap();
        memory.said_again.clear();
        assert_eq!(FactMemory::load(dir.path(), fleet).unwrap(), Some(memory));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let other = FactMemory::load(dir.path(), FleetId([2; 16])).unwrap_err();
        assert!(other.to_string().contains("it is about fleet 0101"), "{other}");
        for text in ["", "{}", "\0"] {
            fs::write(&file, text).unwrap();
            assert!(FactMemory::load(dir.path(), fleet).is_err(), "{text}");
        }
    }
}
