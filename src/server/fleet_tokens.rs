//! Agent tokens of a fleet: what was changed in this node's file is told to the others, and what they changed stands in the
//! file. What a change is, is pure; the rest blocks.
//!
//! The file is the interface: whoever changes it, this process or the command line while none runs, and whenever this process
//! is killed, what it says otherwise than when it was last in step with the fleet is what was changed here. A token is one by
//! its name and when it was made; one that is not in the file any more is revoked, for good and for all. A file that is not
//! there says nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::fleet::facts::{Fact, FactKind, FactRefused, FactSet, FleetFacts, NodeName};
use crate::identity::{Identity, KeptToken, MAX_TOKENS, TokenFileError};

/// Under which name it is noted what the file said when it was last in step.
const NOTE: &str = "tokens";

/// Hashes of what was in step, by the names of the facts.
type InStep = BTreeMap<String, String>;

/// What is noted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StepNote {
    /// What was in step last.
    step: InStep,
    /// What the file is about to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pending: Option<PendingStep>,
}

/// A file that was about to be written when the process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PendingStep {
    /// The file before, by its hash.
    from: String,
    /// What is in step once it is written.
    step: InStep,
}

impl StepNote {
    /// What was in step when the file was written last. Where it is not known whether one that was pending was written, what
    /// it would have had and the file has not is taken to be revoked.
    fn before(self, file: &[KeptToken]) -> InStep {
        match self.pending {
            Some(pending) if pending.from != file_hash(file) => pending.step,
            Some(_) | None => self.step,
        }
    }
}

fn file_hash(file: &[KeptToken]) -> String {
    hash(&file.iter().map(value).collect::<String>())
}

/// The name of a token's fact.
fn fact_name(token: &KeptToken) -> String {
    format!("{}/{}", token.name, token.created)
}

fn value(token: &KeptToken) -> String {
    serde_json::to_string(token).unwrap_or_default()
}

fn hash(value: &str) -> String {
    blake3::hash(value.as_bytes()).to_hex().to_string()
}

/// What is in step once these are in the file.
fn in_step(tokens: &[KeptToken]) -> InStep {
    tokens.iter().map(|token| (fact_name(token), hash(&value(token)))).collect()
}

/// Tells the fleet what the file says otherwise than when it was in step. The tokens that cannot be told, and why: they are
/// good here alone.
fn tell(
    file: &[KeptToken],
    before: &InStep,
    node: &NodeName,
    facts: &mut FactSet,
) -> Vec<(KeptToken, FactRefused)> {
    let mut refused = Vec::new();
    let now = in_step(file);
    // Revocations first: there is always room for them, and they make some.
    let of = |name: &str| name.rsplit_once('/').map_or(name, |(token, _)| token).to_owned();
    let gone = before.keys().filter(|name| !now.contains_key(*name));
    let gone: BTreeSet<String> = gone.map(|name| of(name)).collect();
    if !gone.is_empty() {
        // Of two that were made at the same time on two nodes one stands in the file: none is to follow it.
        let all = facts.of(FactKind::Token).map(|(name, _)| name);
        let ended = all.filter(|name| gone.contains(&of(name)) && !now.contains_key(*name));
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
        match facts.say(node, FactKind::Token, &name, &value) {
            Ok(_) | Err(FactRefused::Ended) => {}
            Err(why) => refused.push((token.clone(), why)),
        }
    }
    refused
}

/// The tokens of the fleet, in the order of their names: of several of one name the one that was told last.
fn of_fleet(facts: &FactSet) -> Vec<KeptToken> {
    let mut tokens: BTreeMap<Box<str>, (&Fact, KeptToken)> = BTreeMap::new();
    for (name, fact) in facts.of(FactKind::Token) {
        let token = fact.value().and_then(|value| serde_json::from_str::<KeptToken>(value).ok());
        // A value under another name would not end with it.
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

/// What is to stand in the file.
fn to_keep(facts: &FactSet, refused: Vec<(KeptToken, FactRefused)>) -> Vec<KeptToken> {
    let of_fleet = of_fleet(facts).into_iter().map(|token| (token.name.clone(), token));
    let mut tokens: BTreeMap<_, _> = of_fleet.collect();
    for (token, why) in refused {
        tracing::warn!(token = &*token.name, %why, "a token is good on this node alone");
        tokens.insert(token.name.clone(), token);
    }
    let mut tokens: Vec<_> = tokens.into_values().collect();
    if tokens.len() > MAX_TOKENS {
        tracing::error!(
            tokens = tokens.len(),
            "the fleet has more agent tokens than {MAX_TOKENS}: the last by name are good nowhere"
        );
        tokens.truncate(MAX_TOKENS);
    }
    tokens
}

/// One step from a file to the next one, and what is to be noted before that is written.
fn stepped(
    file: Option<&[KeptToken]>,
    note: StepNote,
    node: &NodeName,
    facts: &mut FactSet,
) -> (Vec<KeptToken>, StepNote) {
    let there = file.unwrap_or_default();
    let before = note.before(there);
    let refused = file.map_or_else(Vec::new, |file| tell(file, &before, node, facts));
    let next = to_keep(facts, refused);
    let step = in_step(&next);
    let pending =
        (next != there).then(|| PendingStep { from: file_hash(there), step: step.clone() });
    let step = if pending.is_some() { before } else { step };
    (next, StepNote { step, pending })
}

/// Brings file and fleet in step. Blocks.
pub(super) fn step(identity: &Identity, facts: &FleetFacts) -> Result<(), TokenFileError> {
    let note = facts.note(NOTE).and_then(|note| serde_json::from_str(&note).ok());
    let mut done = None;
    let changed = identity.reconcile(|file| {
        let told = facts.change(|set, notes| {
            let (next, noted) = stepped(file, note.unwrap_or_default(), facts.node(), set);
            notes.insert(NOTE.to_owned(), serde_json::to_string(&noted).unwrap_or_default());
            (next, noted)
        });
        match told {
            Ok((next, noted)) => {
                done = noted.pending.map(|pending| pending.step);
                next
            }
            Err(error) => {
                tracing::error!(%error, "a change of the agent tokens cannot be remembered: the file stays, and it is tried again");
                file.unwrap_or_default().to_vec()
            }
        }
    })?;
    if changed {
        tracing::info!("the agent tokens are those of the fleet");
    }
    let Some(step) = done else { return Ok(()) };
    let note = StepNote { step, pending: None };
    let note = serde_json::to_string(&note).unwrap_or_default();
    // Without it the next step finds that the file is what it was about to be.
    if let Err(error) = facts.change(|_, notes| notes.insert(NOTE.to_owned(), note)) {
        tracing::error!(%error, "it cannot be remembered which agent tokens the fleet has");
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

    fn token(name: &str, created: u64, hash: u8) -> KeptToken {
        KeptToken {
            name: name.into(),
            hash: [hash; 32],
            servers: Vec::new(),
            tools: Vec::new(),
            operations: Vec::new(),
            created,
            expires: None,
        }
    }

    /// A node: its file, what was in step, and what it knows.
    #[derive(Clone, Debug, Default)]
    struct Node {
        file: Vec<KeptToken>,
        note: StepNote,
        facts: FactSet,
    }

    /// Where a crash cuts a step.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Cut {
        Nowhere,
        BeforeTheFile,
        BehindIt,
    }

    impl Node {
        fn step(&mut self, name: &NodeName) {
            self.step_cut(name, Cut::Nowhere);
        }

        fn step_cut(&mut self, name: &NodeName, cut: Cut) {
            let note = std::mem::take(&mut self.note);
            let (next, noted) = stepped(Some(&self.file), note, name, &mut self.facts);
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
        /// What that node has said is read, and it is stepped.
        Read(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (0..3_u8).prop_map(Act::Create),
            1 => (0..3_u8).prop_map(Act::Rotate),
            2 => (0..3_u8).prop_map(Act::Revoke),
            3 => prop::sample::select(vec![Cut::Nowhere, Cut::BeforeTheFile, Cut::BehindIt]).prop_map(Act::Step),
            4 => (0..3_usize).prop_map(Act::Read),
        ]
    }

    proptest! {
        #[test]
        fn a_secret_that_was_revoked_is_good_nowhere_once_all_have_read_each_other(
            acts in prop::collection::vec((0..3_usize, act()), 0..50),
        ) {
            let names = ["a", "b", "c"].map(node);
            let mut nodes = vec![Node::default(); 3];
            let mut revoked = Vec::new();
            for (number, (at, act)) in acts.into_iter().enumerate() {
                let made = number as u8 + 1;
                let file = &mut nodes[at].file;
                let place = |file: &[KeptToken], name: u8| file.iter().position(|it| *it.name == *format!("t{name}"));
                match act {
                    Act::Create(name) if place(file, name).is_none() => {
                        file.push(token(&format!("t{name}"), u64::from(made), made));
                    }
                    Act::Rotate(name) => if let Some(at) = place(file, name) { file[at].hash = [made; 32] },
                    Act::Revoke(name) => if let Some(at) = place(file, name) { revoked.push(file.remove(at)) },
                    Act::Create(_) => {}
                    Act::Step(cut) => nodes[at].step_cut(&names[at], cut),
                    Act::Read(of) => {
                        // A node that starts steps before it reads.
                        nodes[at].step(&names[at]);
                        let said = nodes[of].facts.said_by(&names[of]);
                        nodes[at].facts.merge(&said);
                        nodes[at].step(&names[at]);
                    }
                }
            }
            for round in 0..6 {
                let at = round % 3;
                nodes[at].step(&names[at]);
                for of in 0..3 {
                    let said = nodes[of].facts.said_by(&names[of]);
                    nodes[at].facts.merge(&said);
                }
                nodes[at].step(&names[at]);
            }
            for node in &nodes {
                prop_assert_eq!(&node.file, &nodes[0].file);
                for gone in &revoked {
                    // The very token that was ended; or at least its secret, if it had a new one at the same time.
                    prop_assert!(!node.file.iter().any(|it| it.hash == gone.hash), "{:?}", gone);
                }
            }
        }
    }

    #[test]
    fn what_the_file_says_otherwise_is_told_and_nothing_else() {
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
        // It comes back by a copy of the file: it is over.
        it.file.insert(0, token("x", 1, 1));
        it.step(&a);
        assert_eq!(it.file, [token("y", 2, 2)]);
        // Made anew it is another one.
        it.file.insert(0, token("x", 9, 9));
        it.step(&a);
        assert_eq!(it.file, [token("x", 9, 9), token("y", 2, 2)]);
    }

    #[test]
    fn ten_thousand_tokens_are_told_ended_and_made_again_in_so_many_steps() {
        use crate::fleet::facts::walked;

        const TOKENS: u64 = 10_000;
        let a = node("a");
        let made = |at: u64| token(&format!("t{at:05}"), at + 1, at as u8);
        let mut it = Node { file: (0..TOKENS).map(made).collect(), ..Node::default() };
        let mut before = walked::count();
        let mut walked = || walked::count() - std::mem::replace(&mut before, walked::count());
        it.step(&a);
        assert_eq!((it.facts.len() as u64, it.file.len() as u64), (TOKENS, TOKENS));
        assert!(walked() <= 2 * TOKENS, "each is told in a few steps");
        // Another node has them all from it, and keeps one in two.
        let (b, mut other) = (node("b"), Node::default());
        other.facts.merge(&it.facts.said_by(&a));
        other.step(&b);
        assert_eq!(other.file, it.file);
        assert!(walked() <= 4 * TOKENS, "each is taken over in a few steps");
        let mut at = 0;
        other.file.retain(|_| {
            at += 1;
            at % 2 == 0
        });
        let kept = other.file.clone();
        other.step(&b);
        it.facts.merge(&other.facts.said_by(&b));
        it.step(&a);
        assert_eq!((&it.file, &other.file), (&kept, &kept));
        assert!(walked() <= 8 * TOKENS, "each is ended in a few steps");
    }

    #[test]
    fn of_two_that_were_made_at_the_same_time_one_is_good_and_none_follows_it() {
        let names = ["a", "b"].map(node);
        let mut nodes =
            [1, 2].map(|at| Node { file: vec![token("x", at, at as u8)], ..Node::default() });
        for round in 0..4 {
            let at = round % 2;
            let said = nodes[1 - at].facts.said_by(&names[1 - at]);
            nodes[at].step(&names[at]);
            nodes[at].facts.merge(&said);
            nodes[at].step(&names[at]);
        }
        assert_eq!(nodes[0].file, nodes[1].file);
        assert_eq!(nodes[0].file.len(), 1);
        nodes[0].file.clear();
        nodes[0].step(&names[0]);
        assert_eq!(nodes[0].file, []);
    }

    #[test]
    fn a_file_that_is_not_there_revokes_nothing_and_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new(crate::identity::TokenFile::new(folder.path()), None);
        let settings = crate::fleet::facts::FactExchangeSettings {
            fleet: crate::fleet::sealed_mark::FleetId([1; 16]),
            node: node("a"),
            folder: folder.path().join("fleet"),
            keys: crate::fleet::facts::FactKeys::new([[1; 32]]),
            verifier: String::new(),
        };
        let facts = FleetFacts::open(settings.clone()).unwrap();
        let new = crate::identity::NewAgentToken { name: "x".into(), ..Default::default() };
        let change = crate::identity::TokenChange::Create(new);
        identity.change(change, [1; 32], std::time::UNIX_EPOCH).unwrap();
        step(&identity, &facts).unwrap();
        std::fs::remove_file(folder.path().join("tokens.json")).unwrap();
        drop(facts);
        let facts = FleetFacts::open(settings).unwrap();
        step(&identity, &facts).unwrap();
        assert_eq!(identity.kept().unwrap().len(), 1);
        let revoke = crate::identity::TokenChange::Revoke("x".into());
        identity.change(revoke, [0; 32], std::time::UNIX_EPOCH).unwrap();
        step(&identity, &facts).unwrap();
        assert_eq!(of_fleet(&facts.facts()), []);
        assert!(facts.facts().of(FactKind::Token).all(|(_, fact)| fact.value().is_none()));
    }
}
