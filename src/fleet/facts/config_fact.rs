//! The facts about the config: which one the fleet runs, and which one a node does. Pure. The config itself lies in an object of
//! its own, under the name of its hash.

use serde::{Deserialize, Serialize};

use super::fact_set::{Fact, FactKind, FactSet};
use crate::fleet::config::NodeName;

/// Most earlier configs that can be gone back to.
const MAX_EARLIER: usize = 16;
/// Most copies of a config that are looked at.
const MAX_COPIES: usize = 16;
/// The folder of the configs: one for each node that has put some.
pub const CONFIGS: &str = "facts/config";
/// Most characters of a reason.
const MAX_REASON_CHARS: usize = 500;

/// A config that the fleet runs or ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigVersion {
    /// Counts what was applied.
    pub version: u64,
    /// The hash of it.
    pub hash: String,
    /// The node that has put it.
    pub node: String,
    /// Who applied it.
    pub by: String,
    /// When, by the clock of that node, in seconds since 1970; for people.
    pub at: u64,
}

impl ConfigVersion {
    /// Where it lies in the store.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{CONFIGS}/{}/{}", self.node, self.hash)
    }

    /// Where `node` puts a copy of it.
    #[must_use]
    pub fn copy_by(&self, node: &NodeName) -> String {
        Self { node: node.as_str().to_owned(), ..self.clone() }.key()
    }

    /// Those of `keys` that are copies of it by other nodes, the first few.
    pub fn copies<'a>(
        &'a self,
        keys: impl Iterator<Item = &'a str> + 'a,
    ) -> impl Iterator<Item = &'a str> + 'a {
        let is_it =
            move |key: &&str| key.rsplit('/').next() == Some(&*self.hash) && **key != self.key();
        keys.filter(is_it).take(MAX_COPIES)
    }

    /// True if what it names can be a key.
    fn is_whole(&self) -> bool {
        let digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        NodeName::parse(&self.node).is_some()
            && self.hash.len() == 64
            && self.hash.chars().all(digit)
    }
}

/// Which config the fleet runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFact {
    /// This one.
    #[serde(flatten)]
    pub now: ConfigVersion,
    /// Those before it, the last one first.
    pub earlier: Vec<ConfigVersion>,
}

impl ConfigFact {
    /// As the fleet knows it; `None` where it has none.
    #[must_use]
    pub fn of(facts: &FactSet) -> Option<Self> {
        let fact = facts.get(FactKind::Config, "").and_then(Fact::value)?;
        let read: Self = serde_json::from_str(fact).ok()?;
        (read.now.is_whole() && read.earlier.iter().all(ConfigVersion::is_whole)).then_some(read)
    }

    /// That from now on it is `hash`, put by `node`, after what `before` says.
    #[must_use]
    pub fn applied(before: Option<Self>, hash: String, node: &NodeName, by: &str, at: u64) -> Self {
        let version = before.as_ref().map_or(0, |before| before.now.version) + 1;
        let earlier =
            before.into_iter().flat_map(|Self { now, earlier }| [now].into_iter().chain(earlier));
        let (node, by) = (node.as_str().to_owned(), by.to_owned());
        let now = ConfigVersion { version, hash, node, by, at };
        Self { now, earlier: earlier.take(MAX_EARLIER).collect() }
    }

    /// That from now on it is again the one before, as a new version; `None` if there is none.
    #[must_use]
    pub fn rolled_back(self, by: &str, at: u64) -> Option<Self> {
        let mut earlier = self.earlier.into_iter();
        let before = earlier.next()?;
        let version = self.now.version + 1;
        let now = ConfigVersion { version, by: by.to_owned(), at, ..before };
        Some(Self { now, earlier: earlier.collect() })
    }

    /// As a fact.
    #[must_use]
    pub fn value(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What a node makes of the fleet's config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigRunState {
    /// It runs it.
    Running,
    /// It cannot, and runs what it did before.
    Refused,
}

/// Which config a node runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRun {
    /// The version that it has looked at last.
    pub version: u64,
    /// The hash of that.
    pub hash: String,
    /// What it makes of it.
    pub state: ConfigRunState,
    /// Why it refuses it; empty if it does not.
    pub reason: String,
    /// The keys that count from its next start on.
    pub needs_restart: Vec<String>,
}

impl ConfigRun {
    /// What a node makes of a version.
    #[must_use]
    pub fn of(version: &ConfigVersion, refused: Option<&str>, needs_restart: &[String]) -> Self {
        let state = match refused {
            None => ConfigRunState::Running,
            Some(_) => ConfigRunState::Refused,
        };
        Self {
            version: version.version,
            hash: version.hash.clone(),
            state,
            reason: refused.unwrap_or_default().chars().take(MAX_REASON_CHARS).collect(),
            needs_restart: needs_restart.to_vec(),
        }
    }

    /// What all nodes run, by their names.
    #[must_use]
    pub fn all(facts: &FactSet) -> Vec<(String, Self)> {
        // What is said of a node by another one is not believed.
        let own = |(name, fact): &(&str, &Fact)| fact.stamp.node.as_str() == *name;
        let runs = facts.of(FactKind::ConfigRun).filter(own);
        runs.filter_map(|(node, fact)| {
            Some((node.to_owned(), serde_json::from_str(fact.value()?).ok()?))
        })
        .collect()
    }

    /// As a fact.
    #[must_use]
    pub fn value(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fact_set::tests::node;
    use super::*;

    fn hash(digit: char) -> String {
        std::iter::repeat_n(digit, 64).collect()
    }

    #[test]
    fn what_was_applied_is_gone_back_from_step_by_step() {
        let a = node("a");
        let mut fact = None;
        for digit in ['1', '2', '3'] {
            fact = Some(ConfigFact::applied(fact, hash(digit), &a, "admin", 5));
        }
        let fact = fact.unwrap();
        assert_eq!((fact.now.version, &fact.now.hash), (3, &hash('3')));
        let back = fact.rolled_back("admin", 6).unwrap();
        assert_eq!((back.now.version, &back.now.hash), (4, &hash('2')));
        let back = back.rolled_back("admin", 7).unwrap();
        assert_eq!((back.now.version, &back.now.hash), (5, &hash('1')));
        assert_eq!(back.clone().rolled_back("admin", 8), None);
        let mut long = back;
        for _ in 0..30 {
            long = ConfigFact::applied(Some(long), hash('4'), &a, "admin", 9);
        }
        assert_eq!(long.earlier.len(), MAX_EARLIER);
        let mut facts = FactSet::default();
        facts.say(&a, FactKind::Config, "", &long.value()).unwrap();
        assert_eq!(ConfigFact::of(&facts), Some(long.clone()));
        assert_eq!(long.now.key(), format!("facts/config/a/{}", hash('4')));
    }

    #[test]
    fn what_leads_out_of_its_folder_and_what_is_said_of_others_is_not_believed() {
        let [a, b] = ["a", "b"].map(node);
        let mut facts = FactSet::default();
        let mut fact = ConfigFact::applied(None, hash('1'), &a, "admin", 5);
        fact.now.hash = "../../x".into();
        facts.say(&a, FactKind::Config, "", &fact.value()).unwrap();
        assert_eq!(ConfigFact::of(&facts), None);
        let version = ConfigFact::applied(None, hash('1'), &a, "admin", 5).now;
        let run = ConfigRun::of(&version, None, &[]);
        facts.say(&a, FactKind::ConfigRun, "b", &run.value()).unwrap();
        facts.say(&b, FactKind::ConfigRun, "c", &run.value()).unwrap();
        facts.say(&a, FactKind::ConfigRun, "a", &run.value()).unwrap();
        assert_eq!(ConfigRun::all(&facts), [("a".to_owned(), run)]);
    }
}
