//! Tests of the failure detector against manipulated heartbeats and fleets of any size, and of a reader that has just
//! started.

use crate::failure_detector::{SHOWN_FOR_MS, *};
use crate::heartbeat::tests::example;
use crate::heartbeat::{BEAT_EVERY_MS, LIST_EVERY_MS};

const OWN: BootId = BootId([9; 16]);
const WALL: u64 = 1_000_000_000;

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

impl FailureDetector {
    /// Lists unchanged objects of these names.
    pub(crate) fn there_are(&mut self, names: impl IntoIterator<Item = NodeName>) {
        let beats = names.into_iter().map(|name| (name, "".into()));
        self.listed(beats, StrayObjects::default(), 0, false);
    }

    /// Lists one object and reads it, whether due or not; `None` if the store does not return it.
    pub(crate) fn sees(
        &mut self,
        name: &NodeName,
        read: Option<BeatRead>,
        (now, wall): (u64, u64),
        trusted: bool,
    ) -> Vec<NodeEvent> {
        let state = match &read {
            None => String::new(),
            Some(Ok(beat)) => format!("{}-{}-{}", beat.boot, beat.beat, beat.stopping),
            Some(Err(fault)) => fault.to_string(),
        };
        let there = [(name.clone(), state.into())];
        let listed = self.listed(there, StrayObjects::default(), now, trusted);
        let mut news: Vec<_> = listed.into_iter().map(|(_, news)| news).collect();
        news.extend(self.read(name, read, (now, wall)));
        news
    }
}

/// Detector of node `me` with one other node `a`.
struct Scene {
    watch: FailureDetector,
    now: u64,
}

impl Scene {
    fn new() -> Self {
        let mut watch = FailureDetector::new(name("me"), OWN);
        watch.there_are([name("a")]);
        Self { watch, now: 0 }
    }

    /// Lists and reads, one second later.
    fn reads(&mut self, read: Option<BeatRead>) -> Vec<NodeEvent> {
        self.now += 1000;
        self.watch.sees(&name("a"), read, (self.now, WALL + self.now), true)
    }

    fn beats(&mut self, boot: u8, beat: u64) -> Vec<NodeEvent> {
        let at = WALL + self.now + 900;
        self.reads(Some(Ok(example(boot, beat, at))))
    }

    fn state(&self) -> NodeState {
        self.watch.snapshot(None).get("a").unwrap().state
    }

    fn fault(&self) -> Option<String> {
        self.watch.snapshot(None).get("a").unwrap().fault.clone()
    }
}

#[test]
fn node_is_alive_while_new_heartbeats_arrive() {
    let mut scene = Scene::new();
    assert_eq!(scene.watch.snapshot(None).count(), 1);
    assert_eq!(scene.beats(1, 40), []);
    assert_eq!(scene.state(), NodeState::Unknown, "it may be years old");
    assert_eq!(scene.beats(1, 41), [NodeEvent::Lives]);
    assert_eq!((scene.state(), scene.watch.snapshot(None).count()), (NodeState::Alive, 2));
    for _ in 0..5 {
        assert_eq!(scene.beats(1, 41), []);
    }
    assert_eq!(scene.state(), NodeState::Alive);
    assert_eq!(scene.beats(1, 41), [NodeEvent::Dead]);
    assert_eq!((scene.state(), scene.watch.snapshot(None).count()), (NodeState::Dead, 1));
    assert_eq!(scene.beats(1, 42), [NodeEvent::Lives]);
    assert_eq!(scene.beats(2, 1), [], "a new start continues");
    assert_eq!(scene.state(), NodeState::Alive);
    let stops = Heartbeat { stopping: true, ..example(2, 2, WALL) };
    assert_eq!(scene.reads(Some(Ok(stops))), [NodeEvent::Stopped]);
    assert_eq!(scene.state(), NodeState::Stopped);
    for _ in 0..20 {
        assert_eq!(scene.reads(Some(Ok(Heartbeat { stopping: true, ..example(2, 2, WALL) }))), []);
    }
    assert_eq!(scene.state(), NodeState::Stopped, "stopped, not dead");
    assert_eq!(scene.beats(3, 1), [NodeEvent::Lives]);
}

#[test]
fn old_heartbeat_means_a_dead_node() {
    let mut scene = Scene::new();
    for _ in 0..8 {
        assert_eq!(scene.beats(1, 40), []);
    }
    assert_eq!(scene.state(), NodeState::Dead);
    let mut empty = Scene::new();
    for _ in 0..20 {
        assert_eq!(empty.reads(None), []);
    }
    assert_eq!(empty.state(), NodeState::Unknown, "no heartbeat yet");
}

#[test]
fn no_node_is_declared_dead_during_a_store_outage() {
    let mut scene = Scene::new();
    scene.beats(1, 1);
    scene.beats(1, 2);
    // For an hour, either nothing was read, or only an object that could not have changed.
    scene.now += 3_600_000;
    assert_eq!(scene.beats(1, 2), []);
    for _ in 0..100 {
        scene.now += 1000;
        let read = Some(Ok(example(1, 2, WALL)));
        let at = (scene.now, WALL + scene.now);
        assert_eq!(scene.watch.sees(&name("a"), read, at, false), []);
    }
    assert_eq!(scene.state(), NodeState::Alive);
    // After the next read, silence counts again.
    for _ in 0..6 {
        scene.beats(1, 2);
    }
    assert_eq!(scene.state(), NodeState::Dead);
}

#[test]
fn replayed_heartbeat_is_reported_and_does_not_keep_a_node_alive() {
    let mut scene = Scene::new();
    scene.beats(1, 10);
    scene.beats(1, 11);
    assert_eq!(scene.beats(1, 10), [NodeEvent::Fault(HeartbeatFault::Older)]);
    assert!(scene.fault().unwrap().contains("older one"));
    for beat in 1..7 {
        scene.beats(1, beat);
    }
    assert_eq!(scene.state(), NodeState::Dead);
    scene.beats(2, 1);
    assert_eq!((scene.state(), scene.fault()), (NodeState::Alive, None));
    // Heartbeats of a former start are replays, up to the last one that is known.
    assert_eq!(scene.beats(1, 11), [NodeEvent::Fault(HeartbeatFault::Older)]);
    assert_eq!(scene.watch.snapshot(None).get("a").unwrap().heartbeat.as_ref().unwrap().beat, 1);
}

#[test]
fn abandoned_heartbeat_may_arrive_late_once() {
    let mut scene = Scene::new();
    scene.beats(1, 10);
    scene.beats(1, 11);
    // 12 hangs and is abandoned, 13 lists it, then 12 arrives.
    let names_12 = |scene: &mut Scene, beat| {
        let at = WALL + scene.now + 900;
        scene.reads(Some(Ok(Heartbeat { given_up: vec![12], ..example(1, beat, at) })))
    };
    assert_eq!(names_12(&mut scene, 13), []);
    assert_eq!(scene.beats(1, 12), []);
    assert_eq!((scene.state(), scene.fault()), (NodeState::Alive, None));
    // The late heartbeat does not keep the node alive any longer.
    for _ in 0..5 {
        assert_eq!(scene.beats(1, 12), []);
    }
    assert_eq!(scene.beats(1, 12), [NodeEvent::Dead]);
    assert_eq!(scene.fault(), None);
    // An unlisted old heartbeat is a replay, and so is a second arrival.
    assert_eq!(scene.beats(1, 11), [NodeEvent::Fault(HeartbeatFault::Older)]);
    assert_eq!(names_12(&mut scene, 14), [NodeEvent::Lives]);
    assert_eq!(scene.beats(1, 12), [NodeEvent::Fault(HeartbeatFault::Older)]);
    // Heartbeat numbers are counted per start, and an unlisted number is no longer expected.
    assert_eq!(names_12(&mut scene, 15), []);
    assert_eq!(scene.beats(1, 16), []);
    assert_eq!(scene.beats(1, 12), [NodeEvent::Fault(HeartbeatFault::Older)]);
    let at = WALL + scene.now + 900;
    let restarted = Heartbeat { given_up: vec![12], ..example(2, 13, at) };
    assert_eq!(scene.reads(Some(Ok(restarted))), []);
    assert_eq!(scene.beats(1, 12), [NodeEvent::Fault(HeartbeatFault::Older)]);
    assert_eq!(scene.beats(2, 12), [], "first arrival");
}

#[test]
fn invalid_heartbeat_is_reported_once_and_state_is_kept() {
    let mut scene = Scene::new();
    scene.beats(1, 1);
    scene.beats(1, 2);
    let bad = || Some(Err(HeartbeatFault::Signature));
    assert_eq!(scene.reads(bad()), [NodeEvent::Fault(HeartbeatFault::Signature)]);
    assert_eq!(scene.reads(bad()), []);
    assert_eq!(scene.state(), NodeState::Alive);
    for _ in 0..6 {
        scene.reads(bad());
    }
    assert_eq!(scene.state(), NodeState::Dead, "no heartbeat");
}

#[test]
fn duplicate_name_is_detected_by_others_and_by_the_node_itself() {
    let mut scene = Scene::new();
    scene.beats(1, 10);
    scene.beats(2, 1);
    assert_eq!(scene.beats(1, 11), [NodeEvent::Twice], "both processes are running");
    assert!(scene.watch.snapshot(None).get("a").unwrap().twice);
    assert_eq!(scene.beats(2, 2), []);
    for beat in 3..40 {
        scene.beats(2, beat);
    }
    assert!(!scene.watch.snapshot(None).get("a").unwrap().twice, "one process has ended");

    let mut watch = FailureDetector::new(name("me"), OWN);
    let mut read = |boot: u8, beat: u64, now: u64| {
        watch.read(&name("me"), Some(Ok(example(boot, beat, WALL))), (now, WALL))
    };
    assert_eq!(read(1, 99, 0), [], "the previous start");
    assert_eq!(read(1, 99, 1), [], "not overwritten yet");
    assert_eq!(read(9, 1, 2), []);
    assert_eq!(read(1, 100, 3), [NodeEvent::Twice]);
    assert_eq!(read(9, 2, 4), []);
    assert_eq!(read(1, 99, 5), [NodeEvent::Fault(HeartbeatFault::Older)], "put back");
}

#[test]
fn clock_skew_is_reported_once() {
    let mut scene = Scene::new();
    let off = |scene: &mut Scene, beat, ms: i64| {
        let at = (WALL + scene.now + 1000).saturating_add_signed(-ms);
        scene.reads(Some(Ok(example(1, beat, at))))
    };
    const HOUR: i64 = 3_600_000;
    assert_eq!(off(&mut scene, 1, HOUR), [], "it may be old");
    assert_eq!(scene.watch.snapshot(None).get("a").unwrap().skew_ms, None);
    assert_eq!(off(&mut scene, 2, HOUR), [NodeEvent::Lives, NodeEvent::Skewed(HOUR)]);
    assert_eq!(scene.state(), NodeState::Alive, "whatever its clock says");
    assert_eq!(off(&mut scene, 3, HOUR), []);
    assert_eq!(off(&mut scene, 4, 20), []);
    assert_eq!(off(&mut scene, 5, -HOUR), [NodeEvent::Skewed(-HOUR)]);
    let seen = scene.watch.snapshot(None);
    assert!(seen.get("a").unwrap().is_skewed());
    let wild = Heartbeat { at: u64::MAX, ..example(1, 6, 0) };
    scene.reads(Some(Ok(wild)));
    assert!(scene.watch.snapshot(None).get("a").unwrap().skew_ms.unwrap() < 0);
}

/// Simulated store of many nodes, and the detector of `me`.
struct World {
    watch: FailureDetector,
    now: u64,
    /// Version tag and content of each object.
    objects: BTreeMap<NodeName, (String, Option<BeatRead>)>,
    /// Running nodes: start and heartbeat number.
    beating: BTreeMap<NodeName, (u8, u64)>,
    /// Objects that are listed but cannot be read.
    withheld: BTreeSet<NodeName>,
    /// Name used by a second process, and its last heartbeat number.
    twin: Option<(NodeName, u64)>,
    reads: Vec<usize>,
    news: Vec<(u64, NodeName, NodeEvent)>,
}

impl World {
    fn new(nodes: usize) -> Self {
        let names = (0..nodes).map(|at| name(&format!("n{at:04}")));
        let beating = names.chain([name("me")]).map(|name| (name, (1, 0))).collect();
        let watch = FailureDetector::new(name("me"), BootId([1; 16]));
        let (objects, reads, news) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { watch, now: 0, objects, beating, withheld: BTreeSet::new(), twin: None, reads, news }
    }

    fn put(&mut self, node: &NodeName, state: String, read: BeatRead) {
        self.objects.insert(node.clone(), (state, Some(read)));
    }

    /// Writes each node's heartbeat for the past second.
    fn beat(&mut self) {
        for (node, (boot, beat)) in &mut self.beating {
            *beat += 1;
            let read = example(*boot, *beat, WALL + self.now);
            self.objects.insert(node.clone(), (format!("{boot}-{beat}"), Some(Ok(read))));
        }
    }

    /// One round: lists everything and reads the due heartbeats.
    fn turn(&mut self, suspected: &[&str]) {
        let before = self.now / BEAT_EVERY_MS;
        self.now += LIST_EVERY_MS;
        if self.now / BEAT_EVERY_MS > before {
            self.beat();
        }
        if let Some((twin, beat)) = &mut self.twin {
            *beat += 1;
            if *beat % 3 == 0 {
                let read = Some(Ok(example(7, *beat, WALL + self.now)));
                self.objects.insert(twin.clone(), (format!("twin {beat}"), read));
            }
        }
        let there = self.objects.iter().map(|(node, (state, _))| (node.clone(), (**state).into()));
        let there: Vec<_> = there.collect();
        let reported = self.watch.listed(there, StrayObjects::default(), self.now, true);
        self.news.extend(reported.into_iter().map(|(node, news)| (self.now, node, news)));
        let suspected = suspected.iter().map(|text| name(text)).collect();
        let reads = self.watch.due_reads(self.now, &suspected);
        self.reads.push(reads.len());
        assert!(reads.len() <= MAX_READ_AT_ONCE);
        for node in
            reads.into_iter().filter(|node| !self.withheld.contains(node)).collect::<Vec<_>>()
        {
            let read = self.objects.get(&node).and_then(|(_, read)| read.clone());
            let reported = self.watch.read(&node, read, (self.now, WALL + self.now));
            self.news.extend(reported.into_iter().map(|news| (self.now, node.clone(), news)));
        }
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn(&[]);
        }
    }

    /// Runs a detector that has just started until all nodes are decided and alive; returns the number of rounds.
    /// Asserts that no round reports a node as dead, or all nodes as decided too early.
    fn begins(&mut self) -> usize {
        // By the second round, every node has written a heartbeat.
        self.turns(2);
        let mut turns = 2;
        loop {
            let seen = self.watch.snapshot(None);
            let dead = seen.all().iter().find(|it| it.state == NodeState::Dead);
            assert!(dead.is_none(), "turn {turns}: {dead:?}");
            let all_live = seen.count() == self.beating.len();
            assert_eq!(seen.undecided_reason().is_none(), all_live, "turn {turns}");
            if all_live {
                return turns;
            }
            self.turn(&[]);
            turns += 1;
        }
    }

    /// Runs until this event occurs, at most `within` milliseconds; returns the elapsed time.
    fn until(&mut self, node: &NodeName, news: &NodeEvent, within: u64) -> u64 {
        let began = self.now;
        loop {
            let reported =
                self.news.iter().find(|(at, who, it)| *at > began && who == node && it == news);
            if let Some((at, ..)) = reported {
                return at - began;
            }
            assert!(self.now - began <= within, "{node:?} {news:?}: not within {within} ms");
            self.turn(&[]);
        }
    }

    fn state(&self, node: &NodeName) -> NodeState {
        self.watch.snapshot(None).get(node.as_str()).unwrap().state
    }
}

#[test]
fn state_of_a_large_fleet_is_determined_from_listings_with_few_reads() {
    let mut world = World::new(500);
    // Each node is read twice before it counts.
    let turns = world.begins();
    assert!(turns <= 2 * 500_usize.div_ceil(MAX_READ_AT_ONCE) + 3, "{turns}");
    assert_eq!(world.watch.snapshot(None).count(), 501);
    world.news.clear();
    world.reads.clear();
    world.turns(300);
    assert_eq!((world.watch.snapshot(None).count(), &world.news[..]), (501, &[][..]));
    let read: usize = world.reads.iter().sum();
    let seconds = 300 * LIST_EVERY_MS as usize / 1000;
    assert!(read <= 7 * seconds, "{read} in {seconds} s");
    // Reads rotate through the nodes.
    let views = world.watch.snapshot(None);
    let oldest = views.living().filter_map(|it| Some(it.heartbeat.as_ref()?.at)).min().unwrap();
    let turns = 501_u64.div_ceil(READ_IN_TURN as u64) + 1;
    assert!(WALL + world.now - oldest <= turns * LIST_EVERY_MS + BEAT_EVERY_MS);
    // A death is detected as fast as in a small fleet, a new node within two seconds.
    let dead = name("n0123");
    world.beating.remove(&dead);
    let ms = world.until(&dead, &NodeEvent::Dead, 8_000);
    assert!(ms >= DEAD_AFTER_MS - LIST_EVERY_MS, "{ms}");
    let new = name("new");
    world.beating.insert(new.clone(), (1, 0));
    world.until(&new, &NodeEvent::Lives, 3_200);
    world.beating.insert(dead.clone(), (2, 0));
    world.until(&dead, &NodeEvent::Lives, 2_400);
}

#[test]
fn stopped_node_in_a_large_fleet_is_detected_once_its_object_stops_changing() {
    let mut world = World::new(200);
    world.turns(12);
    let stops = name("n0007");
    for _ in 0..3 {
        let (boot, beat) = world.beating.remove(&stops).unwrap();
        let last = Heartbeat { stopping: true, ..example(boot, beat + 1, WALL + world.now) };
        world.put(&stops, "stopped".into(), Ok(last));
        world.until(&stops, &NodeEvent::Stopped, 4_000);
        world.turns(20);
        assert_eq!(world.state(&stops), NodeState::Stopped, "stopped, not dead");
        world.beating.insert(stops.clone(), (boot + 1, 0));
        world.until(&stops, &NodeEvent::Lives, 2_400);
        world.turns(3);
    }
}

#[test]
fn tampering_keeps_a_dead_node_alive_only_until_its_next_read() {
    for (nodes, turn_ms) in [(8, LIST_EVERY_MS), (100, 101_u64.div_ceil(5) * LIST_EVERY_MS)] {
        for kind in 0..3 {
            let mut world = World::new(nodes);
            world.turns(20);
            // The node's last heartbeat is read now, because it would otherwise be new when it is read later.
            world.turn(&["n0003"]);
            let dead = name("n0003");
            let (boot, beat) = world.beating.remove(&dead).unwrap();
            let began = world.now;
            let mut turn = 0;
            while world.state(&dead) == NodeState::Alive {
                turn += 1;
                let read = match kind {
                    0 => Ok(example(boot, beat, WALL)),
                    1 => Ok(example(boot, beat - 1, WALL)),
                    _ => Err(HeartbeatFault::Signature),
                };
                world.put(&dead, format!("touched {turn}"), read);
                world.turn(&[]);
                let ms = world.now - began;
                assert!(ms <= turn_ms + DEAD_AFTER_MS + 4 * LIST_EVERY_MS, "{nodes} {kind}: {ms}");
            }
            assert_eq!(world.state(&dead), NodeState::Dead);
            // Tampering does not revive any node.
            for turn in 0..100 {
                world.put(&dead, format!("again {turn}"), Ok(example(boot, beat, WALL)));
                world.turn(&[]);
                assert_eq!(world.state(&dead), NodeState::Dead);
            }
            assert_eq!(world.watch.snapshot(None).count(), nodes);
        }
    }
}

#[test]
fn removed_object_counts_as_silence_and_state_is_kept() {
    let mut world = World::new(3);
    world.turns(5);
    let gone = name("n0001");
    world.beating.remove(&gone);
    let (_, whole) = world.objects.remove(&gone).unwrap();
    world.until(&gone, &NodeEvent::Dead, 8_000);
    // Two recorded heartbeats are replayed one after the other.
    for (state, beat) in [("a", 1), ("b", 2), ("c", 3)] {
        world.put(&gone, state.into(), Ok(example(1, beat, WALL)));
        world.turns(3);
        assert_eq!(world.state(&gone), NodeState::Dead);
    }
    world.objects.insert(gone.clone(), ("d".into(), whole));
    world.turns(3);
    assert_eq!(world.state(&gone), NodeState::Dead);
    world.objects.remove(&gone);
    for _ in 0..SHOWN_FOR_MS / MAX_SILENCE_STEP_MS {
        world.now += MAX_SILENCE_STEP_MS;
        let is_shown = world.watch.snapshot(None).get("n0001").is_some();
        let silent_for = world.watch.nodes[&gone].view(&gone, false).silent_ms;
        assert_eq!(is_shown, silent_for < SHOWN_FOR_MS);
        world.watch.listed([], StrayObjects::default(), world.now, true);
    }
    assert!(world.watch.snapshot(None).get("n0001").is_none(), "nothing waits for it any more");
    world.put(&gone, "e".into(), Ok(example(1, 2, WALL)));
    world.turns(3);
    assert_eq!(world.state(&gone), NodeState::Dead);
}

#[test]
fn small_fleet_reads_every_change_and_large_fleet_reads_suspected_nodes() {
    let mut world = World::new(FEW_NODES - 1);
    world.turns(4);
    for _ in 0..20 {
        world.turn(&[]);
        let views = world.watch.snapshot(None);
        let beats = views.living().map(|it| it.heartbeat.as_ref().unwrap().beat);
        assert!(beats.eq(world.beating.values().map(|(_, beat)| *beat)));
    }
    let mut world = World::new(100);
    world.turns(6);
    world.turns(100);
    // The node restarts before its absence is detected.
    let joined = name("n0050");
    let boot = |world: &World| {
        world.watch.snapshot(None).get("n0050").unwrap().heartbeat.as_ref().unwrap().boot
    };
    world.turn(&["n0050"]);
    world.beating.insert(joined, (2, 0));
    world.turns(2);
    assert_eq!(boot(&world), BootId([1; 16]), "just read");
    world.turn(&["n0050", "unknown"]);
    assert_eq!(boot(&world), BootId([2; 16]));
}

#[test]
fn unreadable_objects_do_not_block_other_reads() {
    let mut world = World::new(100);
    world.turns(10);
    // More unreadable changing objects than are read per round, some of them of live nodes.
    let withheld = (0..10).map(|at| name(&format!("n{at:04}")));
    let strangers = (0..2 * MAX_READ_AT_ONCE).map(|at| name(&format!("a{at:04}")));
    world.withheld = withheld.chain(strangers.clone()).collect();
    world.beating.extend(strangers.map(|node| (node, (1, 0))));
    world.turns(200);
    assert_eq!(world.watch.snapshot(None).count(), 101, "their objects still change");
    let seen = world.watch.snapshot(None);
    let read = seen.living().filter(|it| !world.withheld.contains(&it.name));
    let oldest = read.filter_map(|it| Some(it.heartbeat.as_ref()?.at)).min().unwrap();
    let turns = 101_u64.div_ceil(READ_IN_TURN as u64) + 1;
    assert!(WALL + world.now - oldest <= turns * LIST_EVERY_MS + BEAT_EVERY_MS);
    let new = name("new");
    world.beating.insert(new.clone(), (1, 0));
    world.until(&new, &NodeEvent::Lives, 8_000);
}

#[test]
fn duplicate_name_in_a_large_fleet_is_detected_soon_by_the_node_itself() {
    for (twin, within) in [("n0042", 120_000), ("me", 20_000)] {
        let mut world = World::new(100);
        world.turns(60);
        let twin = name(twin);
        world.twin = Some((twin.clone(), 0));
        world.until(&twin, &NodeEvent::Twice, within);
        world.turns(30);
        assert!(world.watch.snapshot(None).get(twin.as_str()).unwrap().twice);
        world.twin = None;
        world.turns(60);
        assert!(
            !world.watch.snapshot(None).get(twin.as_str()).unwrap().twice,
            "one process has ended"
        );
    }
}

#[test]
fn surplus_names_do_not_displace_nodes_with_valid_heartbeats() {
    let mut watch = FailureDetector::new(name("me"), OWN);
    let real = [name("x"), name("y")];
    let beats = |real: u64, junk: usize| {
        let junk = (0..junk).map(|at| (name(&format!("m{at:05}")), "junk".into()));
        let real = [name("x"), name("y")].map(|it| (it, real.to_string().into()));
        junk.chain(real).collect::<Vec<ListedBeat>>()
    };
    for at in 1..3 {
        watch.listed(beats(at, 0), StrayObjects::default(), at * 1000, true);
        for node in &real {
            watch.read(node, Some(Ok(example(1, at, WALL))), (at * 1000, WALL));
        }
    }
    assert_eq!(watch.snapshot(None).count(), 3);
    watch.listed(beats(3, 2 * MAX_NODES), StrayObjects::default(), 3000, true);
    let seen = watch.snapshot(None);
    assert_eq!((seen.all().len(), seen.count()), (MAX_NODES, 3));
    let strays = seen.strays.unwrap();
    assert!(strays.starts_with("4099 stray objects: "), "{strays}");
    // Real nodes are read however often the other objects change.
    for at in 4..400_u64 {
        let junk = (0..MAX_NODES).map(|it| (name(&format!("m{it:05}")), at.to_string().into()));
        let real_now = real.iter().map(|it| (it.clone(), at.to_string().into()));
        watch.listed(junk.chain(real_now), StrayObjects::default(), at * 1000, true);
        for node in watch.due_reads(at * 1000, &BTreeSet::new()) {
            let read = match real.contains(&node) {
                true => Ok(example(1, at, WALL)),
                false => Err(HeartbeatFault::Form),
            };
            watch.read(&node, Some(read), (at * 1000, WALL));
        }
        assert_eq!(watch.snapshot(None).count(), 3);
    }
    let last_beat =
        |node: &str| watch.snapshot(None).get(node).unwrap().heartbeat.as_ref().unwrap().beat;
    assert!(last_beat("x") > 390 && last_beat("y") > 390);
    // After a cleanup there is room for others.
    watch.listed(beats(500, 0), StrayObjects::default(), 500_000, true);
    assert_eq!(watch.snapshot(None).all().len(), 3);
    let new = [(name("x"), "x".into()), (name("new"), "n".into())];
    watch.listed(new, StrayObjects::default(), 501_000, true);
    assert!(watch.snapshot(None).get("new").is_some());
}

/// Round, counted from the first listing, at which an object without a valid heartbeat is first decided.
const JUDGED_AT: u64 = 1 + DEAD_AFTER_MS.div_ceil(LIST_EVERY_MS);

fn is_undecided(world: &World, node: &str) -> bool {
    world.watch.snapshot(None).get(node).unwrap().is_undecided()
}

#[test]
fn nodes_waiting_to_be_read_are_not_reported_dead() {
    for nodes in [3, 100, 257, 1_000, 2_000] {
        let mut world = World::new(nodes);
        let turns = world.begins();
        // Live nodes are read in turn, together with new ones.
        let at_once = MAX_READ_AT_ONCE - READ_IN_TURN;
        assert!(turns <= 2 * nodes.div_ceil(at_once) + 5, "{nodes}: {turns}");
        assert!(world.news.iter().all(|(_, _, news)| *news == NodeEvent::Lives), "{nodes}");
    }
}

#[test]
fn unchanged_unread_object_is_decided_in_time() {
    let mut world = World::new(1_000);
    let old = name("old");
    world.put(&old, "old".into(), Ok(example(1, 1, WALL)));
    world.withheld.insert(old.clone());
    for turn in 1..=JUDGED_AT {
        world.turn(&[]);
        assert_eq!(is_undecided(&world, "old"), turn < JUDGED_AT, "turn {turn}");
    }
    assert_eq!(world.state(&old), NodeState::Unknown, "no heartbeat yet");
    world.withheld.remove(&old);
    world.turns(40);
    assert_eq!(world.state(&old), NodeState::Dead);
}

#[test]
fn node_with_a_changing_object_is_undecided_until_the_object_is_read() {
    let mut world = World::new(3);
    world.begins();
    for turn in 1..=JUDGED_AT {
        let touched = || format!("touched {turn}");
        world.put(&name("odd"), touched(), Err(HeartbeatFault::Signature));
        world.put(&name("again"), touched(), Ok(example(1, 7, WALL)));
        world.put(&name("kept"), touched(), Ok(example(1, turn, WALL)));
        world.withheld.insert(name("kept"));
        world.turn(&[]);
        let judged = turn == JUDGED_AT;
        let undecided = ["odd", "again", "kept"].map(|node| is_undecided(&world, node));
        assert_eq!(undecided, [!judged, !judged, true], "turn {turn}");
    }
    let states = ["odd", "again"].map(|node| world.state(&name(node)));
    assert_eq!(states, [NodeState::Unknown, NodeState::Dead]);
}
