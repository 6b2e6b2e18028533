//! What is done to heartbeats, and what that says of who lives.

mod starting;

use super::node_view::SHOWN_FOR_MS;
use super::*;
use crate::fleet::heartbeat::tests::example;

const OWN: BootId = BootId([9; 16]);
const WALL: u64 = 1_000_000_000;

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

impl NodeWatch {
    /// Objects of these names are there, and as they were.
    pub(crate) fn there_are(&mut self, names: impl IntoIterator<Item = NodeName>) {
        let beats = names.into_iter().map(|name| (name, "".into()));
        self.listed(beats, StrayObjects::default(), 0, false);
    }

    /// One object is listed, and read whether it is to be or not: `None` for one that is listed and not given.
    pub(crate) fn sees(
        &mut self,
        name: &NodeName,
        read: Option<BeatRead>,
        (now, wall): (u64, u64),
        trusted: bool,
    ) -> Vec<NodeNews> {
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

/// A watch of node `me`, beside which `a` is listed.
struct Scene {
    watch: NodeWatch,
    now: u64,
}

impl Scene {
    fn new() -> Self {
        let mut watch = NodeWatch::new(name("me"), OWN);
        watch.there_are([name("a")]);
        Self { watch, now: 0 }
    }

    /// A second later that is listed and read.
    fn reads(&mut self, read: Option<BeatRead>) -> Vec<NodeNews> {
        self.now += 1000;
        self.watch.sees(&name("a"), read, (self.now, WALL + self.now), true)
    }

    fn beats(&mut self, boot: u8, beat: u64) -> Vec<NodeNews> {
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
fn a_node_lives_when_it_says_something_new_and_for_as_long() {
    let mut scene = Scene::new();
    assert_eq!(scene.watch.snapshot(None).count(), 1);
    assert_eq!(scene.beats(1, 40), []);
    assert_eq!(scene.state(), NodeState::Unknown, "it may have lain there for years");
    assert_eq!(scene.beats(1, 41), [NodeNews::Lives]);
    assert_eq!((scene.state(), scene.watch.snapshot(None).count()), (NodeState::Living, 2));
    for _ in 0..5 {
        assert_eq!(scene.beats(1, 41), []);
    }
    assert_eq!(scene.state(), NodeState::Living);
    assert_eq!(scene.beats(1, 41), [NodeNews::Silent]);
    assert_eq!((scene.state(), scene.watch.snapshot(None).count()), (NodeState::Silent, 1));
    assert_eq!(scene.beats(1, 42), [NodeNews::Lives]);
    assert_eq!(scene.beats(2, 1), [], "a new start goes on");
    assert_eq!(scene.state(), NodeState::Living);
    let stops = Heartbeat { stopping: true, ..example(2, 2, WALL) };
    assert_eq!(scene.reads(Some(Ok(stops))), [NodeNews::Stopped]);
    assert_eq!(scene.state(), NodeState::Stopped);
    for _ in 0..20 {
        assert_eq!(scene.reads(Some(Ok(Heartbeat { stopping: true, ..example(2, 2, WALL) }))), []);
    }
    assert_eq!(scene.state(), NodeState::Stopped, "it is not silent, it has stopped");
    assert_eq!(scene.beats(3, 1), [NodeNews::Lives]);
}

#[test]
fn an_old_heartbeat_that_lies_there_is_that_of_a_silent_node() {
    let mut scene = Scene::new();
    for _ in 0..8 {
        assert_eq!(scene.beats(1, 40), []);
    }
    assert_eq!(scene.state(), NodeState::Silent);
    let mut empty = Scene::new();
    for _ in 0..20 {
        assert_eq!(empty.reads(None), []);
    }
    assert_eq!(empty.state(), NodeState::Unknown, "it has never said anything");
}

#[test]
fn nobody_dies_while_the_store_is_away() {
    let mut scene = Scene::new();
    scene.beats(1, 1);
    scene.beats(1, 2);
    // Nothing was read for an hour, or only what nobody could have changed.
    scene.now += 3_600_000;
    assert_eq!(scene.beats(1, 2), []);
    for _ in 0..100 {
        scene.now += 1000;
        let read = Some(Ok(example(1, 2, WALL)));
        let at = (scene.now, WALL + scene.now);
        assert_eq!(scene.watch.sees(&name("a"), read, at, false), []);
    }
    assert_eq!(scene.state(), NodeState::Living);
    // Once it is read again, silence counts.
    for _ in 0..6 {
        scene.beats(1, 2);
    }
    assert_eq!(scene.state(), NodeState::Silent);
}

#[test]
fn an_older_heartbeat_put_back_is_told_and_keeps_nobody_alive() {
    let mut scene = Scene::new();
    scene.beats(1, 10);
    scene.beats(1, 11);
    assert_eq!(scene.beats(1, 10), [NodeNews::Fault(HeartbeatFault::Older)]);
    assert!(scene.fault().unwrap().contains("older one"));
    for beat in 1..7 {
        scene.beats(1, beat);
    }
    assert_eq!(scene.state(), NodeState::Silent);
    scene.beats(2, 1);
    assert_eq!((scene.state(), scene.fault()), (NodeState::Living, None));
    // That of a start before, up to the last that was seen of it.
    assert_eq!(scene.beats(1, 11), [NodeNews::Fault(HeartbeatFault::Older)]);
    assert_eq!(scene.watch.snapshot(None).get("a").unwrap().heartbeat.as_ref().unwrap().beat, 1);
}

#[test]
fn one_that_its_node_gave_up_and_that_comes_late_is_none_that_was_put_back_once() {
    let mut scene = Scene::new();
    scene.beats(1, 10);
    scene.beats(1, 11);
    // 12 hung and was given up, 13 says so, and 12 comes.
    let names_12 = |scene: &mut Scene, beat| {
        let at = WALL + scene.now + 900;
        scene.reads(Some(Ok(Heartbeat { given_up: vec![12], ..example(1, beat, at) })))
    };
    assert_eq!(names_12(&mut scene, 13), []);
    assert_eq!(scene.beats(1, 12), []);
    assert_eq!((scene.state(), scene.fault()), (NodeState::Living, None));
    // It keeps nobody alive.
    for _ in 0..5 {
        assert_eq!(scene.beats(1, 12), []);
    }
    assert_eq!(scene.beats(1, 12), [NodeNews::Silent]);
    assert_eq!(scene.fault(), None);
    // Another one that was there before has been put back, and so has this one if it comes twice.
    assert_eq!(scene.beats(1, 11), [NodeNews::Fault(HeartbeatFault::Older)]);
    assert_eq!(names_12(&mut scene, 14), [NodeNews::Lives]);
    assert_eq!(scene.beats(1, 12), [NodeNews::Fault(HeartbeatFault::Older)]);
    // Numbers are those of a start, and one that is named no more is not waited for.
    assert_eq!(names_12(&mut scene, 15), []);
    assert_eq!(scene.beats(1, 16), []);
    assert_eq!(scene.beats(1, 12), [NodeNews::Fault(HeartbeatFault::Older)]);
    let at = WALL + scene.now + 900;
    let anew = Heartbeat { given_up: vec![12], ..example(2, 13, at) };
    assert_eq!(scene.reads(Some(Ok(anew))), []);
    assert_eq!(scene.beats(1, 12), [NodeNews::Fault(HeartbeatFault::Older)]);
    assert_eq!(scene.beats(2, 12), [], "it came for the first time");
}

#[test]
fn what_is_no_heartbeat_is_told_once_and_what_was_known_stays() {
    let mut scene = Scene::new();
    scene.beats(1, 1);
    scene.beats(1, 2);
    let bad = || Some(Err(HeartbeatFault::Signature));
    assert_eq!(scene.reads(bad()), [NodeNews::Fault(HeartbeatFault::Signature)]);
    assert_eq!(scene.reads(bad()), []);
    assert_eq!(scene.state(), NodeState::Living);
    for _ in 0..6 {
        scene.reads(bad());
    }
    assert_eq!(scene.state(), NodeState::Silent, "nothing was heard of it");
}

#[test]
fn a_name_that_is_used_twice_is_told_by_the_others_and_by_the_node_itself() {
    let mut scene = Scene::new();
    scene.beats(1, 10);
    scene.beats(2, 1);
    assert_eq!(scene.beats(1, 11), [NodeNews::Twice], "both go on");
    assert!(scene.watch.snapshot(None).get("a").unwrap().twice);
    assert_eq!(scene.beats(2, 2), []);
    for beat in 3..40 {
        scene.beats(2, beat);
    }
    assert!(!scene.watch.snapshot(None).get("a").unwrap().twice, "one has given up");

    let mut watch = NodeWatch::new(name("me"), OWN);
    let mut read = |boot: u8, beat: u64, now: u64| {
        watch.read(&name("me"), Some(Ok(example(boot, beat, WALL))), (now, WALL))
    };
    assert_eq!(read(1, 99, 0), [], "the start before");
    assert_eq!(read(1, 99, 1), [], "not yet written over");
    assert_eq!(read(9, 1, 2), []);
    assert_eq!(read(1, 100, 3), [NodeNews::Twice]);
    assert_eq!(read(9, 2, 4), []);
    assert_eq!(read(1, 99, 5), [NodeNews::Fault(HeartbeatFault::Older)], "put back");
}

#[test]
fn clocks_that_are_apart_are_told_once() {
    let mut scene = Scene::new();
    let off = |scene: &mut Scene, beat, ms: i64| {
        let at = (WALL + scene.now + 1000).saturating_add_signed(-ms);
        scene.reads(Some(Ok(example(1, beat, at))))
    };
    const HOUR: i64 = 3_600_000;
    assert_eq!(off(&mut scene, 1, HOUR), [], "it may have lain there");
    assert_eq!(scene.watch.snapshot(None).get("a").unwrap().skew_ms, None);
    assert_eq!(off(&mut scene, 2, HOUR), [NodeNews::Lives, NodeNews::Skewed(HOUR)]);
    assert_eq!(scene.state(), NodeState::Living, "whatever its clock says");
    assert_eq!(off(&mut scene, 3, HOUR), []);
    assert_eq!(off(&mut scene, 4, 20), []);
    assert_eq!(off(&mut scene, 5, -HOUR), [NodeNews::Skewed(-HOUR)]);
    let seen = scene.watch.snapshot(None);
    assert!(seen.get("a").unwrap().is_skewed());
    let wild = Heartbeat { at: u64::MAX, ..example(1, 6, 0) };
    scene.reads(Some(Ok(wild)));
    assert!(scene.watch.snapshot(None).get("a").unwrap().skew_ms.unwrap() < 0);
}

/// What lies in a store under the names of many nodes, beside `me`, and one that watches them.
struct World {
    watch: NodeWatch,
    now: u64,
    /// The state of each object, and what is read of it.
    objects: BTreeMap<NodeName, (String, Option<BeatRead>)>,
    /// Nodes that beat: their starts and numbers.
    beating: BTreeMap<NodeName, (u8, u64)>,
    /// Those that the store lists and does not give.
    withheld: BTreeSet<NodeName>,
    /// One under whose name another process puts, and what it has put.
    twin: Option<(NodeName, u64)>,
    reads: Vec<usize>,
    news: Vec<(u64, NodeName, NodeNews)>,
}

impl World {
    fn new(nodes: usize) -> Self {
        let names = (0..nodes).map(|at| name(&format!("n{at:04}")));
        let beating = names.chain([name("me")]).map(|name| (name, (1, 0))).collect();
        let watch = NodeWatch::new(name("me"), BootId([1; 16]));
        let (objects, reads, news) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { watch, now: 0, objects, beating, withheld: BTreeSet::new(), twin: None, reads, news }
    }

    fn put(&mut self, node: &NodeName, state: String, read: BeatRead) {
        self.objects.insert(node.clone(), (state, Some(read)));
    }

    /// What each node puts in the second that ends now.
    fn beat(&mut self) {
        for (node, (boot, beat)) in &mut self.beating {
            *beat += 1;
            let read = example(*boot, *beat, WALL + self.now);
            self.objects.insert(node.clone(), (format!("{boot}-{beat}"), Some(Ok(read))));
        }
    }

    /// A turn: everything is listed, and read what is to be.
    fn turn(&mut self, doubts: &[&str]) {
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
        let told = self.watch.listed(there, StrayObjects::default(), self.now, true);
        self.news.extend(told.into_iter().map(|(node, news)| (self.now, node, news)));
        let doubts = doubts.iter().map(|text| name(text)).collect();
        let reads = self.watch.to_read(self.now, &doubts);
        self.reads.push(reads.len());
        assert!(reads.len() <= MAX_READ_AT_ONCE);
        for node in
            reads.into_iter().filter(|node| !self.withheld.contains(node)).collect::<Vec<_>>()
        {
            let read = self.objects.get(&node).and_then(|(_, read)| read.clone());
            let told = self.watch.read(&node, read, (self.now, WALL + self.now));
            self.news.extend(told.into_iter().map(|news| (self.now, node.clone(), news)));
        }
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn(&[]);
        }
    }

    /// The turns of a reader that has just started until it has judged all, which live; how many they were. In none of them it
    /// takes one for dead, or says before the last that all are judged.
    fn begins(&mut self) -> usize {
        // They have put something in the second one.
        self.turns(2);
        let mut turns = 2;
        loop {
            let seen = self.watch.snapshot(None);
            let dead = seen.all().iter().find(|it| it.state == NodeState::Silent);
            assert!(dead.is_none(), "turn {turns}: {dead:?}");
            let all_live = seen.count() == self.beating.len();
            assert_eq!(seen.why_undecided().is_none(), all_live, "turn {turns}");
            if all_live {
                return turns;
            }
            self.turn(&[]);
            turns += 1;
        }
    }

    /// Turns until something is told of a node, at most `within` milliseconds; how long that was.
    fn until(&mut self, node: &NodeName, news: &NodeNews, within: u64) -> u64 {
        let began = self.now;
        loop {
            let told =
                self.news.iter().find(|(at, who, it)| *at > began && who == node && it == news);
            if let Some((at, ..)) = told {
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
fn five_hundred_nodes_are_seen_to_live_and_to_die_by_their_states_and_few_are_read() {
    let mut world = World::new(500);
    // Each is read twice before it counts, as many as are read at once.
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
    // Those that are read are others each time.
    let views = world.watch.snapshot(None);
    let oldest = views.living().filter_map(|it| Some(it.heartbeat.as_ref()?.at)).min().unwrap();
    let turns = 501_u64.div_ceil(READ_IN_TURN as u64) + 1;
    assert!(WALL + world.now - oldest <= turns * LIST_EVERY_MS + BEAT_EVERY_MS);
    // A dead one is found after as long as in a small fleet, a new one within two seconds.
    let dead = name("n0123");
    world.beating.remove(&dead);
    let ms = world.until(&dead, &NodeNews::Silent, 8_000);
    assert!(ms >= DEAD_AFTER_MS - LIST_EVERY_MS, "{ms}");
    let new = name("new");
    world.beating.insert(new.clone(), (1, 0));
    world.until(&new, &NodeNews::Lives, 3_200);
    world.beating.insert(dead.clone(), (2, 0));
    world.until(&dead, &NodeNews::Lives, 2_400);
}

#[test]
fn in_a_large_fleet_a_stop_is_seen_once_nothing_follows_it() {
    let mut world = World::new(200);
    world.turns(12);
    let stops = name("n0007");
    for _ in 0..3 {
        let (boot, beat) = world.beating.remove(&stops).unwrap();
        let last = Heartbeat { stopping: true, ..example(boot, beat + 1, WALL + world.now) };
        world.put(&stops, "stopped".into(), Ok(last));
        world.until(&stops, &NodeNews::Stopped, 4_000);
        world.turns(20);
        assert_eq!(world.state(&stops), NodeState::Stopped, "it is not silent");
        world.beating.insert(stops.clone(), (boot + 1, 0));
        world.until(&stops, &NodeNews::Lives, 2_400);
        world.turns(3);
    }
}

#[test]
fn whoever_changes_a_dead_node_s_object_keeps_it_alive_until_its_turn_and_as_long_as_any() {
    for (nodes, turn_ms) in [(8, LIST_EVERY_MS), (100, 101_u64.div_ceil(5) * LIST_EVERY_MS)] {
        for kind in 0..3 {
            let mut world = World::new(nodes);
            world.turns(20);
            // What it says last is read: to a reader that has not, it would be new.
            world.turn(&["n0003"]);
            let dead = name("n0003");
            let (boot, beat) = world.beating.remove(&dead).unwrap();
            let began = world.now;
            let mut turn = 0;
            while world.state(&dead) == NodeState::Living {
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
            assert_eq!(world.state(&dead), NodeState::Silent);
            // And nobody brings it back so.
            for turn in 0..100 {
                world.put(&dead, format!("again {turn}"), Ok(example(boot, beat, WALL)));
                world.turn(&[]);
                assert_eq!(world.state(&dead), NodeState::Silent);
            }
            assert_eq!(world.watch.snapshot(None).count(), nodes);
        }
    }
}

#[test]
fn an_object_that_is_removed_is_silence_and_what_was_known_of_it_is_not_forgotten() {
    let mut world = World::new(3);
    world.turns(5);
    let gone = name("n0001");
    world.beating.remove(&gone);
    let (_, whole) = world.objects.remove(&gone).unwrap();
    world.until(&gone, &NodeNews::Silent, 8_000);
    // Two that were recorded are put back, one after the other.
    for (state, beat) in [("a", 1), ("b", 2), ("c", 3)] {
        world.put(&gone, state.into(), Ok(example(1, beat, WALL)));
        world.turns(3);
        assert_eq!(world.state(&gone), NodeState::Silent);
    }
    world.objects.insert(gone.clone(), ("d".into(), whole));
    world.turns(3);
    assert_eq!(world.state(&gone), NodeState::Silent);
    world.objects.remove(&gone);
    for _ in 0..SHOWN_FOR_MS / MAX_SILENCE_STEP_MS {
        world.now += MAX_SILENCE_STEP_MS;
        let is_shown = world.watch.snapshot(None).get("n0001").is_some();
        let silent_for = world.watch.nodes[&gone].view(&gone, false).silent_ms;
        assert_eq!(is_shown, silent_for < SHOWN_FOR_MS);
        world.watch.listed([], StrayObjects::default(), world.now, true);
    }
    assert!(world.watch.snapshot(None).get("n0001").is_none(), "nobody waits for it any more");
    world.put(&gone, "e".into(), Ok(example(1, 2, WALL)));
    world.turns(3);
    assert_eq!(world.state(&gone), NodeState::Silent);
}

#[test]
fn in_a_small_fleet_each_change_is_read_and_in_a_large_one_whom_somebody_doubts() {
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
    // It is started anew before anybody misses it.
    let anew = name("n0050");
    let boot = |world: &World| {
        world.watch.snapshot(None).get("n0050").unwrap().heartbeat.as_ref().unwrap().boot
    };
    world.turn(&["n0050"]);
    world.beating.insert(anew, (2, 0));
    world.turns(2);
    assert_eq!(boot(&world), BootId([1; 16]), "it was read just now");
    world.turn(&["n0050", "nobody"]);
    assert_eq!(boot(&world), BootId([2; 16]));
}

#[test]
fn what_the_store_lists_and_does_not_give_keeps_no_other_from_being_read() {
    let mut world = World::new(100);
    world.turns(10);
    // Some of those that live, and more that never were read than are read at once; all of them change.
    let withheld = (0..10).map(|at| name(&format!("n{at:04}")));
    let strangers = (0..2 * MAX_READ_AT_ONCE).map(|at| name(&format!("a{at:04}")));
    world.withheld = withheld.chain(strangers.clone()).collect();
    world.beating.extend(strangers.map(|node| (node, (1, 0))));
    world.turns(200);
    assert_eq!(world.watch.snapshot(None).count(), 101, "their objects change");
    let seen = world.watch.snapshot(None);
    let read = seen.living().filter(|it| !world.withheld.contains(&it.name));
    let oldest = read.filter_map(|it| Some(it.heartbeat.as_ref()?.at)).min().unwrap();
    let turns = 101_u64.div_ceil(READ_IN_TURN as u64) + 1;
    assert!(WALL + world.now - oldest <= turns * LIST_EVERY_MS + BEAT_EVERY_MS);
    let new = name("new");
    world.beating.insert(new.clone(), (1, 0));
    world.until(&new, &NodeNews::Lives, 8_000);
}

#[test]
fn a_name_that_is_used_twice_in_a_large_fleet_is_told_in_turn_and_by_the_node_itself_soon() {
    for (twin, within) in [("n0042", 120_000), ("me", 20_000)] {
        let mut world = World::new(100);
        world.turns(60);
        let twin = name(twin);
        world.twin = Some((twin.clone(), 0));
        world.until(&twin, &NodeNews::Twice, within);
        world.turns(30);
        assert!(world.watch.snapshot(None).get(twin.as_str()).unwrap().twice);
        world.twin = None;
        world.turns(60);
        assert!(!world.watch.snapshot(None).get(twin.as_str()).unwrap().twice, "one has given up");
    }
}

#[test]
fn of_more_names_than_there_can_be_nodes_those_that_have_said_something_are_kept() {
    let mut watch = NodeWatch::new(name("me"), OWN);
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
    assert!(strays.starts_with("4099 things there are no node's"), "{strays}");
    // Among those that are read the real ones have their turn, however often the others change.
    for at in 4..400_u64 {
        let junk = (0..MAX_NODES).map(|it| (name(&format!("m{it:05}")), at.to_string().into()));
        let real_now = real.iter().map(|it| (it.clone(), at.to_string().into()));
        watch.listed(junk.chain(real_now), StrayObjects::default(), at * 1000, true);
        for node in watch.to_read(at * 1000, &BTreeSet::new()) {
            let read = match real.contains(&node) {
                true => Ok(example(1, at, WALL)),
                false => Err(HeartbeatFault::Form),
            };
            watch.read(&node, Some(read), (at * 1000, WALL));
        }
        assert_eq!(watch.snapshot(None).count(), 3);
    }
    let said =
        |node: &str| watch.snapshot(None).get(node).unwrap().heartbeat.as_ref().unwrap().beat;
    assert!(said("x") > 390 && said("y") > 390);
    // Once they are removed, there is room for others.
    watch.listed(beats(500, 0), StrayObjects::default(), 500_000, true);
    assert_eq!(watch.snapshot(None).all().len(), 3);
    let new = [(name("x"), "x".into()), (name("new"), "n".into())];
    watch.listed(new, StrayObjects::default(), 501_000, true);
    assert!(watch.snapshot(None).get("new").is_some());
}
