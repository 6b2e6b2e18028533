//! Tests of the exchange between two nodes with a folder as their store, round by round.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;

use crate::bucket::broken_reads;
use crate::chain::place::FLEET;
use crate::facts::exchange::*;
use crate::facts::reader::ObjectFacts;
use crate::facts::selection::MAX_ROUND_READS;
use crate::facts::set::tests::node;
use crate::facts::set::{Fact, FactKind, FactState, scan_counter};
use crate::node_state::NodeKey;

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

    /// Node with this name and its claim.
    fn node(&self, name: &str, folder: &Path) -> FleetFacts {
        self.node_with(name, folder, &[KEY])
    }

    /// Node with these keys.
    fn node_with(&self, name: &str, folder: &Path, keys: &[[u8; 32]]) -> FleetFacts {
        let verifier = NodeKey::of_seed(1).verifier(&ID.to_string(), name).unwrap().to_string();
        let claim = serde_json::json!({"format": 1, "node": name, "log": "l", "key": verifier});
        self.put(&format!("nodes/{name}/claim.json"), claim.to_string().as_bytes());
        let (folder, keys) = (folder.join(name), FactKeys::new(keys.iter().copied()));
        let (fleet, node) = (ID, node(name));
        FleetFacts::open(FactExchangeSettings { fleet, node, folder, keys, verifier }).unwrap()
    }
}

fn set_value(facts: &FleetFacts, name: &str, value: &str) {
    let node = facts.node().clone();
    facts.change(|set, _| set.set_value(&node, FactKind::Token, name, value)).unwrap().unwrap();
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
async fn facts_propagate_and_ended_facts_stay_ended_after_replays() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    set_value(&a, "t", "1");
    round(&a, &bucket).await;
    let object = store.0.path().join("facts/said/a");
    let first = std::fs::read(&object).unwrap();
    assert!(!first.windows(5).any(|part| part == b"token"), "encrypted");
    round(&b, &bucket).await;
    assert_eq!(value(&b, "t").as_deref(), Some("1"));
    end(&b, "t");
    round(&b, &bucket).await;
    round(&a, &bucket).await;
    assert_eq!(value(&a, "t"), None);
    let revoked = std::fs::read(store.0.path().join("facts/said/b")).unwrap();
    // The old object is restored: for nodes that read the new one nothing changes, even after a restart.
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
        assert_ne!(std::fs::read(&object).unwrap(), first, "uploaded again");
    }
    round(&b, &bucket).await;
    let now = std::fs::read(store.0.path().join("facts/said/b")).unwrap();
    assert_ne!(now, revoked, "removed, and uploaded again with a new seal");
    round(&a, &bucket).await;
    a.stand(&Ok(()));
    let standing = a.standing();
    assert!(standing.faults.is_empty() && standing.published, "{standing:?}");
}

#[tokio::test]
async fn invalid_object_is_reported_and_known_facts_are_kept() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    set_value(&b, "t", "1");
    round(&b, &bucket).await;
    round(&a, &bucket).await;
    let whole = std::fs::read(store.0.path().join("facts/said/b")).unwrap();
    let mut altered = whole.clone();
    altered[100] ^= 1;
    let mut elsewhere = whole.clone();
    elsewhere[10] ^= 1;
    let huge = vec![0; (MAX_FACT_OBJECT_BYTES + 1) as usize];
    for (bytes, words) in [
        (altered.as_slice(), "altered, truncated"),
        (&whole[..70], "altered, truncated"),
        (&whole[..7], "not a valid fleet object"),
        (&elsewhere, "belongs to another fleet"),
        (&huge, "not read"),
    ] {
        store.put("facts/said/b", bytes);
        round(&a, &bucket).await;
        a.stand(&Ok(()));
        let faults = a.standing().faults;
        assert!(faults["facts/said/b"].contains(words), "{faults:?}");
        assert_eq!(value(&a, "t").as_deref(), Some("1"));
    }
    // The object is invalid under another name, too.
    store.put("facts/said/c", &whole);
    round(&a, &bucket).await;
    a.stand(&Ok(()));
    assert!(a.standing().faults["facts/said/c"].contains("moved"));
}

#[tokio::test]
async fn unreadable_object_blocks_neither_upload_nor_other_reads() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b, c] = ["a", "b", "c"].map(|name| store.node(name, folder.path()));
    for node in [&b, &c] {
        set_value(node, node.node().as_str(), "1");
        round(node, &bucket).await;
    }
    set_value(&a, "a", "1");
    broken_reads::are(&["facts/said/b"]);
    for _ in 0..2 {
        assert!(
            a.reported_round(&bucket, |_| false).await,
            "the next round follows without backoff"
        );
    }
    assert!(!a.has_read_once(), "its content is unknown");
    assert_eq!(value(&a, "c").as_deref(), Some("1"));
    round(&c, &bucket).await;
    assert_eq!(value(&c, "a").as_deref(), Some("1"), "uploaded");
    let standing = a.standing();
    assert!(standing.faults["facts/said/b"].contains("cannot be read"), "{standing:?}");
    assert!(standing.failing.is_none() && standing.published, "{standing:?}");
    // The node's own object must be read before the node uploads another.
    broken_reads::are(&["facts/said/a"]);
    set_value(&a, "d", "1");
    a.round(&bucket).await.unwrap();
    assert!(!a.reported_round(&bucket, |_| false).await);
    broken_reads::are(&[]);
    for _ in 0..3 {
        round(&a, &bucket).await;
    }
    assert_eq!(value(&a, "b").as_deref(), Some("1"));
    a.stand(&Ok(()));
    assert!(a.standing().faults.is_empty());
    drop(a);
    assert!(store.node("a", folder.path()).has_read_once(), "already saved");
    assert!(!store.node("d", folder.path()).has_read_once());
}

#[tokio::test]
async fn stray_objects_are_reported_within_bounds_and_do_not_hide_nodes() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    set_value(&b, "t", "1");
    round(&b, &bucket).await;
    for at in 0..1000 {
        store.put(&format!("facts/said/X{at:05}"), b"");
        store.put(&format!("facts/said/0{at:05}"), b"");
    }
    set_value(&a, "u", "1");
    // Alive nodes are read first; strays are read in turn.
    a.round_by(&bucket, |node| node.as_str() == "b").await.unwrap();
    assert_eq!(value(&a, "t").as_deref(), Some("1"));
    a.stand(&Ok(()));
    assert_eq!(a.standing().faults.len(), MAX_ROUND_READS, "all others, and the strays");
    assert!(a.is_behind() && !a.has_read_once());
    round(&a, &bucket).await;
    a.stand(&Ok(()));
    let standing = a.standing();
    assert!(standing.published && standing.faults.len() == MAX_FAULTS, "{}", standing.faults.len());
    let all = &standing.faults[SAID];
    assert!(all.starts_with("1000 stray objects: X0"), "{all}");
    assert!(all.ends_with("more objects are skipped"), "{all}");
    // There are more objects than a listing includes, and the store chooses the listed ones. Known facts stay known.
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
    set_value(&a, "v", "1");
    round(&a, &bucket).await;
    round(&b, &bucket).await;
    assert!(std::fs::read(store.0.path().join("facts/said/a")).unwrap() != own);
    // A new node has not read everything, and reports what to do.
    let c = store.node("c", folder.path());
    round(&c, &bucket).await;
    assert!(!c.has_read_once());
    let why = c.unread_reason().unwrap();
    assert!(why.contains("more than 5120 objects exist") && why.contains("remove"), "{why}");
}

#[tokio::test]
async fn revocation_is_uploaded_before_other_objects_are_read() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    set_value(&a, "t", "1");
    round(&a, &bucket).await;
    let object = store.0.path().join("facts/said/a");
    let before = std::fs::read(&object).unwrap();
    set_value(&b, "u", "1");
    round(&b, &bucket).await;
    end(&a, "t");
    let reads = Rc::new(RefCell::new(Vec::new()));
    let observed = Rc::clone(&reads);
    broken_reads::observed_by(move |key| {
        if key == "facts/said/b" {
            observed.borrow_mut().push(std::fs::read(&object).unwrap() != before);
        }
    });
    round(&a, &bucket).await;
    assert_eq!(*reads.borrow(), [true], "uploaded at the only read");
    assert_eq!(value(&a, "u").as_deref(), Some("1"));
}

#[tokio::test]
async fn relayed_facts_survive_loss_of_the_own_object() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [gone, mut a] = ["gone", "a"].map(|name| store.node(name, folder.path()));
    set_value(&gone, "t", "1");
    end(&gone, "t");
    set_value(&a, "u", "1");
    round(&gone, &bucket).await;
    round(&a, &bucket).await;
    let object = store.0.path().join("facts/said/a");
    let by_the_older = std::fs::read(&object).unwrap();
    // The key is rotated while a node is away.
    for keys in [&[KEY, NEWER][..], &[NEWER, KEY]] {
        drop(a);
        a = store.node_with("a", folder.path(), keys);
        for _ in 0..4 {
            assert!(a.reported_round(&bucket, |_| false).await);
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
        assert!(new.has_read_once());
    }
}

#[tokio::test]
async fn runtime_thread_does_not_scan_facts_or_wait_for_writes() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let [a, b] = ["a", "b"].map(|name| store.node(name, folder.path()));
    for node in [&a, &b] {
        set_value(node, node.node().as_str(), "1");
        round(node, &bucket).await;
    }
    let before = scan_counter::count();
    for _ in 0..3 {
        assert!(a.reported_round(&bucket, |_| false).await);
    }
    assert!(a.standing().published);
    assert_eq!(scan_counter::count(), before, "on this thread");
    // A snapshot is being written.
    let writes = a.0.saved.lock();
    let of = a.clone();
    let changing = std::thread::spawn(move || set_value(&of, "c", "1"));
    while value(&a, "c").is_none() {
        std::thread::yield_now();
    }
    assert!(!changing.is_finished(), "durable before it returns");
    drop(writes);
    changing.join().unwrap();
    drop(a);
    assert_eq!(value(&store.node("a", folder.path()), "c").as_deref(), Some("1"));
}

#[test]
fn concurrent_changes_are_all_kept() {
    const THREADS: usize = 8;
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let a = store.node("a", folder.path());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let a = &a;
            scope.spawn(move || {
                for at in 0..8 {
                    let name = format!("{thread}-{at}");
                    set_value(a, &name, "1");
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
async fn facts_are_not_uploaded_after_the_name_or_the_store_is_lost() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let bucket = store.bucket();
    let a = store.node("a", folder.path());
    set_value(&a, "t", "1");
    let claim = store.0.path().join("nodes/a/claim.json");
    let whole = std::fs::read_to_string(&claim).unwrap();
    std::fs::write(&claim, whole.replace("\"key\":\"", "\"key\":\"x")).unwrap();
    let error = a.round(&bucket).await.unwrap_err();
    assert!(error.to_string().contains("this node's claim was replaced"), "{error}");
    std::fs::write(&claim, whole).unwrap();
    store.put(FLEET, br#"{"format":1,"fleet":"00000000000000000000000000000001"}"#);
    let error = a.round(&bucket).await.unwrap_err();
    assert!(error.to_string().contains("belongs to another fleet"), "{error}");
    assert!(!store.0.path().join("facts/said/a").exists());
}

#[test]
fn authors_without_space_are_reported_beside_other_faults() {
    let mut reader = FactReader::new(node("a"), BTreeMap::new(), BTreeSet::new(), true);
    let [b, c] = ["b", "c"].map(node);
    let listed = ["b", "x"].map(|name| ListedFacts {
        key: format!("{SAID}/{name}"),
        size: 100 << 20,
        state: "1".into(),
    });
    reader.wanted(&listed, true, |_| false);
    let left_out = BTreeSet::from([b, c]);
    reader.next_put(ObjectFacts { facts: FactSet::default(), left_out });
    let reported = reported_faults(&reader);
    let no_room = FactFault::NoRoom.to_string();
    assert_eq!(reported.len(), 3);
    assert_eq!(reported["facts/said/c"], no_room);
    assert!(reported["facts/said/b"].starts_with("not read: 104857600 bytes"));
    assert!(reported["facts/said/b"].ends_with(&format!("; {no_room}")));
    let left_out = (0..100).map(|at| node(&at.to_string())).collect();
    reader.next_put(ObjectFacts { facts: FactSet::default(), left_out });
    let reported = reported_faults(&reader);
    assert_eq!(reported.len(), MAX_FAULTS + 1);
    assert_eq!(reported[SAID], "38 more objects are skipped");
}

#[test]
fn memory_file_is_checked_private_and_bound_to_its_fleet() {
    let (dir, fleet) = (tempfile::tempdir().unwrap(), FleetId([1; 16]));
    assert_eq!(FactMemory::load(dir.path(), fleet).unwrap(), None);
    let (mut memory, mut facts) = (FactMemory::default(), FactSet::default());
    for name in ["a", "b"] {
        facts.set_value(&node(name), FactKind::Token, name, "{}").unwrap();
        memory.numbers.insert(node(name), 7);
    }
    facts.end(&node("b"), FactKind::Token, "a");
    memory.facts = Arc::new(facts);
    memory.relayed.insert(node("gone"));
    memory.notes.insert("tokens".into(), "x".into());
    memory.read_once = true;
    memory.save(dir.path(), fleet).unwrap();
    assert_eq!(FactMemory::load(dir.path(), fleet).unwrap(), Some(memory.clone()));
    let file = dir.path().join(MEMORY_FILE);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("gone", "ogne")).unwrap();
    let damaged = FactMemory::load(dir.path(), fleet).unwrap_err().to_string();
    assert!(damaged.contains("checksum") && damaged.contains("cp -p"), "{damaged}");
    // Format of earlier versions without a checksum.
    let text = text.lines().next().unwrap().to_owned();
    fs::write(&file, text.replace("gone", "../gone")).unwrap();
    let wrong = FactMemory::load(dir.path(), fleet).unwrap_err();
    assert!(wrong.to_string().contains("'../gone' is not a node name"), "{wrong}");
    // Format of earlier versions without relayed nodes.
    fs::write(&file, text.replace(r#""said_again":["gone"],"#, "")).unwrap();
    memory.relayed.clear();
    assert_eq!(FactMemory::load(dir.path(), fleet).unwrap(), Some(memory));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let other = FactMemory::load(dir.path(), FleetId([2; 16])).unwrap_err();
    assert!(other.to_string().contains("it belongs to fleet 0101"), "{other}");
    for text in ["", "{}", "\0"] {
        fs::write(&file, text).unwrap();
        assert!(FactMemory::load(dir.path(), fleet).is_err(), "{text}");
    }
}
