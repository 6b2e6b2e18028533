//! What is on its way to the store is the same after a crash, and what is there is believed only if it is the same.

use tempfile::TempDir;

use super::*;
use crate::activity::{Config, Draft, Source, Status, Text, Type, Writer};
use crate::fleet::chain_check::SegmentFacts;
use crate::fleet::heartbeat::NodeVitals;

const BUILD: ProgramBuild = ProgramBuild { version: "0", commit: "0" };

/// A node with its log, and its fleet's store.
struct Node {
    folder: TempDir,
    activity: Activity,
    writer: Writer,
    bucket: Bucket,
    settings: LedgerSettings,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        std::fs::create_dir(&store).unwrap();
        let log = folder.path().join("activity");
        let (activity, writer) = Activity::open(&log, Config::default()).unwrap();
        let store = format!("file://{}", store.display());
        let settings = LedgerSettings {
            config: ClusterConfig::default(),
            store: store.clone(),
            node: NodeName::parse("a").unwrap(),
            folder: folder.path().join("fleet"),
        };
        Self { folder, activity, writer, bucket: Bucket::open(&store).unwrap(), settings }
    }

    fn record(&self, count: usize) {
        for _ in 0..count {
            self.activity.note(Draft::new(Type::ToolCall, Source::Mcp, Status::Success));
        }
        self.activity.flush().unwrap();
    }

    async fn join(&self) -> FleetMember {
        join(&self.settings, &self.bucket, &self.activity).await.unwrap()
    }

    fn seal(&self, member: &mut FleetMember, planned: Option<u64>, bytes: u64) -> SealedSegment {
        let stored = member.mark.stored;
        next_segment(&self.activity, member, stored, planned, bytes, 0).unwrap().0
    }

    fn place(member: &FleetMember) -> OwnPlace {
        OwnPlace::of(member.fleet, &member.node, &member.verifier.to_string())
    }

    fn key(sealed: &SealedSegment) -> String {
        format!("{}/{}", segments_folder("a"), sealed.name)
    }

    fn end(self) {
        self.writer.close().unwrap();
        drop(self.folder);
    }
}

#[tokio::test]
async fn what_was_on_its_way_at_a_crash_is_sealed_again_byte_for_byte() {
    let node = Node::new();
    node.record(5);
    let mut member = node.join().await;
    let first = node.seal(&mut member, None, 1 << 20);
    assert_eq!((first.checkpoint.first, first.checkpoint.last), (1, 5));
    // It was not put; the next process finds what was planned, and more in the log.
    node.record(5);
    let mut member = node.join().await;
    assert_eq!(member.mark.planned, Some(5));
    let planned = member.mark.planned;
    // Not even where it is larger than a segment would be now.
    let again = node.seal(&mut member, planned, 1);
    assert_eq!((&again.name, &again.bytes), (&first.name, &first.bytes));
    // It was put, and nobody had noted that: the store is asked, which has it.
    let into = (&node.bucket, &Node::place(&member));
    put(into, &Node::key(&first), &first, &member.verifier, true).await.unwrap();
    let mut member = node.join().await;
    assert_eq!((member.mark.planned, member.mark.stored.seq), (None, 5));
    assert_eq!(member.mark.stored.checkpoint, Some(first.checkpoint.hash()));
    let next = node.seal(&mut member, None, 1 << 20);
    assert_eq!((next.checkpoint.first, next.checkpoint.last), (6, 10));
    assert_eq!(next.checkpoint.previous, Some(first.checkpoint.hash()));
    node.end();
}

#[tokio::test]
async fn a_log_that_has_gone_another_way_is_not_sealed() {
    let node = Node::new();
    node.record(3);
    let mut member = node.join().await;
    let stored = ChainPosition { seq: 2, ..member.mark.stored };
    let sealed = next_segment(&node.activity, &mut member, stored, None, 1 << 20, 0);
    assert!(matches!(sealed, Err(NotSealed::Fork(3))), "{sealed:?}");
    node.end();
}

#[tokio::test]
async fn a_put_counts_when_the_same_segment_is_in_the_store() {
    let node = Node::new();
    node.record(3);
    let mut member = node.join().await;
    let sealed = node.seal(&mut member, None, 1 << 20);
    let (key, place) = (Node::key(&sealed), Node::place(&member));
    let into = (&node.bucket, &place);
    for creates in [true, true, false] {
        let stored = put(into, &key, &sealed, &member.verifier, creates).await;
        assert_eq!(stored, Ok(sealed.checkpoint.hash()), "and again, after a lost answer");
    }
    let there = node.bucket.get(&key).await.unwrap();
    assert!(SegmentFacts::of(&there, &member.verifier).is_ok());
    let other = Node::new();
    other.record(3);
    let another = other.seal(&mut other.join().await, None, 1 << 20);
    // Its checkpoint is the same, and its data are not.
    let mut altered = sealed.bytes.to_vec();
    altered[40] ^= 1;
    for there in [Bytes::from_static(b"none"), another.bytes, altered.into()] {
        node.bucket.put(&key, there).await.unwrap();
        let refused = put(into, &key, &sealed, &member.verifier, true).await.unwrap_err();
        assert!(refused.to_string().contains("is another segment"), "{refused}");
    }
    node.end();
    other.end();
}

#[tokio::test]
async fn a_put_into_an_empty_store_that_is_there_instead_counts_for_nothing() {
    let node = Node::new();
    node.record(3);
    let mut member = node.join().await;
    let sealed = node.seal(&mut member, None, 1 << 20);
    let (key, place) = (Node::key(&sealed), Node::place(&member));
    let [store, aside] = ["store", "aside"].map(|name| node.folder.path().join(name));
    for creates in [true, false] {
        std::fs::rename(&store, &aside).unwrap();
        std::fs::create_dir(&store).unwrap();
        // It takes it, and says that it has it, each time.
        for _ in 0..2 {
            let refused = put((&node.bucket, &place), &key, &sealed, &member.verifier, creates)
                .await
                .unwrap_err();
            assert!(refused.to_string().contains("fleet.json is not there"), "{refused}");
            assert!(store.join(&key).exists());
        }
        std::fs::remove_dir_all(&store).unwrap();
        std::fs::rename(&aside, &store).unwrap();
        assert_eq!(node.bucket.size(&key).await, Ok(None));
    }
    let stored = put((&node.bucket, &place), &key, &sealed, &member.verifier, true).await;
    assert_eq!(stored, Ok(sealed.checkpoint.hash()));
    node.end();
}

#[tokio::test]
async fn what_waits_is_told_while_the_store_is_asked_and_nothing_comes() {
    let node = Node::new();
    node.record(20);
    let entered = enter(node.settings.clone(), BUILD, &node.activity).await.unwrap();
    let limits = SealLimits {
        flush_ms: 100,
        bytes: 1 << 20,
        catch_up: CATCH_UP,
        // As a record is taken to be before any was measured, these are less; as they are, more.
        backlog_bytes: 30 * 512,
        replies_wait: false,
        reply_ms: REPLY_MS,
    };
    let large = || {
        let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
        draft.set(Text::Error, &"x".repeat(2000));
        draft
    };
    for _ in 0..8 {
        node.activity.note(large());
    }
    node.activity.flush().unwrap();
    let (of, store) = (Arc::clone(entered.node()), "a store".to_owned());
    let mut backlog = Backlog::new(limits, entered.stored, node.activity.clone(), of, store);
    assert_eq!(node.activity.health().failed, None);
    let told = async {
        loop {
            if let Some(why) = node.activity.health().failed {
                return why;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let hangs = backlog.during(std::future::pending::<()>());
    let why = tokio::select! {
        why = told => why,
        () = hangs => unreachable!("it hangs"),
        () = tokio::time::sleep(Duration::from_secs(30)) => panic!("nothing is told"),
    };
    assert!(why.starts_with("28 records wait for a store: that is more"), "{why}");
    let lag = entered.node().ledger(&node.activity);
    assert!(lag.lag_records == 28 && lag.lag_bytes > 30 * 512, "{lag:?}");
    node.end();
}

#[tokio::test]
async fn the_log_forgets_what_is_in_the_store_and_nothing_else() {
    let node = Node::new();
    node.record(20);
    let entered = enter(node.settings.clone(), BUILD, &node.activity).await.unwrap();
    let few = crate::activity::Retention { days: 0, max_records: 5, max_size_mb: 0 };
    node.activity.keep_for(few);
    let first = || {
        node.activity.prune().unwrap();
        node.activity.stored().unwrap().first()
    };
    assert_eq!(first(), 1, "nothing of it is in the store");
    let (activity, vitals) = (node.activity.clone(), Arc::new(NodeVitals::default));
    let ledger = FleetLedger::start(entered, activity, vitals, &Handle::current());
    ledger.end(true).await;
    let stored = node.bucket.list(&segments_folder("a"), None).await.unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(first(), 17);
    node.end();
}
