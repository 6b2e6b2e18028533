//! The exchange of two nodes on a folder as their store, round by round, and what is done to that.

use std::path::Path;

use super::super::fact_set::tests::node;
use super::super::fact_set::{Fact, FactKind, FactState, walked};
use super::super::fact_standing::MAX_FAULTS;
use super::super::fact_turns::MAX_ROUND_READS;
use super::*;
use crate::fleet::bucket::broken_reads;
use crate::fleet::joining::FLEET;
use crate::fleet::node_key::NodeKey;

const ID: FleetId = FleetId([3; 16]);
const KEY: [u8; 32] = [9; 32];
const NEWER: [u8; 32] = [10; 32];

struct Store(tempfile::TempDir);

impl Store {
    fn new() -> Self {
        let store = Self(tempfile::tempdir().unwrap());
        store.put(FLEET, format!(r#"{{"format":1,"fleet":"{ID}"}}"#).as_bytes());
        store
    }

    fn bucket(&self) -> Bucket {
        Bucket::open(&format!("file://{}", self.0.path().display())).unwrap()
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.0.path().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// A node of that name, with its claim.
    fn node(&self, name: &str, folder: &Path) -> FleetFacts {
        self.node_with(name, folder, &[KEY])
    }

    /// One that has these keys.
    fn node_with(&self, name: &str, folder: &Path, keys: &[[u8; 32]]) -> FleetFacts {
        let verifier = NodeKey::of_seed(1).verifier(&ID.to_string(), name).unwrap().to_string();
        let claim = serde_json::json!({"format": 1, "node": name, "log": "l", "key": verifier});
        self.put(&format!("nodes/{name}/claim.json"), claim.to_string().as_bytes());
        let (folder, keys) = (folder.join(name), FactKeys::new(keys.iter().copied()));
        let (fleet, node) = (ID, node(name));
        FleetFacts::open(FactExchangeSettings { fleet, node, folder, keys, verifier }).unwrap()
    }
}

fn say(facts: &FleetFacts, name: &str, value: &str) {
    let node = facts.node().clone();
    facts.change(|set, _| set.say(&node, FactKind::Token, name, value)).unwrap().unwrap();
}

fn end(facts: &FleetFacts, name: &str) {
    let node = facts.node().clone();
    assert!(facts.change(|set, _| set.end(&node, FactKind::Token, name)).unwrap());
}

fn value(facts: &FleetFacts, name: &str) -> Option<String> {
    let facts = facts.facts();
    facts.get(FactKind::Token, name).and_then(Fact::value).map(str::to_owned)
}

async fn round(facts: &FleetFacts, bucket: &Bucket) {
    facts.round(bucket).await.unwrap();
}

#[tokio::test]
async fn what_one_node_says_another_knows_and_what_it_ends_stays_ended_whatever_is_put_back() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    say(&a, "t", "1");
    round(&a, &bucket).await;
    let object = store.0.path().join("facts/said/a");
    let first = std::fs::read(&object).unwrap();
    assert!(!first.windows(5).any(|part| part == b"token"), "it is sealed");
    round(&b, &bucket).await;
    assert_eq!(value(&b, "t").as_deref(), Some("1"));
    end(&b, "t");
    round(&b, &bucket).await;
    round(&a, &bucket).await;
    assert_eq!(value(&a, "t"), None);
    let revoked = std::fs::read(store.0.path().join("facts/said/b")).unwrap();
    // What was before is put back: for those who have seen it, also after a restart, nothing changes.
    let mut a = a;
    for restarts in [false, true] {
        std::fs::write(&object, &first).unwrap();
        let _ = std::fs::remove_file(store.0.path().join("facts/said/b"));
        if restarts {
            drop(a);
            a = store.node("a", folder.path());
        }
        round(&a, &bucket).await;
        assert_eq!(value(&a, "t"), None);
        assert_ne!(std::fs::read(&object).unwrap(), first, "its own is put again");
    }
    round(&b, &bucket).await;
    let now = std::fs::read(store.0.path().join("facts/said/b")).unwrap();
    assert_ne!(now, revoked, "it was removed, and is there again, sealed anew");
    round(&a, &bucket).await;
    a.stand(&Ok(()));
    let standing = a.standing();
    assert!(standing.faults.is_empty() && standing.published, "{standing:?}");
}

#[tokio::test]
async fn an_object_that_is_not_the_fleets_is_told_and_what_was_known_stays() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    say(&b, "t", "1");
    round(&b, &bucket).await;
    round(&a, &bucket).await;
    let whole = std::fs::read(store.0.path().join("facts/said/b")).unwrap();
    let mut altered = whole.clone();
    altered[100] ^= 1;
    let mut elsewhere = whole.clone();
    elsewhere[10] ^= 1;
    let huge = vec![0; (MAX_FACT_OBJECT_BYTES + 1) as usize];
    for (bytes, words) in [
        (altered.as_slice(), "was altered"),
        (&whole[..70], "was altered, cut"),
        (&whole[..7], "not what a fleet writes"),
        (&elsewhere, "another fleet's"),
        (&huge, "is not read"),
    ] {
        store.put("facts/said/b", bytes);
        round(&a, &bucket).await;
        a.stand(&Ok(()));
        let faults = a.standing().faults;
        assert!(faults["facts/said/b"].contains(words), "{faults:?}");
        assert_eq!(value(&a, "t").as_deref(), Some("1"));
    }
    // Under another name it is none either.
    store.put("facts/said/c", &whole);
    round(&a, &bucket).await;
    a.stand(&Ok(()));
    assert!(a.standing().faults["facts/said/c"].contains("moved"));
}

#[tokio::test]
async fn one_object_that_cannot_be_read_keeps_nobody_from_saying_and_hearing_what_is_to_be() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b, c] = ["a", "b", "c"].map(|name| store.node(name, folder.path()));
    for node in [&b, &c] {
        say(node, node.node().as_str(), "1");
        round(node, &bucket).await;
    }
    say(&a, "a", "1");
    broken_reads::are(&["facts/said/b"]);
    for _ in 0..2 {
        assert!(a.told_round(&bucket, |_| false).await, "the next one follows as soon as ever");
    }
    assert!(!a.has_heard(), "it may say anything");
    assert_eq!(value(&a, "c").as_deref(), Some("1"));
    round(&c, &bucket).await;
    assert_eq!(value(&c, "a").as_deref(), Some("1"), "it was put");
    let standing = a.standing();
    assert!(standing.faults["facts/said/b"].contains("cannot be read"), "{standing:?}");
    assert!(standing.failing.is_none() && standing.published, "{standing:?}");
    // Its own has to be read before it puts another one.
    broken_reads::are(&["facts/said/a"]);
    say(&a, "d", "1");
    a.round(&bucket).await.unwrap();
    assert!(!a.told_round(&bucket, |_| false).await);
    broken_reads::are(&[]);
    for _ in 0..3 {
        round(&a, &bucket).await;
    }
    assert_eq!(value(&a, "b").as_deref(), Some("1"));
    a.stand(&Ok(()));
    assert!(a.standing().faults.is_empty());
    drop(a);
    assert!(store.node("a", folder.path()).has_heard(), "it is remembered");
    assert!(!store.node("d", folder.path()).has_heard());
}

#[tokio::test]
async fn what_others_put_among_the_facts_is_told_within_bounds_and_hides_nobody() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    say(&b, "t", "1");
    round(&b, &bucket).await;
    for at in 0..1000 {
        store.put(&format!("facts/said/X{at:05}"), b"");
        store.put(&format!("facts/said/0{at:05}"), b"");
    }
    say(&a, "u", "1");
    // A node that lives is heard before them; those are read in turn.
    a.round_by(&bucket, |node| node.as_str() == "b").await.unwrap();
    assert_eq!(value(&a, "t").as_deref(), Some("1"));
    a.stand(&Ok(()));
    assert_eq!(a.standing().faults.len(), MAX_ROUND_READS, "all but that one, and the strays");
    assert!(a.is_behind() && !a.has_heard());
    round(&a, &bucket).await;
    a.stand(&Ok(()));
    let standing = a.standing();
    assert!(standing.published && standing.faults.len() == MAX_FAULTS, "{}", standing.faults.len());
    let all = &standing.faults[SAID];
    assert!(all.starts_with("1000 things there are no node's: X0"), "{all}");
    assert!(all.ends_with("more objects are passed over"), "{all}");
    // More than are listed: which ones those are is the store's choice, and nothing is undone for it.
    for at in 0..MAX_LISTED_FACTS {
        store.put(&format!("facts/said/Y{at:05}"), b"");
    }
    let own = std::fs::read(store.0.path().join("facts/said/a")).unwrap();
    for _ in 0..2 {
        round(&a, &bucket).await;
    }
    a.stand(&Ok(()));
    let standing = a.standing();
    assert!(standing.faults[SAID].starts_with("more than 5120 objects"), "{:?}", standing.faults);
    assert!(standing.published);
    assert_eq!(std::fs::read(store.0.path().join("facts/said/a")).unwrap(), own, "not put again");
    say(&a, "v", "1");
    round(&a, &bucket).await;
    round(&b, &bucket).await;
    assert!(std::fs::read(store.0.path().join("facts/said/a")).unwrap() != own);
    // Who is new there has not heard all of it, and is told what to do.
    let c = store.node("c", folder.path());
    round(&c, &bucket).await;
    assert!(!c.has_heard());
    let why = c.unheard().unwrap();
    assert!(why.contains("more than 5120 objects lie there") && why.contains("remove"), "{why}");
}

#[tokio::test]
async fn what_is_revoked_is_put_before_anything_else_is_read() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    say(&a, "t", "1");
    round(&a, &bucket).await;
    let object = store.0.path().join("facts/said/a");
    let before = std::fs::read(&object).unwrap();
    say(&b, "u", "1");
    round(&b, &bucket).await;
    end(&a, "t");
    let mut round = std::pin::pin!(a.round(&bucket));
    while std::fs::read(&object).unwrap() == before {
        tokio::select! {
            biased;
            ended = &mut round => panic!("it was not put: {ended:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(value(&a, "u"), None, "it was read before");
    round.await.unwrap();
    assert_eq!(value(&a, "u").as_deref(), Some("1"));
}

#[tokio::test]
async fn what_is_said_again_for_who_is_gone_outlasts_the_own_object_in_the_store() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [gone, mut a] = ["gone", "a"].map(|name| store.node(name, folder.path()));
    say(&gone, "t", "1");
    end(&gone, "t");
    say(&a, "u", "1");
    round(&gone, &bucket).await;
    round(&a, &bucket).await;
    let object = store.0.path().join("facts/said/a");
    let by_the_older = std::fs::read(&object).unwrap();
    // The key is changed while a node is gone.
    for keys in [&[KEY, NEWER][..], &[NEWER, KEY]] {
        drop(a);
        a = store.node_with("a", folder.path(), keys);
        for _ in 0..4 {
            assert!(a.told_round(&bucket, |_| false).await);
        }
        assert!(a.standing().published, "{:?}", a.standing());
    }
    for (at, put_back) in [None, Some(by_the_older)].into_iter().enumerate() {
        drop(a);
        match put_back {
            None => std::fs::remove_file(&object).unwrap(),
            Some(bytes) => std::fs::write(&object, bytes).unwrap(),
        }
        a = store.node_with("a", folder.path(), &[NEWER]);
        for _ in 0..3 {
            round(&a, &bucket).await;
        }
        let new = store.node_with(&format!("new-{at}"), folder.path(), &[NEWER]);
        round(&new, &bucket).await;
        let facts = new.facts();
        let state = facts.get(FactKind::Token, "t").map(|fact| &fact.state);
        assert_eq!(state, Some(&FactState::Ended), "{at}");
        assert!(new.has_heard());
    }
}

#[tokio::test]
async fn the_runtime_neither_goes_through_all_facts_nor_waits_for_what_is_written() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    for node in [&a, &b] {
        say(node, node.node().as_str(), "1");
        round(node, &bucket).await;
    }
    let before = walked::count();
    for _ in 0..3 {
        assert!(a.told_round(&bucket, |_| false).await);
    }
    assert!(a.standing().published);
    assert_eq!(walked::count(), before, "on this thread");
    // Somebody's snapshot is being written.
    let writes = a.0.saved.lock();
    let of = a.clone();
    let changing = std::thread::spawn(move || say(&of, "c", "1"));
    while value(&a, "c").is_none() {
        std::thread::yield_now();
    }
    assert!(!changing.is_finished(), "it is durable before it is told to be done");
    drop(writes);
    changing.join().unwrap();
    drop(a);
    assert_eq!(value(&store.node("a", folder.path()), "c").as_deref(), Some("1"));
}

#[test]
fn of_many_that_change_facts_at_once_none_is_forgotten() {
    const THREADS: usize = 8;
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let a = store.node("a", folder.path());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let a = &a;
            scope.spawn(move || {
                for at in 0..8 {
                    let name = format!("{thread}-{at}");
                    say(a, &name, "1");
                    a.change(|_, notes| notes.insert(name, String::new())).unwrap();
                }
            });
        }
    });
    let known = a.facts();
    drop(a);
    let again = store.node("a", folder.path());
    assert_eq!(again.facts(), known);
    assert_eq!(known.len(), THREADS * 8);
    assert!(again.note("0-0").is_some() && again.note("7-7").is_some());
}

#[tokio::test]
async fn nothing_is_put_where_the_name_or_the_store_is_another_s() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let a = store.node("a", folder.path());
    say(&a, "t", "1");
    let claim = store.0.path().join("nodes/a/claim.json");
    let whole = std::fs::read_to_string(&claim).unwrap();
    std::fs::write(&claim, whole.replace("\"key\":\"", "\"key\":\"x")).unwrap();
    let error = a.round(&bucket).await.unwrap_err();
    assert!(error.to_string().contains("this node's claim is another one"), "{error}");
    std::fs::write(&claim, whole).unwrap();
    store.put(FLEET, br#"{"format":1,"fleet":"00000000000000000000000000000001"}"#);
    let error = a.round(&bucket).await.unwrap_err();
    assert!(error.to_string().contains("another fleet's"), "{error}");
    assert!(!store.0.path().join("facts/said/a").exists());
}
