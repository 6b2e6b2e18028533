//! Replication of agent tokens in a fleet: a three-way merge of the local token file, the last synchronized state and the fleet's
//! shared state. The merge is pure; the rest blocks.
//!
//! The token file is the interface: it may be changed by this process, or by the command line while no process runs, and the process may be
//! killed at any time. Differences from the last synchronized state are local changes. A token is identified by its name and creation time;
//! a token that is missing from the file is revoked permanently. A missing file does not count as a change.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use mcpproxy_fleet::facts::{Fact, FactKind, FactRefused, FactSet, FleetFacts, NodeName};
use mcpproxy_policy::identity::{Identity, MAX_TOKENS, StoredToken, TokenFileError};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Key of the note with the last synchronized state.
const NOTE: &str = "tokens";

/// Hashes of synchronized tokens by fact name.
type SyncedTokens = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StepNote {
    /// The last synchronized state.
    step: SyncedTokens,
    /// The state that the file is about to be changed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pending: Option<PendingStep>,
}

/// A pending write of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PendingStep {
    /// Hash of the file before the write.
    from: String,
    /// The synchronized state after the write.
    step: SyncedTokens,
}

impl StepNote {
    /// State that was synchronized when the file was last written. If a pending write may have happened, tokens that it would have
    /// contained but the file lacks count as revoked.
    fn before(self, file: &[StoredToken]) -> SyncedTokens {
        match self.pending {
            Some(pending) if pending.from != file_hash(file) => pending.step,
            Some(_) | None => self.step,
        }
    }
}

fn file_hash(file: &[StoredToken]) -> String {
    hash(&file.iter().map(value).collect::<String>())
}

/// Name of a token's fact.
fn fact_name(token: &StoredToken) -> String {
    format!("{}/{}", token.name, token.created)
}

fn value(token: &StoredToken) -> String {
    serde_json::to_string(token).unwrap_or_default()
}

fn hash(value: &str) -> String {
    blake3::hash(value.as_bytes()).to_hex().to_string()
}

/// The synchronized state once these tokens are in the file.
fn synced(tokens: &[StoredToken]) -> SyncedTokens {
    tokens.iter().map(|token| (fact_name(token), hash(&value(token)))).collect()
}

/// Publishes the local changes to the shared state. Returns the tokens that cannot be shared, and are valid only on this node, with the
/// reasons.
fn publish(
    file: &[StoredToken],
    before: &SyncedTokens,
    node: &NodeName,
    facts: &mut FactSet,
) -> Vec<(StoredToken, FactRefused)> {
    let mut refused = Vec::new();
    let now = synced(file);
    // Revocations are published first, because they always fit and free space.
    let of = |name: &str| name.rsplit_once('/').map_or(name, |(token, _)| token).to_owned();
    let removed = before.keys().filter(|name| !now.contains_key(*name));
    let removed: BTreeSet<String> = removed.map(|name| of(name)).collect();
    if !removed.is_empty() {
        // Two nodes may have created a token with the same name, of which the file holds only one: both are revoked.
        let all = facts.of(FactKind::Token).map(|(name, _)| name);
        let ended = all.filter(|name| removed.contains(&of(name)) && !now.contains_key(*name));
        let ended: Vec<String> = ended.map(str::to_owned).collect();
        for name in ended {
            facts.end(node, FactKind::Token, &name);
        }
    }
    for token in file {
        let (name, value) = (fact_name(token), value(token));
        if before.get(&name) == Some(&hash(&value)) {
            continue;
        }
        match facts.set_value(node, FactKind::Token, &name, &value) {
            Ok(_) | Err(FactRefused::Ended) => {}
            Err(why) => refused.push((token.clone(), why)),
        }
    }
    refused
}

/// The tokens of the fleet by name; if several have the same name, the latest counts.
fn of_fleet(facts: &FactSet) -> Vec<StoredToken> {
    let mut tokens: BTreeMap<Box<str>, (&Fact, StoredToken)> = BTreeMap::new();
    for (name, fact) in facts.of(FactKind::Token) {
        let token = fact.value().and_then(|value| serde_json::from_str::<StoredToken>(value).ok());
        // A value under a different name could not be revoked.
        let Some(token) = token.filter(|token| fact_name(token) == name) else { continue };
        match tokens.get(&token.name) {
            Some((there, _)) if there.stamp > fact.stamp => {}
            Some(_) | None => {
                tokens.insert(token.name.clone(), (fact, token));
            }
        }
    }
    tokens.into_values().map(|(_, token)| token).collect()
}

/// The tokens to write into the file.
fn merged_tokens(facts: &FactSet, refused: Vec<(StoredToken, FactRefused)>) -> Vec<StoredToken> {
    let of_fleet = of_fleet(facts).into_iter().map(|token| (token.name.clone(), token));
    let mut tokens: BTreeMap<_, _> = of_fleet.collect();
    for (token, why) in refused {
        peer_line!(warn, LinePeer::Part("shared tokens"), token = &*token.name, %why, "token is valid on this node only");
        tokens.insert(token.name.clone(), token);
    }
    let mut tokens: Vec<_> = tokens.into_values().collect();
    if tokens.len() > MAX_TOKENS {
        peer_line!(
            error,
            LinePeer::Part("shared tokens"),
            tokens = tokens.len(),
            "the fleet has more than {MAX_TOKENS} agent tokens: the last ones by name are ignored"
        );
        tokens.truncate(MAX_TOKENS);
    }
    tokens
}

/// Merges the file with the shared state. Returns the next file, and the note to store before it is written.
fn merge(
    file: Option<&[StoredToken]>,
    note: StepNote,
    node: &NodeName,
    facts: &mut FactSet,
) -> (Vec<StoredToken>, StepNote) {
    let there = file.unwrap_or_default();
    let before = note.before(there);
    let refused = file.map_or_else(Vec::new, |file| publish(file, &before, node, facts));
    let next = merged_tokens(facts, refused);
    let step = synced(&next);
    let pending =
        (next != there).then(|| PendingStep { from: file_hash(there), step: step.clone() });
    let step = if pending.is_some() { before } else { step };
    (next, StepNote { step, pending })
}

/// Synchronizes the file with the fleet. Blocks.
pub(super) fn step(identity: &Identity, facts: &FleetFacts) -> Result<(), TokenFileError> {
    let note = facts.note(NOTE).and_then(|note| serde_json::from_str(&note).ok());
    let mut done = None;
    let changed = identity.reconcile(|file| {
        let merged = facts.change(|set, notes| {
            let (next, noted) = merge(file, note.unwrap_or_default(), facts.node(), set);
            notes.insert(NOTE.to_owned(), serde_json::to_string(&noted).unwrap_or_default());
            (next, noted)
        });
        match merged {
            Ok((next, noted)) => {
                done = noted.pending.map(|pending| pending.step);
                next
            }
            Err(error) => {
                peer_line!(error, LinePeer::Part("shared tokens"), %error, "cannot store the state of the agent tokens; the file is unchanged, retrying");
                file.unwrap_or_default().to_vec()
            }
        }
    })?;
    if changed {
        peer_line!(info, LinePeer::Part("shared tokens"), "agent tokens updated from the fleet");
    }
    let Some(step) = done else { return Ok(()) };
    let note = StepNote { step, pending: None };
    let note = serde_json::to_string(&note).unwrap_or_default();
    // Without the note, the next step detects that the pending write was completed.
    if let Err(error) = facts.change(|_, notes| notes.insert(NOTE.to_owned(), note)) {
        peer_line!(error, LinePeer::Part("shared tokens"), %error, "cannot store which agent tokens are synchronized");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str) -> NodeName {
        NodeName::parse(name).unwrap()
    }

    fn token(name: &str, created: u64, hash: u8) -> StoredToken {
        StoredToken {
            name: name.into(),
            hash: [hash; 32],
            servers: Vec::new(),
            tools: Vec::new(),
            operations: Vec::new(),
            created,
            expires: None,
        }
    }

    /// A node: its file, the synchronized state and its copy of the shared state.
    #[derive(Clone, Debug, Default)]
    struct Node {
        file: Vec<StoredToken>,
        note: StepNote,
        facts: FactSet,
    }

    /// Point at which a crash interrupts a step.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Cut {
        Nowhere,
        BeforeTheFile,
        AfterTheFile,
    }

    impl Node {
        fn step(&mut self, name: &NodeName) {
            self.step_cut(name, Cut::Nowhere);
        }

        fn step_cut(&mut self, name: &NodeName, cut: Cut) {
            let note = std::mem::take(&mut self.note);
            let (next, noted) = merge(Some(&self.file), note, name, &mut self.facts);
            self.note = noted;
            if cut == Cut::BeforeTheFile {
                return;
            }
            self.file = next;
            if let (Some(pending), Cut::Nowhere) = (&self.note.pending, cut) {
                self.note = StepNote { step: pending.step.clone(), pending: None };
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Create(u8),
        Rotate(u8),
        Revoke(u8),
        Step(Cut),
        /// Reads the state of this node, and steps.
        Read(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (0..3_u8).prop_map(Act::Create),
            1 => (0..3_u8).prop_map(Act::Rotate),
            2 => (0..3_u8).prop_map(Act::Revoke),
            3 => prop::sample::select(vec![Cut::Nowhere, Cut::BeforeTheFile, Cut::AfterTheFile]).prop_map(Act::Step),
            4 => (0..3_usize).prop_map(Act::Read),
        ]
    }

    proptest! {
        #[test]
        fn revoked_secret_is_valid_nowhere_once_all_nodes_have_merged(
            acts in prop::collection::vec((0..3_usize, act()), 0..50),
        ) {
            let names = ["a", "b", "c"].map(node);
            let mut nodes = vec![Node::default(); 3];
            let mut revoked = Vec::new();
            for (number, (at, act)) in acts.into_iter().enumerate() {
                let made = number as u8 + 1;
                let file = &mut nodes[at].file;
                let place = |file: &[StoredToken], name: u8| file.iter().position(|it| *it.name == *format!("t{name}"));
                match act {
                    Act::Create(name) if place(file, name).is_none() => {
                        file.push(token(&format!("t{name}"), u64::from(made), made));
                    }
                    Act::Rotate(name) => if let Some(at) = place(file, name) { file[at].hash = [made; 32] },
                    Act::Revoke(name) => if let Some(at) = place(file, name) { revoked.push(file.remove(at)) },
                    Act::Create(_) => {}
                    Act::Step(cut) => nodes[at].step_cut(&names[at], cut),
                    Act::Read(of) => {
                        // A starting node synchronizes its own file before it reads facts of other nodes.
                        nodes[at].step(&names[at]);
                        let published = nodes[of].facts.authored_by(&names[of]);
                        nodes[at].facts.merge(&published);
                        nodes[at].step(&names[at]);
                    }
                }
            }
            for round in 0..6 {
                let at = round % 3;
                nodes[at].step(&names[at]);
                for of in 0..3 {
                    let published = nodes[of].facts.authored_by(&names[of]);
                    nodes[at].facts.merge(&published);
                }
                nodes[at].step(&names[at]);
            }
            for node in &nodes {
                prop_assert_eq!(&node.file, &nodes[0].file);
                for gone in &revoked {
                    // The node must not have the revoked token, or at least not its secret if it was rotated concurrently.
                    prop_assert!(!node.file.iter().any(|it| it.hash == gone.hash), "{:?}", gone);
                }
            }
        }
    }

    #[test]
    fn only_local_changes_are_published() {
        let a = node("a");
        let mut it = Node { file: vec![token("x", 1, 1), token("y", 2, 2)], ..Node::default() };
        it.step(&a);
        assert_eq!(it.facts.len(), 2);
        let stamps =
            |facts: &FactSet| facts.iter().map(|(_, _, fact)| fact.stamp.clock).collect::<Vec<_>>();
        let before = stamps(&it.facts);
        it.step(&a);
        assert_eq!(stamps(&it.facts), before, "nothing was changed");
        it.file.remove(0);
        it.step(&a);
        assert_eq!(it.file, [token("y", 2, 2)]);
        // A token restored from a copy of the file stays revoked.
        it.file.insert(0, token("x", 1, 1));
        it.step(&a);
        assert_eq!(it.file, [token("y", 2, 2)]);
        // If created again, it is a different token.
        it.file.insert(0, token("x", 9, 9));
        it.step(&a);
        assert_eq!(it.file, [token("x", 9, 9), token("y", 2, 2)]);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn work_for_ten_thousand_tokens_is_linear() {
        use mcpproxy_fleet::facts::scan_counter;

        const TOKENS: u64 = 10_000;
        let a = node("a");
        let made = |at: u64| token(&format!("t{at:05}"), at + 1, at as u8);
        let mut it = Node { file: (0..TOKENS).map(made).collect(), ..Node::default() };
        let mut before = scan_counter::count();
        let mut walked =
            || scan_counter::count() - std::mem::replace(&mut before, scan_counter::count());
        it.step(&a);
        assert_eq!((it.facts.len() as u64, it.file.len() as u64), (TOKENS, TOKENS));
        assert!(walked() <= 2 * TOKENS, "each is published in a few steps");
        // Another node receives them all, and revokes every second one.
        let (b, mut other) = (node("b"), Node::default());
        other.facts.merge(&it.facts.authored_by(&a));
        other.step(&b);
        assert_eq!(other.file, it.file);
        assert!(walked() <= 4 * TOKENS, "each is received in a few steps");
        let mut at = 0;
        other.file.retain(|_| {
            at += 1;
            at % 2 == 0
        });
        let kept = other.file.clone();
        other.step(&b);
        it.facts.merge(&other.facts.authored_by(&b));
        it.step(&a);
        assert_eq!((&it.file, &other.file), (&kept, &kept));
        assert!(walked() <= 8 * TOKENS, "each is revoked in a few steps");
    }

    #[test]
    fn one_of_several_concurrently_created_tokens_is_valid_and_none_after_its_revocation() {
        let names = ["a", "b"].map(node);
        let mut nodes =
            [1, 2].map(|at| Node { file: vec![token("x", at, at as u8)], ..Node::default() });
        for round in 0..4 {
            let at = round % 2;
            let published = nodes[1 - at].facts.authored_by(&names[1 - at]);
            nodes[at].step(&names[at]);
            nodes[at].facts.merge(&published);
            nodes[at].step(&names[at]);
        }
        assert_eq!(nodes[0].file, nodes[1].file);
        assert_eq!(nodes[0].file.len(), 1);
        nodes[0].file.clear();
        nodes[0].step(&names[0]);
        assert_eq!(nodes[0].file, []);
    }

    #[test]
    fn missing_file_revokes_no_token_and_is_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let identity =
            Identity::new(mcpproxy_policy::identity::TokenFile::new(folder.path()), None);
        let settings = mcpproxy_fleet::facts::FactExchangeSettings {
            fleet: mcpproxy_fleet::node_state::FleetId([1; 16]),
            node: node("a"),
            folder: folder.path().join("fleet"),
            keys: mcpproxy_fleet::facts::FactKeys::new([[1; 32]]),
            verifier: String::new(),
        };
        let facts = FleetFacts::open(settings.clone()).unwrap();
        let new =
            mcpproxy_policy::identity::NewAgentToken { name: "x".into(), ..Default::default() };
        let change = mcpproxy_policy::identity::TokenChange::Create(new);
        identity.change(change, [1; 32], std::time::UNIX_EPOCH).unwrap();
        step(&identity, &facts).unwrap();
        std::fs::remove_file(folder.path().join("tokens.json")).unwrap();
        drop(facts);
        let facts = FleetFacts::open(settings).unwrap();
        step(&identity, &facts).unwrap();
        assert_eq!(identity.kept().unwrap().len(), 1);
        let revoke = mcpproxy_policy::identity::TokenChange::Revoke("x".into());
        identity.change(revoke, [0; 32], std::time::UNIX_EPOCH).unwrap();
        step(&identity, &facts).unwrap();
        assert_eq!(of_fleet(&facts.facts()), []);
        assert!(facts.facts().of(FactKind::Token).all(|(_, fact)| fact.value().is_none()));
    }
}
